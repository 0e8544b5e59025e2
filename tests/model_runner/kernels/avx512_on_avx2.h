// The AVX-512 that the kernels are written in, in terms of AVX2. With this file included first, a processor without
// AVX-512 compiles and runs the very code of those that have it, tile sizes included.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace halves {

struct Floats {
  __m256 low, high;
};
struct Integers {
  __m256i low, high;
};

inline Floats set1_ps(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Floats setzero_ps() { return set1_ps(0.0f); }
inline Floats loadu_ps(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void storeu_ps(float* p, Floats a) {
  _mm256_storeu_ps(p, a.low);
  _mm256_storeu_ps(p + 8, a.high);
}
inline Floats add_ps(Floats a, Floats b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
inline Floats mul_ps(Floats a, Floats b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
inline Floats fmadd_ps(Floats a, Floats b, Floats c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
inline Floats cvtph_ps(__m256i a) { return {_mm256_cvtph_ps(_mm256_castsi256_si128(a)), _mm256_cvtph_ps(_mm256_extracti128_si256(a, 1))}; }
inline Floats cvtepi32_ps(Integers a) { return {_mm256_cvtepi32_ps(a.low), _mm256_cvtepi32_ps(a.high)}; }
inline Floats castsi512_ps(Integers a) { return {_mm256_castsi256_ps(a.low), _mm256_castsi256_ps(a.high)}; }

inline Integers set1_epi32(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline Integers loadu_si512(const void* p) {
  const auto* half = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(half), _mm256_loadu_si256(half + 1)};
}
inline Integers slli_epi32(Integers a, int bits) { return {_mm256_slli_epi32(a.low, bits), _mm256_slli_epi32(a.high, bits)}; }
inline Integers and_si512(Integers a, Integers b) { return {_mm256_and_si256(a.low, b.low), _mm256_and_si256(a.high, b.high)}; }
inline Integers dpwssd_epi32(Integers sum, Integers a, Integers b) {
  return {_mm256_add_epi32(sum.low, _mm256_madd_epi16(a.low, b.low)), _mm256_add_epi32(sum.high, _mm256_madd_epi16(a.high, b.high))};
}

// Unsigned bytes of a times signed ones of b, by four.
inline Integers dpbusd_epi32(Integers sum, Integers a, Integers b) {
  uint8_t first[64];
  int8_t second[64];
  int32_t lane[16];
  std::memcpy(first, &a, 64);
  std::memcpy(second, &b, 64);
  std::memcpy(lane, &sum, 64);
  for (int i = 0; i < 64; ++i) lane[i / 4] += first[i] * second[i];
  std::memcpy(&sum, lane, 64);
  return sum;
}

}  // namespace halves

#define __m512 halves::Floats
#define __m512i halves::Integers
#define _mm512_set1_ps halves::set1_ps
#define _mm512_setzero_ps halves::setzero_ps
#define _mm512_loadu_ps halves::loadu_ps
#define _mm512_storeu_ps halves::storeu_ps
#define _mm512_add_ps halves::add_ps
#define _mm512_mul_ps halves::mul_ps
#define _mm512_fmadd_ps halves::fmadd_ps
#define _mm512_cvtph_ps halves::cvtph_ps
#define _mm512_cvtepi32_ps halves::cvtepi32_ps
#define _mm512_castsi512_ps halves::castsi512_ps
#define _mm512_set1_epi32 halves::set1_epi32
#define _mm512_loadu_si512 halves::loadu_si512
#define _mm512_slli_epi32 halves::slli_epi32
#define _mm512_and_si512 halves::and_si512
#define _mm512_dpwssd_epi32 halves::dpwssd_epi32
#define _mm512_dpbusd_epi32 halves::dpbusd_epi32

#define __AVX512F__ 1
#define __AVX512BW__ 1
#define __AVX512VNNI__ 1
