// A decoder-only transformer as plain data: what `candor_forward` runs in one call.
#pragma once

#include <cstdint>

#include "linear.h"

namespace candor {

enum HeadNorm : int32_t { kNoHeadNorm = 0, kPerHead = 1, kWholeProjection = 2 };

struct Layer {
  const float* input_norm;           // [hidden], null: none (OLMo 2)
  Linear qkv;                        // outputs: heads * dim, kv_heads * dim, kv_heads * dim
  const float* query_norm;           // by head_norm: [dim] or [heads * dim]
  const float* key_norm;
  const float* rotary;               // [positions, rotary_dim]: cosines, then sines of each position; null: no positions
  Linear attention_out;
  const float* post_attention_norm;  // [hidden], null: none
  const float* mlp_norm;             // [hidden], null: none
  Linear gate_up;
  Linear down;
  const float* post_mlp_norm;        // [hidden], null: none
  int32_t window;                    // 0: none
};

struct Model {
  int32_t layer_count, hidden, heads, kv_heads, dim, intermediate, rotary_dim;
  int32_t activation, head_norm;
  float epsilon, attention_scale, soft_cap, embedding_multiplier, residual_multiplier;
  Linear embedding;
  const float* final_norm;
  const Layer* layers;
};

// One step: the fields of StepInputs. A page's keys of all layers lie behind each other, and so do its values.
struct Step {
  int32_t tokens, rows, max_pages;
  const int64_t* ids;             // [tokens]
  const int64_t* positions;       // [tokens]
  const int64_t* slots;           // [tokens] page * 16 + offset
  const int32_t* query_starts;    // [rows + 1]
  const int32_t* page_tables;     // [rows, max_pages]
  uint16_t* keys;                 // [pages][layers][kv_heads][dim / 2][16][2]
  uint16_t* values;               // [pages][layers][kv_heads][8][dim][2]
  int64_t page_stride;            // elements of keys (and of values) per page
};

}  // namespace candor
