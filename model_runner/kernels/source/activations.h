// Activations on their way into a linear layer: normed, and in the integer forms rounded to integers per group of 32.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "linear.h"
#include "simd.h"

namespace candor {

constexpr float kSmallest = 1e-30f;  // groups of smaller values count as zeros: their inverse scale would not be finite

// Of a block of rows, as the forms want them.
struct Activations {
  const float* values;     // [rows, k]: bf16 and fp32 forms
  const int16_t* quants;   // [rows, k]: integer forms; products of bytes find int8 here, k to a row
  const float* scales;     // [rows, k / 32]
  const int32_t* totals;   // [rows, k / 32]: sum of the group's quants
  const float* shifts;     // [rows, k / 32]: scale * total

  const int8_t* bytes() const { return reinterpret_cast<const int8_t*>(quants); }
};

inline void rms_norm(const float* x, const float* weight, int n, float epsilon, float* out) {
  __m256 sum = _mm256_setzero_ps();
  for (int i = 0; i < n; i += 8) {
    const __m256 v = _mm256_loadu_ps(x + i);
    sum = _mm256_fmadd_ps(v, v, sum);
  }
  const __m256 factor = _mm256_set1_ps(1.0f / std::sqrt(horizontal_sum(sum) / static_cast<float>(n) + epsilon));
  for (int i = 0; i < n; i += 8)
    _mm256_storeu_ps(out + i, _mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(x + i), factor), _mm256_loadu_ps(weight + i)));
}

class Prepared {
 public:
  void fit(size_t rows, size_t k) {
    if (values_.size() >= rows * k) return;
    values_.resize(rows * k);
    quants_.resize(rows * k);
    scales_.resize(rows * k / kGroup);
    totals_.resize(rows * k / kGroup);
    shifts_.resize(rows * k / kGroup);
  }

  Activations view() const { return {values_.data(), quants_.data(), scales_.data(), totals_.data(), shifts_.data()}; }

  void row(const Linear& weights, size_t r, const float* x, const float* norm, float epsilon) {
    const size_t k = weights.inputs;
    float* out = values_.data() + r * k;
    if (norm != nullptr) {
      rms_norm(x, norm, static_cast<int>(k), epsilon, out);
      x = out;
    }
    if (is_integer(weights)) quantise(weights, r, x);
    else if (x != out) std::copy(x, x + k, out);
  }

 private:
  // Symmetric, round to nearest even.
  void quantise(const Linear& weights, size_t r, const float* x) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    const size_t k = weights.inputs, groups = k / kGroup;
    const float largest_quant = weights.activation_bits == 16 ? 32767.0f : 127.0f;
    const bool wide = is_wide(weights);
    for (size_t g = 0; g < groups; ++g, x += kGroup) {
      const __m256 a = _mm256_loadu_ps(x), b = _mm256_loadu_ps(x + 8), c = _mm256_loadu_ps(x + 16), d = _mm256_loadu_ps(x + 24);
      const float largest = horizontal_max(_mm256_max_ps(_mm256_max_ps(_mm256_andnot_ps(sign, a), _mm256_andnot_ps(sign, b)),
                                                         _mm256_max_ps(_mm256_andnot_ps(sign, c), _mm256_andnot_ps(sign, d))));
      const __m256 inverse = _mm256_set1_ps(largest > kSmallest ? largest_quant / largest : 0.0f);
      const __m256i ai = _mm256_cvtps_epi32(_mm256_mul_ps(a, inverse)), bi = _mm256_cvtps_epi32(_mm256_mul_ps(b, inverse));
      const __m256i ci = _mm256_cvtps_epi32(_mm256_mul_ps(c, inverse)), di = _mm256_cvtps_epi32(_mm256_mul_ps(d, inverse));
      const __m256i ab = _mm256_packs_epi32(ai, bi), cd = _mm256_packs_epi32(ci, di);
      if (wide) {
        int16_t* to = quants_.data() + r * k + g * kGroup;
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permute4x64_epi64(ab, 0xd8));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 16), _mm256_permute4x64_epi64(cd, 0xd8));
      } else {
        int8_t* to = reinterpret_cast<int8_t*>(quants_.data()) + r * k + g * kGroup;
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permutevar8x32_epi32(_mm256_packs_epi16(ab, cd), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
      }
      const size_t at = r * groups + g;
      scales_[at] = largest / largest_quant;
      totals_[at] = horizontal_sum(_mm256_add_epi32(_mm256_add_epi32(ai, bi), _mm256_add_epi32(ci, di)));
      shifts_[at] = scales_[at] * static_cast<float>(totals_[at]);
    }
  }

  std::vector<float> values_, scales_, shifts_;
  std::vector<int16_t> quants_;
  std::vector<int32_t> totals_;
};

inline int32_t quad_at(const int8_t* x) {
  int32_t quad;
  std::memcpy(&quad, x, 4);
  return quad;
}

inline int32_t pair_at(const int16_t* x) {
  int32_t pair;
  std::memcpy(&pair, x, 4);
  return pair;
}

}  // namespace candor
