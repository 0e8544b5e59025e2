// A team of threads that stays together for one forward pass.
//
// OpenMP's teams spin at every barrier for as long as their runtime likes; on a machine with few cores and other busy
// processes that costs milliseconds a step. Here a thread spins briefly, then gives its core away: to the kernel
// between steps (futex), to whoever is runnable inside a step (sched_yield).
#pragma once

#include <immintrin.h>
#include <sched.h>

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

namespace candor {

class Pool {
 public:
  explicit Pool(int threads) : size_(threads) {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
  }

  ~Pool() {
    stopping_.store(true);
    job_number_.fetch_add(1);
    job_number_.notify_all();
    for (auto& worker : workers_) worker.join();
  }

  int size() const { return size_; }

  // Runs job(thread) on every thread, the caller being thread 0; returns when all are done.
  void run(const std::function<void(int)>& job) {
    if (size_ == 1) {
      cursor_.store(0, std::memory_order_relaxed);
      job(0);
      return;
    }
    job_ = &job;
    cursor_.store(0, std::memory_order_relaxed);
    job_number_.fetch_add(1, std::memory_order_release);
    job_number_.notify_all();
    job(0);
    barrier();
  }

  // All threads of the job meet here; afterwards `take` starts from zero again.
  void barrier() {
    if (size_ == 1) {
      cursor_.store(0, std::memory_order_relaxed);
      return;
    }
    const int generation = generation_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == size_ - 1) {
      arrived_.store(0, std::memory_order_relaxed);
      cursor_.store(0, std::memory_order_relaxed);
      generation_.store(generation + 1, std::memory_order_release);
      return;
    }
    int spins = 0;
    while (generation_.load(std::memory_order_acquire) == generation) {
      if (++spins < kSpins) _mm_pause();
      else sched_yield();
    }
  }

  // The next piece of the current phase's work; pieces are handed out one by one so that a thread whose core was
  // taken by another process holds up no more than one piece.
  int take() { return cursor_.fetch_add(1, std::memory_order_relaxed); }

 private:
  static constexpr int kSpins = 4000;

  void work(int thread) {
    long seen = 0;
    for (;;) {
      for (int spins = 0; spins < kSpins && job_number_.load(std::memory_order_acquire) == seen; ++spins) _mm_pause();
      job_number_.wait(seen, std::memory_order_acquire);
      const long now = job_number_.load(std::memory_order_acquire);
      if (now == seen) continue;
      seen = now;
      if (stopping_.load()) return;
      (*job_)(thread);
      barrier();
    }
  }

  const int size_;
  std::vector<std::thread> workers_;
  const std::function<void(int)>* job_ = nullptr;
  alignas(64) std::atomic<long> job_number_{0};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> generation_{0};
  alignas(64) std::atomic<int> cursor_{0};
  std::atomic<bool> stopping_{false};
};

}  // namespace candor
