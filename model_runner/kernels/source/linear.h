// Linear layers as the kernels see them: weights packed in panels of 16 outputs, k innermost in small groups, so that one
// panel is read front to back.
//   int4: per 32 k: 4 lines of 64 bytes (line j: quad j in the low nibbles, quad j + 4 in the high ones; byte o * 4 + i
//         is output o, k = quad * 4 + i), 16 scales, 16 minimums (float16). w = scale * q + minimum, q in 0..15.
//   int8: per 32 k: 8 lines of 64 bytes (line j: quad j), 16 scales (float16). w = scale * q, q in -127..127.
//   bf16: per 2 k: one line, 16 outputs x 2 k.      fp32: per k: one line, 16 outputs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lanes.h"

namespace candor {

constexpr int kPanel = 16;
constexpr int kGroup = 32;

enum Form : int32_t { kInt4 = 0, kInt8 = 1, kBf16 = 2, kFp32 = 3 };

struct Linear {
  int32_t form;
  int32_t outputs;          // a multiple of kPanel, padded with zero weights
  int32_t inputs;           // a multiple of kGroup
  int32_t gated;            // panels alternate: 16 of the gate, 16 of the up projection
  int32_t activation_bits;  // integer forms: 8 or 16
  const uint8_t* data;
  const float* bias;  // [outputs] or null
};

inline bool is_integer(const Linear& linear) { return linear.form == kInt4 || linear.form == kInt8; }

// Whether products are made of 16-bit integers. AVX2 multiplies signed bytes no faster than these, so there int8 weights
// always have them; sums are exact either way.
inline bool is_wide(const Linear& linear) {
#if defined(CANDOR_AVX512)
  return linear.activation_bits == 16;
#else
  return linear.activation_bits == 16 || linear.form == kInt8;
#endif
}

constexpr size_t group_bytes(Form form) { return form == kInt4 ? 320 : 544; }

inline size_t panel_bytes(const Linear& linear) {
  const size_t k = linear.inputs;
  switch (linear.form) {
    case kInt4: return k / kGroup * group_bytes(kInt4);
    case kInt8: return k / kGroup * group_bytes(kInt8);
    case kBf16: return k * 32;
    default: return k * 64;
  }
}

}  // namespace candor
