// Top-k, top-p and min-p of one row of logits as one cut: ids with a logit below it are out. Ids that tie with the last
// survivor survive too. model_runner/sampling/filters.py says the same in torch.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "simd.h"

namespace candor {

constexpr float kNone = -std::numeric_limits<float>::infinity();

// One row of logits. `at` reads eight, past the end as -inf.
struct LogitRow {
  const float* logits;
  int vocabulary;
  float temperature;

  __m256 at(int i) const {
    if (i + 8 <= vocabulary) return _mm256_loadu_ps(logits + i);
    alignas(32) float lanes[8];
    for (int lane = 0; lane < 8; ++lane) lanes[lane] = i + lane < vocabulary ? logits[i + lane] : kNone;
    return _mm256_load_ps(lanes);
  }

  // NaN is passed over.
  float largest() const {
    __m256 most = _mm256_set1_ps(kNone);
    for (int i = 0; i < vocabulary; i += 8) most = _mm256_max_ps(at(i), most);
    return horizontal_max(most);
  }

  // Calls f(id) for every id whose logit reaches the floor.
  template <class Function>
  void each_from(float floor, const Function& f) const {
    const __m256 floors = _mm256_set1_ps(floor);
    for (int i = 0; i < vocabulary; i += 8) {
      int reached = _mm256_movemask_ps(_mm256_cmp_ps(at(i), floors, _CMP_GE_OQ));
      for (; reached != 0; reached &= reached - 1) {
        const int id = i + __builtin_ctz(static_cast<unsigned>(reached));
        if (id < vocabulary) f(id);
      }
    }
  }
};

class Cut {
 public:
  Cut(const LogitRow& row, float largest) : row_(row), largest_(largest) {}

  float find(int64_t top_k, float top_p, float min_p) const {
    float cut = min_p > 0.0f ? largest_ + row_.temperature * std::log(min_p) : kNone;
    const float kth = top_k > 0 && top_k < row_.vocabulary ? kth_largest(static_cast<int>(top_k)) : kNone;
    if (top_p < 1.0f) cut = std::max(cut, nucleus(top_p, kth));
    return std::max(cut, kth);
  }

 private:
  static constexpr int kFew = 128;  // a nucleus is rarely larger
  static constexpr int kSlices = 2048;

  // A logit that at least `count` reach: the count-th largest of maxima over disjoint parts.
  float reached_by(int count) const {
    const int vectors = (row_.vocabulary + 7) / 8, step = std::max(1, row_.vocabulary / (4 * count));
    std::vector<float> maxima(static_cast<size_t>((vectors + step - 1) / step) * 8);
    if (static_cast<int>(maxima.size()) <= count) return kNone;
    for (int first = 0, part = 0; first < vectors; first += step, ++part) {
      __m256 most = _mm256_set1_ps(kNone);
      for (int i = first; i < std::min(vectors, first + step); ++i) most = _mm256_max_ps(row_.at(i * 8), most);
      _mm256_storeu_ps(&maxima[static_cast<size_t>(part) * 8], most);
    }
    std::nth_element(maxima.begin(), maxima.begin() + count - 1, maxima.end(), std::greater<float>());
    return maxima[count - 1];
  }

  float kth_largest(int k) const {
    std::vector<float> values;
    row_.each_from(reached_by(k), [&](int id) { values.push_back(row_.logits[id]); });
    if (static_cast<int>(values.size()) < k) return kNone;
    std::nth_element(values.begin(), values.begin() + k - 1, values.end(), std::greater<float>());
    return values[k - 1];
  }

  // The value with which the largest of those from `floor` on reach the share top_p of their weight.
  float nucleus(float top_p, float floor) const {
    const double goal = top_p * weight_from(floor);
    std::vector<float> values;
    row_.each_from(std::max(floor, reached_by(kFew)), [&](int id) { values.push_back(row_.logits[id]); });
    const float cut = reach(values, 0.0, goal);
    return cut == kNone ? wide_nucleus(goal, floor) : cut;
  }

  // Weights are added up in slices of the values' range; then only the slice in which the goal lies is looked at.
  float wide_nucleus(double goal, float floor) const {
    std::vector<double> weights(kSlices, 0.0);
    row_.each_from(floor, [&](int id) { weights[slice(row_.logits[id])] += weight(row_.logits[id]); });
    double above = 0.0;
    for (int wanted = 0; wanted < kSlices; above += weights[wanted++]) {
      if (above + weights[wanted] < goal) continue;
      std::vector<float> values;
      row_.each_from(floor, [&](int id) {
        if (slice(row_.logits[id]) == wanted) values.push_back(row_.logits[id]);
      });
      const float cut = reach(values, above, goal);
      if (cut != kNone) return cut;
    }
    return floor;
  }

  int slice(float logit) const {
    const float depth = (largest_ - logit) / row_.temperature;  // weighs nothing from 88 on
    return depth < 88.0f ? static_cast<int>(depth * (kSlices / 88.0f)) : kSlices - 1;
  }

  double weight(float logit) const { return std::exp((logit - largest_) / row_.temperature); }

  double weight_from(float floor) const {
    const __m256 top = _mm256_set1_ps(largest_), divisor = _mm256_set1_ps(row_.temperature), floors = _mm256_set1_ps(floor);
    __m256 sum = _mm256_setzero_ps();
    for (int i = 0; i < row_.vocabulary; i += 8) {
      const __m256 logits = row_.at(i);
      const __m256 weights = exp8(_mm256_div_ps(_mm256_sub_ps(logits, top), divisor));
      sum = _mm256_add_ps(sum, _mm256_and_ps(weights, _mm256_cmp_ps(logits, floors, _CMP_GE_OQ)));
    }
    return horizontal_sum(sum);
  }

  // The value with which `values`, descending, reach the goal from `above` on; -inf if all together fall short.
  float reach(std::vector<float>& values, double above, double goal) const {
    std::sort(values.begin(), values.end(), std::greater<float>());
    for (const float value : values) {
      above += weight(value);
      if (above >= goal) return value;
    }
    return kNone;
  }

  const LogitRow row_;
  const float largest_;
};

}  // namespace candor
