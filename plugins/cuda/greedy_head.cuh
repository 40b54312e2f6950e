// GreedyHead. The vocabulary is cut into blocks of 32 rows, whatever the device and the width. A block's rows of one output are the
// lanes of a warp, which writes what the block contributes: the largest logit, the sum of exponentials below it, and its top_k. A
// second kernel folds the blocks. Logits leave the registers only where they are asked for.
#pragma once

#include "numerics.cuh"
#include "packed_rows.cuh"

namespace bitmtp {
namespace cuda {

constexpr int32_t kHeadRows = 32;
constexpr int32_t kMostTopK = 16;

// In the workspace, element [output][block] of `maximum` and `sum`, [output][k][block] of `value` and `id`. A block with fewer rows
// than top_k has id -1 in the rest. Where top_k is 1, `value` is `maximum` and nobody reads it.
struct HeadPartials {
  float *maximum;
  float *sum;
  float *value;
  int32_t *id;
  int32_t blocks;
};

struct HeadArgs {
  PackedArgs weight;  // of fp16 tables only `rows` is set
  const void *half_table;
  int32_t width;
  const int32_t *codes;
  const float *act_scale;
  const int32_t *head_slots;
  float *logits;  // or null
  HeadPartials partials;
  int32_t h;
  int32_t top_k;
};

// A warp with the logits of a block: lane l has row 32 * block + l.
__device__ __forceinline__ void reduce_head_block(const HeadArgs &args, int32_t block, int32_t output, float logit) {
  const int32_t lane = threadIdx.x & 31, n = block * kHeadRows + lane;
  const bool exists = n < args.weight.rows;
  if (exists && args.logits != nullptr) args.logits[static_cast<int64_t>(output) * args.weight.rows + n] = logit;
  int32_t key = exists ? float_key(logit + 0.0f) : INT32_MIN;  // -0 ties with 0
  int32_t best = __reduce_max_sync(kWholeWarp, key);
  const float maximum = key_float(best);
  const float sum = warp_sum(exists ? softmax_weight(logit - maximum) : 0.0f);
  const int64_t at = static_cast<int64_t>(output) * args.partials.blocks + block;
  if (lane == 0) {
    args.partials.maximum[at] = maximum;
    args.partials.sum[at] = sum;
  }
  int64_t place = static_cast<int64_t>(output) * args.top_k * args.partials.blocks + block;
  for (int32_t k = 0; k < args.top_k; ++k, place += args.partials.blocks) {
    if (k > 0) best = __reduce_max_sync(kWholeWarp, key);
    const int32_t winner = __ffs(__ballot_sync(kWholeWarp, key == best)) - 1;  // the lowest id
    if (lane == winner) {
      args.partials.value[place] = key_float(best);
      args.partials.id[place] = best == INT32_MIN ? -1 : n;
      key = INT32_MIN;
    }
  }
}

template <class S>
struct HeadSink {
  const HeadArgs &args;
  int32_t first;  // output of the block
  float act_scale[S::kTiles];

  __device__ __forceinline__ int32_t slot(int32_t column) const {
    const int32_t output = first + column;
    return args.head_slots[output < args.h ? output : args.h - 1];
  }
  __device__ __forceinline__ void start() {
    const int32_t column = threadIdx.x % (32 * kFoldLanes) / S::kRows;
#pragma unroll
    for (int t = 0; t < S::kTiles; ++t) act_scale[t] = args.act_scale[slot(8 * t + column)];
  }
  __device__ __forceinline__ const int32_t *row(int32_t column) const {
    return args.codes + static_cast<int64_t>(slot(column)) * (args.weight.steps * (kStepColumns / 4));
  }
  __device__ __forceinline__ void prepare(int, int32_t, int32_t) {}
  __device__ __forceinline__ void finish(int tile, int32_t n, int32_t column, float y) {
    const int32_t output = first + column, block = n / kHeadRows;
    if (output < args.h && block < args.partials.blocks) reduce_head_block(args, block, output, y * act_scale[tile]);
  }
};

template <class S>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks) head_kernel(const __grid_constant__ HeadArgs args) {
  static_assert(S::kRows == kHeadRows, "a warp reduces the rows of a block");
  HeadSink<S> sink{args, static_cast<int32_t>(blockIdx.y) * S::kColumns, {}};
  packed_rows<S>(args.weight, sink);
}

template <Kind kKind>
int32_t launch_head(const HeadArgs &args, int32_t group_size, void *stream);

int32_t launch_half_head(const HeadArgs &args, void *stream);

// One output: head_row.cuh.
template <Kind kKind, int kGroup>
int32_t launch_head_row(const HeadArgs &args, void *stream);

template <Kind kKind, int kGroup>
int32_t launch_head_shape(const HeadArgs &args, void *stream) {
  if (args.h == 1) return launch_head_row<kKind, kGroup>(args, stream);
  const auto with = [&](auto shape) {
    using S = decltype(shape);
    return launch_as(packed_settings(), head_kernel<S>, packed_grid<S>(args.weight.rows, ceil_div(args.h, S::kColumns)), dim3(S::kThreads), stream, args);
  };
  return args.h <= 8 ? with(PackedShape<kKind, kGroup, 1, 4, 1>{}) : with(PackedShape<kKind, kGroup, 2, 4, 2>{});
}

}  // namespace cuda
}  // namespace bitmtp
