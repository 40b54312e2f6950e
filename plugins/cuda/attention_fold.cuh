// How NestedKVAttention puts partial results together: units of an octet, then the octets of a row, which is normalised and quantised.
#pragma once

#include <cstdint>

#include "attention_feed.cuh"
#include "attention_layout.cuh"
#include "attention_math.cuh"
#include "attention_sight.cuh"
#include "bitmtp/abi.h"
#include "kv_rows.cuh"
#include "launch.cuh"

namespace bitmtp {
namespace cuda {
namespace attention {

// A slice of the window's rows, and how its query vectors are shared out.
struct AttentionCall {
  bitmtp_nested_kv_attention_args args;
  AttentionLayout layout;
  int32_t first_row, rows;
  int32_t groups;  // thread blocks of a unit and KV head
  bool clusters;   // of the blocks of an octet, which merge its units in shared memory

  template <class T>
  BITMTP_BOTH T *in_workspace(int64_t offset) const {
    return reinterpret_cast<T *>(static_cast<uint8_t *>(args.workspace) + offset);
  }
};

// Folds an octet's units for one element of one query vector, in order: `tops` and `elements` are those of unit 0, and strides lie
// between units. Writes the octet's, at `entry` (row of the slice times heads) and `column`.
__device__ __forceinline__ void merge_units(const AttentionCall &call, const float2 *tops, int32_t top_stride, const float *elements,
                                            int64_t stride, int32_t units, int32_t octet, int64_t entry, int32_t column) {
  const bitmtp_nested_kv_attention_args &a = call.args;
  float2 top[kOctet];
  float x[kOctet];
  float m = minus_infinity();
#pragma unroll
  for (int32_t u = 0; u < kOctet; ++u) {
    const bool inside = u < units;
    top[u] = inside ? tops[u * top_stride] : float2{minus_infinity(), 0.0f};
    x[u] = inside ? elements[u * stride] : 0.0f;
    m = fmaxf(m, top[u].x);
  }
  const float reference = reference_of(m);
  float sum = 0.0f, total = 0.0f;
#pragma unroll
  for (int32_t u = 0; u < kOctet; ++u) {
    const float weight = power2(sub(top[u].x, reference));
    sum = fma_(x[u], weight, sum);
    total = fma_(top[u].y, weight, total);
  }
  const int64_t to = int64_t{octet} * call.rows * a.H + entry;
  call.in_workspace<float>(call.layout.octets_at)[to * a.D + column] = sum;
  if (column == 0) call.in_workspace<float2>(call.layout.octet_tops)[to] = {m, total};
}

// This block's part of what its cluster has stored in shared memory: vectors rank, rank + 8 of the group.
template <int D, int kTiles>
__device__ __forceinline__ void merge_inbox(const AttentionCall &call, const uint8_t *shared, int32_t tops_at, int32_t kv, int32_t octet,
                                            int32_t rank, int32_t first, int32_t vectors, int32_t end) {
  const int32_t ratio = call.layout.ratio, units = within(units_of(end) - octet * kOctet, 0, kOctet);
  for (int32_t i = threadIdx.x; i < kTiles * D; i += kThreads) {
    const int32_t tile = i / D, column = i % D, vector = kOctet * tile + rank;
    if (vector >= vectors) return;
    const int64_t entry = int64_t{(first + vector) / ratio} * call.args.H + kv * ratio + (first + vector) % ratio;
    merge_units(call, reinterpret_cast<const float2 *>(shared + tops_at) + tile, kTiles,
                reinterpret_cast<const float *>(shared) + tile * D + place_of<D>(column), kTiles * D, units, octet, entry, column);
  }
}

// Where blocks form no clusters. Grid: heads of the slice's rows, octets; D threads.
template <int D>
__global__ void __launch_bounds__(D) octet_kernel(const __grid_constant__ AttentionCall call) {
  const AttentionLayout &l = call.layout;
  release_next();
  const int32_t octet = blockIdx.y, units = units_of(history_of(call.args) + call.args.M) - octet * kOctet;
  wait_for_previous();
  if (units <= 0) return;
  const int64_t heads = int64_t{call.rows} * call.args.H, unit = int64_t{octet} * kOctet * heads + blockIdx.x;
  merge_units(call, call.in_workspace<const float2>(l.unit_tops) + unit, static_cast<int32_t>(heads),
              call.in_workspace<const float>(l.units_at) + unit * D + place_of<D>(threadIdx.x), heads * D, units, octet, blockIdx.x,
              threadIdx.x);
}

// ---- rows -------------------------------------------------------------------------------------------------------------

constexpr int32_t kFinishWarps = 16;
constexpr int32_t kFinishThreads = 32 * kFinishWarps;
constexpr int32_t kOctetsAhead = 4;  // whose loads a thread has under way
constexpr int32_t kHeld = 2;  // groups of four columns that a thread holds in registers; further ones wait where octet 0 was

// Over all threads; everyone gets the result. Each call has a scratch of its own.
__device__ __forceinline__ float block_max(float x, float *scratch) {
  x = lanes_max<32>(x);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
  __syncthreads();
  return lanes_max<kFinishWarps>(scratch[threadIdx.x % kFinishWarps]);
}
__device__ __forceinline__ float block_sum(float x, float *scratch) {
  x = lanes_sum<32>(x);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
  __syncthreads();
  return lanes_sum<kFinishWarps>(scratch[threadIdx.x % kFinishWarps]);
}

// Rules 4 and 3 of docs/numerics.md. Grid: rows of the slice.
__global__ void __launch_bounds__(kFinishThreads) finish_kernel(const __grid_constant__ AttentionCall call) {
  __shared__ float scratch[2][kFinishWarps];
  const bitmtp_nested_kv_attention_args &a = call.args;
  const AttentionLayout &l = call.layout;
  release_next();
  const int32_t slice_row = blockIdx.x, row = call.first_row + slice_row, quarters = a.H * a.D / 4;
  const int32_t octets = octets_of(history_of(a) + a.M);
  const int64_t heads = int64_t{call.rows} * a.H, first = int64_t{slice_row} * a.H;
  const float2 *tops = call.in_workspace<const float2>(l.octet_tops) + first;
  float4 *elements = call.in_workspace<float4>(l.octets_at) + first * (a.D / 4);
  const float4 one = {1.0f, 1.0f, 1.0f, 1.0f};
  float4 norm[kHeld];
#pragma unroll
  for (int32_t k = 0; k < kHeld; ++k) {
    const int32_t i = threadIdx.x + k * kFinishThreads;
    norm[k] = a.sub_norm && i < quarters ? load4(a.sub_norm + 4 * i) : one;
  }
  wait_for_previous();
  const auto folded = [&](int32_t i) {
    const float2 *top = tops + 4 * i / a.D;
    const float4 *x = elements + i;
    const int64_t stride = heads * (a.D / 4);
    float2 t[kOctetsAhead];
    float4 y[kOctetsAhead];
    const auto read = [&](int32_t from) {
#pragma unroll
      for (int32_t o = 0; o < kOctetsAhead; ++o) {
        const bool inside = from + o < octets;
        t[o] = inside ? top[(from + o) * heads] : float2{minus_infinity(), 0.0f};
        y[o] = inside ? x[(from + o) * stride] : float4{0.0f, 0.0f, 0.0f, 0.0f};
      }
    };
    read(0);
    float m = minus_infinity(), total = 0.0f;
#pragma unroll
    for (int32_t o = 0; o < kOctetsAhead; ++o) m = fmaxf(m, t[o].x);
    for (int32_t o = kOctetsAhead; o < octets; ++o) m = fmaxf(m, top[o * heads].x);
    m = reference_of(m);
    float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
    for (int32_t from = 0; from < octets; from += kOctetsAhead) {
      if (from > 0) read(from);
#pragma unroll
      for (int32_t o = 0; o < kOctetsAhead; ++o) {
        const float weight = power2(sub(t[o].x, m));
        sum = {fma_(y[o].x, weight, sum.x), fma_(y[o].y, weight, sum.y), fma_(y[o].z, weight, sum.z), fma_(y[o].w, weight, sum.w)};
        total = fma_(t[o].y, weight, total);
      }
    }
    // A row that sees nothing is zeros.
    return total > 0.0f ? scale_by(sum, __fdiv_rn(1.0f, total)) : float4{0.0f, 0.0f, 0.0f, 0.0f};
  };
  float4 held[kHeld];
  float squares = 0.0f;
#pragma unroll
  for (int32_t k = 0; k < kHeld; ++k) {
    const int32_t i = threadIdx.x + k * kFinishThreads;
    held[k] = i < quarters ? folded(i) : float4{0.0f, 0.0f, 0.0f, 0.0f};
    squares = add(squares, sum_squares(held[k]));
  }
  for (int32_t i = threadIdx.x + kHeld * kFinishThreads; i < quarters; i += kFinishThreads) {
    const float4 x = folded(i);
    elements[i] = x;  // read back by this thread alone
    squares = add(squares, sum_squares(x));
  }
  // Calls f(i, x) for each of this thread's groups of four columns.
  const auto each = [&](const auto &f) {
#pragma unroll
    for (int32_t k = 0; k < kHeld; ++k) {
      const int32_t i = threadIdx.x + k * kFinishThreads;
      if (i < quarters) f(i, held[k], norm[k]);
    }
    for (int32_t i = threadIdx.x + kHeld * kFinishThreads; i < quarters; i += kFinishThreads) {
      float4 x = elements[i];
      f(i, x, a.sub_norm ? load4(a.sub_norm + 4 * i) : one);
      elements[i] = x;
    }
  };
  if (a.sub_norm) {
    const float factor = rms_factor(block_sum(squares, scratch[0]), a.H * a.D, a.epsilon);
    each([&](int32_t, float4 &x, float4 weight) { x = times(scale_by(x, factor), weight); });
  }
  float amax = 0.0f;
  each([&](int32_t, float4 &x, float4) { amax = fmaxf(amax, largest(x)); });
  amax = fmaxf(block_max(amax, scratch[1]), 1e-10f);
  const float inverse = __fdiv_rn(127.0f, amax);
  int32_t *codes = a.codes + int64_t{row} * quarters;
  each([&](int32_t i, float4 &x, float4) {
    const auto byte = [&](float v) { return static_cast<uint32_t>(round_code(mul(v, inverse), -127.0f, 127.0f)) & 255u; };
    codes[i] = static_cast<int32_t>(byte(x.x) | byte(x.y) << 8 | byte(x.z) << 16 | byte(x.w) << 24);
  });
  if (threadIdx.x == 0) a.scale[row] = __fdiv_rn(amax, 127.0f);
}

}  // namespace attention
}  // namespace cuda
}  // namespace bitmtp
