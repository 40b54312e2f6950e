// First kernel of NestedKVAttention: a thread block for each KV head, unit of positions and one or two tiles of query vectors, a warp for
// each slice of the unit. A warp goes through its steps alone: keys and values come to its registers, scores, weights and sums stay there.
#pragma once

#include <cstdint>

#include "attention_block.cuh"
#include "attention_feed.cuh"
#include "attention_fold.cuh"
#include "attention_layout.cuh"
#include "attention_math.cuh"
#include "attention_prepare.cuh"
#include "attention_sight.cuh"
#include "attention_slice.cuh"
#include "bitmtp/abi.h"
#include "kv_rows.cuh"
#include "launch.cuh"

namespace bitmtp {
namespace cuda {
namespace attention {

constexpr int32_t kBlocksOfProcessor = 3;  // with one tile of query vectors

// kOwn: of a narrow window, of which blocks prepare what they need; else that has been done.
template <int D, bool kNested, bool kOwn, int kTiles>
__global__ void __launch_bounds__(kThreads, kTiles == 1 ? kBlocksOfProcessor : 2) attend_kernel(const __grid_constant__ AttentionCall call) {
  using Memory = AttendMemory<D, kNested, kOwn, kTiles>;
  constexpr int32_t kVectors = Memory::kVectors;
  extern __shared__ __align__(128) uint8_t shared[];
  const bitmtp_nested_kv_attention_args &a = call.args;
  const AttentionLayout &l = call.layout;
  const int32_t slice = threadIdx.x / 32, lane = threadIdx.x % 32, thread = lane % 4;
  const int32_t group = blockIdx.x, kv = blockIdx.y;
  const int32_t first = group * kVectors, vectors = within(call.rows * l.ratio - first, 0, kVectors);
  release_next();

  const int32_t lane_row = call.first_row + call.row_of(first + min(lane % kVectors, vectors - 1));
  const uint32_t lane_mask = mask_word(a, lane_row, 0);
  Preparation<D, kNested> preparation(call, shared, kv, first, vectors, lane);

  // The highest units, which are the widest, come first; blocks past the last unit in use have nothing to do. The grid as a whole still
  // ends after its predecessor, since unit 0 is always in use.
  const int32_t unit = l.units - 1 - static_cast<int32_t>(blockIdx.z);
  const int32_t start = unit_start(unit), unit_end = start + unit_steps(unit) * kRound;
  const int32_t coarse = kNested && a.kv4_length ? a.kv4_length[0] : 0;
  const int32_t history = history_of(a), kv4 = within(coarse, 0, history), end = history + a.M;
  if (start >= end) return;
  Feeder<D, kNested, kOwn> feeder(a, shared + Memory::kRows, start + slice * kStep, history, kv4, kv, lane);
  const int32_t steps = within((end - feeder.first + kRound - 1) / kRound, 0, unit_steps(unit));

  // History is on its way before anything else.
  Slice<D, kNested, kOwn, kTiles> part(feeder, shared_address(shared), lane);
  feeder.fetch_keys(part.keys, 0);
  feeder.fetch_scales(part.scales, 0);
  feeder.fetch_values(part.values, 0);
  const auto look = [&] {
    const Sight sight = sight_of(a, lane_row, lane_mask);
    bool trees = false;
#pragma unroll
    for (int32_t t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int32_t v = 0; v < 2; ++v) {
        const int32_t vector = kTile * t + 2 * thread + v;
        const bool real = vector < vectors;
        const int32_t seen = __shfl_sync(kAllLanes, sight.count, vector);
        const int32_t row = __shfl_sync(kAllLanes, sight.prefix ? kEveryRow : lane_row, vector);
        part.limit[t][v] = {real ? row : kEveryRow, real ? history + seen : 0};
        trees = trees || part.limit[t][v].row != kEveryRow;
      }
    }
    part.trees = __any_sync(kAllLanes, trees);
  };
  if constexpr (kOwn) {
    if (unit_end > history) preparation.window_heads = 2 * a.M;
    auto head = preparation.head_of(slice);
    HeadInputs inputs = preparation.inputs(head);
    wait_for_previous();
    HeadParts raw = preparation.raw(head);
    look();
#pragma unroll 1
    for (int32_t task = slice; task < preparation.tasks();) {
      preparation.run(head, inputs, raw);
      task += kSlices;
      if (task >= preparation.tasks()) break;
      head = preparation.head_of(task);
      raw = preparation.raw(head);
      inputs = preparation.inputs(head);
    }
    __syncthreads();
  } else {
    wait_for_previous();
    const int32_t tile = call.first_row * l.ratio / kTile + group * kTiles;
#pragma unroll
    for (int32_t t = 0; t < kTiles; ++t) {
      const int32_t its = kv * l.tiles + min(tile + t, l.tiles - 1);
      const uint8_t *from = call.in_workspace<const uint8_t>(l.queries) + int64_t{its} * kFragments<D>;
#pragma unroll
      for (int32_t at = 0; at < kFragments<D>; at += 16 * kThreads) {
        copy_async(shared + t * kFragments<D> + at + 16 * threadIdx.x, from + at + 16 * threadIdx.x);
      }
#pragma unroll
      for (int32_t v = 0; v < 2; ++v) part.query[t][v] = call.in_workspace<const QueryScale>(l.query_scales)[its * kTile + 2 * thread + v];
    }
    look();
  }

#pragma unroll 1
  for (int32_t step = 0;;) {
    // Window rows in device memory are on their way together with queries.
    if (step < steps && feeder.mixed(step)) part.mend(step);
    if (step == 0) {
      if constexpr (kOwn) {
#pragma unroll
        for (int32_t v = 0; v < 2; ++v) part.query[0][v] = reinterpret_cast<const QueryScale *>(shared + Memory::kScales)[2 * thread + v];
      } else {
        wait_async();
        __syncthreads();
      }
    }
    if (step >= steps) break;
    if (kNested && !feeder.fine(step)) {
#pragma unroll 1
      do {
        part.template take<false, false>(step, step + 1 < steps);
      } while (++step < steps && !feeder.fine(step));
      continue;
    }
    if (part.trees && feeder.windowed(step)) {
      part.template take<kNested, true>(step, step + 1 < steps);
    } else {
      part.template take<kNested, false>(step, step + 1 < steps);
    }
    ++step;
  }
  if constexpr (kOwn) {
    if (group == 0 && history >= start && call.first_row == 0) preparation.store_window();
  }

  // ---- the unit's sums ----
  float2 *tops = reinterpret_cast<float2 *>(shared + Memory::kTops);
  float4 *slices = reinterpret_cast<float4 *>(shared + Memory::kSums);
  constexpr int32_t kAtOnce = Memory::kAtOnce, kFolded = kThreads / (D / 4);
#pragma unroll
  for (int32_t t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int32_t v = 0; v < 2; ++v) {
      const float total = lanes_sum<4, 32>(part.total[t][v]);
      if (lane < 4) tops[slice * kVectors + kTile * t + 2 * thread + v] = {part.reference[t][v], total};
    }
  }
#pragma unroll 1
  for (int32_t from = 0; from < vectors; from += kAtOnce) {
    if (from > 0) __syncthreads();
#pragma unroll
    for (int32_t t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int32_t v = 0; v < 2; ++v) {
        const int32_t vector = kTile * t + 2 * thread + v;
        if (vector / kAtOnce != from / kAtOnce || vector >= vectors) continue;
        float x[D / 8];
#pragma unroll
        for (int32_t i = 0; i < D / 8; ++i) x[column_of<kNested>(i / 2, i % 2)] = part.sums[t].tile[i / 2][i % 2 * 2 + v];
#pragma unroll
        for (int32_t i = 0; i < D / 32; ++i) {
          slices[Memory::sum_at(slice, vector % kAtOnce, D / 32 * (lane / 4) + i)] = {x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]};
        }
      }
    }
    __syncthreads();
#pragma unroll
    for (int32_t first_at = 0; first_at < kAtOnce; first_at += kFolded) {
      const int32_t at = first_at + threadIdx.x / (D / 4), quad = threadIdx.x % (D / 4), vector = from + at;
      if (at >= kAtOnce || vector >= vectors) break;
      float2 slice_tops[kSlices];
      float4 parts[kSlices];
#pragma unroll
      for (int32_t s = 0; s < kSlices; ++s) slice_tops[s] = tops[s * kVectors + vector], parts[s] = slices[Memory::sum_at(s, at, quad)];
      Folded all;
      all.add_up(slice_tops, parts);
      const int32_t row = call.row_of(first + vector);
      const int64_t to = (int64_t{unit} * call.rows + row) * a.H + kv * l.ratio + first + vector - row * l.ratio;
      call.in_workspace<float4>(l.units_at)[to * (D / 4) + quad] = all.sum;
      if (quad == 0) call.in_workspace<float2>(l.unit_tops)[to] = all.top;
    }
  }
}

}  // namespace attention
}  // namespace cuda
}  // namespace bitmtp
