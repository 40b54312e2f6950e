// What the cases of the kernel sweep share: seeded inputs, guarded outputs, and the run of one call on every instruction set.
//
// A file of cases computes the expected result from docs/numerics.md with plain loops of its own, and hands the call's record
// and the expected bytes to Sweep::check.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "bitmtp/abi.h"

namespace sweep {

// splitmix64: the same numbers on every platform, which <random> does not promise.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t bits() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  // low .. high, both included
  int32_t integer(int32_t low, int32_t high) {
    return low + static_cast<int32_t>(bits() % static_cast<uint64_t>(static_cast<int64_t>(high) - low + 1));
  }
  float uniform(float low, float high) {
    return low + (high - low) * (static_cast<float>(bits() >> 40) * 0x1p-24f);
  }
  // Bell-shaped around 0 with standard deviation 1: activations, keys.
  float normal() {
    float sum = 0.0f;
    for (int i = 0; i < 12; ++i) sum += uniform(0.0f, 1.0f);
    return sum - 6.0f;
  }

 private:
  uint64_t state_;
};

float half_to_float(uint16_t half);
uint16_t float_to_half(float value);  // to nearest even

// An array of exactly n elements on a 64-byte boundary, so that a sanitizer sees a read past its end. Starts zeroed.
template <class T>
class Array {
 public:
  explicit Array(size_t n) : n_(n) {
    void *p = nullptr;
    if (posix_memalign(&p, 64, n > 0 ? n * sizeof(T) : 1) != 0) std::abort();
    if (n > 0) std::memset(p, 0, n * sizeof(T));
    data_.reset(static_cast<T *>(p));
  }
  T *data() { return data_.get(); }
  const T *data() const { return data_.get(); }
  size_t size() const { return n_; }
  T &operator[](size_t i) { return data_.get()[i]; }
  const T &operator[](size_t i) const { return data_.get()[i]; }

 private:
  struct Free {
    void operator()(T *p) const { std::free(p); }
  };
  std::unique_ptr<T, Free> data_;
  size_t n_;
};

// An output (or workspace) of a call: poisoned with 0xFF before each run, with guard bytes after it that no run may touch.
class Output {
 public:
  explicit Output(size_t bytes) : bytes_(bytes), memory_(bytes + kGuard) {}

  template <class T>
  T *as() { return reinterpret_cast<T *>(memory_.data()); }
  size_t bytes() const { return bytes_; }
  const uint8_t *data() const { return memory_.data(); }

  // Contents before each run in place of the poison, for an output that is an input too.
  void starts_as(const void *content) {
    const uint8_t *p = static_cast<const uint8_t *>(content);
    initial_.assign(p, p + bytes_);
  }
  void reset();
  bool guard_intact() const;

 private:
  static constexpr size_t kGuard = 256;
  size_t bytes_;
  Array<uint8_t> memory_;
  std::vector<uint8_t> initial_;
};

// One output of a call and what it must hold afterwards, to the bit. `expected` is null for a workspace: only its guard counts.
struct Expected {
  const char *name;
  Output *output;
  const void *expected;
};

struct Options {
  uint64_t seed = 1;
  bool quick = false;  // fewer cases, for an emulator
};

class Sweep {
 public:
  explicit Sweep(const Options &options);
  ~Sweep();

  bool quick() const { return options_.quick; }

  // Inputs of one op's cases, independent of which ops ran before.
  Random random(const char *op) const;

  // Runs the call on every instruction set and at 1, 2 and 3 threads; counts one case of `op`. Mismatches are printed with
  // `name`, which must say all sizes and kinds of the case.
  void check(const char *op, const std::string &name, int32_t code, const void *args, const std::vector<Expected> &outputs);

  // The bytes of workspace that suffice for every thread count of check().
  static int64_t workspace_bytes(int32_t code, const void *args);

  // Prints a line for each op. True if all cases were equal.
  bool report() const;

 private:
  struct Count {
    std::string op;
    int64_t cases;
    int64_t failures;
  };
  Count &count(const char *op);

  Options options_;
  std::vector<std::string> isas_;
  std::vector<bitmtp_cpu_pool *> pools_;
  std::vector<Count> counts_;
};

// Each file of cases gives one of these; main.cpp calls them.
void linear_cases(Sweep &sweep);
void embedding_cases(Sweep &sweep);
void head_cases(Sweep &sweep);
void rowwise_cases(Sweep &sweep);    // RmsNormQuant, GatedActQuant
void attention_cases(Sweep &sweep);  // NestedKVAttention

}  // namespace sweep
