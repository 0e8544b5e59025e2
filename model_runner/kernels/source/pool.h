// A team of threads that stays together for one forward pass.
//
// OpenMP's teams spin at every barrier for as long as their runtime likes; on a machine with few cores and other busy
// processes that costs milliseconds a step. Here a thread spins briefly, then gives its core away: to the kernel
// between steps (futex), to whoever is runnable inside a step (sched_yield). And where the others' cores are taken so
// often that waiting for them costs more than they help, the team shrinks for a while.
#pragma once

#include <immintrin.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

namespace candor {

class Pool {
 public:
  explicit Pool(int threads) : threads_(threads), active_(threads) {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
  }

  ~Pool() {
    stopping_.store(true);
    publish();
    for (auto& worker : workers_) worker.join();
  }

  // How many threads there are, and how many take part in the current job (or will in the next).
  int threads() const { return threads_; }
  int active() const { return active_; }

  // Runs job(thread) on every active thread, the caller being thread 0; returns when all are done.
  void run(const std::function<void(int)>& job) {
    cursor_.store(0, std::memory_order_relaxed);
    if (active_ > 1) {
      job_ = &job;
      publish();
    }
    waited_ = Clock::duration::zero();
    const auto began = Clock::now();
    job(0);
    barrier(0);
    adapt(Clock::now() - began);
  }

  // All threads of the job meet here; afterwards `take` starts from zero again.
  void barrier(int thread) {
    if (active_ == 1) {
      cursor_.store(0, std::memory_order_relaxed);
      return;
    }
    // Read before arriving: once all have arrived, thread 0 may go on and change it while the others are still here.
    const int team = active_, generation = generation_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == team - 1) {
      arrived_.store(0, std::memory_order_relaxed);
      cursor_.store(0, std::memory_order_relaxed);
      generation_.store(generation + 1, std::memory_order_release);
      return;
    }
    for (int spins = 0; spins < kSpins; ++spins) {
      if (generation_.load(std::memory_order_acquire) != generation) return;
      _mm_pause();
    }
    const auto began = Clock::now();
    while (generation_.load(std::memory_order_acquire) == generation) sched_yield();
    if (thread == 0) waited_ += Clock::now() - began;
  }

  // The next piece of the current phase's work; pieces are handed out one by one so that a thread whose core was
  // taken by another process holds up no more than one piece.
  int take() { return cursor_.fetch_add(1, std::memory_order_relaxed); }

 private:
  using Clock = std::chrono::steady_clock;

  static constexpr int kSpins = 1500;
  static constexpr long kMostThreads = 4096;
  static constexpr int kFirstPause = 16, kLongestPause = 128;  // jobs that a shrunken team runs before it grows again

  // The number of a job carries the size of its team: a thread that wakes late must not judge by the next one's.
  void publish() {
    job_number_.store((job_number_.load(std::memory_order_relaxed) / kMostThreads + 1) * kMostThreads + active_, std::memory_order_release);
    job_number_.notify_all();
  }

  // A team whose recent jobs spent half their time waiting for threads without a core is better off half as large for a
  // while. One bad job is no reason: every now and then another process needs a core for a moment.
  void adapt(Clock::duration took) {
    if (threads_ == 1) return;
    if (active_ > 1) {
      const float share = static_cast<float>(waited_.count()) / static_cast<float>(std::max<Clock::rep>(1, took.count()));
      waiting_ += (share - waiting_) / 8;
      if (waiting_ > 0.5f) {
        active_ = std::max(1, active_ / 2);
        left_ = pause_;
        pause_ = std::min(pause_ * 2, kLongestPause);
        waiting_ = 0.0f;
        return;
      }
      if (active_ == threads_ && waiting_ < 0.25f) pause_ = std::max(kFirstPause, pause_ - 4);
    }
    if (active_ < threads_ && --left_ <= 0) {
      active_ = std::min(threads_, active_ * 2);
      left_ = pause_;
      waiting_ = 0.0f;
    }
  }

  void work(int thread) {
    long seen = 0;
    for (;;) {
      for (int spins = 0; spins < kSpins && job_number_.load(std::memory_order_acquire) == seen; ++spins) _mm_pause();
      job_number_.wait(seen, std::memory_order_acquire);
      const long now = job_number_.load(std::memory_order_acquire);
      if (now == seen) continue;
      seen = now;
      if (stopping_.load()) return;
      if (thread >= now % kMostThreads) continue;
      (*job_)(thread);
      barrier(thread);
    }
  }

  const int threads_;
  int active_;  // changes between jobs only
  int left_ = 0, pause_ = kFirstPause;
  Clock::duration waited_{};  // by the caller, in the current job
  float waiting_ = 0.0f;      // share of recent jobs, a moving average
  std::vector<std::thread> workers_;
  const std::function<void(int)>* job_ = nullptr;
  alignas(64) std::atomic<long> job_number_{0};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> generation_{0};
  alignas(64) std::atomic<int> cursor_{0};
  std::atomic<bool> stopping_{false};
};

}  // namespace candor
