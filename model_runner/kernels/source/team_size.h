// How many threads of a team take part in its jobs.
//
// A team whose recent jobs spent half their time waiting for threads without a core is better off half as large for a
// while. One bad job is no reason: every now and then another process needs a core for a moment.
#pragma once

#include <algorithm>
#include <chrono>

namespace candor {

class TeamSize {
 public:
  using Clock = std::chrono::steady_clock;

  explicit TeamSize(int threads) : threads_(threads), active_(threads) {}

  int active() const { return active_; }

  // Before a job. A team that grows again is on trial: its first bad job sends it back.
  void begin(Clock::time_point now) {
    if (active_ == threads_ || now < pause_ends_) return;
    active_ = std::min(threads_, active_ * 2);
    pause_ends_ = now + pause_;
    waiting_ = 0.45f;
  }

  // After a job that took so long, so much of it waiting for the others.
  void end(Clock::time_point now, Clock::duration took, Clock::duration waited) {
    if (active_ == 1) return;
    waiting_ += (static_cast<float>(waited.count()) / static_cast<float>(std::max<Clock::rep>(1, took.count())) - waiting_) / 8;
    if (waiting_ > 0.5f) {
      active_ /= 2;
      pause_ends_ = now + pause_;
      pause_ = std::min(pause_ * 2, kLongestPause);
      waiting_ = 0.0f;
    } else if (active_ == threads_ && waiting_ < 0.25f) {
      pause_ = kFirstPause;
    }
  }

 private:
  // A time, not a number of jobs: a job may be a decode step, or a prompt that takes a hundred times as long.
  static constexpr Clock::duration kFirstPause = std::chrono::milliseconds(100), kLongestPause = std::chrono::seconds(2);

  const int threads_;
  int active_;
  Clock::duration pause_ = kFirstPause;
  Clock::time_point pause_ends_{};
  float waiting_ = 0.0f;  // share of recent jobs, a moving average
};

}  // namespace candor
