// What the cases of the CUDA sweep share: inputs and guarded outputs on the device, and the count of what failed.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bitmtp/abi.h"
#include "../../cpu/sweep/harness.h"  // Random, Array, half conversions

namespace sweep {

inline void require(int32_t error, const char *what) {
  if (error == 0) return;
  std::printf("%s: %s\n", what, cudaGetErrorString(static_cast<cudaError_t>(error)));
  std::exit(3);  // the context may be lost
}

// An allocation of its own for each array, so that memcheck sees a read past its end.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t n) : n_(n) {
    require(cudaMalloc(reinterpret_cast<void **>(&data_), n > 0 ? n * sizeof(T) : 1), "cudaMalloc");
  }
  DeviceArray(const T *host, size_t n) : DeviceArray(n) {
    if (n > 0) require(cudaMemcpy(data_, host, n * sizeof(T), cudaMemcpyHostToDevice), "copy to the device");
  }
  template <class Host, class = decltype(std::declval<const Host &>().data())>
  explicit DeviceArray(const Host &host) : DeviceArray(host.data(), host.size()) {}
  DeviceArray(const DeviceArray &) = delete;
  DeviceArray &operator=(const DeviceArray &) = delete;
  DeviceArray(DeviceArray &&other) noexcept : data_(other.data_), n_(other.n_) { other.data_ = nullptr; }
  ~DeviceArray() { cudaFree(data_); }

  T *data() const { return data_; }
  size_t size() const { return n_; }
  std::vector<T> read() const {
    std::vector<T> host(n_);
    if (n_ > 0) require(cudaMemcpy(host.data(), data_, n_ * sizeof(T), cudaMemcpyDeviceToHost), "copy to the host");
    return host;
  }

 private:
  T *data_ = nullptr;
  size_t n_;
};

// An output between two guard bands; 0xFF before a run, or the content it is to start with.
template <class T>
class DeviceOutput {
 public:
  explicit DeviceOutput(size_t n, const T *content = nullptr) : n_(n), bytes_(n * sizeof(T) + 2 * kGuard) {
    require(cudaMemset(bytes_.data(), kGuardByte, bytes_.size()), "cudaMemset");
    require(content == nullptr ? cudaMemset(data(), 0xFF, n * sizeof(T)) : cudaMemcpy(data(), content, n * sizeof(T), cudaMemcpyHostToDevice),
            "poison");
  }
  T *data() const { return reinterpret_cast<T *>(bytes_.data() + kGuard); }
  // The content; `intact` says whether the guards are.
  std::vector<T> read(bool &intact) const {
    const std::vector<uint8_t> all = bytes_.read();
    intact = true;
    for (size_t i = 0; i < kGuard; ++i) intact = intact && all[i] == kGuardByte && all[all.size() - 1 - i] == kGuardByte;
    std::vector<T> host(n_);
    std::memcpy(host.data(), all.data() + kGuard, n_ * sizeof(T));
    return host;
  }

 private:
  static constexpr size_t kGuard = 256;
  static constexpr uint8_t kGuardByte = 0xA5;
  size_t n_;
  DeviceArray<uint8_t> bytes_;
};

class Report {
 public:
  explicit Report(const Options &options) : options_(options) {}

  bool quick() const { return options_.quick; }
  Random random(const char *op) const {
    uint64_t h = 1469598103934665603u;
    for (; *op != 0; ++op) h = (h ^ static_cast<uint8_t>(*op)) * 1099511628211u;
    return Random(options_.seed * 0x9E3779B97F4A7C15u ^ h);
  }
  // Counts one case of `op`; prints the first failures.
  void count(const char *op, bool ok, const std::string &what) {
    Count &c = find(op);
    ++c.cases;
    if (ok) return;
    if (++c.failures <= 5) std::printf("%s: %s\n", op, what.c_str());
  }
  bool print() const {
    bool all = true;
    for (const Count &c : counts_) {
      std::printf("%-16s %6lld cases, %lld wrong\n", c.op.c_str(), static_cast<long long>(c.cases), static_cast<long long>(c.failures));
      all = all && c.failures == 0;
    }
    std::printf("%s\n", all ? "all right" : "WRONG");
    return all;
  }

 private:
  struct Count {
    std::string op;
    int64_t cases = 0, failures = 0;
  };
  Count &find(const char *op) {
    for (Count &c : counts_)
      if (c.op == op) return c;
    counts_.push_back(Count{op, 0, 0});
    return counts_.back();
  }
  Options options_;
  std::vector<Count> counts_;
};

// each(0) .. each(n - 1), by all processors: for expected values, which take far longer than the kernels.
template <class Each>
void in_parallel(int32_t n, const Each &each) {
  std::atomic<int32_t> next{0};
  const auto work = [&] {
    for (int32_t i; (i = next++) < n;) each(i);
  };
  std::vector<std::thread> others;
  const int32_t processors = static_cast<int32_t>(std::thread::hardware_concurrency());
  for (int32_t t = 1; t < std::min(n, processors); ++t) others.emplace_back(work);
  work();
  for (std::thread &other : others) other.join();
}

inline void finish() { require(cudaGetLastError(), "launch"), require(cudaDeviceSynchronize(), "kernel"); }

// Index of the first difference in bits, or -1.
template <class T>
int64_t first_difference(const T *a, const T *b, size_t n) {
  for (size_t i = 0; i < n; ++i)
    if (std::memcmp(a + i, b + i, sizeof(T)) != 0) return static_cast<int64_t>(i);
  return -1;
}

void linear_cases(Report &report);
void embedding_cases(Report &report);
void head_cases(Report &report);
void rowwise_cases(Report &report);
void chain_cases(Report &report);  // launches that depend on each other, with programmatic launch and without; stage, promote
void bench(bool quick, const char *timed);  // lines whose name, with " M=... ", has `timed` in it

}  // namespace sweep
