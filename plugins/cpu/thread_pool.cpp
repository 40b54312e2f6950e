#include "thread_pool.h"

#include <sched.h>

#include <chrono>

namespace bitmtp {

namespace {

constexpr int32_t kMaxThreads = 256;
constexpr int kSpinsBeforeYield = 1000;              // of a barrier: some tens of microseconds
constexpr std::chrono::microseconds kSpinBeforeSleep(50);  // of an idle worker: longer than the host takes between two plans

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

int32_t processors() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
  const unsigned count = std::thread::hardware_concurrency();
  return count > 0 ? static_cast<int32_t>(count) : 1;
}

int32_t clamp_threads(int32_t threads) {
  if (threads <= 0) threads = processors();
  return threads < kMaxThreads ? threads : kMaxThreads;
}

}  // namespace

void Barrier::wait() {
  if (count_ == 1) return;
  const uint32_t phase = phase_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == count_) {
    arrived_.store(0, std::memory_order_relaxed);
    phase_.store(phase + 1, std::memory_order_release);
    return;
  }
  for (int spins = 0; phase_.load(std::memory_order_acquire) == phase; ++spins) {
    if (spins < kSpinsBeforeYield)
      pause();
    else
      sched_yield();
  }
}

void Team::barrier() const { shared->wait(); }

ThreadPool::ThreadPool(int32_t threads) : count_(clamp_threads(threads)), barrier_(count_) {
  workers_.reserve(static_cast<size_t>(count_) - 1);
  try {
    for (int32_t index = 1; index < count_; ++index) workers_.emplace_back(&ThreadPool::work, this, index);
  } catch (...) {
    stop();
    throw;
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::run(Task task, void *context) {
  task_ = task;
  context_ = context;
  generation_.fetch_add(1, std::memory_order_seq_cst);
  // A worker that is about to sleep either counts as a sleeper here or sees the new generation there.
  if (sleepers_.load(std::memory_order_seq_cst) > 0) {
    std::lock_guard<std::mutex> lock(mutex_);
    wake_.notify_all();
  }
  if (task != nullptr) {
    task(context, Team{0, count_, &barrier_});
    barrier_.wait();
  }
}

void ThreadPool::stop() {
  run(nullptr, nullptr);
  for (std::thread &worker : workers_) worker.join();
}

void ThreadPool::work(int32_t index) {
  const Team team{index, count_, &barrier_};
  for (uint32_t seen = 0;; ++seen) {
    wait_for_work(seen);
    if (task_ == nullptr) return;
    task_(context_, team);
    barrier_.wait();
  }
}

void ThreadPool::wait_for_work(uint32_t seen) {
  const auto deadline = std::chrono::steady_clock::now() + kSpinBeforeSleep;
  do {
    for (int spin = 0; spin < 32; ++spin) {
      if (generation_.load(std::memory_order_acquire) != seen) return;
      pause();
    }
  } while (std::chrono::steady_clock::now() < deadline);

  std::unique_lock<std::mutex> lock(mutex_);
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  wake_.wait(lock, [&] { return generation_.load(std::memory_order_seq_cst) != seen; });
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace bitmtp
