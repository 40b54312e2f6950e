// M = 1 of TernaryLinear: one activation row, dp4a, the weights in registers before the previous kernel has ended. The bits are
// those of packed_rows.cuh at every width: int32 dots have no order, and groups fold in the order of fold.h.
//
// With one row, tensor cores spend seven columns of eight on nothing, and a launch is over before a ring of loads has turned: what
// counts is how much of the weight is on its way before the wait, and how few instructions stand between the wait and the result.
// A warp's load is 512 bytes, 4 steps of a tile of 8 rows; lane l has word (l / 2) mod 4 of step l / 8 for rows 4 (l mod 2) .. + 3. A
// block is kTiles tiles; load i of the row belongs to warp i mod kWarps. With groups a fraction of a warp is a lane of the fold.
#pragma once

#include <type_traits>

#include "linear.cuh"
#include "numerics.cuh"

namespace bitmtp {
namespace cuda {

// kGroup: columns of a scale group, 64 or 128, or 0 for one scale a row. kLoads: of each tile that a warp has in registers at once.
// kTurns: rows may be longer, and take several turns. kBlocks: of a multiprocessor, so that this kernel's and the next one's fit.
template <int kGroup_, int kTiles_, int kWarps_, int kLoads_, int kBlocks_, bool kTurns_ = false>
struct RowShape {
  static constexpr bool kGrouped = kGroup_ > 0;
  static constexpr int kTiles = kTiles_;
  static constexpr int kWarps = kWarps_;
  static constexpr int kLoads = kLoads_;
  static constexpr int kBlocks = kBlocks_;
  static constexpr bool kTurns = kTurns_;
  static constexpr int kRows = 8 * kTiles;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kUnits = kGrouped ? 256 / kGroup_ : 1;        // of a load
  static constexpr int kUnitLanes = 32 / kUnits;                     // that share a unit
  static constexpr int kDots = 4 * kTiles;                           // of a lane: its rows of every tile
  static constexpr int kSpread = kDots < kUnitLanes / 2 ? kDots : kUnitLanes / 2;  // slots for the dots of a unit to end in
  static constexpr int kStride = kUnitLanes / kSpread;               // of lanes with different ones
  static constexpr int kOwn = kDots / kSpread;                       // dots that end on one lane
  static constexpr int kParts = kGrouped ? kFoldLanes : kWarps;      // partial results of a row
  static_assert(!kGrouped || kUnits * kWarps == kFoldLanes, "a unit's lane of the fold is a fixed part of a fixed warp");
};

// The four unsigned bytes of w times the signed ones of x.
__device__ __forceinline__ int32_t dot4(uint32_t w, uint32_t x, int32_t sum) {
  int32_t d;
  asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(w), "r"(x), "r"(sum));
  return d;
}

// Adds each of a lane's dots over the lanes of its unit that have the same parity. Half of the dots are handed over at a time, while
// there are any; those from kOwn * own_slot(lane) on are the lane's in the end.
template <class S>
__device__ __forceinline__ void add_over_lanes(int32_t (&d)[S::kDots], int lane) {
  int bit = S::kUnitLanes / 2;
#pragma unroll
  for (int n = S::kDots; n > S::kOwn; n /= 2, bit /= 2) {
    const bool upper = (lane & bit) != 0;
#pragma unroll
    for (int i = 0; i < n / 2; ++i) {
      const int32_t keep = upper ? d[n / 2 + i] : d[i], give = upper ? d[i] : d[n / 2 + i];
      d[i] = keep + __shfl_xor_sync(kWholeWarp, give, bit);
    }
  }
#pragma unroll
  for (; bit > 1; bit /= 2) d[0] += __shfl_xor_sync(kWholeWarp, d[0], bit);
}
template <class S>
__device__ __forceinline__ int own_slot(int lane) {
  return lane / S::kStride % S::kSpread;
}

// What a warp has of its rows in one turn, all of it on its way at once.
template <class S>
struct RowTurn {
  uint32_t words[S::kLoads][S::kTiles][4];
  uint32_t scales[S::kGrouped ? S::kLoads : 1][1];  // fp16, one or two: of the dots that are the lane's in the end
};

template <class S>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks) ternary_row_kernel(const __grid_constant__ LinearArgs args) {
  using Sum = std::conditional_t<S::kGrouped, float, int32_t>;
  __shared__ Sum parts[S::kParts][S::kRows];
  const PackedArgs &a = args.weight;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int32_t last_tile = ceil_div(a.rows, 8) - 1;
  const auto tile_of = [&](int t) {  // past the end: the last one, again
    const int32_t tile = static_cast<int32_t>(blockIdx.x) * S::kTiles + t;
    return static_cast<int64_t>(tile < last_tile ? tile : last_tile);
  };
  // The first of the lane's own dots, and its row in the block.
  const int own = S::kOwn * own_slot<S>(lane), own_tile = own / 4, own_row = 8 * own_tile + 4 * (lane & 1) + own % 4;

  const uint32_t *words[S::kTiles];
#pragma unroll
  for (int t = 0; t < S::kTiles; ++t) words[t] = a.table + tile_of(t) * a.steps * 32 + lane * 4;
  const uint16_t *scales = S::kGrouped ? a.scales + tile_of(own_tile) * a.groups * 8 + own_row % 8 : nullptr;

  RowTurn<S> turn;
  // The warp's loads from load `base` of the row on; what lies past the end of the row is 0.
  const auto load_turn = [&](int32_t base) {
#pragma unroll
    for (int j = 0; j < S::kLoads; ++j) {
      const int32_t load = base + warp + j * S::kWarps;
      const bool inside = 4 * load + lane / 8 < a.steps;
#pragma unroll
      for (int t = 0; t < S::kTiles; ++t) {
        if (inside)
          load_words(turn.words[j][t], words[t] + load * 128);
        else
          turn.words[j][t][0] = turn.words[j][t][1] = turn.words[j][t][2] = turn.words[j][t][3] = 0;
      }
      if constexpr (S::kGrouped) {
        const int32_t unit = load * S::kUnits + lane / S::kUnitLanes;
        turn.scales[j][0] = 0;
        if (unit < a.groups) {
          if constexpr (S::kOwn == 2)
            load_scales(turn.scales[j], scales + unit * 8);
          else
            turn.scales[j][0] = load_row_scale(scales + unit * 8);
        }
      }
    }
  };
  load_turn(0);
  // The thread that finishes a row, and its scale, which stays fp16 until it is needed: see packed_rows.cuh.
  const int32_t n = static_cast<int32_t>(blockIdx.x) * S::kRows + static_cast<int32_t>(threadIdx.x);
  const bool finishes = threadIdx.x < S::kRows && n < a.rows;
  uint32_t row_scale = 0;
  if (!S::kGrouped && finishes) row_scale = load_row_scale(a.scales + n);

  release_next();
  wait_for_previous();
  const float act_scale = *args.act_scale;
  const float residual = finishes && args.residual != nullptr ? args.residual[n] : 0.0f;

  constexpr uint32_t kCodes = 0x03030303u;
  int32_t planes[S::kGrouped ? 1 : S::kDots][4] = {};  // one scale a row: bits stay in their places and count 1, 4, 16 and 64 times
  int32_t ones = 0;                                    // the zero point's share: the sum of activation codes
  float folded[S::kOwn] = {};
  for (int32_t base = 0;;) {
    int4 x[S::kLoads];
#pragma unroll
    for (int j = 0; j < S::kLoads; ++j) {
      const int32_t load = base + warp + j * S::kWarps;
      x[j] = make_int4(0, 0, 0, 0);
      if (4 * load + lane / 8 < a.steps) x[j] = reinterpret_cast<const int4 *>(args.codes)[load * 16 + lane / 8 * 4 + lane / 2 % 4];
    }
#pragma unroll
    for (int j = 0; j < S::kLoads; ++j) {
      if constexpr (S::kGrouped) ones = 0;
      ones = __dp4a(x[j].x, 0x01010101, ones), ones = __dp4a(x[j].y, 0x01010101, ones);
      ones = __dp4a(x[j].z, 0x01010101, ones), ones = __dp4a(x[j].w, 0x01010101, ones);
      int32_t dots[S::kDots];
#pragma unroll
      for (int i = 0; i < S::kDots; ++i) {
        const uint32_t w = turn.words[j][i / 4][i % 4];
        if constexpr (S::kGrouped) {
          const uint32_t w4 = w >> 4;
          const int32_t plain = dot4(w4 & kCodes, x[j].z, dot4(w & kCodes, x[j].x, -ones));
          const int32_t by4 = dot4(w4 & kCodes << 2, x[j].w, dot4(w & kCodes << 2, x[j].y, 0));
          dots[i] = plain + (by4 >> 2);
        } else {
          planes[i][0] = dot4(w & kCodes, x[j].x, planes[i][0]);
          planes[i][1] = dot4(w & kCodes << 2, x[j].y, planes[i][1]);
          planes[i][2] = dot4(w & kCodes << 4, x[j].z, planes[i][2]);
          planes[i][3] = dot4(w & kCodes << 6, x[j].w, planes[i][3]);
        }
      }
      if constexpr (S::kGrouped) {
        add_over_lanes<S>(dots, lane);
#pragma unroll
        for (int i = 0; i < S::kOwn; ++i)
          folded[i] = fmaf(static_cast<float>(dots[i]), half_to_float(turn.scales[j][0] >> 16 * i & 0xFFFFu), folded[i]);
      }
    }
    base += S::kWarps * S::kLoads;
    if (!S::kTurns || 4 * base >= a.steps) break;
    load_turn(base);
  }

  if constexpr (S::kGrouped) {
#pragma unroll
    for (int i = 0; i < S::kOwn; ++i) parts[warp * S::kUnits + lane / S::kUnitLanes][own_row + i] = folded[i];
  } else {
    int32_t dots[S::kDots];
#pragma unroll
    for (int i = 0; i < S::kDots; ++i)
      dots[i] = planes[i][0] + (planes[i][1] >> 2) + ((planes[i][2] >> 4) + (planes[i][3] >> 6)) - ones;
    add_over_lanes<S>(dots, lane);
    if (lane % S::kStride < 2) parts[warp][own_row] = dots[0];
  }
  __syncthreads();
  if (!finishes) return;
  Sum sums[S::kParts];
#pragma unroll
  for (int p = 0; p < S::kParts; ++p) sums[p] = parts[p][threadIdx.x];
  float y;
  if constexpr (S::kGrouped) {
    y = combine_lanes(sums);
  } else {
    int32_t dot = 0;
#pragma unroll
    for (int p = 0; p < S::kParts; ++p) dot += sums[p];
    y = static_cast<float>(dot) * half_to_float(row_scale);
  }
  y = y * act_scale;
  args.out[n] = args.residual != nullptr ? y + residual : y;
}

// A row of up to 6,912 columns is one turn; in groups of 128, of up to 6,144, of 64, up to 3,072.
template <int kGroup>
int32_t launch_ternary_row(const LinearArgs &args, void *stream) {
  const auto with = [&](auto shape) {
    using S = decltype(shape);
    return launch(ternary_row_kernel<S>, dim3(static_cast<unsigned>(ceil_div(args.weight.rows, S::kRows))), dim3(S::kThreads), stream, args);
  };
  const int32_t loads = ceil_div(args.weight.steps, 4);
  if constexpr (kGroup == 0) {
    if (loads > 20) return with(RowShape<0, 1, 9, 3, 4, true>{});
    if (loads > 10) return with(RowShape<0, 2, 4, 5, 5>{});
    const bool few = ceil_div(args.weight.rows, 16) < multiprocessors();
    return few ? with(RowShape<0, 1, 5, 2, 6>{}) : with(RowShape<0, 2, 2, 5, 10>{});
  } else {
    constexpr int kWarps = kGroup / 32;
    if (loads <= 2 * kWarps) return with(RowShape<kGroup, 2, kWarps, 2, 32 / kWarps>{});
    if (loads <= 4 * kWarps) return with(RowShape<kGroup, 2, kWarps, 4, 20 / kWarps>{});
    return with(RowShape<kGroup, 2, kWarps, 6, 16 / kWarps, true>{});
  }
}

}  // namespace cuda
}  // namespace bitmtp
