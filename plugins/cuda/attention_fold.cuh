// Second half of NestedKVAttention: a thread block for each row and head folds the units' results; the last head of a row to be done
// normalises and quantises the row.
#pragma once

#include <cstdint>

#include "attention_attend.cuh"
#include "attention_layout.cuh"
#include "attention_math.cuh"
#include "kv_rows.cuh"
#include "launch.cuh"

namespace bitmtp {
namespace cuda {
namespace attention {

constexpr int32_t kFoldWarps = 8;
constexpr int32_t kFoldThreads = 32 * kFoldWarps;
constexpr int32_t kUnitsAhead = 4;         // whose loads a warp has under way
constexpr int32_t kStagedColumns = 6144;  // of a row that fits in shared memory

// Over all threads; everyone gets the result. Two calls in a row need a barrier between them where `scratch` is the same.
__device__ __forceinline__ float block_max(float x, float *scratch) {
  x = lanes_max<32>(x);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
  __syncthreads();
#pragma unroll
  for (int32_t w = 0; w < kFoldWarps; ++w) x = fmaxf(x, scratch[w]);
  return x;
}
__device__ __forceinline__ float block_sum(float x, float *scratch) {
  x = lanes_sum<32>(x);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
  __syncthreads();
  x = scratch[0];
#pragma unroll
  for (int32_t w = 1; w < kFoldWarps; ++w) x = add(x, scratch[w]);
  return x;
}

// Rules 4 and 3 of docs/numerics.md, on a row that other thread blocks wrote.
__device__ __forceinline__ void finish_row(const bitmtp_nested_kv_attention_args &a, const float *output, int32_t row) {
  __shared__ float4 staged_row[kStagedColumns / 4];
  __shared__ float scratch[2][kFoldWarps];
  const int32_t columns = a.H * a.D, quarters = columns / 4;
  const bool fits = columns <= kStagedColumns;
  const float4 *outside = reinterpret_cast<const float4 *>(output);
  float squares = 0.0f;
  for (int32_t i = threadIdx.x; i < quarters; i += kFoldThreads) {
    const float4 x = __ldcg(outside + i);
    if (fits) staged_row[i] = x;
    squares = add(squares, sum_squares(x));
  }
  // Each thread reads back only what it wrote.
  const float factor = a.sub_norm ? rms_factor(block_sum(squares, scratch[0]), columns, a.epsilon) : 1.0f;
  const auto value = [&](int32_t i) {
    const float4 x = fits ? staged_row[i] : __ldcg(outside + i);
    return a.sub_norm ? times(scale_by(x, factor), load4(a.sub_norm + 4 * i)) : x;
  };
  float amax = 0.0f;
  for (int32_t i = threadIdx.x; i < quarters; i += kFoldThreads) amax = fmaxf(amax, largest(value(i)));
  amax = fmaxf(block_max(amax, scratch[1]), 1e-10f);
  const float inverse = __fdiv_rn(127.0f, amax);
  int32_t *codes = a.codes + int64_t{row} * quarters;
  for (int32_t i = threadIdx.x; i < quarters; i += kFoldThreads) {
    const float4 x = scale_by(value(i), inverse);
    const auto byte = [](float v) { return static_cast<uint32_t>(round_code(v, -127.0f, 127.0f)) & 255u; };
    codes[i] = static_cast<int32_t>(byte(x.x) | byte(x.y) << 8 | byte(x.z) << 16 | byte(x.w) << 24);
  }
  if (threadIdx.x == 0) a.scale[row] = __fdiv_rn(amax, 127.0f);
}

// Grid: heads, rows of the slice.
template <int D, bool kNested>
__global__ void __launch_bounds__(kFoldThreads) fold_kernel(const __grid_constant__ AttentionCall call) {
  constexpr int kColumns = D / 32;  // of a lane
  __shared__ float sums[kFoldWarps][D];
  __shared__ float totals[kFoldWarps], scratch[kFoldWarps];
  __shared__ bool last;
  const bitmtp_nested_kv_attention_args &a = call.args;
  const AttentionLayout &l = call.layout;
  const int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int32_t head = blockIdx.x, slice_row = blockIdx.y, row = call.first_row + slice_row;
  release_next();
  const int32_t units = units_of(history_of(a) + sight_of(a, row).count);
  const int64_t stride = int64_t{call.rows} * a.H, query = int64_t{slice_row} * a.H + head;
  const float *partials = call.in_workspace<const float>(l.partials) + query * D + kColumns * lane;
  const float2 *tops = call.in_workspace<const float2>(l.sums) + query;
  wait_for_previous();

  float acc[kColumns] = {}, total = 0.0f;
  float x[kUnitsAhead][kColumns];
  float2 top[kUnitsAhead];
  // Units first + 8i for i = 0 .. 3, and nothing past the last.
  const auto read = [&](int32_t first) {
#pragma unroll
    for (int32_t i = 0; i < kUnitsAhead; ++i) {
      const int32_t unit = first + i * kFoldWarps;
      top[i] = {minus_infinity(), 0.0f};
#pragma unroll
      for (int32_t c = 0; c < kColumns; ++c) x[i][c] = 0.0f;
      if (unit >= units) continue;
      top[i] = tops[unit * stride];
      if constexpr (kColumns == 4) {
        const float4 v = load4(partials + unit * stride * D);
        x[i][0] = v.x, x[i][1] = v.y, x[i][2] = v.z, x[i][3] = v.w;
      } else {
        const float2 v = *reinterpret_cast<const float2 *>(partials + unit * stride * D);
        x[i][0] = v.x, x[i][1] = v.y;
      }
    }
  };
  read(warp);
  float m = minus_infinity();
  for (int32_t unit = threadIdx.x; unit < units; unit += kFoldThreads) m = fmaxf(m, tops[unit * stride].x);
  m = reference_of(block_max(m, scratch));
  for (int32_t first = warp; first < units; first += kUnitsAhead * kFoldWarps) {
    if (first != warp) read(first);
#pragma unroll
    for (int32_t i = 0; i < kUnitsAhead; ++i) {
      const float weight = power2(sub(top[i].x, m));
#pragma unroll
      for (int32_t c = 0; c < kColumns; ++c) acc[c] = fma_(x[i][c], weight, acc[c]);
      total = fma_(top[i].y, weight, total);
    }
  }
#pragma unroll
  for (int32_t c = 0; c < kColumns; ++c) sums[warp][kColumns * lane + c] = acc[c];
  if (lane == 0) totals[warp] = total;
  __syncthreads();
  float *output = call.in_workspace<float>(l.output) + int64_t{slice_row} * a.H * D;
  if (threadIdx.x < D) {
    float sum = sums[0][threadIdx.x], all = totals[0];
#pragma unroll
    for (int32_t w = 1; w < kFoldWarps; ++w) {
      sum = add(sum, sums[w][threadIdx.x]);
      all = add(all, totals[w]);
    }
    const int32_t column = column_of<D, kNested>(threadIdx.x / 8, threadIdx.x % 8);
    output[head * D + column] = units > 0 ? __fdiv_rn(sum, all) : 0.0f;  // a row that sees nothing
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicAdd(call.in_workspace<int32_t>(l.tickets) + slice_row, 1) == a.H - 1;
  __syncthreads();
  if (!last) return;
  __threadfence();
  finish_row(a, output, row);
}

}  // namespace attention
}  // namespace cuda
}  // namespace bitmtp
