// Linear layers as phases of a team: activations are prepared (normed, quantised), then multiplied panel by panel.
#pragma once

#include <algorithm>
#include <vector>

#include "linear.h"
#include "pool.h"

namespace candor {

constexpr int kPrivateRows = 2;  // up to so many rows every thread prepares its own copy instead of meeting at a barrier
constexpr int kRowBlock = 96;    // rows whose activations stay in a core's L2 while panels stream past

enum Write { kStore, kAdd, kGate };
enum Activation : int32_t { kSilu = 0, kGeluTanh = 1 };

inline void rms_norm(const float* x, const float* weight, int n, float epsilon, float* out) {
  __m256 sum = _mm256_setzero_ps();
  for (int i = 0; i < n; i += 8) {
    const __m256 v = _mm256_loadu_ps(x + i);
    sum = _mm256_fmadd_ps(v, v, sum);
  }
  const __m256 factor = _mm256_set1_ps(1.0f / std::sqrt(horizontal_sum(sum) / static_cast<float>(n) + epsilon));
  for (int i = 0; i < n; i += 8)
    _mm256_storeu_ps(out + i, _mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(x + i), factor), _mm256_loadu_ps(weight + i)));
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
    const int panels = weights.outputs / kPanel, step = weights.gated ? 2 : 1, tile = rows_per_tile(weights);
    const int blocks = (rows + kRowBlock - 1) / kRowBlock;
    const int wanted = std::max(1, 6 * pool_.active() / blocks);
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

 private:
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

  Pool& pool_;
  Prepared shared_;
  std::vector<Prepared> private_;
};

}  // namespace candor
