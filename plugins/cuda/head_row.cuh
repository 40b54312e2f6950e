// GreedyHead with one output: packed_row.cuh with blocks of the vocabulary as rows. Same bits as greedy_head.cuh.
#pragma once

#include "greedy_head.cuh"
#include "packed_row.cuh"

namespace bitmtp {
namespace cuda {

// Threads that finish rows leave their logits for warps, others each time, which reduce them after the next barrier.
template <class S>
struct HeadRowSink {
  static constexpr int kReducers = S::kRows / kHeadRows;
  const HeadArgs &args;
  float (&logits)[2][S::kRows];
  float act_scale = 0.0f;
  int32_t left = -1;  // the block of rows whose logits wait, or -1
  int parity = 0, reducer = 0;

  __device__ __forceinline__ const int32_t *start() {
    const int32_t slot = args.head_slots[0];
    act_scale = args.act_scale[slot];
    return args.codes + static_cast<int64_t>(slot) * (args.weight.steps * (kStepColumns / 4));
  }
  __device__ __forceinline__ void prepare(int, int32_t) {}
  __device__ __forceinline__ void finish(int, int32_t, int row, float y) { logits[parity][row] = y * act_scale; }
  __device__ __forceinline__ void ended(int32_t block) {
    left = block;
    parity ^= 1;
    reducer = reducer + kReducers == S::kWarps ? 0 : reducer + kReducers;
  }
  __device__ __forceinline__ void met() {
    const int warp = threadIdx.x / 32, part = warp - reducer;
    const int32_t block = left * kReducers + part;
    if (left >= 0 && part >= 0 && part < kReducers && block < args.partials.blocks)
      reduce_head_block(args, block, 0, logits[parity ^ 1][part * kHeadRows + threadIdx.x % 32]);
    left = -1;
  }
};

template <class S>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks) head_row_kernel(const __grid_constant__ HeadArgs args) {
  static_assert(S::kRows % kHeadRows == 0 && S::kWarps % (S::kRows / kHeadRows) == 0, "a warp reduces a block of the vocabulary");
  __shared__ float logits[2][S::kRows];
  HeadRowSink<S> sink{args, logits};
  packed_row<S>(args.weight, sink);
  __syncthreads();
  sink.met();
}

template <Kind kKind, int kGroup>
int32_t launch_head_row(const HeadArgs &args, void *stream) {
  const auto with = [&](auto shape) {
    using S = decltype(shape);
    return launch(head_row_kernel<S>, row_grid<S>(args.weight.rows), dim3(S::kThreads), stream, args);
  };
  if constexpr (kKind == Kind::kTernary) {
    using Whole = RowShape<kKind, kGroup, 4, 2, 8, 4, 2, false, true>;
    if (args.weight.steps * Whole::kStepWords <= Whole::kTurnWords) return with(Whole{});
  }
  // Loads of 512 bytes: whole scale groups, and what registers take.
  constexpr int kLoads = kKind == Kind::kTernary || kKind == Kind::kComposed ? 4 : kKind == Kind::kInt8 && kGroup == 0 ? 10 : 8;
  return with(RowShape<kKind, kGroup, 4, 1, 8, kLoads, 2, true, true>{});
}

}  // namespace cuda
}  // namespace bitmtp
