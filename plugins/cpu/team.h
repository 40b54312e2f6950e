// How a kernel runs on several threads: every thread of the pool calls it with its own Team, and the executor puts a barrier
// after each call. A kernel divides its work by `index`; how it divides never changes an order of addition (docs/numerics.md).
#pragma once

#include <cstdint>

namespace bitmtp {

class Barrier;

struct Team {
  int32_t index;  // 0 .. count-1
  int32_t count;
  Barrier *shared;

  // Waits until every thread of the team is here. Every thread must call it equally often.
  void barrier() const;

  // This thread's part [first, last) of n equal tasks.
  void range(int64_t n, int64_t &first, int64_t &last) const {
    first = n * index / count;
    last = n * (index + 1) / count;
  }
};

}  // namespace bitmtp
