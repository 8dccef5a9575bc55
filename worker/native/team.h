// Work sharing among the threads of one parallel region. They are OpenMP's, which torch has already loaded, so that both
// use the same threads.
//
// A phase ends when its pieces are done, not when all threads have arrived: a thread that is descheduled, because another
// process uses its core, delays the phase only if it holds a piece. With barriers such a neighbour makes a step take tens
// of times as long; here, less than twice.
#pragma once
#include <omp.h>
#include <sched.h>

#include <atomic>
#include <cstdint>
#include <vector>

namespace {

constexpr int PATIENCE = 4096;  // polls of an unfinished phase before this core is yielded

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// On its own cache line, to avoid false sharing.
struct alignas(64) Counter {
  std::atomic<int64_t> value{0};
};

// The shared counters of every phase: pieces done, and pieces taken of each run.
class Tickets {
 public:
  Tickets() = default;
  Tickets(int64_t phases, int64_t runs) : apart_(1 + runs), counters_(phases * apart_) {}

  Counter& done(int64_t phase) { return counters_[phase * apart_]; }
  Counter& taken(int64_t phase, int64_t run) { return counters_[phase * apart_ + 1 + run]; }

 private:
  int64_t apart_ = 0;
  std::vector<Counter> counters_;
};

// One thread's view of a region's phases; all threads pass them in the same order.
class Phases {
 public:
  explicit Phases(Tickets& tickets) : tickets_(tickets), thread_(omp_get_thread_num()), threads_(omp_get_num_threads()) {}

  // Distributes pieces in order to free threads.
  template <typename Work> void share(int64_t pieces, Work&& work) { wait(pieces, take(0, 0, pieces, work)); }

  // Distributes pieces whose memory is read sequentially: each thread has its own run, which suits the hardware's
  // prefetching, and then helps with the others' runs.
  template <typename Work> void share_runs(int64_t pieces, Work&& work) {
    int64_t done = 0;
    for (int64_t rotate = 0; rotate < threads_; ++rotate) {
      const int64_t run = (thread_ + rotate) % threads_;
      done += take(run, run * pieces / threads_, (run + 1) * pieces / threads_, work);
    }
    wait(pieces, done);
  }

 private:
  // Processes the pieces of a run that no thread has taken; returns their number.
  template <typename Work> int64_t take(int64_t run, int64_t first, int64_t end, Work&& work) {
    std::atomic<int64_t>& taken = tickets_.taken(phase_, run).value;
    if (first + taken.load(std::memory_order_relaxed) >= end) return 0;
    int64_t done = 0;
    for (int64_t piece = first + taken++; piece < end; piece = first + taken++, ++done) work(piece);
    return done;
  }

  void wait(int64_t pieces, int64_t done) {
    std::atomic<int64_t>& all = tickets_.done(phase_++).value;
    if (done > 0) all.fetch_add(done, std::memory_order_release);
    for (int looks = 0; all.load(std::memory_order_acquire) < pieces; pause())
      if (++looks % PATIENCE == 0) sched_yield();
  }

  Tickets& tickets_;
  const int64_t thread_, threads_;
  int64_t phase_ = 0;
};

}  // namespace
