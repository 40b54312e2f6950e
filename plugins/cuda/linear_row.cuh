// TernaryLinear and DualPlaneLinear with one activation row: packed_row.cuh with a residual. Same bits as linear.cuh.
#pragma once

#include "linear.cuh"
#include "packed_row.cuh"

namespace bitmtp {
namespace cuda {

template <class S>
struct LinearRowSink {
  const LinearArgs &args;
  float act_scale = 0.0f;
  float residual[S::kFoldRows] = {};

  __device__ __forceinline__ const int32_t *start() {
    act_scale = *args.act_scale;
    return args.codes;
  }
  __device__ __forceinline__ void prepare(int i, int32_t n) {
    if (args.residual != nullptr && n < args.weight.rows) residual[i] = args.residual[n];
  }
  __device__ __forceinline__ void finish(int i, int32_t block, int row, float y) {
    const int32_t n = block * S::kRows + row;
    if (n >= args.weight.rows) return;
    y = y * act_scale;
    args.out[n] = args.residual != nullptr ? y + residual[i] : y;
  }
  __device__ __forceinline__ void ended(int32_t) {}
  __device__ __forceinline__ void met() {}
};

template <class S>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks) linear_row_kernel(const __grid_constant__ LinearArgs args) {
  LinearRowSink<S> sink{args};
  packed_row<S>(args.weight, sink);
}

// Shapes by what was measured. Where a row is longer than a shape's turn, one that takes several turns.
template <Kind kKind, int kGroup>
int32_t launch_linear_row(const LinearArgs &args, void *stream) {
  const auto with = [&](auto shape) {
    using S = decltype(shape);
    return launch(linear_row_kernel<S>, row_grid<S>(args.weight.rows), dim3(S::kThreads), stream, args);
  };
  const auto fits = [&](auto shape) {
    using S = decltype(shape);
    return args.weight.steps * S::kStepWords <= S::kTurnWords;
  };
  constexpr bool kGrouped = kGroup > 0;
  if constexpr (kKind == Kind::kTernary) {
    const int32_t rows = ceil_div(args.weight.rows, multiprocessors());  // of a multiprocessor
    if constexpr (kGrouped) {
      // Warps past the end of a row are idle, so a turn is not much longer: 2,048 columns, 3,072, 4,096, 6,144, 10,240.
      using Few2 = RowShape<kKind, kGroup, 1, 1, 4, 2, 8>;
      using Many2 = RowShape<kKind, kGroup, 4, 1, 8, 4, 4>;
      using Few3 = RowShape<kKind, kGroup, 1, 1, 4, 3, 8>;
      using Many3 = RowShape<kKind, kGroup, 4, 1, 8, 6, 3>;
      using All4 = RowShape<kKind, kGroup, 1, 1, 8, 2, 4>;
      using All6 = RowShape<kKind, kGroup, 1, 1, 12, 2, 3>;
      using All10 = RowShape<kKind, kGroup, 1, 1, 10, 4, kGroup == 64 ? 2 : 3>;
      if (fits(Few2{})) return rows <= 48 ? with(Few2{}) : with(Many2{});
      if (fits(Few3{})) return rows <= 24 ? with(Few3{}) : with(Many3{});
      if (fits(All4{})) return with(All4{});
      if (fits(All6{})) return with(All6{});
      return fits(All10{}) ? with(All10{}) : with(RowShape<kKind, kGroup, 1, 1, 8, 3, 3, true>{});
    } else {
      using Few = RowShape<kKind, kGroup, 2, 1, 10, 2, 2>;
      using Some = RowShape<kKind, kGroup, 2, 1, 5, 4, 4>;
      using Many = RowShape<kKind, kGroup, 2, 2, 5, 4, 4>;
      using Wide = RowShape<kKind, kGroup, 2, 1, 9, 6, 2>;
      if (fits(Few{})) return rows <= 24 ? with(Few{}) : rows <= 48 ? with(Some{}) : with(Many{});
      return fits(Wide{}) ? with(Wide{}) : with(RowShape<kKind, kGroup, 1, 1, 9, 3, 3, true>{});
    }
  } else if constexpr (kKind == Kind::kBase) {
    using Whole = RowShape<kKind, kGroup, 1, 1, 8, 4, kGroup == 64 ? 5 : 6>;
    return fits(Whole{}) ? with(Whole{}) : with(RowShape<kKind, kGroup, 2, 1, 8, 12, 2, true>{});
  } else {
    using Whole = RowShape<kKind, kGroup, 1, 1, 8, 4, 4>;
    return fits(Whole{}) ? with(Whole{}) : with(RowShape<kKind, kGroup, 2, 1, 8, 8, 1, true>{});
  }
}

}  // namespace cuda
}  // namespace bitmtp
