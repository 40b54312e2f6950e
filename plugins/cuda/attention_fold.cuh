// How NestedKVAttention puts partial results together: slices of a unit, then the units of a row, which is normalised and quantised.
#pragma once

#include <cstdint>

#include "attention_layout.cuh"
#include "attention_math.cuh"
#include "attention_sight.cuh"
#include "bitmtp/abi.h"
#include "cluster.cuh"
#include "kv_rows.cuh"
#include "launch.cuh"
#include "row_quant.cuh"

namespace bitmtp {
namespace cuda {
namespace attention {

// A slice of the window's rows, and how its query vectors are shared out.
struct AttentionCall {
  bitmtp_nested_kv_attention_args args;
  AttentionLayout layout;
  int32_t first_row, rows;
  uint32_t inverse_of_ratio;  // 2^31 / ratio, rounded up
  float inverse_of_columns;   // of a row

  // The row of the slice that a query vector belongs to: the slice has fewer than 2^31 / ratio of them.
  BITMTP_BOTH int32_t row_of(int32_t vector) const {
    return static_cast<int32_t>(uint64_t{inverse_of_ratio} * static_cast<uint32_t>(vector) >> 31);
  }

  template <class T>
  BITMTP_BOTH T *in_workspace(int64_t offset) const {
    return reinterpret_cast<T *>(static_cast<uint8_t *>(args.workspace) + offset);
  }
};

constexpr float kLeast = -0x1p100f;  // a reference below all others: that of no key

// Four neighbouring columns of several partial results, and their reference and sum of weights, added up in order to what is there.
struct Folded {
  float2 top = {kLeast, 0.0f};  // reference, sum of weights
  float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};

  template <int kCount>
  __device__ __forceinline__ void add_up(const float2 (&tops)[kCount], const float4 (&parts)[kCount]) {
    float most = top.x;
#pragma unroll
    for (int32_t i = 0; i < kCount; ++i) most = fmaxf(most, tops[i].x);
    const float kept = power2(sub(top.x, most));
    sum = scale_by(sum, kept), top = {most, mul(top.y, kept)};
#pragma unroll
    for (int32_t i = 0; i < kCount; ++i) {
      const float weight = power2(sub(tops[i].x, most));
      const float4 x = parts[i];
      sum = {fma_(x.x, weight, sum.x), fma_(x.y, weight, sum.y), fma_(x.z, weight, sum.z), fma_(x.w, weight, sum.w)};
      top.y = fma_(tops[i].y, weight, top.y);
    }
  }
};

// ---- rows -------------------------------------------------------------------------------------------------------------
// A row is eight parts. The blocks of a cluster take one each; where there are no clusters, the teams of a block take them in turn. In a
// part, each thread of a team folds eight units for four columns, and the first of them what four of those have found.

constexpr int32_t kParts = 8;
constexpr int32_t kTogether = 8;  // units
constexpr int32_t kTurns = 4;     // of a team, so many units each

// kQuads: groups of four columns of a part that a team does at a time.
template <int kBlocks, int kQuads>
struct FinishShape {
  static constexpr int kTeam = kQuads * kTurns;
  static constexpr int kTeams = kBlocks > 1 ? 1 : 1024 / kTeam;
  static constexpr int kThreads = kTeams * kTeam;
  static constexpr int kPartWarps = kQuads / 32;  // that hold a part's columns in the end
};

// Rules 4 and 3 of docs/numerics.md in this library's order. Grid: blocks of a row, rows of the slice. That one block a multiprocessor will
// do tells the compiler to have all loads of a thread under way at once, not two or four.
template <int kBlocks, int kQuads>
__global__ void __launch_bounds__((FinishShape<kBlocks, kQuads>::kThreads), 1) finish_kernel(const __grid_constant__ AttentionCall call) {
  using Shape = FinishShape<kBlocks, kQuads>;
  constexpr int32_t kTeam = Shape::kTeam, kTeams = Shape::kTeams, kPartWarps = Shape::kPartWarps;
  __shared__ float4 team_sums[kTeams][kTurns][kQuads];
  __shared__ float2 team_tops[kTeams][kTurns][kQuads];
  __shared__ Exchange<kBlocks, kParts * kPartWarps> exchange;
  const bitmtp_nested_kv_attention_args &a = call.args;
  const int32_t team = threadIdx.x / kTeam, place = threadIdx.x % kTeam, quad = place % kQuads, turn = place / kQuads;
  const int32_t slice_row = blockIdx.y, row = call.first_row + slice_row, row_quads = a.H * a.D / 4, part_quads = row_quads / kParts;
  const int32_t units = units_of(history_of(a) + a.M);
  // Of a unit, in elements; the workspace has fewer than 2^32.
  const uint32_t heads = call.rows * a.H, stride = call.rows * row_quads;
  const float2 *tops = call.in_workspace<const float2>(call.layout.unit_tops) + slice_row * a.H;
  float4 *elements = call.in_workspace<float4>(call.layout.units_at) + slice_row * row_quads;
  exchange.open(kParts * kPartWarps);
  wait_for_previous();
  release_next();

  // Four columns of the result, in the threads of the first turn.
  const auto result = [&](int32_t i) {
    Folded all;
    const uint32_t head = static_cast<uint32_t>(i) >> (a.D == 128 ? 5 : 4);
#pragma unroll 1
    for (int32_t from = 0; from < units; from += kTogether * kTurns) {
      Folded its;
      const int32_t unit = from + turn * kTogether, last = units - 1;
      if (unit <= last) {
        float2 unit_tops[kTogether];
        float4 parts[kTogether];
#pragma unroll
        for (int32_t u = 0; u < kTogether; ++u) {
          const uint32_t known = min(unit + u, last);
          unit_tops[u] = tops[known * heads + head], parts[u] = elements[known * stride + i];
        }
#pragma unroll
        for (int32_t u = 1; u < kTogether; ++u) {
          if (unit + u > last) unit_tops[u] = {kLeast, 0.0f};
        }
        its.add_up(unit_tops, parts);
      }
      if (units <= kTogether) return its;
      if (from > 0 || kBlocks == 1) __syncthreads();  // what was there is folded
      team_sums[team][turn][quad] = its.sum, team_tops[team][turn][quad] = its.top;
      __syncthreads();
      if (turn > 0) continue;
      float2 turn_tops[kTurns];
      float4 parts[kTurns];
#pragma unroll
      for (int32_t o = 0; o < kTurns; ++o) turn_tops[o] = team_tops[team][o][quad], parts[o] = team_sums[team][o][quad];
      all.add_up(turn_tops, parts);
    }
    return all;
  };

  // The first group of a thread of a cluster stays in a register; others wait where unit 0 was, which this thread alone has read.
  float4 held = {};
  const auto each_part = [&](const auto &f) {
    if constexpr (kBlocks > 1) {
      f(static_cast<int32_t>(blockIdx.x));
    } else {
#pragma unroll 1
      for (int32_t part = team; part < kParts; part += kTeams) f(part);
    }
  };
  each_part([&](int32_t part) {
    float squares = 0.0f;
    int32_t most = 0;
#pragma unroll 1
    for (int32_t from = 0; from < part_quads; from += kQuads) {
      if (from > 0) __syncthreads();
      const int32_t i = part * part_quads + min(from + quad, part_quads - 1);
      const Folded found = result(i);
      if (turn > 0 || from + quad >= part_quads) continue;
      // A row that sees nothing is zeros.
      float4 x = scale_by(found.sum, found.top.y > 0.0f ? quotient(1.0f, found.top.y) : 0.0f);
      squares = add(squares, sum_squares(x));
      if (a.sub_norm) x = times(x, load4(a.sub_norm + 4 * i));
      most = max(most, cuda::largest(x));
      if (kBlocks > 1 && from == 0) {
        held = x;
      } else {
        elements[i] = x;
      }
    }
    if (turn > 0) return;
    if (a.sub_norm) squares = lanes_sum<1, 32>(squares);
    most = __reduce_max_sync(kAllLanes, most);
    exchange.put(part * kPartWarps + quad / 32, {squares, most});
  });
  if (kBlocks > 1 && turn > 0) return;
  exchange.wait();
  if (turn > 0) return;
  const Partial partial = exchange.partials[threadIdx.x % (kParts * kPartWarps)];
  const int32_t most = __reduce_max_sync(kAllLanes, partial.most);
  float factor = 1.0f;
  if (a.sub_norm) factor = rms_factor(lanes_sum<1, kParts * kPartWarps>(partial.squares), call.inverse_of_columns, a.epsilon);
  const Quantiser quantiser(most, factor);
  int32_t *codes = a.codes + int64_t{row} * row_quads;
  each_part([&](int32_t part) {
    const int32_t start = part * part_quads;
    int32_t at = quad;
    if (kBlocks > 1 && at < part_quads) codes[start + at] = quantiser.word(held), at += kQuads;
#pragma unroll 1
    for (; at < part_quads; at += kQuads) codes[start + at] = quantiser.word(elements[start + at]);
    if (part == 0 && quad == 0) a.scale[row] = quantiser.scale();
  });
}

}  // namespace attention
}  // namespace cuda
}  // namespace bitmtp
