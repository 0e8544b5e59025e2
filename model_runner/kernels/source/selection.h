// What a draw needs of a row of logits: its largest values, or the few ids that can win once noise is added.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "pool.h"
#include "simd.h"

namespace candor {

struct LogitRows {
  const float* logits;
  int64_t stride;
  int32_t rows, vocabulary;
  const float* temperatures;  // [rows], > 0

  const float* row(int r) const { return logits + r * stride; }
};

// Of every row the `count` largest logits, descending, equals by ascending id; and, where `log_sums` is not null, the
// logarithm of the sum of exp((logit - largest) / temperature). Rows with NaN end in -inf with id 0.
struct Largest {
  int32_t count;
  float* values;     // [rows, count]
  int64_t* ids;      // [rows, count]
  float* log_sums;   // [rows]
};

inline __m256 eight_logits(const float* row, int i, int vocabulary) {
  if (i + 8 <= vocabulary) return _mm256_loadu_ps(row + i);
  alignas(32) float lanes[8];
  for (int lane = 0; lane < 8; ++lane) lanes[lane] = i + lane < vocabulary ? row[i + lane] : -std::numeric_limits<float>::infinity();
  return _mm256_load_ps(lanes);
}

// A number that at least `count` of the row's logits reach: the count-th largest of maxima over disjoint parts.
inline float reached_by(const float* row, int vocabulary, int count, std::vector<float>& maxima) {
  const int vectors = (vocabulary + 7) / 8, step = std::max(1, vocabulary / (4 * count));
  maxima.resize(static_cast<size_t>((vectors + step - 1) / step) * 8);
  if (static_cast<int>(maxima.size()) <= count) return -std::numeric_limits<float>::infinity();
  for (int first = 0, part = 0; first < vectors; first += step, ++part) {
    __m256 largest = _mm256_set1_ps(-std::numeric_limits<float>::infinity());
    for (int i = first; i < std::min(vectors, first + step); ++i) largest = _mm256_max_ps(eight_logits(row, i * 8, vocabulary), largest);
    _mm256_storeu_ps(&maxima[part * 8], largest);
  }
  std::nth_element(maxima.begin(), maxima.begin() + count - 1, maxima.end(), std::greater<float>());
  return maxima[count - 1];
}

struct Candidate {
  float value;
  int32_t id;

  bool operator<(const Candidate& other) const { return value != other.value ? value > other.value : id < other.id; }
};

inline float log_sum(const float* row, int vocabulary, float largest, float temperature) {
  __m256 sum = _mm256_setzero_ps();
  const __m256 top = _mm256_set1_ps(largest), divisor = _mm256_set1_ps(temperature);
  for (int i = 0; i < vocabulary; i += 8)
    sum = _mm256_add_ps(sum, exp8(_mm256_div_ps(_mm256_sub_ps(eight_logits(row, i, vocabulary), top), divisor)));
  return std::log(horizontal_sum(sum));
}

inline void find_largest(const LogitRows& from, int r, const Largest& to) {
  const float* row = from.row(r);
  std::vector<float> maxima;
  const float bound = reached_by(row, from.vocabulary, to.count, maxima);
  const __m256 bounds = _mm256_set1_ps(bound);
  std::vector<Candidate> found;
  for (int i = 0; i < from.vocabulary; i += 8) {
    int reached = _mm256_movemask_ps(_mm256_cmp_ps(eight_logits(row, i, from.vocabulary), bounds, _CMP_GE_OQ));
    for (; reached != 0; reached &= reached - 1) {
      const int id = i + __builtin_ctz(static_cast<unsigned>(reached));
      if (id < from.vocabulary) found.push_back({row[id], id});
    }
  }
  found.resize(std::max(found.size(), static_cast<size_t>(to.count)), {-std::numeric_limits<float>::infinity(), 0});
  std::partial_sort(found.begin(), found.begin() + to.count, found.end());
  for (int i = 0; i < to.count; ++i) {
    to.values[static_cast<int64_t>(r) * to.count + i] = found[i].value;
    to.ids[static_cast<int64_t>(r) * to.count + i] = found[i].id;
  }
  if (to.log_sums != nullptr) to.log_sums[r] = log_sum(row, from.vocabulary, found[0].value, from.temperatures[r]);
}

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

// Of every row the ids whose logit + temperature * noise may be the largest, ascending: a superset of the winner, which
// the caller determines. What float32 makes of logarithms decides among them, not here.
struct Contenders {
  const uint32_t* keys;  // [rows, 2]
  int32_t capacity;
  int64_t* ids;     // [rows, capacity], filled up with the first
  int32_t* counts;  // [rows], 0: more than the capacity
};

class Contest {
 public:
  Contest(const LogitRows& from, const Contenders& to, int r)
      : row_(from.row(r)), vocabulary_(from.vocabulary), temperature_(from.temperatures[r]), noise_{to.keys[r * 2], to.keys[r * 2 + 1]} {}

  // False if too many ids are as good as equal.
  bool run(size_t capacity) {
    const float none = -std::numeric_limits<float>::infinity();
    __m256 most = _mm256_set1_ps(none);
    for (int i = 0; i < vocabulary_; i += 8) most = _mm256_max_ps(eight_logits(row_, i, vocabulary_), most);
    const float largest = horizontal_max(most);
    if (largest == none || largest == std::numeric_limits<float>::infinity()) {
      kept_.push_back({0, 0.0});
      return true;
    }
    const int id = static_cast<int>(std::find(row_, row_ + vocabulary_, largest) - row_);
    // Wider than what float32 loses in the sum and its terms.
    slack_ = 1e-5 * (std::fabs(largest) + 25.0 * temperature_);
    best_ = score(id, uniform_of(id));
    for (int i = 0; i < vocabulary_; i += 8) {
      look_at(i);
      if (kept_.size() + 8 > capacity && !compact(capacity)) return false;
    }
    return compact(capacity);
  }

  void write(int64_t* ids, int capacity) const {
    for (int i = 0; i < capacity; ++i) ids[i] = kept_[i < static_cast<int>(kept_.size()) ? i : 0].id;
  }

  int count() const { return static_cast<int>(kept_.size()); }

 private:
  struct Kept {
    int32_t id;
    double score;
  };

  double score(int id, float uniform) const { return row_[id] + static_cast<double>(temperature_) * Noise::gumbel(uniform); }

  float uniform_of(int id) const { return _mm256_cvtss_f32(noise_.uniforms(_mm256_set1_epi32(id))); }

  // Noise of u is at most -log(u), so an id may win only if u <= exp((logit - best) / temperature).
  void look_at(int i) {
    const float floor = static_cast<float>(best_ - slack_);
    const __m256 lead = _mm256_div_ps(_mm256_sub_ps(eight_logits(row_, i, vocabulary_), _mm256_set1_ps(floor)), _mm256_set1_ps(temperature_));
    if (_mm256_movemask_ps(_mm256_cmp_ps(lead, _mm256_set1_ps(-22.5f), _CMP_GT_OQ)) == 0) return;  // no u is as small
    const __m256i ids = _mm256_add_epi32(_mm256_set1_epi32(i), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    const __m256 uniforms = noise_.uniforms(ids);
    const __m256 bound = _mm256_mul_ps(exp8(_mm256_min_ps(lead, _mm256_set1_ps(80.0f))), _mm256_set1_ps(1.001f));
    int may_win = _mm256_movemask_ps(_mm256_cmp_ps(uniforms, bound, _CMP_LE_OQ));
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

  const float* row_;
  int vocabulary_;
  float temperature_;
  Noise noise_;
  double best_ = 0.0, slack_ = 0.0;
  std::vector<Kept> kept_;
};

inline void find_contenders(const LogitRows& from, int r, const Contenders& to) {
  Contest contest(from, to, r);
  to.counts[r] = contest.run(to.capacity) ? contest.count() : 0;
  if (to.counts[r] > 0) contest.write(to.ids + static_cast<int64_t>(r) * to.capacity, to.capacity);
}

}  // namespace candor
