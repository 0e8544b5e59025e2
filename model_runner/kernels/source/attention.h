// Attention over pages in place: bfloat16 keys and values, float32 arithmetic.
//
// A page holds 16 tokens. Keys of one page and head: [dim / 2][16 tokens][2], so that one line scores 16 tokens on two
// dimensions. Values: [8 token pairs][dim][2]. A query's keys are cut into splits of 512 positions counted from zero;
// each split has its own softmax (maximum, sum, weighted values), and splits are merged in order. That cut depends on
// positions alone, so one query at a time, a whole prompt, and a prompt behind a cached prefix all do the same sums.
#pragma once

#include <algorithm>
#include <limits>

#include "lanes.h"
#include "simd.h"

namespace candor {

constexpr int kPageTokens = 16;
constexpr int kSplit = 512;
#if defined(CANDOR_AVX512)
constexpr int kQueryTile = 12;
#else
constexpr int kQueryTile = 5;
#endif
constexpr int kTileQueries = 4 * kQueryTile;  // that go through a split together, while it stays in the core's L2
constexpr int kMaxHeadDim = 256;
constexpr int kScoreRow = kSplit + 16;  // rows of scores do not all start in the same line of the cache

struct KeyValuePages {
  uint16_t* keys;    // of this layer in page 0: [kv_heads][dim / 2][16][2]
  uint16_t* values;  // [kv_heads][8][dim][2]
  int64_t page_stride;  // elements from one page to the next
  int dim;

  int64_t at(int page, int head) const { return page * page_stride + static_cast<int64_t>(head) * kPageTokens * dim; }
  uint16_t* key_page(int page, int head) const { return keys + at(page, head); }
  uint16_t* value_page(int page, int head) const { return values + at(page, head); }
};

// NaN and infinities are kept as 0: a weight of 0 does not mask them, so they would spoil what the page's next owner does.
inline uint16_t kept(float value) {
  const uint16_t half = float_to_bf16(value);
  return (half & 0x7f80) == 0x7f80 ? 0 : half;
}

inline void store_key(const KeyValuePages& kv, int page, int offset, int head, const float* key) {
  uint16_t* out = kv.key_page(page, head) + offset * 2;
  for (int d = 0; d < kv.dim; d += 2, out += kPageTokens * 2) {
    out[0] = kept(key[d]);
    out[1] = kept(key[d + 1]);
  }
}

inline void store_value(const KeyValuePages& kv, int page, int offset, int head, const float* value) {
  uint16_t* out = kv.value_page(page, head) + static_cast<size_t>(offset / 2) * kv.dim * 2 + offset % 2;
  for (int d = 0; d < kv.dim; ++d) out[d * 2] = kept(value[d]);
}

// What one split of one query amounts to.
struct SplitState {
  float maximum;
  float sum;
  float values[kMaxHeadDim];
};

struct AttentionRule {
  float scale;
  float soft_cap;  // 0: none
  int window;      // 0: none
};

// Scores of N queries against the 16 keys of each of P pages, raw products. scores: [N] rows of kScoreRow, page by page.
template <int N, int P>
inline void score_pages(const uint16_t* const* pages, int dim, const float* queries, float* scores) {
  F32x16 total[N * P];
#pragma GCC unroll 16
  for (int i = 0; i < N * P; ++i) total[i] = zero16();
  for (int d = 0; d < dim; d += 2) {
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p) {
      F32x16 even, odd;
      pairs16(pages[p] + d * kPageTokens, even, odd);
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) total[n * P + p] = fma16(even, all16(queries[n * kMaxHeadDim + d]), total[n * P + p]);
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) total[n * P + p] = fma16(odd, all16(queries[n * kMaxHeadDim + d + 1]), total[n * P + p]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < N * P; ++i) store16(scores + i / P * kScoreRow + i % P * kPageTokens, total[i]);
}

// Adds one page's weighted values to those of N queries, 16 P dimensions at a time from d on.
template <int N, int P>
inline void weigh_page(const uint16_t* page, int dim, int d, const float* weights, SplitState* out) {
  F32x16 total[N * P];
#pragma GCC unroll 16
  for (int i = 0; i < N * P; ++i) total[i] = load16(out[i / P].values + d + i % P * 16);
  const uint16_t* line = page + d * 2;
  for (int token = 0; token < kPageTokens; token += 2, line += dim * 2) {
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p) {
      F32x16 even, odd;
      pairs16(line + p * 32, even, odd);
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) total[n * P + p] = fma16(even, all16(weights[n * kScoreRow + token]), total[n * P + p]);
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) total[n * P + p] = fma16(odd, all16(weights[n * kScoreRow + token + 1]), total[n * P + p]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < N * P; ++i) store16(out[i / P].values + d + i % P * 16, total[i]);
}

// Few queries take several pages, or several times 16 dimensions, at once: enough chains of sums to keep the core busy.
template <int N>
struct QueryCount {
  static constexpr int kAtOnce = std::max(1, kQueryTile / N);

  static void score(const uint16_t* const* pages, int page_count, int dim, const float* queries, float* scores) {
    int page = 0;
    for (; page + kAtOnce <= page_count; page += kAtOnce) score_pages<N, kAtOnce>(pages + page, dim, queries, scores + page * kPageTokens);
    for (; page < page_count; ++page) score_pages<N, 1>(pages + page, dim, queries, scores + page * kPageTokens);
  }

  static void weigh(const uint16_t* const* pages, int page_count, int dim, const float* weights, SplitState* out) {
    for (int n = 0; n < N; ++n) std::fill(out[n].values, out[n].values + dim, 0.0f);
    for (int page = 0; page < page_count; ++page) {
      int d = 0;
      for (; d + 16 * kAtOnce <= dim; d += 16 * kAtOnce) weigh_page<N, kAtOnce>(pages[page], dim, d, weights + page * kPageTokens, out);
      for (; d < dim; d += 16) weigh_page<N, 1>(pages[page], dim, d, weights + page * kPageTokens, out);
    }
  }
};

// Calls f(QueryCount<count>()).
template <int N = kQueryTile, class Function>
inline void with_count(int count, const Function& f) {
  if constexpr (N > 1) {
    if (count < N) return with_count<N - 1>(count, f);
  }
  f(QueryCount<N>());
}

// Raw scores of one query to softmax weights in place. Positions outside first..last weigh nothing.
inline void soften(float* scores, int count, int split_start, int first, int last, const AttentionRule& rule, SplitState* out) {
  const float none = -std::numeric_limits<float>::infinity();
  const __m256 scale = _mm256_set1_ps(rule.scale);
  __m256 largest = _mm256_set1_ps(none);
  for (int i = 0; i < count; i += 8) {
    __m256 s = _mm256_mul_ps(_mm256_loadu_ps(scores + i), scale);
    if (rule.soft_cap > 0.0f) {
      alignas(32) float lane[8];
      _mm256_store_ps(lane, s);
      for (float& value : lane) value = rule.soft_cap * std::tanh(value / rule.soft_cap);
      s = _mm256_load_ps(lane);
    }
    const __m256i position = _mm256_add_epi32(_mm256_set1_epi32(split_start + i), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    const __m256i outside = _mm256_or_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(first), position),
                                            _mm256_cmpgt_epi32(position, _mm256_set1_epi32(last)));
    s = _mm256_blendv_ps(s, _mm256_set1_ps(none), _mm256_castsi256_ps(outside));
    largest = _mm256_max_ps(largest, s);
    _mm256_storeu_ps(scores + i, s);
  }
  out->maximum = horizontal_max(largest);
  if (out->maximum == none) {
    out->sum = 0.0f;
    std::fill(scores, scores + count, 0.0f);
    return;
  }
  const __m256 maximum = _mm256_set1_ps(out->maximum);
  __m256 sum = _mm256_setzero_ps();
  for (int i = 0; i < count; i += 8) {
    const __m256 weight = exp8(_mm256_sub_ps(_mm256_loadu_ps(scores + i), maximum));
    sum = _mm256_add_ps(sum, weight);
    _mm256_storeu_ps(scores + i, weight);
  }
  out->sum = horizontal_sum(sum);
}

// One split of up to kQueryTile queries [count][kMaxHeadDim] that share a KV head. `positions`: of each query.
inline void attend_split(const KeyValuePages& kv, int head, const int32_t* page_table, int split, const float* queries,
                         const int* positions, int count, const AttentionRule& rule, SplitState* out) {
  alignas(64) float scores[kQueryTile * kScoreRow];
  const int split_start = split * kSplit;
  int reach = 0, from = std::numeric_limits<int>::max();
  for (int n = 0; n < count; ++n) {
    reach = std::max(reach, positions[n]);
    from = std::min(from, rule.window > 0 ? std::max(0, positions[n] - rule.window + 1) : 0);
  }
  const int first_page = std::max(0, from - split_start) / kPageTokens;
  const int last_page = std::min(kSplit - 1, reach - split_start) / kPageTokens;
  const int page_count = last_page - first_page + 1;
  const uint16_t *key_pages[kSplit / kPageTokens], *value_pages[kSplit / kPageTokens];
  for (int page = 0; page < page_count; ++page) {
    const int id = page_table[split_start / kPageTokens + first_page + page];
    key_pages[page] = kv.key_page(id, head);
    value_pages[page] = kv.value_page(id, head);
  }
  with_count(count, [&](auto queries_of) { queries_of.score(key_pages, page_count, kv.dim, queries, scores); });
  for (int n = 0; n < count; ++n) {
    const int first = rule.window > 0 ? positions[n] - rule.window + 1 : 0;
    soften(scores + n * kScoreRow, page_count * kPageTokens, split_start + first_page * kPageTokens, first, positions[n], rule, out + n);
  }
  with_count(count, [&](auto queries_of) { queries_of.weigh(value_pages, page_count, kv.dim, scores, out); });
}

// The same for up to kTileQueries queries. Those that do not reach into the split, or whose windows all begin behind it,
// get an empty state.
inline void attend_tile(const KeyValuePages& kv, int head, const int32_t* page_table, int split, const float* queries,
                        const int* positions, int count, const AttentionRule& rule, SplitState* out) {
  for (int n = 0; n < count; n += kQueryTile) {
    const int some = std::min(kQueryTile, count - n);
    const auto [lowest, highest] = std::minmax_element(positions + n, positions + n + some);
    if (*highest < split * kSplit || (rule.window > 0 && *lowest - rule.window + 1 >= (split + 1) * kSplit)) {
      for (int i = n; i < n + some; ++i) out[i].sum = 0.0f;
      continue;
    }
    attend_split(kv, head, page_table, split, queries + n * kMaxHeadDim, positions + n, some, rule, out + n);
  }
}

// Adds a later split to an earlier state.
inline void merge(SplitState* into, const SplitState* later, int dim) {
  if (later->sum == 0.0f) return;
  if (into->sum == 0.0f) {
    into->maximum = later->maximum;
    into->sum = later->sum;
    std::copy(later->values, later->values + dim, into->values);
    return;
  }
  const float maximum = std::max(into->maximum, later->maximum);
  const float a = std::exp(into->maximum - maximum), b = std::exp(later->maximum - maximum);
  into->sum = into->sum * a + later->sum * b;
  for (int d = 0; d < dim; ++d) into->values[d] = into->values[d] * a + later->values[d] * b;
  into->maximum = maximum;
}

}  // namespace candor
