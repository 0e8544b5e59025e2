// Matrix products y = x W^T for a few rows or many, with one arithmetic per weight whatever the number of rows.
//
// Weights are packed in panels of 16 outputs, k innermost in small groups, so that one panel is read front to back:
//   int4: per 32 k: 4 lines of 64 bytes (line j: quad j in the low nibbles, quad j + 4 in the high ones; byte o * 4 + i
//         is output o, k = quad * 4 + i), 16 scales, 16 minimums (float16). w = scale * q + minimum, q in 0..15.
//   int8: per 32 k: 8 lines of 64 bytes (line j: quad j), 16 scales (float16). w = scale * q, q in -127..127.
//   bf16: per 2 k: one line, 16 outputs x 2 k.      fp32: per k: one line, 16 outputs.
// Activations of the integer forms are int8 per 32 values with a float scale. Where outliers would drown their group,
// a second int8 term holds what the first left over (15 bits in all); the two terms of a row lie next to each other and
// are multiplied like two rows, whose products are then added. Products are summed exactly in integers
// within a group, and the groups' sums are added in float in ascending order of k. So an output depends on its own row
// and weights alone: not on the batch, the tile it fell in, the thread that computed it, or the instruction set.
#pragma once

#include <cstring>

#include "lanes.h"
#include "simd.h"

namespace candor {

constexpr int kPanel = 16;
constexpr int kGroup = 32;
#if defined(CANDOR_AVX512)
constexpr int kTileRows = 8;
#else
constexpr int kTileRows = 4;
#endif

enum Form : int32_t { kInt4 = 0, kInt8 = 1, kBf16 = 2, kFp32 = 3 };

struct Linear {
  int32_t form;
  int32_t outputs;  // a multiple of kPanel, padded with zero weights
  int32_t inputs;   // a multiple of kGroup
  int32_t gated;    // panels alternate: 16 of the gate, 16 of the up projection
  int32_t terms;    // integer forms: int8 terms per activation, 1 or 2
  const uint8_t* data;
  const float* bias;  // [outputs] or null
};

inline bool is_integer(const Linear& linear) { return linear.form == kInt4 || linear.form == kInt8; }

inline size_t panel_bytes(const Linear& linear) {
  const size_t k = linear.inputs;
  switch (linear.form) {
    case kInt4: return k / kGroup * 320;
    case kInt8: return k / kGroup * 544;
    case kBf16: return k * 32;
    default: return k * 64;
  }
}

// Activations of a block of rows, as the forms want them; rows * terms of each in the integer forms.
struct Activations {
  const float* values;    // [rows, k]: bf16 and fp32 forms
  const int8_t* quants;   // [rows, terms, k]: integer forms
  const float* scales;    // [rows, terms, k / 32]
  const int32_t* totals;  // [rows, terms, k / 32]: sum of the group's quants
};

// What the first term of a row leaves over.
inline void leave_over(const float* x, int k, const int8_t* quants, const float* scales, float* rest) {
  for (int i = 0; i < k; i += 8) {
    const __m256 value = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(quants + i))));
    const __m256 scale = _mm256_broadcast_ss(scales + i / kGroup);
    _mm256_storeu_ps(rest + i, _mm256_fnmadd_ps(value, scale, _mm256_loadu_ps(x + i)));
  }
}

// One row of k floats to int8 per group of 32: symmetric, round to nearest even.
inline void quantise_row(const float* x, int k, int8_t* quants, float* scales, int32_t* totals) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  for (int g = 0; g < k / kGroup; ++g, x += kGroup, quants += kGroup) {
    const __m256 a = _mm256_loadu_ps(x), b = _mm256_loadu_ps(x + 8), c = _mm256_loadu_ps(x + 16), d = _mm256_loadu_ps(x + 24);
    const __m256 m = _mm256_max_ps(_mm256_max_ps(_mm256_andnot_ps(sign, a), _mm256_andnot_ps(sign, b)),
                                   _mm256_max_ps(_mm256_andnot_ps(sign, c), _mm256_andnot_ps(sign, d)));
    const float largest = horizontal_max(m);
    const __m256 inverse = _mm256_set1_ps(largest > 0.0f ? 127.0f / largest : 0.0f);
    const __m256i ai = _mm256_cvtps_epi32(_mm256_mul_ps(a, inverse)), bi = _mm256_cvtps_epi32(_mm256_mul_ps(b, inverse));
    const __m256i ci = _mm256_cvtps_epi32(_mm256_mul_ps(c, inverse)), di = _mm256_cvtps_epi32(_mm256_mul_ps(d, inverse));
    const __m256i total = _mm256_add_epi32(_mm256_add_epi32(ai, bi), _mm256_add_epi32(ci, di));
    const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(ai, bi), _mm256_packs_epi32(ci, di));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(quants),
                        _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(total), _mm256_extracti128_si256(total, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
    scales[g] = largest / 127.0f;
    totals[g] = _mm_cvtsi128_si32(s);
  }
}

inline int32_t quad_at(const int8_t* x) {
  int32_t quad;
  std::memcpy(&quad, x, 4);
  return quad;
}

#if defined(CANDOR_VNNI)

// The exact sums of one group: R rows times 16 outputs.
template <int R>
struct GroupSums {
  I32x16 sum[R];

  void int4(const uint8_t* block, const int8_t* x, int k, const int32_t*, int) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sum[r] = all_int16(0);
#pragma GCC unroll 8
    for (int j = 0; j < 4; ++j) {
      const U8x64 line = load_bytes(block + j * 64), low = low_nibbles(line), high = high_nibbles(line);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const int8_t* quads = x + static_cast<size_t>(r) * k + j * 4;
        sum[r] = dot_add(dot_add(sum[r], low, quad_at(quads)), high, quad_at(quads + 16));
      }
    }
  }

  // The instruction takes unsigned weights: w + 128, and 128 times the activations' sum is taken off beforehand.
  void int8(const uint8_t* block, const int8_t* x, int k, const int32_t* totals, int groups) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sum[r] = all_int16(-128 * totals[static_cast<size_t>(r) * groups]);
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      const U8x64 line = plus_128(load_bytes(block + j * 64));
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) sum[r] = dot_add(sum[r], line, quad_at(x + static_cast<size_t>(r) * k + j * 4));
    }
  }

  F32x16 floats(int r) const { return to_float(sum[r]); }
};

#else

inline __m256i load_half(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }

// The exact sums of one group: R rows times 16 outputs, AVX2 having only 16-bit pair sums to offer.
template <int R>
struct GroupSums {
  __m256i sum[R][2];
  bool pairs;

  void int4(const uint8_t* block, const int8_t* x, int k, const int32_t*, int) {
    const __m256i nibble = _mm256_set1_epi8(0x0f);
#pragma GCC unroll 8
    for (int j = 0; j < 4; ++j) {
      const __m256i line0 = load_half(block + j * 64), line1 = load_half(block + j * 64 + 32);
      const __m256i low0 = _mm256_and_si256(line0, nibble), low1 = _mm256_and_si256(line1, nibble);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        // 0..15 times -127..127, 16 products a lane of 16 bits: 30,480 at most.
        const __m256i quad = _mm256_set1_epi32(quad_at(x + static_cast<size_t>(r) * k + j * 4));
        const __m256i a = _mm256_maddubs_epi16(low0, quad), b = _mm256_maddubs_epi16(low1, quad);
        sum[r][0] = j == 0 ? a : _mm256_add_epi16(sum[r][0], a);
        sum[r][1] = j == 0 ? b : _mm256_add_epi16(sum[r][1], b);
      }
      const __m256i high0 = _mm256_and_si256(_mm256_srli_epi16(line0, 4), nibble);
      const __m256i high1 = _mm256_and_si256(_mm256_srli_epi16(line1, 4), nibble);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const __m256i quad = _mm256_set1_epi32(quad_at(x + static_cast<size_t>(r) * k + j * 4 + 16));
        sum[r][0] = _mm256_add_epi16(sum[r][0], _mm256_maddubs_epi16(high0, quad));
        sum[r][1] = _mm256_add_epi16(sum[r][1], _mm256_maddubs_epi16(high1, quad));
      }
    }
    pairs = true;
  }

  void int8(const uint8_t* block, const int8_t* x, int k, const int32_t*, int) {
    const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      const __m256i line0 = load_half(block + j * 64), line1 = load_half(block + j * 64 + 32);
      const __m256i magnitude0 = _mm256_abs_epi8(line0), magnitude1 = _mm256_abs_epi8(line1);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        // |w| times x with w's sign: two products of at most 127 * 127 fit 16 bits, four do not.
        const __m256i quad = _mm256_set1_epi32(quad_at(x + static_cast<size_t>(r) * k + j * 4));
        const __m256i a = _mm256_madd_epi16(_mm256_maddubs_epi16(magnitude0, _mm256_sign_epi8(quad, line0)), ones);
        const __m256i b = _mm256_madd_epi16(_mm256_maddubs_epi16(magnitude1, _mm256_sign_epi8(quad, line1)), ones);
        sum[r][0] = j == 0 ? a : _mm256_add_epi32(sum[r][0], a);
        sum[r][1] = j == 0 ? b : _mm256_add_epi32(sum[r][1], b);
      }
    }
    pairs = false;
  }

  F32x16 floats(int r) const {
    const __m256i ones = _mm256_set1_epi16(1);
    const __m256i a = pairs ? _mm256_madd_epi16(sum[r][0], ones) : sum[r][0], b = pairs ? _mm256_madd_epi16(sum[r][1], ones) : sum[r][1];
    return F32x16{_mm256_cvtepi32_ps(a), _mm256_cvtepi32_ps(b)};
  }
};

#endif

// R rows times one panel of an integer form. out: [R][16].
template <int R, Form F>
inline void tile_integer(const uint8_t* panel, int k, const Activations& x, size_t row, float* out) {
  const int groups = k / kGroup;
  F32x16 total[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) total[r] = zero16();
  const int8_t* quants = x.quants + row * k;
  for (int g = 0; g < groups; ++g, quants += kGroup) {
    GroupSums<R> sums;
    const int32_t* totals = x.totals + row * groups + g;
    if constexpr (F == kInt4) sums.int4(panel, quants, k, totals, groups);
    else sums.int8(panel, quants, k, totals, groups);
    const F32x16 scale = halves16(panel + (F == kInt4 ? 256 : 512));
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const float factor = x.scales[(row + r) * groups + g];
      total[r] = fma16(mul16(sums.floats(r), all16(factor)), scale, total[r]);
      if constexpr (F == kInt4)
        total[r] = fma16(halves16(panel + 288), all16(factor * static_cast<float>(totals[static_cast<size_t>(r) * groups])), total[r]);
    }
    panel += F == kInt4 ? 320 : 544;
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) store16(out + r * kPanel, total[r]);
}

template <int R>
inline void tile_bf16(const uint8_t* panel, int k, const Activations& x, size_t row, float* out) {
  F32x16 total[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) total[r] = zero16();
  const float* values = x.values + row * k;
  for (int i = 0; i < k; i += 2, panel += 64) {
    F32x16 even, odd;
    pairs16(panel, even, odd);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const float* at = values + static_cast<size_t>(r) * k + i;
      total[r] = fma16(odd, all16(at[1]), fma16(even, all16(at[0]), total[r]));
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) store16(out + r * kPanel, total[r]);
}

template <int R>
inline void tile_fp32(const uint8_t* panel, int k, const Activations& x, size_t row, float* out) {
  F32x16 total[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) total[r] = zero16();
  const float* values = x.values + row * k;
  const float* weights = reinterpret_cast<const float*>(panel);
  for (int i = 0; i < k; ++i, weights += kPanel) {
    const F32x16 w = load16(weights);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) total[r] = fma16(w, all16(values[static_cast<size_t>(r) * k + i]), total[r]);
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) store16(out + r * kPanel, total[r]);
}

template <int R>
inline void tile(const Linear& linear, int panel, const Activations& x, size_t row, float* out) {
  const uint8_t* data = linear.data + panel_bytes(linear) * panel;
  switch (linear.form) {
    case kInt4: tile_integer<R, kInt4>(data, linear.inputs, x, row, out); break;
    case kInt8: tile_integer<R, kInt8>(data, linear.inputs, x, row, out); break;
    case kBf16: tile_bf16<R>(data, linear.inputs, x, row, out); break;
    default: tile_fp32<R>(data, linear.inputs, x, row, out); break;
  }
}

// `rows` (1..kTileRows) rows of terms times one panel.
inline void few_terms(const Linear& linear, int panel, const Activations& x, size_t row, int rows, float* out) {
  switch (rows) {
    case 1: tile<1>(linear, panel, x, row, out); break;
    case 2: tile<2>(linear, panel, x, row, out); break;
    case 3: tile<3>(linear, panel, x, row, out); break;
    case 4: tile<4>(linear, panel, x, row, out); break;
#if defined(CANDOR_AVX512)
    case 5: tile<5>(linear, panel, x, row, out); break;
    case 6: tile<6>(linear, panel, x, row, out); break;
    case 7: tile<7>(linear, panel, x, row, out); break;
    default: tile<8>(linear, panel, x, row, out); break;
#endif
  }
}

inline int terms_of(const Linear& linear) { return is_integer(linear) ? linear.terms : 1; }

inline int rows_per_tile(const Linear& linear) { return kTileRows / terms_of(linear); }

// `rows` (1..rows_per_tile) rows times one panel, bias included. out: [rows][16].
inline void few_rows(const Linear& linear, int panel, const Activations& x, size_t row, int rows, float* out) {
  const int terms = terms_of(linear);
  few_terms(linear, panel, x, row * terms, rows * terms, out);
  for (int r = 0; r < rows; ++r) {
    F32x16 sum = load16(out + r * terms * kPanel);
    if (terms == 2) sum = add16(sum, load16(out + (r * 2 + 1) * kPanel));
    if (linear.bias != nullptr) sum = add16(sum, load16(linear.bias + panel * kPanel));
    store16(out + r * kPanel, sum);
  }
}

}  // namespace candor
