// Attention as a phase of a team: new keys and values go into their pages, then queries attend in tiles.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "attention.h"
#include "decoder.h"
#include "linear_phase.h"
#include "pool.h"

namespace candor {

class AttentionPhase {
 public:
  explicit AttentionPhase(Pool& pool) : pool_(pool), own_states_(pool.threads()) {
    for (auto& states : own_states_) states.reset(new SplitState[2 * kTileQueries]);
  }

  // Cuts a step's queries into tiles; called before the team starts.
  void plan(const Model& model, const Step& step) {
    decoding_ = step.tokens == step.rows;
    tiles_.clear();
    pieces_.clear();
    const int group = model.heads / model.kv_heads;
    size_t states = 0;
    for (int row = 0; row < step.rows; ++row) {
      const int first = step.query_starts[row], vectors = (step.query_starts[row + 1] - first) * group;
      for (int head = 0; head < model.kv_heads; ++head) {
        for (int vector = 0; vector < vectors; vector += kTileQueries) {
          const int count = std::min(kTileQueries, vectors - vector);
          const int last = static_cast<int>(step.positions[first + (vector + count - 1) / group]);
          const int splits = last / kSplit + 1;
          for (int split = 0; split < splits; ++split) pieces_.push_back({static_cast<int>(tiles_.size()), split});
          tiles_.push_back({row, head, vector, count, splits, states});
          states += static_cast<size_t>(splits) * kTileQueries;
        }
      }
    }
    // Few tiles over long contexts would leave threads idle: then the splits of a tile are worked on apart.
    apart_ = static_cast<int>(tiles_.size()) < 4 * pool_.active() && pieces_.size() > tiles_.size();
    if (apart_ && states_.size() < states) states_.resize(states);
  }

  // qkv: [tokens, (heads + 2 kv_heads) * dim], rotated in place; attended: [tokens, heads * dim]. Ends without a barrier.
  void run(const Model& model, const Layer& layer, const Step& step, int index, float* qkv, float* attended, int thread) {
    const int64_t offset = static_cast<int64_t>(index) * model.kv_heads * kPageTokens * model.dim;
    const Work work{model, layer, step, {step.keys + offset, step.values + offset, step.page_stride, model.dim},
                    qkv, attended, (model.heads + 2 * model.kv_heads) * model.dim};
    if (decoding_ && !apart_) {
      // One token a row: whoever takes a (row, head) places its key and value, then attends to it.
      const int units = step.rows * model.kv_heads, per_head = static_cast<int>(tiles_.size()) / units;
      for (int unit; (unit = pool_.take()) < units;) {
        place(work, unit / model.kv_heads, unit % model.kv_heads);
        for (int tile = 0; tile < per_head; ++tile) attend(work, tiles_[unit * per_head + tile], thread);
      }
      return;
    }
    for (int unit; (unit = pool_.take()) < step.tokens * model.kv_heads;) place(work, unit / model.kv_heads, unit % model.kv_heads);
    pool_.barrier(thread);
    if (apart_) attend_apart(work, thread);
    else
      for (int tile; (tile = pool_.take()) < static_cast<int>(tiles_.size());) attend(work, tiles_[tile], thread);
  }

 private:
  // Up to kTileQueries query vectors of one row that share a KV head.
  struct Tile {
    int row, head, first_vector, count, splits;
    size_t state;
  };

  struct Work {
    const Model& model;
    const Layer& layer;
    const Step& step;
    KeyValuePages kv;
    float* qkv;
    float* attended;
    int width;

    AttentionRule rule() const { return {model.attention_scale, model.soft_cap, layer.window}; }
    const int32_t* table(const Tile& tile) const { return step.page_tables + static_cast<size_t>(tile.row) * step.max_pages; }
  };

  struct Queries {
    alignas(64) float vectors[kTileQueries * kMaxHeadDim];
    int positions[kTileQueries];

    Queries(const Work& work, const Tile& tile) {
      const int group = work.model.heads / work.model.kv_heads;
      for (int n = 0; n < tile.count; ++n) {
        const int vector = tile.first_vector + n, token = work.step.query_starts[tile.row] + vector / group;
        const float* query = work.qkv + static_cast<size_t>(token) * work.width + (tile.head * group + vector % group) * work.model.dim;
        std::copy(query, query + work.model.dim, vectors + n * kMaxHeadDim);
        positions[n] = static_cast<int>(work.step.positions[token]);
      }
    }

    int first_split(const Work& work, const Tile& tile) const {
      if (work.layer.window == 0) return 0;
      return std::max(0, *std::min_element(positions, positions + tile.count) - work.layer.window + 1) / kSplit;
    }
  };

  // Rotates one head: pairs are (i, i + rotary_dim / 2).
  static void rotate(float* head, const float* cosines, int rotary_dim) {
    const int half = rotary_dim / 2;
    const float* sines = cosines + half;
    for (int i = 0; i < half; ++i) {
      const float a = head[i], b = head[i + half];
      head[i] = a * cosines[i] - b * sines[i];
      head[i + half] = b * cosines[i] + a * sines[i];
    }
  }

  // Norms and rotates the query heads of one KV head at one token, and puts the key and value into their page.
  static void place(const Work& work, int token, int head) {
    const Model& model = work.model;
    const int group = model.heads / model.kv_heads, dim = model.dim;
    float* row = work.qkv + static_cast<size_t>(token) * work.width;
    float* query = row + head * group * dim;
    float* key = row + (model.heads + head) * dim;
    const float* value = row + (model.heads + model.kv_heads + head) * dim;
    const float* cosines = work.layer.rotary == nullptr ? nullptr : work.layer.rotary + work.step.positions[token] * model.rotary_dim;
    for (int g = 0; g < group; ++g) {
      if (model.head_norm == kPerHead) rms_norm(query + g * dim, work.layer.query_norm, dim, model.epsilon, query + g * dim);
      if (cosines != nullptr) rotate(query + g * dim, cosines, model.rotary_dim);
    }
    if (model.head_norm == kPerHead) rms_norm(key, work.layer.key_norm, dim, model.epsilon, key);
    if (cosines != nullptr) rotate(key, cosines, model.rotary_dim);
    const int page = static_cast<int>(work.step.slots[token] / kPageTokens), offset = static_cast<int>(work.step.slots[token] % kPageTokens);
    store_key(work.kv, page, offset, head, key);
    store_value(work.kv, page, offset, head, value);
  }

  void attend(const Work& work, const Tile& tile, int thread) {
    const Queries queries(work, tile);
    SplitState* whole = own_states_[thread].get();
    SplitState* part = whole + kTileQueries;
    const int first = queries.first_split(work, tile);
    attend_tile(work.kv, tile.head, work.table(tile), first, queries.vectors, queries.positions, tile.count, work.rule(), whole);
    for (int split = first + 1; split < tile.splits; ++split) {
      attend_tile(work.kv, tile.head, work.table(tile), split, queries.vectors, queries.positions, tile.count, work.rule(), part);
      for (int n = 0; n < tile.count; ++n) merge(whole + n, part + n, work.model.dim);
    }
    for (int n = 0; n < tile.count; ++n) write(work, tile, n, whole + n);
  }

  void attend_apart(const Work& work, int thread) {
    for (int piece; (piece = pool_.take()) < static_cast<int>(pieces_.size());) {
      const auto [index, split] = pieces_[piece];
      const Tile& tile = tiles_[index];
      const Queries queries(work, tile);
      if (split < queries.first_split(work, tile)) continue;
      attend_tile(work.kv, tile.head, work.table(tile), split, queries.vectors, queries.positions, tile.count, work.rule(),
                  &states_[tile.state + split * kTileQueries]);
    }
    pool_.barrier(thread);
    for (int index; (index = pool_.take()) < static_cast<int>(tiles_.size());) {
      const Tile& tile = tiles_[index];
      const int first = Queries(work, tile).first_split(work, tile);
      for (int n = 0; n < tile.count; ++n) {
        SplitState* whole = &states_[tile.state + first * kTileQueries + n];
        for (int split = first + 1; split < tile.splits; ++split) merge(whole, &states_[tile.state + split * kTileQueries + n], work.model.dim);
        write(work, tile, n, whole);
      }
    }
  }

  static void write(const Work& work, const Tile& tile, int n, const SplitState* state) {
    const int group = work.model.heads / work.model.kv_heads, dim = work.model.dim, vector = tile.first_vector + n;
    const int token = work.step.query_starts[tile.row] + vector / group;
    float* out = work.attended + (static_cast<size_t>(token) * work.model.heads + tile.head * group + vector % group) * dim;
    const F32x16 inverse = all16(1.0f / state->sum);
    for (int d = 0; d < dim; d += 16) store16(out + d, mul16(load16(state->values + d), inverse));
  }

  Pool& pool_;
  std::vector<std::unique_ptr<SplitState[]>> own_states_;
  std::vector<SplitState> states_;
  std::vector<Tile> tiles_;
  std::vector<std::pair<int, int>> pieces_;
  bool decoding_ = false, apart_ = false;
};

}  // namespace candor
