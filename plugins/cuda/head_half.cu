// GreedyHead over an fp16 table: rule 12 of docs/numerics.md with products `fma(float(code), w, acc)`. Lane l of a warp takes the
// columns 256c + 8l .. +7 in ascending order; lanes combine by a fixed tree.
#include "greedy_head.cuh"

namespace bitmtp {
namespace cuda {

namespace {

constexpr int kWarps = 8;
constexpr int kWarpRows = kHeadRows / kWarps;

// Columns i .. i+7 of a row, zeros past its end; rows of a multiple of eight start on 16 bytes.
__device__ __forceinline__ void load_half_eight(const unsigned short *row, int32_t i, int32_t K, float (&w)[8]) {
  if (K % 8 == 0) {
    const uint4 words = *reinterpret_cast<const uint4 *>(row + i);
    const uint32_t pairs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int b = 0; b < 8; ++b) w[b] = half_to_float(b % 2 == 0 ? pairs[b / 2] & 0xFFFFu : pairs[b / 2] >> 16);
  } else {
#pragma unroll
    for (int b = 0; b < 8; ++b) w[b] = i + b < K ? half_to_float(row[i + b]) : 0.0f;
  }
}

template <int kColumns>
__global__ void __launch_bounds__(32 * kWarps) half_head_kernel(const __grid_constant__ HeadArgs args) {
  __shared__ float logits[kColumns][kHeadRows];
  release_next();
  wait_for_previous();
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int32_t block = blockIdx.x, first = static_cast<int32_t>(blockIdx.y) * kColumns;
  const int32_t K = args.width, row_words = pad64(K) / 4;

  const unsigned short *table[kWarpRows];
#pragma unroll
  for (int r = 0; r < kWarpRows; ++r) {
    const int32_t n = min(block * kHeadRows + warp * kWarpRows + r, args.weight.rows - 1);
    table[r] = static_cast<const unsigned short *>(args.half_table) + static_cast<int64_t>(n) * K;
  }
  int32_t slots[kColumns];
#pragma unroll
  for (int c = 0; c < kColumns; ++c) slots[c] = args.head_slots[min(first + c, args.h - 1)];

  float acc[kWarpRows][kColumns] = {};
  for (int32_t i = 8 * lane; i < K; i += 256) {
    float w[kWarpRows][8];
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) load_half_eight(table[r], i, K, w[r]);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int2 words = *reinterpret_cast<const int2 *>(args.codes + static_cast<int64_t>(slots[c]) * row_words + i / 4);
#pragma unroll
      for (int b = 0; b < 8; ++b) {
        const int32_t word = b < 4 ? words.x : words.y;
        const float x = static_cast<float>(static_cast<int8_t>(word >> (8 * (b % 4))));
#pragma unroll
        for (int r = 0; r < kWarpRows; ++r) acc[r][c] = fmaf(x, w[r][b], acc[r][c]);
      }
    }
  }
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) {
      const float dot = warp_sum(acc[r][c]);
      if (lane == 0) logits[c][warp * kWarpRows + r] = dot * args.act_scale[slots[c]];
    }
  }
  __syncthreads();
  if (warp < kColumns && first + warp < args.h) reduce_head_block(args, block, first + warp, logits[warp][lane]);
}

}  // namespace

int32_t launch_half_head(const HeadArgs &args, void *stream) {
  const auto blocks = static_cast<unsigned>(args.partials.blocks);
  if (args.h == 1) return launch(half_head_kernel<1>, dim3(blocks), dim3(32 * kWarps), stream, args);
  return launch(half_head_kernel<8>, dim3(blocks, static_cast<unsigned>(ceil_div(args.h, 8))), dim3(32 * kWarps), stream, args);
}

}  // namespace cuda
}  // namespace bitmtp
