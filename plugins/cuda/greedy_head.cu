#include "greedy_head.cuh"

#include "export.h"

namespace bitmtp {
namespace cuda {

template <>
int32_t launch_head<Kind::kTernary>(const HeadArgs &, int32_t, void *);
template <>
int32_t launch_head<Kind::kBase>(const HeadArgs &, int32_t, void *);
template <>
int32_t launch_head<Kind::kComposed>(const HeadArgs &, int32_t, void *);
template <>
int32_t launch_head<Kind::kInt8>(const HeadArgs &, int32_t, void *);

namespace {

constexpr int kFoldThreads = 1024;
constexpr int kOwn = 6;  // blocks of rows of a thread that it keeps: a vocabulary of 196,608

// Largest first, then lowest id; 0 is no candidate at all.
__device__ __forceinline__ uint64_t candidate(float value, int32_t id) {
  if (id < 0) return 0;
  const uint32_t order = static_cast<uint32_t>(float_key(value)) ^ 0x80000000u;
  return static_cast<uint64_t>(order) << 32 | (0xFFFFFFFFu - static_cast<uint32_t>(id));
}

__device__ __forceinline__ float value_of(uint64_t candidate) { return key_float(static_cast<int32_t>(static_cast<uint32_t>(candidate >> 32) ^ 0x80000000u)); }

__device__ __forceinline__ uint64_t block_best(uint64_t x, uint64_t *scratch) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const uint64_t other = __shfl_xor_sync(kWholeWarp, x, step);
    x = other > x ? other : x;
  }
  if (lane == 0) scratch[warp] = x;
  __syncthreads();
  x = scratch[lane];
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const uint64_t other = __shfl_xor_sync(kWholeWarp, x, step);
    x = other > x ? other : x;
  }
  return x;
}

// A block an output. A thread's first blocks of rows are read at once and stay in registers: each time to the L2 would cost as much as
// the rest.
__global__ void __launch_bounds__(kFoldThreads)
fold_head_kernel(const HeadPartials partials, int32_t *token_ids, float *probability, int32_t top_k) {
  __shared__ float sums[32];
  __shared__ uint64_t bests[2][32];
  release_next();
  wait_for_previous();
  const int64_t output = blockIdx.x;
  const int32_t blocks = partials.blocks;
  const float *const maxima = partials.maximum + output * blocks, *const block_sums = partials.sum + output * blocks;
  const int64_t first = output * top_k * blocks;
  // The best of a block of rows is its maximum.
  float own_maximum[kOwn], own_sum[kOwn];
  uint64_t best = 0;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int32_t b = threadIdx.x + i * kFoldThreads;
    int32_t id = -1;
    own_maximum[i] = own_sum[i] = 0.0f;
    if (b < blocks) own_maximum[i] = maxima[b], own_sum[i] = block_sums[b], id = partials.id[first + b];
    const uint64_t c = candidate(own_maximum[i], id);
    best = c > best ? c : best;
  }
  for (int32_t b = threadIdx.x + kOwn * kFoldThreads; b < blocks; b += kFoldThreads) {
    const uint64_t c = candidate(maxima[b], partials.id[first + b]);
    best = c > best ? c : best;
  }
  best = block_best(best, bests[0]);
  const float maximum = value_of(best);
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kOwn; ++i)
    if (threadIdx.x + i * kFoldThreads < blocks) sum = sum + own_sum[i] * softmax_weight(own_maximum[i] - maximum);
  for (int32_t b = threadIdx.x + kOwn * kFoldThreads; b < blocks; b += kFoldThreads) sum = sum + block_sums[b] * softmax_weight(maxima[b] - maximum);
  sum = block_sum(sum, sums);

  for (int32_t k = 0; k < top_k; ++k) {
    if (k > 0) {
      // The k-th best of all stands among the first k+1 of its block.
      const uint64_t last = best;
      const int32_t most = (k + 1) * blocks;
      best = 0;
      for (int32_t i = threadIdx.x; i < most; i += kFoldThreads) {
        const uint64_t c = candidate(partials.value[first + i], partials.id[first + i]);
        if (c < last && c > best) best = c;
      }
      best = block_best(best, bests[k % 2]);
    }
    if (threadIdx.x == 0) {
      token_ids[output * top_k + k] = best == 0 ? -1 : static_cast<int32_t>(0xFFFFFFFFu - static_cast<uint32_t>(best));
      probability[output * top_k + k] = best == 0 ? 0.0f : softmax_weight(value_of(best) - maximum) / sum;
    }
  }
}

int32_t head_blocks(const bitmtp_greedy_head_args &a) { return ceil_div(a.weight.rows, kHeadRows); }

}  // namespace

}  // namespace cuda
}  // namespace bitmtp

BITMTP_API int64_t bitmtp_cuda_greedy_head_workspace_bytes(const bitmtp_greedy_head_args *args) {
  return int64_t{8} * bitmtp::cuda::head_blocks(*args) * args->h * (1 + args->top_k);
}

BITMTP_API int32_t bitmtp_cuda_greedy_head(const bitmtp_greedy_head_args *args, void *stream) {
  using namespace bitmtp::cuda;
  const bitmtp_greedy_head_args &a = *args;
  if (!valid_weight(a.weight) || a.M < 1 || a.h < 1 || a.h > kMostSlots || a.top_k < 1 || a.top_k > kMostTopK ||
      a.top_k > a.weight.rows || a.workspace == nullptr)
    return cudaErrorInvalidValue;
  HeadArgs head = {};
  head.weight = packed_args(a.weight);
  head.half_table = a.weight.table;
  head.width = a.weight.width;
  head.codes = a.codes;
  head.act_scale = a.act_scale;
  head.head_slots = a.head_slots;
  head.logits = a.logits;
  head.h = a.h;
  head.top_k = a.top_k;
  HeadPartials &p = head.partials;
  p.blocks = head_blocks(a);
  const int64_t count = static_cast<int64_t>(a.h) * p.blocks;
  p.maximum = static_cast<float *>(a.workspace);
  p.sum = p.maximum + count;
  p.value = p.sum + count;
  p.id = reinterpret_cast<int32_t *>(p.value + count * a.top_k);

  const int32_t group_size = a.weight.group_size;
  int32_t error;
  switch (a.weight.kind) {
    case BITMTP_FP16: error = launch_half_head(head, stream); break;
    case BITMTP_INT8: error = launch_head<Kind::kInt8>(head, group_size, stream); break;
    case BITMTP_TERNARY: error = launch_head<Kind::kTernary>(head, group_size, stream); break;
    default:
      error = a.weight.refinement != nullptr ? launch_head<Kind::kComposed>(head, group_size, stream)
                                             : launch_head<Kind::kBase>(head, group_size, stream);
  }
  if (error != 0) return error;
  return launch(fold_head_kernel, dim3(static_cast<unsigned>(a.h)), dim3(kFoldThreads), stream, p, a.token_ids, a.probability, a.top_k);
}
