// Linear layers as phases of a team: activations are prepared (normed, quantised), then multiplied panel by panel.
#pragma once

#include <algorithm>
#include <vector>

#include "activations.h"
#include "float_tile.h"
#include "integer_tile.h"
#include "linear.h"
#include "pool.h"

namespace candor {

constexpr int kPrivateRows = 2;  // up to so many rows every thread prepares its own copy instead of meeting at a barrier
constexpr int kRowBlock = 96;    // rows whose activations stay in a core's L2 while panels stream past

constexpr int kPiecesPerThread = 12;  // of one product: who loses its core holds up the others by no more than one

enum Write { kStore, kAdd, kGate };
enum Activation : int32_t { kSilu = 0, kGeluTanh = 1 };

class LinearPhase {
 public:
  explicit LinearPhase(Pool& pool) : pool_(pool), private_(pool.threads()) {}

  // Room for `rows` rows of up to `widest` inputs; called before the team starts.
  void fit(size_t rows, size_t widest) {
    shared_.fit(rows, widest);
    for (auto& own : private_) own.fit(kPrivateRows, widest);
  }

  // Ends behind a barrier if the threads share the result.
  Activations prepare(const Linear& weights, const float* x, const float* norm, int rows, float epsilon, int thread) {
    const size_t k = weights.inputs;
    if (rows <= kPrivateRows) {
      Prepared& own = private_[thread];
      for (int r = 0; r < rows; ++r) own.row(weights, r, x + r * k, norm, epsilon);
      return own.view();
    }
    const int block = 4;
    for (int piece; (piece = pool_.take() * block) < rows;)
      for (int r = piece; r < std::min(rows, piece + block); ++r) shared_.row(weights, r, x + r * k, norm, epsilon);
    pool_.barrier(thread);
    return shared_.view();
  }

  // out = W x, or out += multiplier * W x, or out = activation(gate) * up. Ends without a barrier.
  void multiply(const Linear& weights, const Activations& x, int rows, float* out, Write write, float multiplier = 1.0f,
                int activation = kSilu) {
    const int panels = weights.outputs / kPanel, step = weights.gated ? 2 : 1;
    const int blocks = (rows + kRowBlock - 1) / kRowBlock;
    const int wanted = std::max(1, kPiecesPerThread * pool_.active() / blocks);
    const int chunk = std::max(1, (panels / step + wanted - 1) / wanted) * step;
    const int chunks = (panels + chunk - 1) / chunk;
    for (int unit; (unit = pool_.take()) < blocks * chunks;) {
      const int row = unit / chunks * kRowBlock, count = std::min(kRowBlock, rows - row);
      const int first = unit % chunks * chunk, last = std::min(panels, first + chunk);
      for (int panel = first; panel < last; panel += step) panel_rows(weights, panel, x, row, count, out, write, multiplier, activation);
    }
  }

 private:
  // W x of one panel, bias included: [rows][16].
  static void product(const Linear& weights, int panel, const Activations& x, int row, int rows, float* out) {
    const uint8_t* data = weights.data + panel_bytes(weights) * panel;
    if (is_integer(weights)) integer_rows(weights, data, x, row, rows, out);
    else float_rows(weights, data, x, row, rows, out);
    if (weights.bias == nullptr) return;
    const F32x16 bias = load16(weights.bias + panel * kPanel);
    for (int r = 0; r < rows; ++r) store16(out + r * kPanel, add16(load16(out + r * kPanel), bias));
  }

  static void panel_rows(const Linear& weights, int panel, const Activations& x, int row, int rows, float* out, Write write,
                         float multiplier, int activation) {
    alignas(64) float result[kRowBlock * kPanel], up[kRowBlock * kPanel];
    product(weights, panel, x, row, rows, result);
    if (write == kGate) product(weights, panel + 1, x, row, rows, up);
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

  Pool& pool_;
  Prepared shared_;
  std::vector<Prepared> private_;
};

}  // namespace candor
