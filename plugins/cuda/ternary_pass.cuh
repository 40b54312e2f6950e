// TernaryLinear with 2 to 16 slots where a block's weights and a warp's activations fit into registers. The bits are those of
// packed_rows.cuh: the same products, folded in the order of fold.h.
//
// A block of 8 warps takes up to kUnits units of 16 weight rows. A warp is a lane of the fold: it loads its steps of all units before
// the previous kernel has ended, then the activations of those steps, straight into the layout of mma's B operand. What it has of
// kRound units it leaves in shared memory, a place for each, and then the block's threads finish those.
// Steps past the end of a row are zero, and units past the end are computed for nothing: code without branches lets loads run ahead,
// and units hide each other's latency.
#pragma once

#include <optional>

#include "linear.cuh"
#include "ternary_products.cuh"

namespace bitmtp {
namespace cuda {

// kGroup, kTiles: as in PackedShape. kSteps: of a lane, kUnits: of a block, at most.
template <int kGroup_, int kTiles_, int kSteps_, int kUnits_>
struct PassShape {
  static constexpr bool kGrouped = kGroup_ > 0;
  static constexpr int kShift = kGroup_ == 128 ? 1 : 0;  // fold.h
  static constexpr int kTiles = kTiles_;
  static constexpr int kSteps = kSteps_;
  static constexpr int kUnits = kUnits_;

  static constexpr int kThreads = 32 * kFoldLanes;
  // As many registers as 320 threads would have, 168, where that does: a norm's block, which lets this kernel go, keeps its place beside.
  static constexpr int kPlaces = kSteps >= 8 ? kThreads : 320;
  static constexpr int kGroups = kGrouped ? (kSteps + kShift) >> kShift : 1;
  // The zero points' share of the dots is kept for several units, else found where it is needed.
  static constexpr bool kKeep = kUnits > 1;
  // Units whose results wait side by side, 4 KB a tile: with up to 31 KB a multiprocessor keeps the usual share of shared memory.
  static constexpr int kRound = kUnits * kTiles <= 7 ? kUnits : 7 / kTiles;
  static constexpr int kFinish = (kRound * kTiles + 1) / 2;  // elements of a thread, in as many units
  static_assert(kShift == 0 || kSteps % 2 == 0, "a group's steps are a pair");
};

struct PassArgs {
  LinearArgs linear;
  int32_t units;   // of a block,
  int32_t longer;  // of which so many have one more
};

// Results of the warps for a unit, as mma leaves them: the four of a lane, those of one q and tile side by side, g crossed with q to
// spread the banks.
template <class S>
struct alignas(16) PassParts {
  float lanes[kFoldLanes][S::kTiles][4][8][4];
};

template <class S>
__global__ void __launch_bounds__(S::kPlaces, 1) linear_pass_kernel(const __grid_constant__ PassArgs args) {
  __shared__ PassParts<S> parts[S::kRound];
  __shared__ uint16_t row_scales[S::kGrouped ? 1 : (S::kUnits + S::kRound) * kUnitRows];  // and room for units that are not there
  const LinearArgs &linear = args.linear;
  const PackedArgs &a = linear.weight;
  constexpr int shift = S::kShift;
  const int lane = threadIdx.x & 31, split = threadIdx.x >> 5, g = lane >> 2, q = lane & 3;
  const int32_t block = blockIdx.x, first_unit = block * args.units + min(block, args.longer), units = args.units + (block < args.longer ? 1 : 0);
  const int32_t count = lane_steps(a.steps, shift, split), first_step = lane_step(0, shift, split), tiles = ceil_div(a.rows, 8);

  uint2 weights[S::kUnits][S::kSteps];
  uint32_t scales[S::kUnits][S::kGroups];
#pragma unroll
  for (int u = 0; u < S::kUnits; ++u) {
    // Past the end one that is there, for nothing.
    const int32_t tile = min(2 * (first_unit + min(u, units - 1)) + g / 4, tiles - 1);
    const uint32_t *const words = a.table + (static_cast<int64_t>(tile) * a.steps + first_step) * 32 + q * 8 + g % 4 * 2;
#pragma unroll
    for (int p = 0; p < S::kSteps; ++p) {
      uint32_t w[2] = {};
      if (p < count) load_words(w, words + lane_step(p, shift, 0) * 32);
      weights[u][p] = make_uint2(w[0], w[1]);
    }
    if constexpr (S::kGrouped) {
      const uint16_t *const from = a.scales + (static_cast<int64_t>(tile) * a.groups + split) * 8 + g % 4 * 2;
#pragma unroll
      for (int i = 0; i < S::kGroups; ++i) {
        uint32_t two[1] = {};
        if (i << shift < count) load_scales(two, from + i * (kFoldLanes * 8));
        scales[u][i] = two[0];
      }
    }
  }
  const int32_t thread = threadIdx.x;
  uint32_t row_scale = 0;
  if (!S::kGrouped && thread < S::kUnits * kUnitRows) row_scale = load_row_scale(a.scales + min(first_unit * kUnitRows + thread, a.rows - 1));

  const int32_t *row[S::kTiles];
#pragma unroll
  for (int t = 0; t < S::kTiles; ++t) {
    const int32_t column = 8 * t + g < linear.M ? 8 * t + g : linear.M - 1;
    row[t] = linear.codes + static_cast<int64_t>(column) * (a.steps * 16) + first_step * 16 + q * 4;
    asm volatile("" : "+l"(row[t]));  // found before the wait, not behind it
  }

  wait_for_previous();
  // Not before: what the next kernel loads early would be in the way of this one's start.
  release_next();

  uint32_t quads[S::kSteps][S::kTiles][4];
#pragma unroll
  for (int p = 0; p < S::kSteps; ++p) {
#pragma unroll
    for (int t = 0; t < S::kTiles; ++t) {
      load_activations(quads[p][t], row[t] + lane_step(p, shift, 0) * 16, p < count);
    }
  }

  // What the thread finishes: an element of every stride-th unit, in the order of PassParts.
  constexpr int stride = 2 / S::kTiles;
  const int part_q = split % 4, part_tile = split / 4 % S::kTiles, first_part = split / (4 * S::kTiles);
  const int part_row = 2 * (g ^ 2 * part_q) + lane % 2, part_column = 8 * part_tile + 2 * part_q + lane / 2 % 2;
  const int32_t first_row = (first_unit + first_part) * kUnitRows + part_row;
  const int32_t end = part_column < linear.M ? min(a.rows, (first_unit + units) * kUnitRows) : 0;
  const int64_t first_element = static_cast<int64_t>(part_column) * a.rows + first_row;
  const float act_scale = linear.act_scale[part_column < linear.M ? part_column : linear.M - 1];
  const bool adds = linear.residual != nullptr;

  const auto ends = [](int p) { return S::kGrouped ? (p & shift) == shift : p + 1 == S::kSteps; };
  int32_t sums[S::kTiles] = {}, zeros[S::kKeep ? S::kGroups : 1][S::kTiles][2];
  if constexpr (S::kKeep) {
#pragma unroll
    for (int p = 0; p < S::kSteps; ++p) {
      add_codes(sums, quads[p]);
      if (ends(p)) spread_sums<S::kGrouped>(sums, zeros[S::kGrouped ? p >> shift : 0]);
    }
  }

  if (!S::kGrouped && thread < S::kUnits * kUnitRows) row_scales[thread] = static_cast<uint16_t>(row_scale);

#pragma unroll
  for (int from = 0; from < S::kUnits; from += S::kRound) {
    if (from > 0) {
      if (from >= units) break;
      __syncthreads();  // results of the round before have been read
    }
    float residual[S::kFinish] = {};
    if (adds) {
#pragma unroll
      for (int k = 0; k < S::kFinish; ++k) {
        const int32_t at = (from + k * stride) * kUnitRows;
        if (first_row + at < end) residual[k] = linear.residual[first_element + at];
      }
    }
#pragma unroll
    for (int u = from; u < S::kUnits && u < from + S::kRound; ++u) {
      if (u > from && u % 3 == 0 && u >= units) break;  // three at a time are straight code
      int32_t dots[S::kTiles][4] = {};
      float folded[S::kTiles][4] = {};
#pragma unroll
      for (int p = 0; p < S::kSteps; ++p) {
        if constexpr (!S::kKeep) add_codes(sums, quads[p]);
        multiply_step<S::kGrouped>(dots, weights[u][p], quads[p], S::kGrouped ? (p & shift) == 0 : p == 0);
        if (!ends(p)) continue;
        if constexpr (!S::kKeep) spread_sums<S::kGrouped>(sums, zeros[0]);
        if constexpr (S::kGrouped) fold_group(folded, dots, zeros[S::kKeep ? p >> shift : 0], scales[u][p >> shift]);
      }
#pragma unroll
      for (int t = 0; t < S::kTiles; ++t) {
        float out[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) out[i] = S::kGrouped ? folded[t][i] : __int_as_float(dots[t][i] - zeros[0][t][i % 2]);
        *reinterpret_cast<float4 *>(parts[u - from].lanes[split][t][q][g ^ 2 * q]) = make_float4(out[0], out[2], out[1], out[3]);
      }
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < S::kFinish; ++k) {
      const int part = first_part + k * stride;
      if (part >= S::kRound) break;
      const int32_t at = (from + k * stride) * kUnitRows;
      const float y = combine_parts<S::kGrouped>(&parts[part].lanes[0][part_tile][part_q][0][0] + lane, S::kTiles * 128,
                                                 S::kGrouped ? 0u : row_scales[(from + part) * kUnitRows + part_row]) *
                      act_scale;
      if (first_row + at < end) linear.out[first_element + at] = adds ? y + residual[k] : y;
    }
  }
}

// Launches a window in blocks of `wanted` units, or fewer, and tells how that went; nothing where no shape holds as many.
template <int kGroup>
std::optional<int32_t> launch_pass(const LinearArgs &args, int32_t wanted, void *stream) {
  const int32_t steps = lane_steps(args.weight.steps, kGroup == 128 ? 1 : 0, 0);
  const auto with = [&](auto shape) -> std::optional<int32_t> {
    using S = decltype(shape);
    const int32_t units = ceil_div(args.weight.rows, kUnitRows), blocks = ceil_div(units, wanted);
    return launch(linear_pass_kernel<S>, dim3(static_cast<unsigned>(blocks)), dim3(S::kThreads), stream,
                  PassArgs{args, units / blocks, units % blocks});
  };
  const auto with_tiles = [&](auto narrow, auto wide) { return args.M <= 8 ? with(narrow) : with(wide); };
  if constexpr (kGroup == 0) {
    if (steps <= 5) {
      if (wanted <= 1) return with_tiles(PassShape<0, 1, 5, 1>{}, PassShape<0, 2, 5, 1>{});
      if (wanted <= 2) return with_tiles(PassShape<0, 1, 5, 2>{}, PassShape<0, 2, 5, 2>{});
      if (wanted <= 7) return with_tiles(PassShape<0, 1, 5, 7>{}, PassShape<0, 2, 5, 7>{});
    } else if (steps <= 14) {
      if (wanted <= 1) return with_tiles(PassShape<0, 1, 14, 1>{}, PassShape<0, 2, 14, 1>{});
      if (wanted <= 2) return with_tiles(PassShape<0, 1, 14, 2>{}, PassShape<0, 2, 14, 2>{});
    }
  } else if constexpr (kGroup == 64) {
    if (steps <= 4) {
      if (wanted <= 1) return with_tiles(PassShape<64, 1, 4, 1>{}, PassShape<64, 2, 4, 1>{});
      if (wanted <= 2) return with_tiles(PassShape<64, 1, 4, 2>{}, PassShape<64, 2, 4, 2>{});
    }
  } else {
    if (steps <= 4) {
      if (wanted <= 1) return with_tiles(PassShape<128, 1, 4, 1>{}, PassShape<128, 2, 4, 1>{});
      if (wanted <= 2) return with_tiles(PassShape<128, 1, 4, 2>{}, PassShape<128, 2, 4, 2>{});
      if (wanted <= 6) return with_tiles(PassShape<128, 1, 4, 6>{}, PassShape<128, 2, 4, 6>{});
    } else if (steps <= 8) {
      if (wanted <= 1) return with_tiles(PassShape<128, 1, 8, 1>{}, PassShape<128, 2, 8, 1>{});
      if (wanted <= 2) return with_tiles(PassShape<128, 1, 8, 2>{}, PassShape<128, 2, 8, 2>{});
      if (wanted <= 3 && steps <= 6) return with_tiles(PassShape<128, 1, 6, 3>{}, PassShape<128, 2, 6, 3>{});
    } else if (steps <= 12) {
      if (wanted <= 1) return with_tiles(PassShape<128, 1, 12, 1>{}, PassShape<128, 2, 12, 1>{});
    }
  }
  return std::nullopt;
}

}  // namespace cuda
}  // namespace bitmtp
