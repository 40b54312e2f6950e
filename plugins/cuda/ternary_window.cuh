// TernaryLinear with 2 to 16 slots, where ternary_pass.cuh has no room: the weights of a block wait in shared memory, the activations of a
// warp in registers. The bits are those of packed_rows.cuh: the same products, folded in the order of fold.h.
//
// A block of 8 warps takes units of 16 weight rows, all of them on their way before the previous kernel has ended; the grid is one
// block a multiprocessor, or as many as half of its shared memory asks for. A warp is a lane of the fold: it loads the activations of
// its steps once, straight into the layout of mma's B operand, and meets every unit with them, S::kBatch units side by side so that
// their products hide each other's latency. What a warp has of a batch it leaves in shared memory, and the batch is finished when the
// next one is computed: a barrier a batch is enough, and nothing waits for results.
// Steps past the end of a row are zero: code without branches lets loads run ahead.
#pragma once

#include <algorithm>
#include <optional>

#include "linear.cuh"
#include "staging.cuh"
#include "ternary_products.cuh"

namespace bitmtp {
namespace cuda {

// kGroup, kTiles: as in PackedShape. kSteps: steps of activations that a warp has in registers. kHold: those are all of its steps;
// else they pass by. kBatch: units side by side.
template <int kGroup_, int kTiles_, int kSteps_, bool kHold_, int kBatch_>
struct WindowShape {
  static constexpr bool kGrouped = kGroup_ > 0;
  static constexpr int kShift = kGroup_ == 128 ? 1 : 0;  // fold.h
  static constexpr int kTiles = kTiles_;
  static constexpr int kSteps = kSteps_;
  static constexpr bool kHold = kHold_;
  static constexpr int kBatch = kBatch_;

  static constexpr int kThreads = 32 * kFoldLanes;
  static constexpr int kStepBytes = 128;  // of a tile of 8 rows
  // The zero points' share of the dots is the same for every unit: it is kept where that takes few registers, else found again.
  static constexpr bool kKeep = kHold && (!kGrouped || kSteps <= 8);
  static constexpr int kZeros = kKeep && kGrouped ? kSteps >> kShift : 1;
  // Units of a batch that a thread finishes an element of: with one tile, half of the warps take one unit and half the other.
  static constexpr bool kHalves = kTiles == 1 && kBatch == 2;
  static constexpr int kFinish = kHalves ? 1 : kBatch;
  static_assert(kShift == 0 || kSteps % 2 == 0, "parity of a step in registers is that of its number");
};

constexpr int kWindowUnits = 16;  // of a block, at most

struct WindowArgs {
  LinearArgs linear;
  int32_t units;        // of a block,
  int32_t longer;       // of which so many have one more:
  int32_t block_units;  // of a block, at most
};

// Results of the warps for a batch, as mma leaves them: the four of a lane, those of one q and tile side by side, g crossed with q to
// spread the banks.
template <class S>
using WindowParts = float[S::kBatch][kFoldLanes][S::kTiles][4][8][4];

template <class S>
struct WindowLayout {
  int32_t unit_bytes, scale_bytes;  // of a unit
  __host__ __device__ explicit WindowLayout(const PackedArgs &a)
      : unit_bytes(2 * a.steps * S::kStepBytes), scale_bytes(S::kGrouped ? 2 * a.groups * 16 : 32) {}
  __host__ __device__ static constexpr int32_t part_bytes(int32_t units) { return (units > S::kBatch ? 2 : 1) * static_cast<int32_t>(sizeof(WindowParts<S>)); }
  __host__ __device__ int32_t bytes(int32_t units) const { return units * (unit_bytes + scale_bytes) + part_bytes(units); }
};

// Any number of registers: a second window's block on the same multiprocessor did a step no good (docs/cuda.md).
template <class S>
__global__ void __launch_bounds__(S::kThreads, 1) linear_window_kernel(const __grid_constant__ WindowArgs args) {
  extern __shared__ __align__(128) uint8_t dynamic[];
  __shared__ alignas(8) uint64_t arrived[kWindowUnits];
  const LinearArgs &linear = args.linear;
  const PackedArgs &a = linear.weight;
  const WindowLayout<S> layout(a);
  const int lane = threadIdx.x & 31, split = threadIdx.x >> 5, g = lane >> 2, q = lane & 3;
  const int32_t block = blockIdx.x, first_unit = block * args.units + min(block, args.longer), units = args.units + (block < args.longer ? 1 : 0);
  uint8_t *const weights = dynamic, *const scales = weights + args.block_units * layout.unit_bytes;
  WindowParts<S> *const parts = reinterpret_cast<WindowParts<S> *>(scales + args.block_units * layout.scale_bytes);

  const Staging<kWindowUnits> staging(arrived);
  for (int32_t u = 0; u < units; u += S::kBatch) {
    const int32_t batch = units - u < S::kBatch ? units - u : S::kBatch;
    const int64_t unit = first_unit + u;
    const bool half = (unit + batch) * 16 - 8 >= a.rows;  // the last tile does not exist
    const uint32_t bytes = batch * layout.unit_bytes - (half ? layout.unit_bytes / 2 : 0);
    const uint32_t scale_bytes = batch * layout.scale_bytes - (half ? layout.scale_bytes / 2 : 0);
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
    row[t] = linear.codes + static_cast<int64_t>(column) * (a.steps * 16) + lane_step(0, shift, split) * 16 + q * 4;
  }
  uint32_t quads[S::kSteps][S::kTiles][4];
  // The lane's step base + p, base a multiple of kSteps; past the last one, nothing.
  const auto load_step = [&](int32_t base, int p) {
#pragma unroll
    for (int t = 0; t < S::kTiles; ++t)
      load_activations(quads[p][t], row[t] + base * (kFoldLanes * 16) + lane_step(p, shift, 0) * 16, base + p < count);
  };
#pragma unroll
  for (int p = 0; p < S::kSteps; ++p) load_step(0, p);

  // What the thread finishes: an element of a unit, in the order of WindowParts.
  const int part_tile = split / 4 % S::kTiles, part_q = split % 4, part_unit = S::kHalves ? split / 4 : 0;
  const int part_row = 2 * (g ^ 2 * part_q) + lane % 2, part_column = 8 * part_tile + 2 * part_q + lane / 2 % 2;
  const bool finishes = part_column < linear.M && (S::kTiles == 2 || S::kHalves || split < 4);
  const bool adds = linear.residual != nullptr;
  const float act_scale = linear.act_scale[part_column < linear.M ? part_column : linear.M - 1];
  // Elements from the block's first unit on that are there: rows of the weight and units of the block.
  const int32_t first_row = first_unit * 16 + part_row;
  const int32_t end = finishes ? min(units * 16, a.rows - first_row) : 0;
  const int64_t first_element = static_cast<int64_t>(part_column) * a.rows + first_row;
  float next_residual[S::kFinish] = {}, residual[S::kFinish] = {};
  const auto load_residual = [&](int32_t unit) {
    if (!adds) return;
#pragma unroll
    for (int b = 0; b < S::kFinish; ++b) {
      const int32_t at = 16 * (unit + b + part_unit);
      if (at < end) next_residual[b] = linear.residual[first_element + at];
    }
  };
  load_residual(0);

  int32_t sums[S::kTiles] = {}, zeros[S::kZeros][S::kTiles][2];
  if constexpr (S::kKeep) {
#pragma unroll
    for (int p = 0; p < S::kSteps; ++p) {
      add_codes(sums, quads[p]);
      if (S::kGrouped ? (p & shift) == shift : p + 1 == S::kSteps) spread_sums<S::kGrouped>(sums, zeros[S::kGrouped ? p >> shift : 0]);
    }
  }

  // Results of the batch from the block's unit `unit` on.
  const auto finish = [&](int32_t unit) {
    const int32_t batch = unit / S::kBatch;
#pragma unroll
    for (int b = 0; b < S::kFinish; ++b) {
      const int32_t at = 16 * (unit + b + part_unit);
      if (at >= end) continue;
      const float *const from = &parts[batch % 2][b + part_unit][0][part_tile][part_q][0][0] + lane;
      const uint32_t row_scale = S::kGrouped ? 0u : *reinterpret_cast<const uint16_t *>(scales + (at + part_row) * 2);
      const float y = combine_parts<S::kGrouped>(from, S::kTiles * 128, row_scale) * act_scale;
      linear.out[first_element + at] = adds ? y + residual[b] : y;
    }
  };

  // A warp without steps meets the row's first with zeros: its own would lie where others write.
  const int32_t first_step = count > 0 ? lane_step(0, shift, split) : 0;
  const uint8_t *const lane_weights = weights + (g / 4 * a.steps + first_step) * S::kStepBytes + q * 32 + g % 4 * 8;
  const uint8_t *const lane_scales = scales + (g / 4 * a.groups + split) * 16 + g % 4 * 4;
  for (int32_t unit = 0; unit < units; unit += S::kBatch) {
    staging.await(unit);
    const auto unit_of = [&](int b) { return unit + b < units ? unit + b : unit; };  // past the end one that is there, for nothing
    int32_t dots[S::kBatch][S::kTiles][4] = {};
    float folded[S::kBatch][S::kTiles][4] = {};
    for (int32_t base = 0; S::kHold ? base == 0 : base < count; base += S::kSteps) {
#pragma unroll
      for (int p = 0; p < S::kSteps; ++p) {
        if constexpr (!S::kKeep) add_codes(sums, quads[p]);
        const int32_t step = base + p < count ? base * kFoldLanes + lane_step(p, shift, 0) : 0;
#pragma unroll
        for (int b = 0; b < S::kBatch; ++b) {
          const uint2 v = *reinterpret_cast<const uint2 *>(lane_weights + unit_of(b) * layout.unit_bytes + step * S::kStepBytes);
          multiply_step<S::kGrouped>(dots[b], v, quads[p], S::kGrouped && (p & shift) == 0);
        }
        if constexpr (S::kGrouped) {
          if ((p & shift) == shift) {
            if constexpr (!S::kKeep) spread_sums<S::kGrouped>(sums, zeros[0]);
#pragma unroll
            for (int b = 0; b < S::kBatch; ++b) {
              const uint32_t two =
                  base + p - shift < count ? *reinterpret_cast<const uint32_t *>(lane_scales + unit_of(b) * layout.scale_bytes + ((base + p) >> shift) * kFoldLanes * 16) : 0;
              fold_group(folded[b], dots[b], zeros[S::kKeep ? p >> shift : 0], two);
            }
          }
        }
        if constexpr (!S::kHold) {
          if (base + S::kSteps < count)
            load_step(base + S::kSteps, p);
          else if (unit + S::kBatch < units)
            load_step(0, p);
        }
      }
    }

    if constexpr (!S::kKeep && !S::kGrouped) spread_sums<S::kGrouped>(sums, zeros[0]);

    if (unit > 0) finish(unit - S::kBatch);
#pragma unroll
    for (int b = 0; b < S::kFinish; ++b) residual[b] = next_residual[b];
    load_residual(unit + S::kBatch);
    const int32_t batch = unit / S::kBatch;
#pragma unroll
    for (int b = 0; b < S::kBatch; ++b) {
#pragma unroll
      for (int t = 0; t < S::kTiles; ++t) {
        float out[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) out[i] = S::kGrouped ? folded[b][t][i] : __int_as_float(dots[b][t][i] - zeros[0][t][i % 2]);
        *reinterpret_cast<float4 *>(parts[batch % 2][b][split][t][q][g ^ 2 * q]) = make_float4(out[0], out[2], out[1], out[3]);
      }
    }
    // Of two buffers: who goes on from here has finished the batch before, whose place the next one takes.
    __syncthreads();
  }
  finish((units - 1) / S::kBatch * S::kBatch);
}

// How many units a block of this shape takes, or 0 where not even one finds room.
template <class S>
int32_t window_units(const PackedArgs &a, int32_t wanted) {
  const WindowLayout<S> layout(a);
  int32_t units = std::min(wanted, kWindowUnits);
  while (units > 0 && layout.bytes(units) > shared_memory_of_half()) --units;
  return units;
}

// Launches a window in blocks of `wanted` units, or fewer, and tells how that went; nothing where not even one unit finds room.
template <int kGroup>
std::optional<int32_t> launch_window(const LinearArgs &args, int32_t wanted, void *stream) {
  const auto with = [&](auto shape) -> std::optional<int32_t> {
    using S = decltype(shape);
    const int32_t block_units = window_units<S>(args.weight, wanted), units = ceil_div(args.weight.rows, kUnitRows);
    if (block_units < 1) return std::nullopt;
    const int32_t blocks = ceil_div(units, block_units);
    const LaunchSettings settings = {programmatic_launch(), 1, WindowLayout<S>(args.weight).bytes(block_units)};
    return launch_as(settings, linear_window_kernel<S>, dim3(static_cast<unsigned>(blocks)), dim3(S::kThreads), stream,
                     WindowArgs{args, units / blocks, units % blocks, block_units});
  };
  const int32_t steps = lane_steps(args.weight.steps, kGroup == 128 ? 1 : 0, 0);
  const bool narrow = args.M <= 8;
  if constexpr (kGroup == 0) {
    if (steps <= 5) return narrow ? with(WindowShape<0, 1, 5, true, 2>{}) : with(WindowShape<0, 2, 5, true, 2>{});
    if (narrow) return steps <= 14 ? with(WindowShape<0, 1, 14, true, 2>{}) : with(WindowShape<0, 1, 10, false, 2>{});
    return steps <= 14 ? with(WindowShape<0, 2, 14, true, 2>{}) : with(WindowShape<0, 2, 7, false, 2>{});
  } else if constexpr (kGroup == 64) {
    if (narrow) return steps <= 4 ? with(WindowShape<64, 1, 4, true, 2>{}) : with(WindowShape<64, 1, 8, false, 2>{});
    return steps <= 4 ? with(WindowShape<64, 2, 4, true, 1>{}) : with(WindowShape<64, 2, 4, false, 1>{});
  } else {
    if (steps <= 4) return narrow ? with(WindowShape<128, 1, 4, true, 2>{}) : with(WindowShape<128, 2, 4, true, 2>{});
    if (narrow) return steps <= 12 ? with(WindowShape<128, 1, 12, true, 1>{}) : with(WindowShape<128, 1, 10, false, 2>{});
    return with(WindowShape<128, 2, 6, false, 1>{});
  }
}

}  // namespace cuda
}  // namespace bitmtp
