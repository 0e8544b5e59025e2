// Float products of a few rows and one panel.
#pragma once

#include "activations.h"
#include "linear.h"

namespace candor {

#if defined(CANDOR_AVX512)
constexpr int kFloatTileRows = 8;
#else
constexpr int kFloatTileRows = 4;
#endif

template <int R>
inline void bf16_tile(const uint8_t* panel, size_t k, const float* values, float* out) {
  F32x16 total[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) total[r] = zero16();
  for (size_t i = 0; i < k; i += 2, panel += 64) {
    F32x16 even, odd;
    pairs16(panel, even, odd);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const float* at = values + r * k + i;
      total[r] = fma16(odd, all16(at[1]), fma16(even, all16(at[0]), total[r]));
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) store16(out + r * kPanel, total[r]);
}

template <int R>
inline void fp32_tile(const uint8_t* panel, size_t k, const float* values, float* out) {
  F32x16 total[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) total[r] = zero16();
  const float* weights = reinterpret_cast<const float*>(panel);
  for (size_t i = 0; i < k; ++i, weights += kPanel) {
    const F32x16 w = load16(weights);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) total[r] = fma16(w, all16(values[r * k + i]), total[r]);
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) store16(out + r * kPanel, total[r]);
}

template <int R>
inline void float_tile(const Linear& linear, const uint8_t* panel, const float* values, float* out) {
  if (linear.form == kBf16) bf16_tile<R>(panel, linear.inputs, values, out);
  else fp32_tile<R>(panel, linear.inputs, values, out);
}

// out [rows][16] of rows from `row` on times one panel.
inline void float_rows(const Linear& linear, const uint8_t* panel, const Activations& x, size_t row, int rows, float* out) {
  const float* values = x.values + row * linear.inputs;
  for (; rows > 0; rows -= kFloatTileRows, values += kFloatTileRows * static_cast<size_t>(linear.inputs), out += kFloatTileRows * kPanel) {
    switch (rows) {
      case 1: float_tile<1>(linear, panel, values, out); break;
      case 2: float_tile<2>(linear, panel, values, out); break;
      case 3: float_tile<3>(linear, panel, values, out); break;
#if defined(CANDOR_AVX512)
      case 4: float_tile<4>(linear, panel, values, out); break;
      case 5: float_tile<5>(linear, panel, values, out); break;
      case 6: float_tile<6>(linear, panel, values, out); break;
      case 7: float_tile<7>(linear, panel, values, out); break;
#endif
      default: float_tile<kFloatTileRows>(linear, panel, values, out); break;
    }
  }
}

}  // namespace candor
