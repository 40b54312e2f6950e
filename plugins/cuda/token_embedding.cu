// TokenEmbedding: four columns a thread, rule 6 of docs/numerics.md.
#include <cuda_fp16.h>

#include "bitmtp/abi.h"
#include "export.h"
#include "launch.cuh"
#include "weight.cuh"

namespace bitmtp {
namespace cuda {

namespace {

constexpr int32_t kThreads = 128;

// The unsigned codes of columns 4*quad .. 4*quad+3, one a byte.
__device__ __forceinline__ uint32_t quad_codes(const uint32_t *plane, int32_t row, int32_t width, int32_t quad, int32_t bits) {
  const int32_t quads = 8 / bits;  // of a word
  const int64_t words = pad64(width) * bits / 32;
  const uint32_t word = plane[((row / 8) * words + quad / quads) * 8 + row % 8];
  return word >> (bits * (quad % quads)) & (0x01010101u * ((1u << bits) - 1));
}

__device__ __forceinline__ void packed_four(const bitmtp_weight &w, int32_t row, int32_t quad, float (&out)[4]) {
  const int32_t bits = w.kind == BITMTP_TERNARY ? 2 : w.kind == BITMTP_DUAL ? 4 : 8;
  const int32_t zero_point = w.kind == BITMTP_TERNARY ? 1 : 1 << (bits - 1);
  const uint32_t codes = quad_codes(static_cast<const uint32_t *>(w.table), row, w.width, quad, bits);
  const int32_t group = w.group_size > 0 ? 4 * quad / w.group_size : 0;
  const int64_t group_of_tile = static_cast<int64_t>(row / 8) * groups_of(w.width, w.group_size) + group;
  float scale = __half2float(__ushort_as_half(w.scales[group_of_tile * 8 + row % 8]));
  uint32_t finer = 0;
  if (w.refinement != nullptr) {
    finer = quad_codes(reinterpret_cast<const uint32_t *>(w.refinement), row, w.width, quad, 4);
    scale = scale * 0.0625f;
  }
#pragma unroll
  for (int b = 0; b < 4; ++b) {
    int32_t code = static_cast<int32_t>(codes >> (8 * b) & 0xFF) - zero_point;
    if (w.refinement != nullptr) code = 16 * code + static_cast<int32_t>(finer >> (8 * b) & 0xFF) - 8;
    out[b] = static_cast<float>(code) * scale;
  }
}

__global__ void __launch_bounds__(kThreads) token_embedding_kernel(const __grid_constant__ bitmtp_token_embedding_args args) {
  release_next();
  const int32_t K = args.weight.width;
  const int32_t quad = blockIdx.x * kThreads + threadIdx.x;
  const int64_t m = blockIdx.y;
  if (4 * quad >= K) return;
  const int32_t left = min(4, K - 4 * quad);
  const int32_t id = args.token_ids[m];
  float out[4] = {};
  if (id >= 0 && id < args.weight.rows) {
    if (args.weight.kind == BITMTP_FP16) {
      const unsigned short *row = static_cast<const unsigned short *>(args.weight.table) + static_cast<int64_t>(id) * K + 4 * quad;
#pragma unroll
      for (int b = 0; b < 4; ++b)
        if (b < left) out[b] = __half2float(__ushort_as_half(row[b]));
    } else {
      packed_four(args.weight, id, quad, out);
    }
  } else if (id < 0 && -1 - id < args.P) {
    const float *row = args.mask_embeddings + static_cast<int64_t>(-1 - id) * K + 4 * quad;
#pragma unroll
    for (int b = 0; b < 4; ++b)
      if (b < left) out[b] = row[b];
  }
  float *to = args.hidden + m * K + 4 * quad;
#pragma unroll
  for (int b = 0; b < 4; ++b)
    if (b < left) to[b] = out[b];
}

}  // namespace

}  // namespace cuda
}  // namespace bitmtp

BITMTP_API int32_t bitmtp_cuda_token_embedding(const bitmtp_token_embedding_args *args, void *stream) {
  using namespace bitmtp::cuda;
  if (!valid_weight(args->weight) || args->M < 1 || args->M > kMostSlots || args->P < 0) return cudaErrorInvalidValue;
  if (args->P > 0 && args->mask_embeddings == nullptr) return cudaErrorInvalidValue;
  const dim3 grid(static_cast<unsigned>(ceil_div(args->weight.width, 4 * kThreads)), static_cast<unsigned>(args->M));
  return launch_as({false}, token_embedding_kernel, grid, dim3(kThreads), stream, *args);  // a step's first kernel: launch.cuh
}
