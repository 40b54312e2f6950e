// What RmsNormQuant and GatedActQuant share: the threads of a block, or of a cluster of blocks, hold a row of values in registers,
// four neighbours a thread and item, norm it (rule 4) where asked, and write int8 codes and a scale (rule 3).
//
// One reduction gives both the sum of squares and the largest magnitude: a norm multiplies by the weight first and by the row's factor
// last, so the largest of the products with the weight stays the largest. A warp reduces 128 neighbouring columns, and every warp
// then reduces what all of them found: how a row is spread over threads and blocks changes no bit.
#pragma once

#include <type_traits>

#include "cluster.cuh"
#include "launch.cuh"
#include "numerics.cuh"
#include "weight.cuh"

namespace bitmtp {
namespace cuda {

constexpr int32_t kMostRowColumns = 32768;
constexpr int32_t kStretch = 128;  // columns that a warp reduces

// Four elements of a row of n from 4 * word on, zeros past its end. Rows of a multiple of four start on 16 bytes.
template <bool kAligned>
__device__ __forceinline__ float4 load_four(const float *row, uint32_t word, uint32_t n) {
  const uint32_t i = 4 * word;
  if constexpr (kAligned) return i < n ? *reinterpret_cast<const float4 *>(row + i) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  return make_float4(i < n ? row[i] : 0.0f, i + 1 < n ? row[i + 1] : 0.0f, i + 2 < n ? row[i + 2] : 0.0f,
                     i + 3 < n ? row[i + 3] : 0.0f);
}

__device__ __forceinline__ float4 multiply(float4 a, float4 b) { return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w); }

__device__ __forceinline__ int32_t absolute_bits(float x) { return __float_as_int(x) & 0x7FFFFFFF; }

__device__ __forceinline__ float squares(float4 v) { return (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w); }
__device__ __forceinline__ int32_t largest(float4 v) {
  return max(max(absolute_bits(v.x), absolute_bits(v.y)), max(absolute_bits(v.z), absolute_bits(v.w)));
}

// How a row is spread: over the blocks of a cluster, each of at most kThreads threads that have kItems words of four codes.
template <int kBlocks_, int kThreads_, int kItems_, bool kAligned_ = true>
struct Spread {
  static constexpr int kBlocks = kBlocks_;
  static constexpr int kThreads = kThreads_;
  static constexpr int kItems = kItems_;
  static constexpr bool kAligned = kAligned_;  // rows of a multiple of four columns
  static constexpr bool kAhead = kItems <= 4;   // registers for loading a row all at once
  static constexpr bool kWeight = kItems <= 2;  // and for the norm's weight, before the wait
  static constexpr int kStretches = kBlocks * kThreads * kItems / 32;

  // Item k of a thread is this word of the row's codes. The blocks of a row are neighbours in x.
  __device__ __forceinline__ static uint32_t word(int item) {
    return threadIdx.x + blockDim.x * (item + (kBlocks > 1 ? kItems * blockIdx.x : 0));
  }
};

// What the whole row has. Slot i of 32 has the stretches i, i + 32, ..; neighbours combine first, two slots on a lane.
template <class S>
__device__ __forceinline__ Partial combine(const Exchange<S::kBlocks, S::kStretches> &exchange) {
  const float4 *slots = reinterpret_cast<const float4 *>(exchange.partials) + threadIdx.x % 16;
  constexpr int kRounds = S::kStretches / 32;
  float even = 0.0f, odd = 0.0f;
  int32_t most = 0;
#pragma unroll(kRounds <= 4 ? 4 : 1)
  for (int k = 0; k < kRounds; ++k) {
    const float4 two = slots[16 * k];
    even = even + two.x;
    odd = odd + two.z;
    most = max(most, max(__float_as_int(two.y), __float_as_int(two.w)));
  }
  float sum = even + odd;
#pragma unroll
  for (int step = 1; step < 16; step *= 2) sum = sum + __shfl_xor_sync(kWholeWarp, sum, step);
  return {sum, __reduce_max_sync(kWholeWarp, most)};
}

// Rule 3 for products x * factor, where the largest |x| has the bits `most`.
struct Quantiser {
  static constexpr float kLeast = 1e-10f;
  float amax;
  float inverse;  // of x
  bool finite;    // else every code is 0

  __device__ __forceinline__ Quantiser(int32_t most, float factor) {
    const float largest = __int_as_float(most), inverse_of_largest = quotient(127.0f, largest);
    amax = largest * factor;
    inverse = fminf(inverse_of_largest, factor * (127.0f / kLeast));
    finite = max(most, absolute_bits(inverse)) < 0x7F800000;
  }

  __device__ __forceinline__ float scale() const { return (amax < kLeast ? kLeast : amax) / 127.0f; }

  // Half to even: between 2^23 and 2^24 there are integers alone, and the low byte of the sum is the code. |x * inverse| exceeds 127
  // by no more than its rounding.
  __device__ __forceinline__ int32_t word(float4 x) const {
    const auto rounded = [&](float v) { return static_cast<uint32_t>(__float_as_int(v * inverse + 12582912.0f)); };
    const uint32_t low = __byte_perm(rounded(x.x), rounded(x.y), 0x0040), high = __byte_perm(rounded(x.z), rounded(x.w), 0x0040);
    return finite ? static_cast<int32_t>(__byte_perm(low, high, 0x5410)) : 0;
  }
};

__device__ __forceinline__ float rms_factor(float sum_of_squares, float one_over_n, float epsilon) {
  return reciprocal_root(sum_of_squares * one_over_n + epsilon);
}

// Writes the thread's codes of the products x * factor, and the row's scale.
template <class S>
__device__ __forceinline__ void write_row(const float4 (&x)[S::kItems], const Quantiser &quantiser, uint32_t words, int32_t *codes, float *scale) {
#pragma unroll
  for (int k = 0; k < S::kItems; ++k)
    if (S::word(k) < words) codes[S::word(k)] = quantiser.word(x[k]);
  if (S::word(0) == 0) *scale = quantiser.scale();
}

// Calls `with(Spread, grid, block, 1 / n)` for M rows of n columns; kCluster: over a cluster of blocks, where that pays.
template <bool kCluster, class With>
int32_t with_spread(int32_t n, int32_t M, const With &with) {
  const int32_t words = pad64(n) / 4;
  const auto as = [&](auto spread) {
    using S = decltype(spread);
    const int32_t threads = ceil_div(ceil_div(words, S::kBlocks * S::kItems), 32) * 32;
    return with(spread, dim3(S::kBlocks, M), dim3(threads), 1.0f / static_cast<float>(n));
  };
  if (n % 4 != 0) return as(Spread<1, 512, 16, false>{});
  if constexpr (kCluster) {
    // Many rows keep all multiprocessors busy without.
    if (words >= 256 && 8 * M <= 2 * multiprocessors() && clusters()) {
      if (words <= 2048) return as(Spread<8, 256, 1>{});
      if (words <= 4096) return as(Spread<8, 512, 1>{});
      return as(Spread<8, 512, 2>{});
    }
  }
  if (words <= 2048) return as(Spread<1, 1024, 2>{});
  if (words <= 4096) return as(Spread<1, 1024, 4>{});
  return as(Spread<1, 512, 16>{});
}

}  // namespace cuda
}  // namespace bitmtp
