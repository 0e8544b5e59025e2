// Integer products of a block of rows and one panel: a stretch of the panel is unpacked once into the core's first cache,
// then tile after tile of rows passes over it.
#pragma once

#include <algorithm>

#include "activations.h"
#include "linear.h"

namespace candor {

constexpr int kStretch = 8;  // groups unpacked at a time: 8 KB of 16-bit weights
constexpr int kAhead = 2560;  // bytes of weights asked for before they are needed; the processor alone looks less far
#if defined(CANDOR_AVX512)
constexpr int kIntegerTileRows = 8;
constexpr int kIntegerUnroll = 8;  // where a loop of AVX-512 VNNI ends, compilers copy every sum
#else
constexpr int kIntegerTileRows = 3;
constexpr int kIntegerUnroll = 2;
#endif

// Weights of up to kStretch groups as the products want them: per group 16 lines of pairs (16 outputs x 2 k of 16 bits)
// or 8 lines of quads (16 outputs x 4 k of unsigned 8 bits; signed ones are raised by 128).
struct Stretch {
  alignas(64) uint8_t weights[kStretch * kGroup * kPanel * 2];
  alignas(64) float scales[kStretch * kPanel];
  alignas(64) float minimums[kStretch * kPanel];

  // What it holds: groups first..first + count of a panel.
  int first, count;
};

template <bool Wide>
constexpr int kUnpackedBytes = kGroup * kPanel * (Wide ? 2 : 1);  // of a group

// Bytes of a quad to 16 bits: k 0 and 1 to `first`, 2 and 3 to `second`, a line further on.
template <bool Signed>
inline void put_pairs(uint8_t* first, __m256i bytes) {
  // Signed bytes go to the upper halves and are shifted down; unsigned ones go where they belong.
  const __m128i low = Signed ? _mm_setr_epi8(-1, 0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13)
                             : _mm_setr_epi8(0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13, -1);
  const __m128i high = Signed ? _mm_setr_epi8(-1, 2, -1, 3, -1, 6, -1, 7, -1, 10, -1, 11, -1, 14, -1, 15)
                              : _mm_setr_epi8(2, -1, 3, -1, 6, -1, 7, -1, 10, -1, 11, -1, 14, -1, 15, -1);
  __m256i a = _mm256_shuffle_epi8(bytes, _mm256_broadcastsi128_si256(low)), b = _mm256_shuffle_epi8(bytes, _mm256_broadcastsi128_si256(high));
  if (Signed) {
    a = _mm256_srai_epi16(a, 8);
    b = _mm256_srai_epi16(b, 8);
  }
  store_half(first, a);
  store_half(first + 64, b);
}

template <bool Wide>
inline void unpack_int4(const uint8_t* block, uint8_t* to) {
  const __m256i nibble = _mm256_set1_epi8(0x0f);
  for (int j = 0; j < 4; ++j)
    for (int half = 0; half < 64; half += 32) {
      const __m256i line = load_half(block + j * 64 + half);
      const __m256i low = _mm256_and_si256(line, nibble), high = _mm256_and_si256(_mm256_srli_epi16(line, 4), nibble);
      if constexpr (Wide) {
        put_pairs<false>(to + j * 128 + half, low);
        put_pairs<false>(to + (j + 4) * 128 + half, high);
      } else {
        store_half(to + j * 64 + half, low);
        store_half(to + (j + 4) * 64 + half, high);
      }
    }
}

template <bool Wide>
inline void unpack_int8(const uint8_t* block, uint8_t* to) {
  for (int j = 0; j < 8; ++j)
    for (int half = 0; half < 64; half += 32) {
      const __m256i line = load_half(block + j * 64 + half);
      if constexpr (Wide) put_pairs<true>(to + j * 128 + half, line);
      else store_half(to + j * 64 + half, _mm256_xor_si256(line, _mm256_set1_epi8(static_cast<char>(0x80))));
    }
}

template <Form F, bool Wide>
inline void unpack(const uint8_t* panel, int first, int count, Stretch& out) {
  out.first = first;
  out.count = count;
  const uint8_t* block = panel + first * group_bytes(F);
  for (int g = 0; g < count; ++g, block += group_bytes(F)) {
    uint8_t* to = out.weights + g * kUnpackedBytes<Wide>;
    for (size_t i = 0; i < group_bytes(F); i += 64) _mm_prefetch(reinterpret_cast<const char*>(block + kAhead + i), _MM_HINT_T0);
    if constexpr (F == kInt4) unpack_int4<Wide>(block, to);
    else unpack_int8<Wide>(block, to);
    store16(out.scales + g * kPanel, halves16(block + (F == kInt4 ? 256 : 512)));
    if constexpr (F == kInt4) store16(out.minimums + g * kPanel, halves16(block + 288));
  }
}

// The exact sums of one group: R rows times 16 outputs.
template <int R>
struct GroupSums {
  I32x16 sum[R];

  void pairs(const uint8_t* weights, const int16_t* x, size_t k) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sum[r] = all_int16(0);
#pragma GCC unroll kIntegerUnroll
    for (int p = 0; p < kGroup; p += 2, weights += 64) {
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) sum[r] = pair_dot(sum[r], weights, pair_at(x + r * k + p));
    }
  }

#if defined(CANDOR_AVX512)
  // Weights raised by 128 are paid back beforehand.
  template <bool Raised>
  void quads(const uint8_t* weights, const int8_t* x, size_t k, const int32_t* totals, size_t groups) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sum[r] = all_int16(Raised ? -128 * totals[r * groups] : 0);
#pragma GCC unroll kIntegerUnroll
    for (int q = 0; q < kGroup; q += 4, weights += 64) {
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) sum[r] = quad_dot(sum[r], weights, quad_at(x + r * k + q));
    }
  }
#else
  // AVX2 adds products of bytes in pairs, in 16 bits: 0..15 times -127..127, 16 products a lane are 30,480 at most.
  template <bool Raised>
  void quads(const uint8_t* weights, const int8_t* x, size_t k, const int32_t*, size_t) {
    static_assert(!Raised);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sum[r] = all_int16(0);
#pragma GCC unroll 2
    for (int q = 0; q < kGroup; q += 4, weights += 64) {
      const __m256i low = load_half(weights), high = load_half(weights + 32);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const __m256i quad = _mm256_set1_epi32(quad_at(x + r * k + q));
        sum[r].low = _mm256_add_epi16(sum[r].low, _mm256_maddubs_epi16(low, quad));
        sum[r].high = _mm256_add_epi16(sum[r].high, _mm256_maddubs_epi16(high, quad));
      }
    }
    const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sum[r] = {_mm256_madd_epi16(sum[r].low, ones), _mm256_madd_epi16(sum[r].high, ones)};
  }
#endif
};

// Adds the products of R rows from `row` on and a stretch to totals [R][16].
template <int R, Form F, bool Wide>
inline void integer_tile(const Stretch& stretch, size_t k, const Activations x, size_t row, float* totals) {
  const size_t groups = k / kGroup;
  for (int g = 0; g < stretch.count; ++g) {
    const size_t at = row * groups + stretch.first + g, start = row * k + static_cast<size_t>(stretch.first + g) * kGroup;
    const uint8_t* weights = stretch.weights + g * kUnpackedBytes<Wide>;
    GroupSums<R> sums;
    if constexpr (Wide) sums.pairs(weights, x.quants + start, k);
    else sums.template quads<F == kInt8>(weights, x.bytes() + start, k, x.totals + at, groups);
    const F32x16 scale = load16(stretch.scales + g * kPanel);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      F32x16 total = load16(totals + r * kPanel);
      total = fma16(mul16(to_float(sums.sum[r]), all16(x.scales[at + r * groups])), scale, total);
      if constexpr (F == kInt4) total = fma16(load16(stretch.minimums + g * kPanel), all16(x.shifts[at + r * groups]), total);
      store16(totals + r * kPanel, total);
    }
  }
}

template <Form F, bool Wide>
inline void some_rows(int rows, const Stretch& stretch, size_t k, const Activations x, size_t row, float* totals) {
  switch (rows) {
    case 1: integer_tile<1, F, Wide>(stretch, k, x, row, totals); break;
    case 2: integer_tile<2, F, Wide>(stretch, k, x, row, totals); break;
    case 3: integer_tile<3, F, Wide>(stretch, k, x, row, totals); break;
#if defined(CANDOR_AVX512)
    case 4: integer_tile<4, F, Wide>(stretch, k, x, row, totals); break;
    case 5: integer_tile<5, F, Wide>(stretch, k, x, row, totals); break;
    case 6: integer_tile<6, F, Wide>(stretch, k, x, row, totals); break;
    case 7: integer_tile<7, F, Wide>(stretch, k, x, row, totals); break;
    default: integer_tile<8, F, Wide>(stretch, k, x, row, totals); break;
#endif
  }
}

// totals [rows][16] of rows from `row` on times one panel.
template <Form F, bool Wide>
inline void integer_panel(const uint8_t* panel, size_t k, const Activations& x, size_t row, int rows, float* totals) {
  const int groups = static_cast<int>(k / kGroup);
  std::fill(totals, totals + rows * kPanel, 0.0f);
  Stretch stretch;
  for (int first = 0; first < groups; first += kStretch) {
    unpack<F, Wide>(panel, first, std::min(kStretch, groups - first), stretch);
    for (int r = 0; r < rows; r += kIntegerTileRows)
      some_rows<F, Wide>(std::min(kIntegerTileRows, rows - r), stretch, k, x, row + r, totals + r * kPanel);
  }
}

inline void integer_rows(const Linear& linear, const uint8_t* panel, const Activations& x, size_t row, int rows, float* totals) {
  const size_t k = linear.inputs;
  const bool wide = is_wide(linear);
  if (linear.form == kInt4) {
    if (wide) integer_panel<kInt4, true>(panel, k, x, row, rows, totals);
    else integer_panel<kInt4, false>(panel, k, x, row, rows, totals);
    return;
  }
#if defined(CANDOR_AVX512)
  if (!wide) return integer_panel<kInt8, false>(panel, k, x, row, rows, totals);
#endif
  integer_panel<kInt8, true>(panel, k, x, row, rows, totals);
}

}  // namespace candor
