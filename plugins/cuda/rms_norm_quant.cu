// RmsNormQuant: a block a row.
#include "bitmtp/abi.h"
#include "export.h"
#include "row_quant.cuh"

namespace bitmtp {
namespace cuda {

namespace {

template <int kItems>
__global__ void __launch_bounds__(1024) rms_norm_quant_kernel(const __grid_constant__ bitmtp_rms_norm_quant_args args) {
  __shared__ float sums[32];
  __shared__ int32_t most[32];
  constexpr bool kEarly = kItems <= 2;  // the weight in registers before the wait
  float4 weight[kEarly ? kItems : 1];
  if constexpr (kEarly) {
#pragma unroll
    for (int k = 0; k < kItems; ++k) weight[k] = load_four(args.weight, Row<kItems>::column(k), args.K);
  }
  release_next();
  wait_for_previous();
  const int64_t m = blockIdx.x;
  Row<kItems> row;
#pragma unroll
  for (int k = 0; k < kItems; ++k) row.values[k] = load_four(args.hidden + m * args.K, Row<kItems>::column(k), args.K);
  const float factor = rms_factor(block_sum(row.sum_of_squares(), sums), args.K, args.epsilon);
#pragma unroll
  for (int k = 0; k < kItems; ++k) {
    if constexpr (kEarly)
      row.scale_by(factor, k, weight[k]);
    else
      row.scale_by(factor, k, load_four(args.weight, Row<kItems>::column(k), args.K));
  }
  row.quantise(args.K, args.codes + m * (pad64(args.K) / 4), args.scale + m, most);
}

}  // namespace

}  // namespace cuda
}  // namespace bitmtp

BITMTP_API int32_t bitmtp_cuda_rms_norm_quant(const bitmtp_rms_norm_quant_args *args, void *stream) {
  using namespace bitmtp::cuda;
  if (args->M < 1 || args->M > kMostSlots || args->K < 1 || args->K > kMostRowColumns) return cudaErrorInvalidValue;
  return with_row_shape(args->K, [&](auto items, unsigned threads) {
    return launch(rms_norm_quant_kernel<decltype(items)::value>, dim3(args->M), dim3(threads), stream, *args);
  });
}
