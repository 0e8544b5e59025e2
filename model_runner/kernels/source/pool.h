// A team of threads that stays together for one forward pass.
//
// OpenMP's teams spin at every barrier for as long as their runtime likes; on a machine with few cores and other busy
// processes that costs milliseconds a step. Here a thread spins briefly, then gives its core away: to the kernel
// between steps (futex), to whoever is runnable inside a step (sched_yield). And where the others' cores are taken so
// often that waiting for them costs more than they help, the team shrinks for a while.
#pragma once

#include <immintrin.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "team_size.h"

namespace candor {

class Pool {
 public:
  explicit Pool(int threads) : threads_(threads), size_(threads) {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
  }

  ~Pool() {
    stopping_.store(true);
    publish();
    for (auto& worker : workers_) worker.join();
  }

  // How many threads there are, and how many take part in the current job (or will in the next).
  int threads() const { return threads_; }
  int active() const { return size_.active(); }

  // Runs job(thread) on every active thread, the caller being thread 0; returns when all are done.
  void run(const std::function<void(int)>& job) {
    const auto began = Clock::now();
    size_.begin(began);
    cursor_.store(0, std::memory_order_relaxed);
    if (active() > 1) {
      job_ = &job;
      publish();
    }
    waited_ = Clock::duration::zero();
    job(0);
    barrier(0);
    const auto ended = Clock::now();
    size_.end(ended, ended - began, waited_);
  }

  // All threads of the job meet here; afterwards `take` starts from zero again.
  void barrier(int thread) {
    if (active() == 1) {
      cursor_.store(0, std::memory_order_relaxed);
      return;
    }
    // Read before arriving: once all have arrived, thread 0 may go on and change it while the others are still here.
    const int team = active(), generation = generation_.load(std::memory_order_relaxed);
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
  using Clock = TeamSize::Clock;

  static constexpr int kSpins = 1500;
  static constexpr long kMostThreads = 4096;

  // The number of a job carries the size of its team: a thread that wakes late must not judge by the next one's.
  void publish() {
    job_number_.store((job_number_.load(std::memory_order_relaxed) / kMostThreads + 1) * kMostThreads + active(), std::memory_order_release);
    job_number_.notify_all();
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
  TeamSize size_;  // changes between jobs only
  Clock::duration waited_{};  // by the caller, in the current job
  std::vector<std::thread> workers_;
  const std::function<void(int)>* job_ = nullptr;
  alignas(64) std::atomic<long> job_number_{0};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> generation_{0};
  alignas(64) std::atomic<int> cursor_{0};
  std::atomic<bool> stopping_{false};
};

}  // namespace candor
