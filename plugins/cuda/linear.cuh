// TernaryLinear and DualPlaneLinear: packed_rows.cuh with a residual; ternary_pass.cuh, ternary_window.cuh and packed_ring.cuh for some
// windows of 2 to 16 slots, linear_row.cuh for one slot. The file of each weight kind instantiates launch_linear.
#pragma once

#include "packed_ring.cuh"

namespace bitmtp {
namespace cuda {

constexpr int32_t kMostWindow = 16;  // slots that ternary_pass.cuh, ternary_window.cuh and packed_ring.cuh take

struct LinearArgs {
  PackedArgs weight;
  const int32_t *codes;
  const float *act_scale;
  const float *residual;
  float *out;
  int32_t M;
};

template <class S>
struct LinearSink {
  const LinearArgs &args;
  int32_t first;  // column of the block
  float act_scale[S::kTiles];
  float residual[S::kTiles];

  __device__ __forceinline__ int32_t slot(int32_t column) const {
    const int32_t m = first + column;
    return m < args.M ? m : args.M - 1;
  }
  __device__ __forceinline__ void start() {
    const int32_t column = threadIdx.x % (32 * kFoldLanes) / S::kRows;
#pragma unroll
    for (int t = 0; t < S::kTiles; ++t) act_scale[t] = args.act_scale[slot(8 * t + column)];
  }
  __device__ __forceinline__ const int32_t *row(int32_t column) const {
    return args.codes + static_cast<int64_t>(slot(column)) * (args.weight.steps * (kStepColumns / 4));
  }
  __device__ __forceinline__ bool inside(int32_t n, int32_t column) const {
    return n < args.weight.rows && first + column < args.M;
  }
  __device__ __forceinline__ int64_t at(int32_t n, int32_t column) const {
    return static_cast<int64_t>(first + column) * args.weight.rows + n;
  }
  __device__ __forceinline__ void prepare(int tile, int32_t n, int32_t column) {
    if (args.residual != nullptr && inside(n, column)) residual[tile] = args.residual[at(n, column)];
  }
  __device__ __forceinline__ void finish(int tile, int32_t n, int32_t column, float y) {
    if (!inside(n, column)) return;
    y = y * act_scale[tile];
    args.out[at(n, column)] = args.residual != nullptr ? y + residual[tile] : y;
  }
};

template <class S>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks) linear_kernel(const __grid_constant__ LinearArgs args) {
  LinearSink<S> sink{args, static_cast<int32_t>(blockIdx.y) * S::kColumns, {}, {}};
  packed_rows<S>(args.weight, sink);
}

template <class S>
__global__ void __launch_bounds__(S::kThreads, 1) linear_ring_kernel(const __grid_constant__ LinearArgs args) {
  LinearSink<S> sink{args, static_cast<int32_t>(blockIdx.y) * S::kColumns, {}, {}};
  packed_ring<S>(args.weight, sink);
}

// How a call is cut into blocks. It changes no bit of the result. One slot is cut by linear_row.cuh instead.
struct LinearPlan {
  int32_t lane_rows;  // 4; 2 where that keeps more multiprocessors busy, in windows of one tile
  int32_t sets;       // 1, or 2 for windows of two tiles
  int32_t blocks;     // of a multiprocessor, at most. One leaves room for the next kernel's first weights
  int32_t units;      // of 16 rows for a block of ternary_pass.cuh or else ternary_window.cuh, where they find room; 0: another kernel
  bool ring;          // windows of 2 to 16 slots without units go to packed_ring.cuh
};

LinearPlan plan_linear(const bitmtp_weight &weight, int32_t M);

template <Kind kKind>
int32_t launch_linear(const LinearArgs &args, const LinearPlan &plan, int32_t group_size, void *stream);

// Either launcher of the ABI; the sweep's bench also calls it with other plans.
int32_t linear(const bitmtp_linear_args &args, const LinearPlan &plan, void *stream);

// One slot: linear_row.cuh.
template <Kind kKind, int kGroup>
int32_t launch_linear_row(const LinearArgs &args, void *stream);

template <Kind kKind, int kGroup>
int32_t launch_shape(const LinearArgs &args, const LinearPlan &plan, void *stream) {
  if (args.M == 1) return launch_linear_row<kKind, kGroup>(args, stream);
  const auto with = [&](auto shape) {
    using S = decltype(shape);
    const dim3 grid = packed_grid<S>(args.weight.rows, ceil_div(args.M, S::kColumns), plan.blocks);
    return launch_as(packed_settings(), linear_kernel<S>, grid, dim3(S::kThreads), stream, args);
  };
  // Ternary rows of one scale are no work for it: see plan_linear().
  if constexpr (kKind != Kind::kTernary || kGroup > 0) {
    if (plan.ring && args.M <= kMostWindow) {
      const auto with_ring = [&](auto shape) {
        using S = decltype(shape);
        return launch_as(ring_settings<S>(), linear_ring_kernel<S>, ring_grid(args.weight.rows), dim3(S::kThreads), stream, args);
      };
      return args.M <= 8 ? with_ring_shape<kKind, kGroup, 1>(args.weight, with_ring) : with_ring_shape<kKind, kGroup, 2>(args.weight, with_ring);
    }
  }
  const bool narrow = plan.lane_rows == 2;
  if (args.M <= 8) return narrow ? with(PackedShape<kKind, kGroup, 1, 2, 1>{}) : with(PackedShape<kKind, kGroup, 1, 4, 1>{});
  if (args.M <= 16)
    return plan.sets == 2 ? with(PackedShape<kKind, kGroup, 2, 4, 2>{}) : with(PackedShape<kKind, kGroup, 2, 4, 1>{});
  if (args.M <= 24) return with(PackedShape<kKind, kGroup, 3, 4, 1>{});
  return with(PackedShape<kKind, kGroup, 4, 4, 1>{});
}

}  // namespace cuda
}  // namespace bitmtp
