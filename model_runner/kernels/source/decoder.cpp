// The forward pass of a dense decoder on the CPU, as phases that a team of threads walks through together.

#include "decoder.h"

#include <algorithm>
#include <vector>

#include "attention_phase.h"
#include "contest.h"
#include "linear_phase.h"
#include "pool.h"

namespace candor {
namespace {

class Engine {
 public:
  explicit Engine(int threads) : pool_(threads), linear_(pool_), attention_(pool_) {}

  void forward(const Model& model, const Step& step, float* hidden) {
    fit(model, step);
    attention_.plan(model, step);
    pool_.run([&](int thread) { walk(model, step, thread, hidden); });
  }

  void linear(const Linear& weights, const float* x, int rows, float* out) {
    linear_.fit(rows, weights.inputs);
    pool_.run([&](int thread) {
      const Activations ready = linear_.prepare(weights, x, nullptr, rows, 0.0f, thread);
      linear_.multiply(weights, ready, rows, out, kStore);
    });
  }

  template <class Function>
  void each_row(int rows, const Function& f) {
    pool_.run([&](int) {
      for (int r; (r = pool_.take()) < rows;) f(r);
    });
  }

 private:
  void fit(const Model& model, const Step& step) {
    const size_t tokens = step.tokens, query = static_cast<size_t>(model.heads) * model.dim;
    linear_.fit(tokens, std::max({static_cast<size_t>(model.hidden), query, static_cast<size_t>(model.intermediate)}));
    residual_.resize(std::max(residual_.size(), tokens * model.hidden));
    branch_.resize(std::max(branch_.size(), tokens * model.hidden));
    qkv_.resize(std::max(qkv_.size(), tokens * model.layers[0].qkv.outputs));
    attended_.resize(std::max(attended_.size(), tokens * query));
    gated_.resize(std::max(gated_.size(), tokens * model.intermediate));
  }

  void walk(const Model& model, const Step& step, int thread, float* hidden) {
    embed(model, step);
    pool_.barrier(thread);
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

  void attention_block(const Model& model, const Layer& layer, const Step& step, int index, int thread) {
    const Activations normed = linear_.prepare(layer.qkv, residual_.data(), layer.input_norm, step.tokens, model.epsilon, thread);
    linear_.multiply(layer.qkv, normed, step.tokens, qkv_.data(), kStore);
    pool_.barrier(thread);
    if (model.head_norm == kWholeProjection) norm_projections(model, layer, step, thread);
    attention_.run(model, layer, step, index, qkv_.data(), attended_.data(), thread);
    pool_.barrier(thread);
    project(model, layer.attention_out, attended_.data(), layer.post_attention_norm, step.tokens, thread);
  }

  void mlp_block(const Model& model, const Layer& layer, const Step& step, int thread) {
    const Activations normed = linear_.prepare(layer.gate_up, residual_.data(), layer.mlp_norm, step.tokens, model.epsilon, thread);
    linear_.multiply(layer.gate_up, normed, step.tokens, gated_.data(), kGate, 1.0f, model.activation);
    pool_.barrier(thread);
    project(model, layer.down, gated_.data(), layer.post_mlp_norm, step.tokens, thread);
  }

  // y = W x, added to the residual stream, normed before that where the family does so.
  void project(const Model& model, const Linear& weights, const float* x, const float* post_norm, int tokens, int thread) {
    const Activations ready = linear_.prepare(weights, x, nullptr, tokens, model.epsilon, thread);
    if (post_norm == nullptr) {
      linear_.multiply(weights, ready, tokens, residual_.data(), kAdd, model.residual_multiplier);
      pool_.barrier(thread);
      return;
    }
    linear_.multiply(weights, ready, tokens, branch_.data(), kStore);
    pool_.barrier(thread);
    for (int t; (t = pool_.take()) < tokens;) {
      float* branch = &branch_[static_cast<size_t>(t) * model.hidden];
      float* residual = &residual_[static_cast<size_t>(t) * model.hidden];
      rms_norm(branch, post_norm, model.hidden, model.epsilon, branch);
      for (int i = 0; i < model.hidden; ++i) residual[i] += branch[i] * model.residual_multiplier;
    }
    pool_.barrier(thread);
  }

  void norm_projections(const Model& model, const Layer& layer, const Step& step, int thread) {
    const int query = model.heads * model.dim, key = model.kv_heads * model.dim;
    for (int t; (t = pool_.take()) < step.tokens;) {
      float* qkv = &qkv_[static_cast<size_t>(t) * layer.qkv.outputs];
      rms_norm(qkv, layer.query_norm, query, model.epsilon, qkv);
      rms_norm(qkv + query, layer.key_norm, key, model.epsilon, qkv + query);
    }
    pool_.barrier(thread);
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

  Pool pool_;
  LinearPhase linear_;
  AttentionPhase attention_;
  std::vector<float> residual_, branch_, qkv_, attended_, gated_;
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

void candor_contenders(void* engine, const candor::Draws* draws) {
  static_cast<candor::Engine*>(engine)->each_row(draws->rows, [&](int r) { candor::find_contenders(*draws, r); });
}

int candor_sizes(int which) {
  const int sizes[] = {sizeof(candor::Linear), sizeof(candor::Layer), sizeof(candor::Model), sizeof(candor::Step), sizeof(candor::Draws)};
  return sizes[which];
}
}
