// Sixteen float lanes: one AVX-512 register, or two AVX2 ones with the same results. All kernels are written in these,
// so a machine without AVX-512 runs (and tests) the same code.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace candor {

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VNNI__)
#define CANDOR_AVX512 1

struct F32x16 {
  __m512 v;
};

inline F32x16 zero16() { return {_mm512_setzero_ps()}; }
inline F32x16 all16(float x) { return {_mm512_set1_ps(x)}; }
inline F32x16 load16(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store16(float* p, F32x16 a) { _mm512_storeu_ps(p, a.v); }
inline F32x16 add16(F32x16 a, F32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F32x16 mul16(F32x16 a, F32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F32x16 fma16(F32x16 a, F32x16 b, F32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline F32x16 halves16(const uint8_t* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))}; }

// The even and odd halves of 16 bfloat16 pairs.
inline void pairs16(const void* p, F32x16& even, F32x16& odd) {
  const __m512i line = _mm512_loadu_si512(p);
  even.v = _mm512_castsi512_ps(_mm512_slli_epi32(line, 16));
  odd.v = _mm512_castsi512_ps(_mm512_and_si512(line, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}

#else

struct F32x16 {
  __m256 low, high;
};

inline F32x16 zero16() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline F32x16 all16(float x) {
  const __m256 v = _mm256_set1_ps(x);
  return {v, v};
}
inline F32x16 load16(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store16(float* p, F32x16 a) {
  _mm256_storeu_ps(p, a.low);
  _mm256_storeu_ps(p + 8, a.high);
}
inline F32x16 add16(F32x16 a, F32x16 b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
inline F32x16 mul16(F32x16 a, F32x16 b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
inline F32x16 fma16(F32x16 a, F32x16 b, F32x16 c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
inline F32x16 halves16(const uint8_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16)))};
}

inline void pairs16(const void* p, F32x16& even, F32x16& odd) {
  const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  const __m256i first = _mm256_loadu_si256(static_cast<const __m256i*>(p)), second = _mm256_loadu_si256(static_cast<const __m256i*>(p) + 1);
  even = {_mm256_castsi256_ps(_mm256_slli_epi32(first, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(second, 16))};
  odd = {_mm256_castsi256_ps(_mm256_and_si256(first, upper)), _mm256_castsi256_ps(_mm256_and_si256(second, upper))};
}

#endif

// Four bytes of activations against 16 outputs' four weights each, summed exactly in 16 lanes of 32 bits. Weights are
// unsigned bytes, activations signed: one instruction with AVX-512 VNNI. CANDOR_EMULATE_VNNI computes the same slowly,
// so that the code around it can be tested on any machine.
#if defined(CANDOR_AVX512)
#define CANDOR_VNNI 1

struct I32x16 {
  __m512i v;
};

struct U8x64 {
  __m512i v;
};

inline I32x16 all_int16(int32_t x) { return {_mm512_set1_epi32(x)}; }
inline U8x64 load_bytes(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
inline U8x64 low_nibbles(U8x64 a) { return {_mm512_and_si512(a.v, _mm512_set1_epi8(0x0f))}; }
inline U8x64 high_nibbles(U8x64 a) { return {_mm512_and_si512(_mm512_srli_epi16(a.v, 4), _mm512_set1_epi8(0x0f))}; }
inline U8x64 plus_128(U8x64 a) { return {_mm512_xor_si512(a.v, _mm512_set1_epi8(static_cast<char>(0x80)))}; }
inline I32x16 dot_add(I32x16 sum, U8x64 weights, int32_t quad) { return {_mm512_dpbusd_epi32(sum.v, weights.v, _mm512_set1_epi32(quad))}; }
inline F32x16 to_float(I32x16 a) { return {_mm512_cvtepi32_ps(a.v)}; }

#elif defined(CANDOR_EMULATE_VNNI)
#define CANDOR_VNNI 1

struct I32x16 {
  int32_t lane[16];
};

struct U8x64 {
  uint8_t byte[64];
};

template <class Function>
inline U8x64 each_byte(U8x64 a, Function f) {
  for (uint8_t& byte : a.byte) byte = static_cast<uint8_t>(f(byte));
  return a;
}

inline I32x16 all_int16(int32_t x) {
  I32x16 a;
  for (int32_t& lane : a.lane) lane = x;
  return a;
}
inline U8x64 load_bytes(const uint8_t* p) {
  U8x64 a;
  __builtin_memcpy(a.byte, p, 64);
  return a;
}
inline U8x64 low_nibbles(U8x64 a) { return each_byte(a, [](int b) { return b & 15; }); }
inline U8x64 high_nibbles(U8x64 a) { return each_byte(a, [](int b) { return b >> 4; }); }
inline U8x64 plus_128(U8x64 a) { return each_byte(a, [](int b) { return b ^ 0x80; }); }
inline I32x16 dot_add(I32x16 sum, U8x64 weights, int32_t quad) {
  int8_t x[4];
  __builtin_memcpy(x, &quad, 4);
  for (int lane = 0; lane < 16; ++lane)
    for (int i = 0; i < 4; ++i) sum.lane[lane] += weights.byte[lane * 4 + i] * x[i];
  return sum;
}
inline F32x16 to_float(I32x16 a) {
  float f[16];
  for (int lane = 0; lane < 16; ++lane) f[lane] = static_cast<float>(a.lane[lane]);
  return load16(f);
}

#endif

}  // namespace candor
