// RmsNormQuant: a block a row.
#include "bitmtp/abi.h"
#include "export.h"
#include "row_quant.cuh"

namespace bitmtp {
namespace cuda {

namespace {

template <class S>
__global__ void __launch_bounds__(S::kThreads)
rms_norm_quant_kernel(const __grid_constant__ bitmtp_rms_norm_quant_args args, float one_over_n) {
  __shared__ Exchange<S::kBlocks, S::kStretches> exchange;
  const uint32_t n = args.K, words = pad64(args.K) / 4, stretches = ceil_div(args.K, kStretch);
  const auto weight = [&](int k) { return load_four<S::kAligned>(args.weight, S::word(k), n); };
  float4 early[S::kWeight ? S::kItems : 1];
  if constexpr (S::kWeight) {
#pragma unroll
    for (int k = 0; k < S::kItems; ++k) early[k] = weight(k);
  }
  exchange.open(stretches);
  wait_for_previous();
  release_next();  // earlier, the next kernel's weights would stream while the kernel before is being completed, and hold that up
  const size_t m = blockIdx.y;
  float4 x[S::kItems];
  const auto load = [&](int k) { x[k] = load_four<S::kAligned>(args.hidden + m * n, S::word(k), n); };
  if constexpr (S::kAhead) {
#pragma unroll
    for (int k = 0; k < S::kItems; ++k) load(k);
  }
#pragma unroll
  for (int k = 0; k < S::kItems; ++k) {
    if constexpr (!S::kAhead) load(k);
    const float sum = warp_sum(squares(x[k]));
    x[k] = multiply(x[k], S::kWeight ? early[S::kWeight ? k : 0] : weight(k));
    const int32_t most = __reduce_max_sync(kWholeWarp, largest(x[k]));
    if (S::word(k) / 32 < stretches) exchange.put(S::word(k) / 32, {sum, most});
  }
  exchange.wait();
  const Partial all = combine<S>(exchange);
  const Quantiser quantiser(all.most, rms_factor(all.squares, one_over_n, args.epsilon));
  write_row<S>(x, quantiser, words, args.codes + m * words, args.scale + m);
}

}  // namespace

}  // namespace cuda
}  // namespace bitmtp

BITMTP_API int32_t bitmtp_cuda_rms_norm_quant(const bitmtp_rms_norm_quant_args *args, void *stream) {
  using namespace bitmtp::cuda;
  if (args->M < 1 || args->M > kMostSlots || args->K < 1 || args->K > kMostRowColumns) return cudaErrorInvalidValue;
  return with_spread<false>(args->K, args->M, [&](auto spread, dim3 grid, dim3 block, float one_over_n) {
    return launch(rms_norm_quant_kernel<decltype(spread)>, grid, block, stream, *args, one_over_n);
  });
}
