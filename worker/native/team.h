// How the threads of one parallel region share work. They are OpenMP's, which torch has loaded already, so that both
// compute on the same ones.
//
// A phase ends when its pieces are done, not when all threads have come by: one that the system holds up, because
// somebody else computes on its core, is not waited for unless it holds a piece. With barriers in between, a busy
// neighbour makes a step take tens of times as long; so, not even twice.
#pragma once
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

// The pieces of a phase that were taken and that are done, on cache lines of their own.
struct Ticket {
  alignas(64) std::atomic<int64_t> taken{0};
  alignas(64) std::atomic<int64_t> done{0};
};

// The phases of a region as one thread of it goes through them, all in the same order.
class Phases {
 public:
  explicit Phases(std::vector<Ticket>& tickets) : tickets_(tickets) {}

  template <typename Work> void share(int64_t pieces, Work&& work) {
    Ticket& ticket = tickets_[phase_++];
    for (int64_t piece = ticket.taken++; piece < pieces; piece = ticket.taken++) {
      work(piece);
      ticket.done.fetch_add(1, std::memory_order_release);
    }
    for (int looks = 0; ticket.done.load(std::memory_order_acquire) < pieces; pause())
      if (++looks % PATIENCE == 0) sched_yield();
  }

 private:
  std::vector<Ticket>& tickets_;
  size_t phase_ = 0;
};

}  // namespace
