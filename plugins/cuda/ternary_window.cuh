// TernaryLinear with 2 to 16 slots: the weights of a block wait in shared memory, the activations of a warp in registers.
// The bits are those of packed_rows.cuh: the same products, folded in the order of fold.h.
//
// A block of 8 warps takes units of 16 weight rows, all of them on their way before the previous kernel has ended; the grid is one
// block a multiprocessor, or as many as shared memory asks for, and the next kernel's block fits beside it. A warp is a lane of the
// fold: it loads the activations of its steps once, straight into the layout of mma's B operand, and meets every unit with them.
// Steps past the end of a row are zero: code without branches lets loads run ahead.
#pragma once

#include <algorithm>
#include <optional>
#include <type_traits>

#include "linear.cuh"
#include "staging.cuh"

namespace bitmtp {
namespace cuda {

// kGroup, kTiles: as in PackedShape. kSlots: steps of activations that a warp has in registers. kHold: those are all of its steps;
// else they pass by, and meet kBatch units side by side.
template <int kGroup_, int kTiles_, int kSlots_, bool kHold_, int kBatch_>
struct WindowShape {
  static constexpr Kind kKind = Kind::kTernary;
  static constexpr bool kGrouped = kGroup_ > 0;
  static constexpr int kShift = kGroup_ == 128 ? 1 : 0;  // fold.h
  static constexpr int kTiles = kTiles_;
  static constexpr int kSlots = kSlots_;
  static constexpr bool kHold = kHold_;
  static constexpr int kBatch = kBatch_;

  using Code = Codes<kKind>;
  static constexpr int kPlanes = Code::kPlanes;
  static constexpr int kLoads = 16 / Code::kWordColumns;
  static constexpr int kQuads = Code::kWordColumns / 4;
  static constexpr int kLaneRows = 2;
  static constexpr int kPairs = 1;
  static constexpr int kRows = 16;  // of a unit
  static constexpr int kColumns = 8 * kTiles;
  static constexpr int kThreads = 32 * kFoldLanes;
  static constexpr bool kSecond = true;
  static constexpr int kStepBytes = 128;  // of a tile of 8 rows
  static constexpr int kZeros = kHold ? (kGrouped ? kSlots >> kShift : 1) : 1;
  static_assert(kShift == 0 || kSlots % 2 == 0, "parity of a slot is that of its steps");
};

constexpr int kWindowUnits = 16;       // of a block, at most
constexpr int kFinishUnits = 4;        // whose results are in shared memory at once
constexpr int kPartStride = 16 + 4;    // of a column of a unit's results: rows, and what spreads the banks

struct WindowArgs {
  LinearArgs linear;
  int32_t units;        // of the weight
  int32_t block_units;  // of a block, at most
};

template <class S>
struct WindowLayout {
  int32_t unit_bytes, scale_bytes;  // of a unit
  __host__ __device__ explicit WindowLayout(const PackedArgs &a)
      : unit_bytes(2 * a.steps * S::kStepBytes), scale_bytes(S::kGrouped ? 2 * a.groups * 16 : 32) {}
  static constexpr int32_t kPartBytes = kFinishUnits * kFoldLanes * S::kColumns * kPartStride * 4;
  __host__ __device__ int32_t bytes(int32_t units) const { return units * (unit_bytes + scale_bytes) + kPartBytes; }
};

template <class S>
__global__ void __launch_bounds__(S::kThreads, 2) linear_window_kernel(const __grid_constant__ WindowArgs args) {
  using Sum = std::conditional_t<S::kGrouped, float, int32_t>;
  extern __shared__ __align__(128) uint8_t dynamic[];
  __shared__ alignas(8) uint64_t arrived[kWindowUnits];
  const LinearArgs &linear = args.linear;
  const PackedArgs &a = linear.weight;
  const WindowLayout<S> layout(a);
  const int lane = threadIdx.x & 31, split = threadIdx.x >> 5, g = lane >> 2, q = lane & 3;
  const int32_t first_unit = static_cast<int32_t>(static_cast<int64_t>(blockIdx.x) * args.units / gridDim.x);
  const int32_t units = static_cast<int32_t>(static_cast<int64_t>(blockIdx.x + 1) * args.units / gridDim.x) - first_unit;
  uint8_t *const weights = dynamic, *const scales = weights + args.block_units * layout.unit_bytes;
  Sum(*const parts)[kFoldLanes][S::kColumns][kPartStride] =
      reinterpret_cast<Sum(*)[kFoldLanes][S::kColumns][kPartStride]>(scales + args.block_units * layout.scale_bytes);

  const Staging<kWindowUnits> staging(arrived);
  for (int32_t u = 0; u < units; ++u) {
    const int64_t unit = first_unit + u;
    const bool half = (unit + 1) * 16 - 8 >= a.rows;  // its second tile does not exist
    const uint32_t bytes = layout.unit_bytes >> half, scale_bytes = layout.scale_bytes >> half;
    staging.expect(u, bytes + scale_bytes);
    staging.copy(u, weights + u * layout.unit_bytes, reinterpret_cast<const uint8_t *>(a.table) + unit * layout.unit_bytes, bytes);
    staging.copy(u, scales + u * layout.scale_bytes, reinterpret_cast<const uint8_t *>(a.scales) + unit * layout.scale_bytes, scale_bytes);
  }
  staging.close();

  wait_for_previous();
  // Not before: what the next kernel loads early would be in the way of this one's start.
  release_next();

  constexpr int shift = S::kShift;
  const int32_t count = lane_steps(a.steps, shift, split);
  const int32_t *row[S::kTiles];
#pragma unroll
  for (int t = 0; t < S::kTiles; ++t) {
    const int32_t column = 8 * t + g < linear.M ? 8 * t + g : linear.M - 1;
    row[t] = linear.codes + static_cast<int64_t>(column) * (a.steps * 16) + q * S::kQuads;
  }
  ActivationStep<S> activations[S::kSlots];
  // The lane's step i; past the last one, nothing.
  const auto load_activations = [&](ActivationStep<S> &x, int32_t i) {
    const int32_t at = lane_step(i, shift, split) * 16;
#pragma unroll
    for (int t = 0; t < S::kTiles; ++t) {
      x.quads[t][0] = x.quads[t][1] = x.quads[t][2] = x.quads[t][3] = 0;
      if (i >= count) continue;
      const int4 v = *reinterpret_cast<const int4 *>(row[t] + at);
      x.quads[t][0] = v.x, x.quads[t][1] = v.y, x.quads[t][2] = v.z, x.quads[t][3] = v.w;
    }
  };
#pragma unroll
  for (int p = 0; p < S::kSlots; ++p) load_activations(activations[p], p);

  // What the thread finishes in the first round: four rows of one column.
  const int part_column = static_cast<int>(threadIdx.x) / 4 % S::kColumns, part_rows = static_cast<int>(threadIdx.x) % 4 * 4;
  constexpr int kRound = S::kThreads / (4 * S::kColumns);  // units
  const float act_scale = linear.act_scale[part_column < linear.M ? part_column : linear.M - 1];
  const auto residual_of = [&](int32_t unit, float (&r)[4]) {
    const int32_t n = unit * 16 + part_rows;
    const float *from = linear.residual + static_cast<int64_t>(part_column) * a.rows + n;
    if (a.rows % 4 == 0) {
      if (n < a.rows) {
        const float4 v = *reinterpret_cast<const float4 *>(from);
        r[0] = v.x, r[1] = v.y, r[2] = v.z, r[3] = v.w;
      }
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (n + i < a.rows) r[i] = from[i];
    }
  };
  const int32_t own_unit = static_cast<int32_t>(threadIdx.x) / (4 * S::kColumns);  // of a round
  float early[4] = {};
  if (linear.residual != nullptr && part_column < linear.M && own_unit < units) residual_of(first_unit + own_unit, early);

  // The zero point's share of a dot is the same for every unit.
  int32_t zeros[S::kZeros][S::kTiles][2] = {};
  if constexpr (S::kHold) {
    int32_t sums[S::kTiles][4] = {};
#pragma unroll
    for (int p = 0; p < S::kSlots; ++p) {
      Accumulators<S>::add_codes(sums, activations[p]);
      if (S::kGrouped ? (p & shift) == shift : p + 1 == S::kSlots) {
#pragma unroll
        for (int t = 0; t < S::kTiles; ++t) {
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            zeros[S::kGrouped ? p >> shift : 0][t][c] = sums[t][c];
            sums[t][c] = sums[t][c + 2] = 0;
          }
        }
      }
    }
  }

  const uint32_t in_unit = static_cast<uint32_t>(g / 4 * a.steps * S::kStepBytes + q * 32 + g % 4 * 8);
  const auto load_weights = [&](WeightStep<S> &w, int32_t unit, int32_t i) {
    const uint8_t *from = weights + unit * layout.unit_bytes + in_unit + (i < count ? lane_step(i, shift, split) * S::kStepBytes : 0);
    const uint2 v = *reinterpret_cast<const uint2 *>(from);
    w.words[0][0][0] = v.x, w.words[0][0][1] = v.y;
  };
  const auto group_scales = [&](int32_t unit, int32_t i) -> uint32_t {
    const int32_t group = lane_step(i, shift, split) >> shift;
    return i - (i & shift) < count ? *reinterpret_cast<const uint32_t *>(scales + unit * layout.scale_bytes + (g / 4 * a.groups + group) * 16 + g % 4 * 4) : 0;
  };

  // Results of `count` units from the block's unit `from` on, which lie in `parts`.
  const auto finish = [&](int32_t from, int32_t count) {
    for (int32_t u = own_unit; u < count; u += kRound) {
      const int32_t n = (first_unit + from + u) * 16 + part_rows;
      if (part_column >= linear.M || n >= a.rows) continue;
      float residual[4] = {early[0], early[1], early[2], early[3]};
      if (linear.residual != nullptr && from + u != own_unit) residual_of(first_unit + from + u, residual);
      Sum l[4][kFoldLanes];
#pragma unroll
      for (int s = 0; s < kFoldLanes; ++s) {
        const int4 v = *reinterpret_cast<const int4 *>(&parts[u][s][part_column][part_rows]);
        if constexpr (S::kGrouped) {
          l[0][s] = __int_as_float(v.x), l[1][s] = __int_as_float(v.y), l[2][s] = __int_as_float(v.z), l[3][s] = __int_as_float(v.w);
        } else {
          l[0][s] = v.x, l[1][s] = v.y, l[2][s] = v.z, l[3][s] = v.w;
        }
      }
      float y[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if constexpr (S::kGrouped)
          y[i] = combine_lanes(l[i]);
        else
          y[i] = static_cast<float>(combine_lanes(l[i])) *
                 half_to_float(*reinterpret_cast<const uint16_t *>(scales + (from + u) * 32 + (part_rows + i) * 2));
        y[i] = y[i] * act_scale;
        if (linear.residual != nullptr) y[i] = y[i] + residual[i];
      }
      float *to = linear.out + static_cast<int64_t>(part_column) * a.rows + n;
      if (a.rows % 4 == 0) {
        *reinterpret_cast<float4 *>(to) = make_float4(y[0], y[1], y[2], y[3]);
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (n + i < a.rows) to[i] = y[i];
      }
    }
  };

  WeightStep<S> next[S::kHold ? S::kSlots : 1];
  if constexpr (S::kHold) {
    staging.await(0);
#pragma unroll
    for (int p = 0; p < S::kSlots; ++p) load_weights(next[p], 0, p);
  }
  int32_t waiting = 0;  // units whose results lie in `parts`
  for (int32_t unit = 0; unit < units; unit += S::kBatch) {
    const int32_t batch = units - unit < S::kBatch ? units - unit : S::kBatch;
    WeightStep<S> now[S::kHold ? S::kSlots : 1];
    if constexpr (S::kHold) {
#pragma unroll
      for (int p = 0; p < S::kSlots; ++p) now[p] = next[p];
      if (unit + 1 < units) {
        staging.await(unit + 1);
#pragma unroll
        for (int p = 0; p < S::kSlots; ++p) load_weights(next[p], unit + 1, p);
      }
    } else {
      for (int32_t b = 0; b < batch; ++b) staging.await(unit + b);
    }
    Accumulators<S> acc[S::kBatch];
    float folded[S::kGrouped ? S::kBatch : 1][2][S::kTiles][2] = {};
    int32_t sums[S::kTiles][4] = {};
#pragma unroll
    for (int b = 0; b < S::kBatch; ++b) acc[b].clear();
    for (int32_t base = 0; S::kHold ? base == 0 : base < count; base += S::kSlots) {
#pragma unroll
      for (int p = 0; p < S::kSlots; ++p) {
        const int32_t i = base + p;
        ActivationStep<S> &x = activations[p];
        const bool starts = S::kGrouped && (p & shift) == 0, ends = S::kGrouped && (p & shift) == shift;
        if constexpr (!S::kHold) {
          if (starts) {
#pragma unroll
            for (int t = 0; t < S::kTiles; ++t) sums[t][0] = sums[t][1] = sums[t][2] = sums[t][3] = 0;
          }
          Accumulators<S>::add_codes(sums, x);
        }
#pragma unroll
        for (int b = 0; b < S::kBatch; ++b) {
          WeightStep<S> w;
          if constexpr (S::kHold)
            w = now[p];
          else
            load_weights(w, b < batch ? unit + b : unit, i);
          if (starts) acc[b].clear();
          acc[b].multiply(w, x);
          if constexpr (S::kGrouped) {
            if (ends) {
              const uint32_t pair = group_scales(b < batch ? unit + b : unit, i);
#pragma unroll
              for (int r = 0; r < 2; ++r) {
                const float scale = half_to_float(r == 0 ? pair & 0xFFFFu : pair >> 16);
#pragma unroll
                for (int t = 0; t < S::kTiles; ++t) {
#pragma unroll
                  for (int c = 0; c < 2; ++c) {
                    const int32_t zero = S::kHold ? zeros[p >> shift][t][c] : sums[t][c];
                    const float dot = __int_as_float(acc[b].product(0, t, 2 * r + c) - zero) - 12582912.0f;
                    folded[b][r][t][c] = fmaf(dot, scale, folded[b][r][t][c]);
                  }
                }
              }
            }
          }
        }
        if constexpr (!S::kHold) {
          const bool again = base + S::kSlots >= count;  // for the next units
          if (!again || unit + S::kBatch < units) load_activations(x, again ? p : i + S::kSlots);
        }
      }
    }
#pragma unroll
    for (int b = 0; b < S::kBatch; ++b) {
      if (b >= batch) break;
#pragma unroll
      for (int t = 0; t < S::kTiles; ++t) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          Sum out[2];
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            if constexpr (S::kGrouped)
              out[r] = folded[b][r][t][c];
            else
              out[r] = acc[b].product(0, t, 2 * r + c) - (S::kHold ? zeros[0][t][c] : sums[t][c]);
          }
          Sum *to = &parts[waiting + b][split][8 * t + 2 * q + c][2 * g];
          to[0] = out[0], to[1] = out[1];
        }
      }
    }
    waiting += batch;
    const bool last = unit + S::kBatch >= units;
    if (waiting < kFinishUnits && !last) continue;
    __syncthreads();
    finish(unit + batch - waiting, waiting);
    if (!last) __syncthreads();
    waiting = 0;
  }
}

// How many units a block of this shape takes, or 0 where not even one finds room.
template <class S>
int32_t window_units(const PackedArgs &a, int32_t wanted) {
  const WindowLayout<S> layout(a);
  const int32_t fit = (shared_memory_of_half() - WindowLayout<S>::kPartBytes) / (layout.unit_bytes + layout.scale_bytes);
  return std::min({wanted, fit, kWindowUnits});
}

// Launches a window in blocks of `wanted` units, or fewer, and tells how that went; nothing where not even one unit finds room.
template <int kGroup>
std::optional<int32_t> launch_window(const LinearArgs &args, int32_t wanted, void *stream) {
  const auto with = [&](auto shape) -> std::optional<int32_t> {
    using S = decltype(shape);
    const int32_t block_units = window_units<S>(args.weight, wanted), units = ceil_div(args.weight.rows, S::kRows);
    if (block_units < 1) return std::nullopt;
    const LaunchSettings settings = {programmatic_launch(), 1, WindowLayout<S>(args.weight).bytes(block_units)};
    return launch_as(settings, linear_window_kernel<S>, dim3(static_cast<unsigned>(ceil_div(units, block_units))), dim3(S::kThreads), stream,
                     WindowArgs{args, units, block_units});
  };
  constexpr int kFew = kGroup == 0 ? 5 : 4;
  const int32_t steps = lane_steps(args.weight.steps, kGroup == 128 ? 1 : 0, 0);
  if (args.M <= 8) {
    if (steps <= kFew) return with(WindowShape<kGroup, 1, kFew, true, 1>{});
    if constexpr (kGroup == 128) {
      if (steps <= 6) return with(WindowShape<kGroup, 1, 6, true, 1>{});
    }
    return wanted == 1 ? with(WindowShape<kGroup, 1, 8, false, 1>{}) : with(WindowShape<kGroup, 1, 8, false, 2>{});
  }
  if (steps <= kFew) return with(WindowShape<kGroup, 2, kFew, true, 1>{});
  if constexpr (kGroup == 128) {
    if (steps <= 6) return with(WindowShape<kGroup, 2, 6, true, 1>{});
    if (steps <= 8) return with(WindowShape<kGroup, 2, 8, true, 1>{});
  }
  constexpr int kMany = kGroup == 64 ? 4 : 6;
  if constexpr (kGroup == 0) {
    if (wanted > 1) return with(WindowShape<kGroup, 2, kMany, false, 2>{});
  }
  return with(WindowShape<kGroup, 2, kMany, false, 1>{});
}

}  // namespace cuda
}  // namespace bitmtp
