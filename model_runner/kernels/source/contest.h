// The few ids of a row of logits that can win a draw, found without the logarithms that noise is made of.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cut.h"
#include "simd.h"

namespace candor {

// Noise as model_runner/sampling/noise.py has it.
struct Noise {
  uint32_t first, second;

  static constexpr uint32_t kIdStep = 0x9E3779B9u, kIdFirst = 0x7FEB352Du, kIdSecond = 0x846CA68Bu;
  static constexpr float kScale = 1.0f / 2147483648.0f, kLargest = 1.0f - 1.0f / 16777216.0f;

  __m256 uniforms(__m256i ids) const {
    __m256i word = _mm256_add_epi32(_mm256_mullo_epi32(ids, _mm256_set1_epi32(static_cast<int>(kIdStep))), _mm256_set1_epi32(static_cast<int>(first)));
    word = _mm256_xor_si256(word, _mm256_srli_epi32(word, 16));
    word = _mm256_mullo_epi32(word, _mm256_set1_epi32(static_cast<int>(kIdFirst)));
    word = _mm256_xor_si256(word, _mm256_set1_epi32(static_cast<int>(second)));
    word = _mm256_xor_si256(word, _mm256_srli_epi32(word, 15));
    word = _mm256_mullo_epi32(word, _mm256_set1_epi32(static_cast<int>(kIdSecond)));
    word = _mm256_xor_si256(word, _mm256_srli_epi32(word, 16));
    word = _mm256_and_si256(word, _mm256_set1_epi32(0x7fffffff));
    const __m256 uniform = _mm256_mul_ps(_mm256_add_ps(_mm256_cvtepi32_ps(word), _mm256_set1_ps(0.5f)), _mm256_set1_ps(kScale));
    return _mm256_min_ps(uniform, _mm256_set1_ps(kLargest));
  }

  static double gumbel(float uniform) { return -std::log(-std::log1p(-static_cast<double>(uniform))); }
};

// Draws to look at. Of each row the ids are wanted whose logit + temperature * noise may be the largest among those above
// the row's cut, ascending: a superset of the winner, which the caller determines. What float32 makes of logarithms
// decides among them, not here.
struct Draws {
  const float* logits;
  int64_t stride;
  int32_t rows, vocabulary, capacity;
  const float* temperatures;  // [rows] > 0
  const int64_t* top_k;       // [rows] 0: off
  const float* top_p;         // [rows] 1: off
  const float* min_p;         // [rows] 0: off
  const uint32_t* keys;       // [rows, 2]
  int64_t* ids;               // [rows, capacity], filled up with the first
  int32_t* counts;            // [rows], 0: more than the capacity
};

class Contest {
 public:
  Contest(const Draws& draws, int r)
      : row_{draws.logits + r * draws.stride, draws.vocabulary, draws.temperatures[r]}, noise_{draws.keys[r * 2], draws.keys[r * 2 + 1]} {}

  // False if too many ids are as good as equal.
  bool run(int64_t top_k, float top_p, float min_p, size_t capacity) {
    const float largest = row_.largest();
    if (largest == kNone || largest == std::numeric_limits<float>::infinity()) {
      kept_.push_back({0, 0.0});
      return true;
    }
    cut_ = Cut(row_, largest).find(top_k, top_p, min_p);
    const int id = static_cast<int>(std::find(row_.logits, row_.logits + row_.vocabulary, largest) - row_.logits);
    // Wider than what float32 loses in the sum and its terms.
    slack_ = 1e-5 * (std::fabs(largest) + 25.0 * row_.temperature);
    best_ = score(id, _mm256_cvtss_f32(noise_.uniforms(_mm256_set1_epi32(id))));
    for (int i = 0; i < row_.vocabulary; i += 8) {
      look_at(i);
      if (kept_.size() + 8 > capacity && !compact(capacity)) return false;
    }
    return compact(capacity);
  }

  int count() const { return static_cast<int>(kept_.size()); }

  void write(int64_t* ids, int capacity) const {
    for (int i = 0; i < capacity; ++i) ids[i] = kept_[i < count() ? i : 0].id;
  }

 private:
  struct Kept {
    int32_t id;
    double score;
  };

  double score(int id, float uniform) const { return row_.logits[id] + static_cast<double>(row_.temperature) * Noise::gumbel(uniform); }

  // Noise of u is at most -log(u), so an id may win only if u <= exp((logit - best) / temperature).
  void look_at(int i) {
    const __m256 logits = row_.at(i), floor = _mm256_set1_ps(static_cast<float>(best_ - slack_));
    const __m256 lead = _mm256_div_ps(_mm256_sub_ps(logits, floor), _mm256_set1_ps(row_.temperature));
    // No u is smaller than exp(-22.5).
    const __m256 possible = _mm256_and_ps(_mm256_cmp_ps(lead, _mm256_set1_ps(-22.5f), _CMP_GT_OQ),
                                          _mm256_cmp_ps(logits, _mm256_set1_ps(cut_), _CMP_GE_OQ));
    if (_mm256_movemask_ps(possible) == 0) return;
    const __m256i ids = _mm256_add_epi32(_mm256_set1_epi32(i), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    const __m256 uniforms = noise_.uniforms(ids);
    const __m256 bound = _mm256_mul_ps(exp8(_mm256_min_ps(lead, _mm256_set1_ps(80.0f))), _mm256_set1_ps(1.001f));
    int may_win = _mm256_movemask_ps(_mm256_and_ps(possible, _mm256_cmp_ps(uniforms, bound, _CMP_LE_OQ)));
    alignas(32) float lanes[8];
    _mm256_store_ps(lanes, uniforms);
    for (; may_win != 0; may_win &= may_win - 1) {
      const int lane = __builtin_ctz(static_cast<unsigned>(may_win));
      const double reached = score(i + lane, lanes[lane]);
      if (reached < best_ - slack_) continue;
      kept_.push_back({i + lane, reached});
      best_ = std::max(best_, reached);
    }
  }

  bool compact(size_t capacity) {
    kept_.erase(std::remove_if(kept_.begin(), kept_.end(), [this](const Kept& kept) { return kept.score < best_ - slack_; }), kept_.end());
    return kept_.size() + 8 <= capacity;
  }

  const LogitRow row_;
  const Noise noise_;
  float cut_ = kNone;
  double best_ = 0.0, slack_ = 0.0;
  std::vector<Kept> kept_;
};

inline void find_contenders(const Draws& draws, int r) {
  Contest contest(draws, r);
  draws.counts[r] = contest.run(draws.top_k[r], draws.top_p[r], draws.min_p[r], draws.capacity) ? contest.count() : 0;
  if (draws.counts[r] > 0) contest.write(draws.ids + static_cast<int64_t>(r) * draws.capacity, draws.capacity);
}

}  // namespace candor
