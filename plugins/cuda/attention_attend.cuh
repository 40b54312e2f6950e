// First kernel of NestedKVAttention: a thread block for each KV head, unit of positions and tile of query vectors, a warp for each slice
// of the unit. A warp goes through its steps alone: keys and values come to its registers, scores, weights and sums stay there.
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

template <int D, bool kNested>
__global__ void __launch_bounds__(kThreads, 3) attend_kernel(const __grid_constant__ AttentionCall call) {
  using Memory = AttendMemory<D, kNested>;
  extern __shared__ __align__(128) uint8_t shared[];
  const bitmtp_nested_kv_attention_args &a = call.args;
  const AttentionLayout &l = call.layout;
  const int32_t slice = threadIdx.x / 32, lane = threadIdx.x % 32, thread = lane % 4;
  const int32_t group = blockIdx.x, kv = blockIdx.y;
  const int32_t first = group * kTile, vectors = within(call.rows * l.ratio - first, 0, kTile);
  release_next();

  Preparation<D, kNested> preparation(call, shared, kv, first, vectors, lane);
  const int32_t lane_row = call.first_row + call.row_of(first + min(lane % kTile, vectors - 1));
  const uint32_t lane_mask = mask_word(a, lane_row, 0);

  // The highest units, which are the widest, come first; blocks past the last unit in use have nothing to do. The grid as a whole still
  // ends after its predecessor, since unit 0 is always in use.
  const int32_t unit = l.units - 1 - static_cast<int32_t>(blockIdx.z);
  const int32_t start = unit_start(unit), unit_end = start + unit_steps(unit) * kRound;
  const int32_t coarse = kNested && a.kv4_length ? a.kv4_length[0] : 0;
  const int32_t history = history_of(a), kv4 = within(coarse, 0, history), end = history + a.M;
  if (start >= end) return;
  const bool windowed = unit_end > history;
  Feeder<D, kNested> feeder(a, shared + Memory::kOwn, start + slice * kStep, history, kv4, kv, lane);
  const int32_t steps = within((end - feeder.first + kRound - 1) / kRound, 0, unit_steps(unit));

  // History is on its way before anything else.
  Slice<D, kNested> part(feeder, shared_address(shared), lane);
  feeder.fetch_keys(part.keys, 0);
  feeder.fetch_scales(part.scales, 0);
  feeder.fetch_values(part.values, 0);
  if (windowed && a.M <= kOwnRows) preparation.window_heads = 2 * a.M;
  auto head = preparation.head_of(slice);
  HeadInputs inputs = preparation.inputs(head);
  const Sight sight = sight_of(a, lane_row, lane_mask);
#pragma unroll
  for (int32_t v = 0; v < 2; ++v) {
    const int32_t vector = 2 * thread + v;
    const bool real = vector < vectors;
    const int32_t seen = __shfl_sync(kAllLanes, sight.count, vector);
    const int32_t row = __shfl_sync(kAllLanes, sight.prefix ? kEveryRow : lane_row, vector);
    part.limit[v] = {real ? row : kEveryRow, real ? history + seen : 0};
  }
  part.trees = __any_sync(kAllLanes, part.limit[0].row != kEveryRow || part.limit[1].row != kEveryRow);
  wait_for_previous();
  HeadParts raw = preparation.raw(head);
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

#pragma unroll
  for (int32_t v = 0; v < 2; ++v) part.query[v] = reinterpret_cast<const QueryScale *>(shared + Memory::kScales)[2 * thread + v];
  int32_t step = 0;
  if constexpr (kNested) {
#pragma unroll 1
    for (; step < steps && !feeder.fine(step); ++step) part.template take<false, false>(step, step + 1 < steps);
  }
#pragma unroll 1
  for (; step < steps; ++step) {
    if (feeder.windowed(step) || (kNested && feeder.position(step) < kv4)) {
      part.template take<kNested, true>(step, step + 1 < steps);
    } else {
      part.template take<kNested, false>(step, step + 1 < steps);
    }
  }
  if (group == 0 && history >= start && call.first_row == 0) preparation.store_window();

  // ---- the unit's sums ----
  float2 *tops = reinterpret_cast<float2 *>(shared + Memory::kTops);
#pragma unroll
  for (int32_t v = 0; v < 2; ++v) {
    const float total = lanes_sum<4, 32>(part.total[v]);
    if (lane < 4) tops[slice * kTile + 2 * thread + v] = {part.reference[v], total};
  }
  float *slices = reinterpret_cast<float *>(shared + Memory::kSums);
  constexpr int32_t kAtOnce = Memory::kAtOnce;
#pragma unroll 1
  for (int32_t from = 0; from < vectors; from += kAtOnce) {
    if (from > 0) __syncthreads();
    if (thread / (kAtOnce / 2) == from / kAtOnce) {
#pragma unroll
      for (int32_t v = 0; v < 2; ++v) {
        float x[D / 8];
#pragma unroll
        for (int32_t i = 0; i < D / 8; ++i) x[column_of<kNested>(i / 2, i % 2)] = part.sums.tile[i / 2][i % 2 * 2 + v];
        float *to = slices + (slice * kAtOnce + 2 * thread % kAtOnce + v) * Memory::kPadded + D / 8 * (lane / 4);
#pragma unroll
        for (int32_t i = 0; i < D / 8; i += 4) *reinterpret_cast<float4 *>(to + i) = {x[i], x[i + 1], x[i + 2], x[i + 3]};
      }
    }
    __syncthreads();
    const int32_t at = threadIdx.x / (D / 4), vector = from + at, column = 4 * (threadIdx.x % (D / 4));
    if (at >= kAtOnce || vector >= vectors) continue;
    float2 slice_tops[kSlices];
    float4 parts[kSlices];
#pragma unroll
    for (int32_t s = 0; s < kSlices; ++s) {
      slice_tops[s] = tops[s * kTile + vector], parts[s] = load4(slices + (s * kAtOnce + at) * Memory::kPadded + column);
    }
    Folded all;
    all.add_up(slice_tops, parts);
    const int32_t row = call.row_of(first + vector);
    const int64_t to = (int64_t{unit} * call.rows + row) * a.H + kv * l.ratio + first + vector - row * l.ratio;
    call.in_workspace<float4>(l.units_at)[(to * D + column) / 4] = all.sum;
    if (column == 0) call.in_workspace<float2>(l.unit_tops)[to] = all.top;
  }
}

}  // namespace attention
}  // namespace cuda
}  // namespace bitmtp
