// The forward pass of a dense decoder on the CPU, as phases that a team of threads walks through together.

#include "decoder.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "attention.h"
#include "linear.h"
#include "pool.h"

namespace candor {
namespace {

constexpr int kPrivateRows = 2;  // up to so many rows every thread prepares its own copy instead of meeting at a barrier
constexpr int kRowBlock = 96;    // rows whose activations stay in a core's L2 while panels stream past

enum Write { kStore, kAdd, kGate };

void rms_norm(const float* x, const float* weight, int n, float epsilon, float* out) {
  __m256 sum = _mm256_setzero_ps();
  for (int i = 0; i < n; i += 8) {
    const __m256 v = _mm256_loadu_ps(x + i);
    sum = _mm256_fmadd_ps(v, v, sum);
  }
  const __m256 factor = _mm256_set1_ps(1.0f / std::sqrt(horizontal_sum(sum) / static_cast<float>(n) + epsilon));
  for (int i = 0; i < n; i += 8)
    _mm256_storeu_ps(out + i, _mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(x + i), factor), _mm256_loadu_ps(weight + i)));
}

// Rotates one head: pairs are (i, i + rotary_dim / 2).
void rotate(float* head, const float* cosines, int rotary_dim) {
  const int half = rotary_dim / 2;
  const float* sines = cosines + half;
  for (int i = 0; i < half; ++i) {
    const float a = head[i], b = head[i + half];
    head[i] = a * cosines[i] - b * sines[i];
    head[i + half] = b * cosines[i] + a * sines[i];
  }
}

// Activations on their way into a linear layer: normed, and quantised where its form wants that.
struct Prepared {
  std::vector<float> values, scales;
  std::vector<int8_t> quants;
  std::vector<int32_t> totals;

  void fit(size_t rows, size_t k) {
    if (values.size() < rows * k) {
      values.resize(rows * k);
      quants.resize(rows * k * 2);
      scales.resize(rows * k / kGroup * 2);
      totals.resize(rows * k / kGroup * 2);
    }
  }

  Activations view() const { return {values.data(), quants.data(), scales.data(), totals.data()}; }

  void row(const Linear& weights, size_t r, const float* x, const float* norm, float epsilon) {
    const int k = weights.inputs;
    float* out = values.data() + r * k;
    if (norm != nullptr) {
      rms_norm(x, norm, k, epsilon, out);
      x = out;
    }
    if (!is_integer(weights)) {
      if (x != out) std::copy(x, x + k, out);
      return;
    }
    for (int term = 0; term < weights.terms; ++term) {
      const size_t at = r * weights.terms + term;
      int8_t* to = quants.data() + at * k;
      float* scale = scales.data() + at * (k / kGroup);
      quantise_row(x, k, to, scale, totals.data() + at * (k / kGroup));
      if (term + 1 < weights.terms) {
        leave_over(x, k, to, scale, out);
        x = out;
      }
    }
  }
};

class Engine {
 public:
  explicit Engine(int threads) : pool_(threads), private_(threads), split_states_(threads) {}

  void forward(const Model& model, const Step& step, float* hidden) {
    fit(model, step);
    pool_.run([&](int thread) { walk(model, step, thread, hidden); });
  }

  void linear(const Linear& weights, const float* x, int rows, float* out) {
    shared_.fit(rows, weights.inputs);
    pool_.run([&](int thread) {
      const Activations ready = prepare(weights, x, nullptr, rows, 0.0f, thread);
      multiply(weights, ready, rows, out, kStore, 1.0f, kSilu);
    });
  }

 private:
  void fit(const Model& model, const Step& step) {
    const size_t tokens = step.tokens, query = static_cast<size_t>(model.heads) * model.dim;
    const size_t widest = std::max({static_cast<size_t>(model.hidden), query, static_cast<size_t>(model.intermediate)});
    shared_.fit(tokens, widest);
    for (auto& own : private_) own.fit(kPrivateRows, widest);
    residual_.resize(std::max(residual_.size(), tokens * model.hidden));
    branch_.resize(std::max(branch_.size(), tokens * model.hidden));
    qkv_.resize(std::max(qkv_.size(), tokens * model.layers[0].qkv.outputs));
    attended_.resize(std::max(attended_.size(), tokens * query));
    gated_.resize(std::max(gated_.size(), tokens * model.intermediate));
    decoding_ = step.tokens == step.rows;
    plan_tiles(model, step);
  }

  // A tile is up to four query vectors of one row that share a KV head.
  struct Tile {
    int row, head, first_vector, count, splits, state;
  };

  void plan_tiles(const Model& model, const Step& step) {
    tiles_.clear();
    pieces_.clear();
    const int group = model.heads / model.kv_heads;
    int states = 0;
    for (int row = 0; row < step.rows; ++row) {
      const int first = step.query_starts[row], vectors = (step.query_starts[row + 1] - first) * group;
      for (int head = 0; head < model.kv_heads; ++head) {
        for (int vector = 0; vector < vectors; vector += kQueryTile) {
          const int count = std::min(kQueryTile, vectors - vector);
          const int last = static_cast<int>(step.positions[first + (vector + count - 1) / group]);
          const int splits = last / kSplit + 1;
          for (int split = 0; split < splits; ++split) pieces_.push_back({static_cast<int>(tiles_.size()), split});
          tiles_.push_back({row, head, vector, count, splits, states});
          states += splits * kQueryTile;
        }
      }
    }
    // Few tiles over long contexts would leave threads idle: then the splits of a tile are worked on apart.
    apart_ = static_cast<int>(tiles_.size()) < 4 * pool_.size() && pieces_.size() > tiles_.size();
    if (apart_ && static_cast<int>(states_.size()) < states) states_.resize(states);
  }

  void walk(const Model& model, const Step& step, int thread, float* hidden) {
    embed(model, step);
    pool_.barrier();
    for (int index = 0; index < model.layer_count; ++index) {
      const Layer& layer = model.layers[index];
      attention_block(model, layer, step, index, thread);
      mlp_block(model, layer, step, thread);
    }
    for (int t; (t = pool_.take()) < step.tokens;)
      rms_norm(&residual_[static_cast<size_t>(t) * model.hidden], model.final_norm, model.hidden, model.epsilon,
               hidden + static_cast<size_t>(t) * model.hidden);
  }

  void embed(const Model& model, const Step& step) {
    const Linear& table = model.embedding;
    for (int t; (t = pool_.take()) < step.tokens;) {
      const int id = static_cast<int>(step.ids[t]), lane = id % kPanel;
      const uint8_t* panel = table.data + panel_bytes(table) * (id / kPanel);
      float* out = &residual_[static_cast<size_t>(t) * model.hidden];
      for (int k = 0; k < model.hidden; ++k) out[k] = weight_at(table.form, panel, lane, k) * model.embedding_multiplier;
    }
  }

  static float weight_at(int form, const uint8_t* panel, int lane, int k) {
    const int group = k / kGroup, in_group = k % kGroup, quad = in_group / 4;
    uint16_t half;
    switch (form) {
      case kInt4: {
        const uint8_t* block = panel + group * 320;
        const uint8_t byte = block[(quad % 4) * 64 + lane * 4 + in_group % 4];
        uint16_t minimum;
        std::memcpy(&half, block + 256 + lane * 2, 2);
        std::memcpy(&minimum, block + 288 + lane * 2, 2);
        return std::fma(_cvtsh_ss(half), static_cast<float>(quad < 4 ? byte & 15 : byte >> 4), _cvtsh_ss(minimum));
      }
      case kInt8: {
        const uint8_t* block = panel + group * 544;
        std::memcpy(&half, block + 512 + lane * 2, 2);
        return _cvtsh_ss(half) * static_cast<float>(static_cast<int8_t>(block[quad * 64 + lane * 4 + in_group % 4]));
      }
      case kBf16:
        std::memcpy(&half, panel + (k / 2) * 64 + lane * 4 + (k % 2) * 2, 2);
        return bf16_to_float(half);
      default: {
        float value;
        std::memcpy(&value, panel + k * 64 + lane * 4, 4);
        return value;
      }
    }
  }

  void attention_block(const Model& model, const Layer& layer, const Step& step, int index, int thread) {
    const Activations normed = prepare(layer.qkv, residual_.data(), layer.input_norm, step.tokens, model.epsilon, thread);
    multiply(layer.qkv, normed, step.tokens, qkv_.data(), kStore, 1.0f, kSilu);
    pool_.barrier();
    if (model.head_norm == kWholeProjection) norm_projections(model, layer, step);
    const KeyValuePages kv{step.keys + index * step.layer_stride, step.values + index * step.layer_stride, model.kv_heads, model.dim};
    if (decoding_ && !apart_) {
      // One token a row: whoever takes a (row, head) places its key and value, then attends to it.
      const int units = step.rows * model.kv_heads, per_head = static_cast<int>(tiles_.size()) / units;
      for (int unit; (unit = pool_.take()) < units;) {
        place_head(model, layer, step, kv, unit / model.kv_heads, unit % model.kv_heads);
        for (int tile = 0; tile < per_head; ++tile) attend(model, layer, step, kv, tiles_[unit * per_head + tile], thread);
      }
    } else {
      const int units = step.tokens * model.kv_heads;
      for (int unit; (unit = pool_.take()) < units;) place_head(model, layer, step, kv, unit / model.kv_heads, unit % model.kv_heads);
      pool_.barrier();
      if (apart_) attend_apart(model, layer, step, kv);
      else
        for (int tile; (tile = pool_.take()) < static_cast<int>(tiles_.size());) attend(model, layer, step, kv, tiles_[tile], thread);
    }
    pool_.barrier();
    project(model, layer.attention_out, attended_.data(), layer.post_attention_norm, step.tokens, thread);
  }

  void mlp_block(const Model& model, const Layer& layer, const Step& step, int thread) {
    const Activations normed = prepare(layer.gate_up, residual_.data(), layer.mlp_norm, step.tokens, model.epsilon, thread);
    multiply(layer.gate_up, normed, step.tokens, gated_.data(), kGate, 1.0f, model.activation);
    pool_.barrier();
    project(model, layer.down, gated_.data(), layer.post_mlp_norm, step.tokens, thread);
  }

  // y = W x, added to the residual stream, normed before that where the family does so.
  void project(const Model& model, const Linear& weights, const float* x, const float* post_norm, int tokens, int thread) {
    const Activations ready = prepare(weights, x, nullptr, tokens, model.epsilon, thread);
    if (post_norm == nullptr) {
      multiply(weights, ready, tokens, residual_.data(), kAdd, model.residual_multiplier, kSilu);
      pool_.barrier();
      return;
    }
    multiply(weights, ready, tokens, branch_.data(), kStore, 1.0f, kSilu);
    pool_.barrier();
    for (int t; (t = pool_.take()) < tokens;) {
      float* branch = &branch_[static_cast<size_t>(t) * model.hidden];
      float* residual = &residual_[static_cast<size_t>(t) * model.hidden];
      rms_norm(branch, post_norm, model.hidden, model.epsilon, branch);
      for (int i = 0; i < model.hidden; ++i) residual[i] += branch[i] * model.residual_multiplier;
    }
    pool_.barrier();
  }

  Activations prepare(const Linear& weights, const float* x, const float* norm, int rows, float epsilon, int thread) {
    const int k = weights.inputs;
    if (rows <= kPrivateRows) {
      Prepared& own = private_[thread];
      own.fit(kPrivateRows, k);
      for (int r = 0; r < rows; ++r) own.row(weights, r, x + static_cast<size_t>(r) * k, norm, epsilon);
      return own.view();
    }
    const int block = 4;
    for (int piece; (piece = pool_.take() * block) < rows;)
      for (int r = piece; r < std::min(rows, piece + block); ++r)
        shared_.row(weights, r, x + static_cast<size_t>(r) * k, norm, epsilon);
    pool_.barrier();
    return shared_.view();
  }

  void multiply(const Linear& weights, const Activations& x, int rows, float* out, Write write, float multiplier, int activation) {
    const int panels = weights.outputs / kPanel, step = weights.gated ? 2 : 1, tile = rows_per_tile(weights);
    const int blocks = (rows + kRowBlock - 1) / kRowBlock;
    const int wanted = std::max(1, 6 * pool_.size() / blocks);
    const int chunk = std::max(1, (panels / step + wanted - 1) / wanted) * step;
    const int chunks = (panels + chunk - 1) / chunk;
    for (int unit; (unit = pool_.take()) < blocks * chunks;) {
      const int row_start = unit / chunks * kRowBlock, row_end = std::min(rows, row_start + kRowBlock);
      const int first = unit % chunks * chunk, last = std::min(panels, first + chunk);
      for (int panel = first; panel < last; panel += step)
        for (int row = row_start; row < row_end; row += tile)
          panel_rows(weights, panel, x, row, std::min(tile, row_end - row), out, write, multiplier, activation);
    }
  }

  static void panel_rows(const Linear& weights, int panel, const Activations& x, int row, int rows, float* out, Write write,
                         float multiplier, int activation) {
    alignas(32) float result[kTileRows * kPanel], up[kTileRows * kPanel];
    few_rows(weights, panel, x, row, rows, result);
    if (write == kGate) few_rows(weights, panel + 1, x, row, rows, up);
    const int width = weights.gated ? weights.outputs / 2 : weights.outputs;
    const int column = weights.gated ? panel / 2 * kPanel : panel * kPanel;
    for (int r = 0; r < rows; ++r) {
      float* to = out + static_cast<size_t>(row + r) * width + column;
      for (int i = 0; i < kPanel; i += 8) {
        __m256 v = _mm256_load_ps(result + r * kPanel + i);
        if (write == kGate) v = _mm256_mul_ps(activation == kSilu ? silu8(v) : gelu_tanh8(v), _mm256_load_ps(up + r * kPanel + i));
        if (write == kAdd) v = _mm256_fmadd_ps(v, _mm256_set1_ps(multiplier), _mm256_loadu_ps(to + i));
        _mm256_storeu_ps(to + i, v);
      }
    }
  }

  void norm_projections(const Model& model, const Layer& layer, const Step& step) {
    const int query = model.heads * model.dim, key = model.kv_heads * model.dim;
    for (int t; (t = pool_.take()) < step.tokens;) {
      float* qkv = &qkv_[static_cast<size_t>(t) * layer.qkv.outputs];
      rms_norm(qkv, layer.query_norm, query, model.epsilon, qkv);
      rms_norm(qkv + query, layer.key_norm, key, model.epsilon, qkv + query);
    }
    pool_.barrier();
  }

  // Norms and rotates the query heads of one KV head at one token, and puts the key and value into their page.
  void place_head(const Model& model, const Layer& layer, const Step& step, const KeyValuePages& kv, int token, int head) {
    const int group = model.heads / model.kv_heads, dim = model.dim;
    float* qkv = &qkv_[static_cast<size_t>(token) * layer.qkv.outputs];
    float* query = qkv + head * group * dim;
    float* key = qkv + (model.heads + head) * dim;
    const float* value = qkv + (model.heads + model.kv_heads + head) * dim;
    const float* cosines = layer.rotary == nullptr ? nullptr : layer.rotary + step.positions[token] * model.rotary_dim;
    for (int g = 0; g < group; ++g) {
      if (model.head_norm == kPerHead) rms_norm(query + g * dim, layer.query_norm, dim, model.epsilon, query + g * dim);
      if (cosines != nullptr) rotate(query + g * dim, cosines, model.rotary_dim);
    }
    if (model.head_norm == kPerHead) rms_norm(key, layer.key_norm, dim, model.epsilon, key);
    if (cosines != nullptr) rotate(key, cosines, model.rotary_dim);
    const int page = static_cast<int>(step.slots[token] / kPageTokens), offset = static_cast<int>(step.slots[token] % kPageTokens);
    store_key(kv, page, offset, head, key);
    store_value(kv, page, offset, head, value);
  }

  // The tile's queries and their positions.
  void tile_queries(const Model& model, const Layer& layer, const Step& step, const Tile& tile, const float** queries, int* positions) const {
    const int group = model.heads / model.kv_heads;
    for (int n = 0; n < tile.count; ++n) {
      const int vector = tile.first_vector + n, token = step.query_starts[tile.row] + vector / group;
      queries[n] = &qkv_[static_cast<size_t>(token) * layer.qkv.outputs + (tile.head * group + vector % group) * model.dim];
      positions[n] = static_cast<int>(step.positions[token]);
    }
  }

  static AttentionRule rule(const Model& model, const Layer& layer) { return {model.attention_scale, model.soft_cap, layer.window}; }

  static int first_split(const Layer& layer, const int* positions, int count) {
    if (layer.window == 0) return 0;
    return std::max(0, *std::min_element(positions, positions + count) - layer.window + 1) / kSplit;
  }

  void attend(const Model& model, const Layer& layer, const Step& step, const KeyValuePages& kv, const Tile& tile, int thread) {
    const float* queries[kQueryTile];
    int positions[kQueryTile];
    tile_queries(model, layer, step, tile, queries, positions);
    SplitState* whole = split_states_[thread].data();
    SplitState* part = whole + kQueryTile;
    SplitState *whole_of[kQueryTile], *part_of[kQueryTile];
    for (int n = 0; n < kQueryTile; ++n) {
      whole_of[n] = whole + n;
      part_of[n] = part + n;
    }
    const int32_t* table = step.page_tables + static_cast<size_t>(tile.row) * step.max_pages;
    const int first = first_split(layer, positions, tile.count);
    attend_split(kv, tile.head, table, first, queries, positions, tile.count, rule(model, layer), whole_of);
    for (int split = first + 1; split < tile.splits; ++split) {
      attend_split(kv, tile.head, table, split, queries, positions, tile.count, rule(model, layer), part_of);
      for (int n = 0; n < tile.count; ++n) merge(whole + n, part + n, model.dim);
    }
    for (int n = 0; n < tile.count; ++n) write_attended(model, step, tile, n, whole + n);
  }

  void attend_apart(const Model& model, const Layer& layer, const Step& step, const KeyValuePages& kv) {
    const float* queries[kQueryTile];
    int positions[kQueryTile];
    for (int piece; (piece = pool_.take()) < static_cast<int>(pieces_.size());) {
      const Tile& tile = tiles_[pieces_[piece].first];
      const int split = pieces_[piece].second;
      tile_queries(model, layer, step, tile, queries, positions);
      SplitState* state_of[kQueryTile];
      for (int n = 0; n < kQueryTile; ++n) state_of[n] = &states_[tile.state + split * kQueryTile + n];
      if (split < first_split(layer, positions, tile.count)) continue;
      attend_split(kv, tile.head, step.page_tables + static_cast<size_t>(tile.row) * step.max_pages, split, queries, positions, tile.count,
                   rule(model, layer), state_of);
    }
    pool_.barrier();
    for (int index; (index = pool_.take()) < static_cast<int>(tiles_.size());) {
      const Tile& tile = tiles_[index];
      tile_queries(model, layer, step, tile, queries, positions);
      const int first = first_split(layer, positions, tile.count);
      for (int n = 0; n < tile.count; ++n) {
        SplitState* whole = &states_[tile.state + first * kQueryTile + n];
        for (int split = first + 1; split < tile.splits; ++split) merge(whole, &states_[tile.state + split * kQueryTile + n], model.dim);
        write_attended(model, step, tile, n, whole);
      }
    }
  }

  void write_attended(const Model& model, const Step& step, const Tile& tile, int n, const SplitState* state) {
    const int group = model.heads / model.kv_heads, vector = tile.first_vector + n;
    const int token = step.query_starts[tile.row] + vector / group;
    float* out = &attended_[(static_cast<size_t>(token) * model.heads + tile.head * group + vector % group) * model.dim];
    const float inverse = 1.0f / state->sum;
    for (int d = 0; d < model.dim; ++d) out[d] = state->values[d] * inverse;
  }

  struct SplitStates {
    std::unique_ptr<SplitState[]> states{new SplitState[2 * kQueryTile]};
    SplitState* data() const { return states.get(); }
  };

  Pool pool_;
  Prepared shared_;
  std::vector<Prepared> private_;
  std::vector<SplitStates> split_states_;
  std::vector<SplitState> states_;
  std::vector<float> residual_, branch_, qkv_, attended_, gated_;
  std::vector<Tile> tiles_;
  std::vector<std::pair<int, int>> pieces_;
  bool decoding_ = false, apart_ = false;
};

}  // namespace
}  // namespace candor

// The C interface, called through ctypes (which lets go of Python's lock meanwhile).
extern "C" {

void* candor_create(int threads) { return new candor::Engine(threads); }

void candor_destroy(void* engine) { delete static_cast<candor::Engine*>(engine); }

void candor_forward(void* engine, const candor::Model* model, const candor::Step* step, float* hidden) {
  static_cast<candor::Engine*>(engine)->forward(*model, *step, hidden);
}

void candor_linear(void* engine, const candor::Linear* weights, const float* x, int rows, float* out) {
  static_cast<candor::Engine*>(engine)->linear(*weights, x, rows, out);
}

void candor_quantise(const float* x, int rows, int k, int8_t* quants, float* scales, int32_t* totals) {
  for (int r = 0; r < rows; ++r)
    candor::quantise_row(x + static_cast<size_t>(r) * k, k, quants + static_cast<size_t>(r) * k, scales + r * (k / candor::kGroup),
                         totals + r * (k / candor::kGroup));
}

int candor_sizes(int which) {
  const int sizes[] = {sizeof(candor::Linear), sizeof(candor::Layer), sizeof(candor::Model), sizeof(candor::Step)};
  return sizes[which];
}
}
