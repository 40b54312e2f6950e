// GatedActQuant: a block a row.
#include "bitmtp/abi.h"
#include "export.h"
#include "row_quant.cuh"

namespace bitmtp {
namespace cuda {

namespace {

template <bool kSilu>
__device__ __forceinline__ float gated(float gate, float up) {
  if constexpr (kSilu) return gate / (1.0f + exponential(-gate)) * up;
  const float positive = gate < 0.0f ? 0.0f : gate;
  return positive * positive * up;
}

template <int kItems, bool kSilu>
__global__ void __launch_bounds__(1024) gated_act_quant_kernel(const __grid_constant__ bitmtp_gated_act_quant_args args) {
  __shared__ float sums[32];
  __shared__ int32_t most[32];
  release_next();
  wait_for_previous();
  const int64_t m = blockIdx.x;
  const float *gate_row = args.gate_up + 2 * m * args.F;
  // Rows of F that is no multiple of four are not aligned, nor are their halves: load_four sees that from F.
  Row<kItems> row;
#pragma unroll
  for (int k = 0; k < kItems; ++k) {
    const int32_t i = Row<kItems>::column(k);
    const float4 gate = load_four(gate_row, i, args.F), up = load_four(gate_row + args.F, i, args.F);
    row.values[k] = make_float4(gated<kSilu>(gate.x, up.x), gated<kSilu>(gate.y, up.y), gated<kSilu>(gate.z, up.z),
                                gated<kSilu>(gate.w, up.w));
  }
  if (args.sub_norm != nullptr) {
    const float factor = rms_factor(block_sum(row.sum_of_squares(), sums), args.F, args.epsilon);
#pragma unroll
    for (int k = 0; k < kItems; ++k) row.scale_by(factor, k, load_four(args.sub_norm, Row<kItems>::column(k), args.F));
  }
  row.quantise(args.F, args.codes + m * (pad64(args.F) / 4), args.scale + m, most);
}

}  // namespace

}  // namespace cuda
}  // namespace bitmtp

BITMTP_API int32_t bitmtp_cuda_gated_act_quant(const bitmtp_gated_act_quant_args *args, void *stream) {
  using namespace bitmtp::cuda;
  if (args->M < 1 || args->M > kMostSlots || args->F < 1 || args->F > kMostRowColumns) return cudaErrorInvalidValue;
  if (args->activation != BITMTP_SILU && args->activation != BITMTP_RELU2) return cudaErrorInvalidValue;
  return with_row_shape(args->F, [&](auto items, unsigned threads) {
    constexpr int kItems = decltype(items)::value;
    const auto kernel = args->activation == BITMTP_SILU ? gated_act_quant_kernel<kItems, true> : gated_act_quant_kernel<kItems, false>;
    return launch(kernel, dim3(args->M), dim3(threads), stream, *args);
  });
}
