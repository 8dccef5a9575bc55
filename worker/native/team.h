// How the threads of one parallel region share work. They are OpenMP's, which torch has loaded already, so that both
// compute on the same ones.
//
// A phase ends when its pieces are done, not when all threads have come by: one that the system holds up, because
// somebody else computes on its core, is not waited for unless it holds a piece. With barriers in between, a busy
// neighbour makes a step take tens of times as long; so, not even twice.
#pragma once
#include <omp.h>
#include <sched.h>

#include <atomic>
#include <cstdint>
#include <vector>

namespace {

constexpr int PATIENCE = 4096;  // looks at a piece that another thread holds, before that thread is offered this core

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// On a cache line of its own: what one thread writes takes no other number from the rest.
struct alignas(64) Counter {
  std::atomic<int64_t> value{0};
};

// What threads tell each other of every phase: how many pieces are done, and how many of each run are taken.
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

// The phases of a region as one thread of it goes through them, all in the same order.
class Phases {
 public:
  explicit Phases(Tickets& tickets) : tickets_(tickets), thread_(omp_get_thread_num()), threads_(omp_get_num_threads()) {}

  // Pieces go in order to whoever is free.
  template <typename Work> void share(int64_t pieces, Work&& work) { wait(pieces, take(0, 0, pieces, work)); }

  // Pieces whose memory is read once, in order: each thread has a run of its own, so that what the processor fetches
  // ahead of it is its own too, and helps with those of others after it.
  template <typename Work> void share_runs(int64_t pieces, Work&& work) {
    int64_t done = 0;
    for (int64_t turn = 0; turn < threads_; ++turn) {
      const int64_t run = (thread_ + turn) % threads_;
      done += take(run, run * pieces / threads_, (run + 1) * pieces / threads_, work);
    }
    wait(pieces, done);
  }

 private:
  // Does what nobody else has taken of a run; returns how many pieces that was.
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
