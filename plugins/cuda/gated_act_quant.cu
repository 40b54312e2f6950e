// GatedActQuant: a cluster of blocks a row where there are clusters, else a block.
#include "bitmtp/abi.h"
#include "export.h"
#include "row_quant.cuh"

namespace bitmtp {
namespace cuda {

namespace {

template <bool kSilu>
__device__ __forceinline__ float gated(float gate, float up) {
  if constexpr (kSilu) return quotient(gate, 1.0f + exponential(-gate)) * up;
  const float positive = gate < 0.0f ? 0.0f : gate;
  return positive * positive * up;
}

template <class S, bool kSilu>
__global__ void __launch_bounds__(S::kThreads)
gated_act_quant_kernel(const __grid_constant__ bitmtp_gated_act_quant_args args, float one_over_n) {
  __shared__ Exchange<S::kBlocks, S::kStretches> exchange;
  const bool normed = args.sub_norm != nullptr;
  const uint32_t n = args.F, words = pad64(args.F) / 4, stretches = ceil_div(args.F, kStretch);
  const auto weight = [&](int k) { return load_four<S::kAligned>(args.sub_norm, S::word(k), n); };
  float4 early[S::kWeight ? S::kItems : 1];
  if (S::kWeight && normed) {
#pragma unroll
    for (int k = 0; k < S::kItems; ++k) early[S::kWeight ? k : 0] = weight(k);
  }
  exchange.open(stretches);
  wait_for_previous();
  release_next();  // earlier, the next kernel's weights would stream while the kernel before is being completed, and hold that up
  const size_t m = blockIdx.y;
  const float *gate_row = args.gate_up + 2 * m * n;
  float4 gate[S::kItems], x[S::kItems];
  const auto load = [&](int k) {
    gate[k] = load_four<S::kAligned>(gate_row, S::word(k), n);
    x[k] = load_four<S::kAligned>(gate_row + n, S::word(k), n);
  };
  const auto activate = [&](int k) {
    x[k] = make_float4(gated<kSilu>(gate[k].x, x[k].x), gated<kSilu>(gate[k].y, x[k].y), gated<kSilu>(gate[k].z, x[k].z),
                       gated<kSilu>(gate[k].w, x[k].w));
  };
  Partial found[S::kItems] = {};
  const auto weigh = [&](int k) {
    found[k].squares = warp_sum(squares(x[k]));
    x[k] = multiply(x[k], S::kWeight ? early[S::kWeight ? k : 0] : weight(k));
  };
  const auto put = [&](int k) {
    found[k].most = __reduce_max_sync(kWholeWarp, largest(x[k]));
    if (S::word(k) / 32 < stretches) exchange.put(S::word(k) / 32, found[k]);
  };
  if constexpr (S::kAhead) {
#pragma unroll
    for (int k = 0; k < S::kItems; ++k) load(k);
#pragma unroll
    for (int k = 0; k < S::kItems; ++k) activate(k);
    if (normed) {
#pragma unroll
      for (int k = 0; k < S::kItems; ++k) weigh(k);
    }
#pragma unroll
    for (int k = 0; k < S::kItems; ++k) put(k);
  } else {
#pragma unroll
    for (int k = 0; k < S::kItems; ++k) {
      load(k), activate(k);
      if (normed) weigh(k);
      put(k);
    }
  }
  exchange.wait();
  const Partial all = combine<S>(exchange);
  const Quantiser quantiser(all.most, normed ? rms_factor(all.squares, one_over_n, args.epsilon) : 1.0f);
  write_row<S>(x, quantiser, words, args.codes + m * words, args.scale + m);
}

}  // namespace

}  // namespace cuda
}  // namespace bitmtp

BITMTP_API int32_t bitmtp_cuda_gated_act_quant(const bitmtp_gated_act_quant_args *args, void *stream) {
  using namespace bitmtp::cuda;
  if (args->M < 1 || args->M > kMostSlots || args->F < 1 || args->F > kMostRowColumns) return cudaErrorInvalidValue;
  if (args->activation != BITMTP_SILU && args->activation != BITMTP_RELU2) return cudaErrorInvalidValue;
  return with_spread<true>(args->F, args->M, [&](auto spread, dim3 grid, dim3 block, float one_over_n) {
    using S = decltype(spread);
    const auto kernel = args->activation == BITMTP_SILU ? gated_act_quant_kernel<S, true> : gated_act_quant_kernel<S, false>;
    return launch_as({programmatic_launch(), S::kBlocks}, kernel, grid, block, stream, *args, one_over_n);
  });
}
