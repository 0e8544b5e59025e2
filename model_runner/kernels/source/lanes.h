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

// Half a line of small integers, with AVX2 everywhere.
inline __m256i load_half(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline void store_half(uint8_t* p, __m256i a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a); }

// Sixteen sums of 32 bits, and exact dot products of small integers that add to them.
#if defined(CANDOR_AVX512)
struct I32x16 {
  __m512i v;
};

inline I32x16 all_int16(int32_t x) { return {_mm512_set1_epi32(x)}; }
inline F32x16 to_float(I32x16 a) { return {_mm512_cvtepi32_ps(a.v)}; }

// Two 16-bit activations against two 16-bit weights of each of 16 outputs.
inline I32x16 pair_dot(I32x16 sum, const uint8_t* weights, int32_t pair) {
  return {_mm512_dpwssd_epi32(sum.v, _mm512_loadu_si512(weights), _mm512_set1_epi32(pair))};
}

// Four signed bytes of activations against four unsigned bytes of weights of each of 16 outputs.
inline I32x16 quad_dot(I32x16 sum, const uint8_t* weights, int32_t quad) {
  return {_mm512_dpbusd_epi32(sum.v, _mm512_loadu_si512(weights), _mm512_set1_epi32(quad))};
}

#else

struct I32x16 {
  __m256i low, high;
};

inline I32x16 all_int16(int32_t x) {
  const __m256i v = _mm256_set1_epi32(x);
  return {v, v};
}
inline F32x16 to_float(I32x16 a) { return {_mm256_cvtepi32_ps(a.low), _mm256_cvtepi32_ps(a.high)}; }

inline I32x16 pair_dot(I32x16 sum, const uint8_t* weights, int32_t pair) {
  const __m256i x = _mm256_set1_epi32(pair);
  return {_mm256_add_epi32(sum.low, _mm256_madd_epi16(load_half(weights), x)),
          _mm256_add_epi32(sum.high, _mm256_madd_epi16(load_half(weights + 32), x))};
}

#endif

}  // namespace candor
