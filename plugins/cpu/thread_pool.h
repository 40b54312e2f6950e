// The threads that run a plan, and the barrier between its calls.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "team.h"

namespace bitmtp {

// Reusable. It spins, because operators of a small model end microseconds apart, and gives the processor away after a while,
// because the thread it waits for may be the one that needs it.
class Barrier {
 public:
  explicit Barrier(int32_t count) : count_(count) {}
  void wait();

 private:
  const int32_t count_;
  alignas(64) std::atomic<int32_t> arrived_{0};
  alignas(64) std::atomic<uint32_t> phase_{0};
};

class ThreadPool {
 public:
  using Task = void (*)(void *context, const Team &team);

  // threads <= 0: one for every processor this process may run on. Throws std::system_error if a thread cannot be made.
  explicit ThreadPool(int32_t threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool &) = delete;
  ThreadPool &operator=(const ThreadPool &) = delete;

  int32_t threads() const { return count_; }

  // Calls task on every thread, the caller being thread 0, and returns when all of them are done. One caller at a time.
  void run(Task task, void *context);

 private:
  void work(int32_t index);
  void wait_for_work(uint32_t seen);
  void stop();

  const int32_t count_;
  Barrier barrier_;
  std::vector<std::thread> workers_;
  Task task_ = nullptr;  // null tells the workers to leave
  void *context_ = nullptr;
  alignas(64) std::atomic<uint32_t> generation_{0};
  std::atomic<int32_t> sleepers_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
};

}  // namespace bitmtp
