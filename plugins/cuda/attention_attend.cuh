// First kernel of NestedKVAttention: a thread block for each KV head, unit of positions and group of query vectors. A warp pair for each
// slice: scores of all its steps, one maximum for the unit, weights, values. Blocks of an octet are a cluster where there are clusters.
#pragma once

#include <cstdint>

#include "attention_block.cuh"
#include "attention_feed.cuh"
#include "attention_fold.cuh"
#include "attention_layout.cuh"
#include "attention_math.cuh"
#include "attention_prepare.cuh"
#include "attention_sight.cuh"
#include "attention_tree.cuh"
#include "bitmtp/abi.h"
#include "kv_rows.cuh"
#include "launch.cuh"

namespace bitmtp {
namespace cuda {
namespace attention {

template <int D, bool kNested, int kTiles>
__global__ void __launch_bounds__(kThreads, kNested && kTiles == 1 ? 3 : 2) attend_kernel(const __grid_constant__ AttentionCall call) {
  using S = Stored<D, kNested>;
  using Memory = AttendMemory<D, kNested, kTiles>;
  extern __shared__ __align__(128) uint8_t shared[];
  const bitmtp_nested_kv_attention_args &a = call.args;
  const AttentionLayout &l = call.layout;
  const int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, slice = warp / 2, half = warp % 2, thread = lane % 4;
  const int32_t rank = blockIdx.x % kOctet, kv = blockIdx.x / kOctet % a.Hkv, group = blockIdx.x / (kOctet * a.Hkv) % call.groups;
  release_next();

  // The highest octets, which are the widest, come first; clusters past the last octet in use have nothing to do. The grid as a whole
  // still ends after its predecessor, since octet 0 is always in use.
  const int32_t history = history_of(a), end = history + a.M;
  const int32_t octet = octets_of(end) - 1 - static_cast<int32_t>(blockIdx.x / (kOctet * a.Hkv * call.groups));
  if (octet < 0) return;
  const int32_t unit = octet * kOctet + rank, start = unit_start(unit), unit_end = start + unit_steps(unit) * kRound;
  const bool in_use = start < end;
  const int32_t first = group * Memory::kVectors, vectors = within(call.rows * l.ratio - first, 0, Memory::kVectors);
#if __CUDA_ARCH__ >= 900
  if (!in_use && call.clusters) {
    cluster_arrive();
    cluster_wait();
    wait_for_previous();
    cluster_arrive();
    cluster_wait();
    merge_inbox<D, kTiles>(call, shared, Memory::kInboxTops, kv, octet, rank, first, vectors, end);
    return;
  }
#endif
  if (!in_use) return;

  const bool windowed = unit_end > history, narrow = a.M <= kOwnRows;
  // History is on its way before anything else.
  const int32_t kv4 = kNested && a.kv4_length ? within(a.kv4_length[0], 0, history) : 0;
  const bool coarse = kNested && unit_end <= kv4;
  const int32_t slice_start = start + slice * kStep;
  const int32_t steps = within((end - slice_start + 2 * kRound - 1) / (2 * kRound) * 2, 0, unit_steps(unit));
  const int32_t slot_bytes = (kNested && !coarse ? 2 : 1) * S::kPlane, slots = S::kRing / slot_bytes;
  const uint32_t base = shared_address(shared);
  const Feeder<D, kNested> feeder{a,
                                  shared + Memory::kOwn,
                                  base + Memory::kRings + warp * S::kRing,
                                  base + Memory::kKeyScales + warp * (kMostSteps * 16 * 4),
                                  slice_start,
                                  history,
                                  kv4,
                                  kv,
                                  half,
                                  lane,
                                  steps,
                                  slots,
                                  slot_bytes};
#pragma unroll 1
  for (int32_t n = 0; n < slots; ++n) {
    if (n < 2 * steps) feeder.fetch(n);
    if (n % 2 == 1) commit_copies();
  }
  const Preparation<D, kNested, kTiles> preparation(call, shared, kv, first, vectors, windowed && narrow ? 2 * a.M : 0,
                                                    group == 0 && history >= start && call.first_row == 0, lane);
  auto head = preparation.head_of(warp);
  HeadInputs<D> inputs = preparation.inputs(head);
  if (kNested) feeder.template load_scales<false>();

  // A row sees the positions below its limit. Rows of a tree have the steps from `first_windowed` on to themselves.
  const int32_t first_windowed = history - kStep < slice_start ? 0 : (history - kStep - slice_start) / kRound + 1;
  const auto row_of = [&](int32_t t) { return call.first_row + (first + kTile * t + lane / 4) / l.ratio; };
  const auto limit_of = [&](int32_t t) { return history + sight_of(a, row_of(t)).count; };
  int32_t common_limit[kTiles];  // of this thread's query vectors
  bool tree[kTiles], any_tree = false;
#pragma unroll
  for (int32_t t = 0; t < kTiles; ++t) {
    const bool real = kTile * t + lane / 4 < vectors;
    const Sight sight = real ? sight_of(a, row_of(t)) : Sight{0, true};
    tree[t] = !sight.prefix && first_windowed < steps;
    common_limit[t] = !real ? 0 : tree[t] ? min(history + sight.count, feeder.position(first_windowed)) : history + sight.count;
    any_tree = any_tree || tree[t];
  }
  any_tree = __any_sync(kAllLanes, any_tree);
  wait_for_previous();
#pragma unroll 1
  for (int32_t task = warp; task < preparation.tasks();) {
    preparation.run(head, inputs);
    task += kWarps;
    if (task >= preparation.tasks()) break;
    head = preparation.head_of(task);
    inputs = preparation.inputs(head);
  }
  __syncthreads();
  if (windowed) {
#pragma unroll 1
    for (int32_t n = 0; n < slots && n < 2 * steps; ++n) feeder.fill(n);
    if (kNested) feeder.template load_scales<true>();
  }
  // Waits for a pair of slots, and later has the ring's next pair brought where they were.
  const auto await_slots = [&] {
    if (slots == 8) {
      wait_copies<3>();
    } else {
      wait_copies<1>();
    }
    __syncwarp();
  };
  const auto refill = [&](int32_t n) {
    __syncwarp();
    if (n + slots < 2 * steps) {
#pragma unroll 1
      for (int32_t next = n + slots; next < n + slots + 2; ++next) {
        feeder.fetch(next);
        if (windowed) feeder.fill(next);
      }
    }
    commit_copies();
  };
  // Scales of codes of this thread's two keys of a step, then of their values.
  const auto scales_of = [&](int32_t step) {
    return kNested ? load_shared16(feeder.scales + 64 * step + 16 * thread) : uint4{0, 0, 0, 0};
  };

  // ---- scores ----
  QueryScale query_scale[kTiles];
#pragma unroll
  for (int32_t t = 0; t < kTiles; ++t) {
    query_scale[t] = reinterpret_cast<const QueryScale *>(shared + Memory::kScales)[kTile * t + lane / 4];
  }
  const uint32_t exchanged = base + Memory::kExchange + warp * (kTiles * kMostSteps * 256) + 8 * lane;
  const auto exchange = [&](int32_t t, int32_t step) { return exchanged + (t * kMostSteps + step) * 256; };
  float top[kTiles], top_scale[kTiles];
#pragma unroll
  for (int32_t t = 0; t < kTiles; ++t) top[t] = minus_infinity(), top_scale[t] = 0.0f;
  // Scores of this thread's two keys of a step, -inf of those it does not see.
  const auto score = [&](int32_t t, bool fine, const Dots &d, bool first_seen, bool second_seen, uint4 scales) {
    const float odd = kNested && !fine ? 0.0625f : 1.0f, zero = mul(query_scale[t].sum, fine ? -136.0f : -8.0f);
    const bool seen[2] = {first_seen, second_seen};
    const uint32_t key_scale[2] = {scales.x, scales.y}, value_scale[2] = {scales.z, scales.w};
    float s[2];
#pragma unroll
    for (int32_t k = 0; k < 2; ++k) {
      float dot = add(fma_(d.odd[k], odd, d.even[k]), fma_(d.odd[k + 2], odd, d.even[k + 2]));
      if (kNested) dot = mul(fma_(dot, kSubnormal, zero), __uint_as_float(key_scale[k]));
      s[k] = seen[k] ? mul(dot, query_scale[t].factor) : minus_infinity();
      top[t] = fmaxf(top[t], s[k]);
      if (kNested) top_scale[t] = fmaxf(top_scale[t], seen[k] ? __uint_as_float(value_scale[k]) : 0.0f);
    }
    return uint2{__float_as_uint(s[0]), __float_as_uint(s[1])};
  };
  const int32_t first_key = slice_start + kKeys * half + key_of(2 * thread);
  const int32_t second_key = slice_start + kKeys * half + key_of(2 * thread + 1);
#pragma unroll 1
  for (int32_t n = 0; n < steps; n += 2) {
    await_slots();
    const bool fine = feeder.fine(n);
    constexpr int kTogether = !kNested && kTiles == 2 ? 1 : 2;  // steps at a time, as registers allow
#pragma unroll 1
    for (int32_t at = n; at < n + 2; at += kTogether) {
      SlotReader<D, kNested> readers[kTogether];
#pragma unroll
      for (int32_t s = 0; s < kTogether; ++s) readers[s].slot = feeder.slot(at + s);
      Dots dots[kTogether][kTiles];
      if (fine) {
        dot_keys<D, kNested, kNested, kTiles, kTogether>(readers, half, base, lane, dots);
      } else {
        dot_keys<D, kNested, false, kTiles, kTogether>(readers, half, base, lane, dots);
      }
#pragma unroll
      for (int32_t s = 0; s < kTogether; ++s) {
        const uint4 scales = scales_of(at + s);
#pragma unroll
        for (int32_t t = 0; t < kTiles; ++t) {
          const int32_t ahead = common_limit[t] - (at + s) * kRound;
          store_shared8(exchange(t, at + s), score(t, fine, dots[s][t], first_key < ahead, second_key < ahead, scales));
        }
      }
    }
    refill(n);
  }
  // Calls f(t, step, reader, whether it reads for this thread's row) for each row of a tree and each step that is left to them.
  const auto each_of_trees = [&](const auto &f) {
    if (!any_tree) return;
    int32_t row[kTiles], limit[kTiles];
#pragma unroll
    for (int32_t t = 0; t < kTiles; ++t) row[t] = tree[t] ? row_of(t) : -1, limit[t] = tree[t] ? limit_of(t) : 0;
#pragma unroll 1
    for (int32_t n = first_windowed; n < steps; ++n) {
#pragma unroll
      for (int32_t t = 0; t < kTiles; ++t) {
        uint32_t todo = __ballot_sync(kAllLanes, tree[t]);
#pragma unroll 1
        while (todo != 0) {
          const int32_t leader = __ffs(static_cast<int32_t>(todo)) - 1;
          const int32_t its_row = __shfl_sync(kAllLanes, row[t], leader), its_limit = __shfl_sync(kAllLanes, limit[t], leader);
          f(t, n, TreeReader<D, kNested>(feeder, n, its_row, its_limit), row[t] == its_row, its_limit);
          todo &= ~__ballot_sync(kAllLanes, row[t] == its_row);
        }
      }
    }
  };
  each_of_trees([&](int32_t t, int32_t n, const TreeReader<D, kNested> &reader, bool own, int32_t limit) {
    Dots its[1][1];
    const TreeReader<D, kNested> readers[1] = {reader};
    dot_keys<D, kNested, kNested, 1, 1>(readers, half, base + t * (D / 16) * 512, lane, its);
    const uint4 scales = reader.scales(half, thread, n);
    const int32_t ahead = limit - n * kRound;
    const uint2 s = score(t, kNested, its[0][0], own && first_key < ahead, own && second_key < ahead, scales);
    if (own) store_shared8(exchange(t, n), s);
  });

  // ---- the unit's maximum ----
  float2 *tops = reinterpret_cast<float2 *>(shared + Memory::kTops);
#pragma unroll
  for (int32_t t = 0; t < kTiles; ++t) {
    top[t] = lanes_max<4>(top[t]);
    if (kNested) top_scale[t] = lanes_max<4>(top_scale[t]);
    if (thread == 0) tops[warp * Memory::kVectors + kTile * t + lane / 4] = {top[t], top_scale[t]};
  }
  __syncthreads();
#if __CUDA_ARCH__ >= 900
  if (call.clusters) cluster_arrive();  // from here on others may write where the fragments were
#endif
  float reference[kTiles];
  Shift shift[kTiles];
#pragma unroll
  for (int32_t t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int32_t w = 0; w < kWarps; ++w) {
      const float2 other = tops[w * Memory::kVectors + kTile * t + lane / 4];
      top[t] = fmaxf(top[t], other.x), top_scale[t] = fmaxf(top_scale[t], other.y);
    }
    reference[t] = reference_of(top[t]);
    shift[t] = kNested ? shift_of(top_scale[t]) : Shift{0x1p13f, 0x1p-13f};  // a weight is at most its value's scale
  }

  // ---- weights ----
  float total[kTiles] = {};
  const auto weigh = [&](int32_t t, int32_t step, uint4 scales) {
    const uint2 stored = load_shared8(exchange(t, step));
    const float s[2] = {__uint_as_float(stored.x), __uint_as_float(stored.y)};
    const float value_scale[2] = {__uint_as_float(scales.z), __uint_as_float(scales.w)};
    float weight[2], e[2];
#pragma unroll
    for (int32_t k = 0; k < 2; ++k) {
      e[k] = power2(sub(s[k], reference[t]));
      weight[k] = kNested ? s[k] == minus_infinity() ? 0.0f : mul(mul(e[k], value_scale[k]), shift[t].up) : mul(e[k], shift[t].up);
    }
    total[t] = add(total[t], add(e[0], e[1]));
    uint2 parts;
    split(weight[0], weight[1], parts.x, parts.y);
    store_shared8(exchange(t, step), parts);
  };
#pragma unroll 1
  for (int32_t n = 0; n < steps; ++n) {
    const uint4 scales = scales_of(n);
#pragma unroll
    for (int32_t t = 0; t < kTiles; ++t) {
      if (!(tree[t] && n >= first_windowed)) weigh(t, n, scales);
    }
  }
  each_of_trees([&](int32_t t, int32_t n, const TreeReader<D, kNested> &reader, bool own, int32_t) {
    const uint4 scales = reader.scales(half, thread, n);
    if (own) weigh(t, n, scales);
  });
  float *totals = reinterpret_cast<float *>(shared + Memory::kTotals);
#pragma unroll
  for (int32_t t = 0; t < kTiles; ++t) {
    total[t] = lanes_sum<4>(total[t]);
    if (thread == 0) totals[warp * Memory::kVectors + kTile * t + lane / 4] = total[t];
  }
  pair_barrier(slice);

  // ---- values ----
  Sums<D> sums[kTiles] = {};
  const uint32_t pair = exchanged - half * (kTiles * kMostSteps * 256);
  const auto weights_of = [&](int32_t t, int32_t step, bool kept) {
    if (!kept) return uint4{0, 0, 0, 0};
    const uint2 x = load_shared8(pair + (t * kMostSteps + step) * 256);
    const uint2 y = load_shared8(pair + ((kTiles + t) * kMostSteps + step) * 256);
    return uint4{x.x, x.y, y.x, y.y};
  };
  const auto add_step = [&](int32_t step) {
    uint4 weights[kTiles];
#pragma unroll
    for (int32_t t = 0; t < kTiles; ++t) weights[t] = weights_of(t, step, !(tree[t] && step >= first_windowed));
    const SlotReader<D, kNested> reader{feeder.slot(steps + step)};
    if (feeder.fine(step)) {
      add_values<D, kNested, kNested, kTiles>(reader, weights, lane, sums);
    } else {
      add_values<D, kNested, false, kTiles>(reader, weights, lane, sums);
    }
  };
#pragma unroll 1
  for (int32_t n = 0; n < steps; n += 2) {
    await_slots();
    add_step(n);
    add_step(n + 1);
    refill(steps + n);
  }
  each_of_trees([&](int32_t t, int32_t n, const TreeReader<D, kNested> &reader, bool own, int32_t) {
    const uint4 its[1] = {weights_of(t, n, own)};
    Sums<D> one[1] = {sums[t]};
    add_values<D, kNested, kNested, 1>(reader, its, lane, one);
    sums[t] = one[0];
  });

  // ---- the unit's sums ----
  __syncthreads();
  float *merged = reinterpret_cast<float *>(shared + Memory::kRings);  // [kSlices, kVectors, kPadded]
#pragma unroll
  for (int32_t t = 0; t < kTiles; ++t) {
    float *to = merged + (slice * Memory::kVectors + kTile * t + lane / 4) * Memory::kPadded + half * (D / 2) + 2 * thread;
#pragma unroll
    for (int32_t i = 0; i < D / 16; ++i) {
      const float(&x)[4] = sums[t].tile[i];
      *reinterpret_cast<float2 *>(to + 8 * i) = {mul(add(x[0], x[2]), shift[t].down), mul(add(x[1], x[3]), shift[t].down)};
    }
  }
  __syncthreads();
#if __CUDA_ARCH__ >= 900
  if (call.clusters) cluster_wait();
#endif
#pragma unroll 1
  for (int32_t i = threadIdx.x; i < vectors * (D / 4); i += kThreads) {
    const int32_t vector = i / (D / 4), place = 4 * (i % (D / 4));
    float4 x = load4(merged + vector * Memory::kPadded + place);
#pragma unroll
    for (int32_t s = 1; s < kSlices; ++s) x = plus(x, load4(merged + (s * Memory::kVectors + vector) * Memory::kPadded + place));
    float2 sum = {tops[vector].x, totals[vector]};
    if (place == 0) {
#pragma unroll
      for (int32_t w = 1; w < kWarps; ++w) {
        sum.x = fmaxf(sum.x, tops[w * Memory::kVectors + vector].x);
        sum.y = add(sum.y, totals[w * Memory::kVectors + vector]);
      }
    }
#if __CUDA_ARCH__ >= 900
    if (call.clusters) {
      const int32_t owner = vector % kOctet, tile = vector / kOctet;
      store_cluster16(address_in(base + ((rank * kTiles + tile) * D + place) * 4, owner), x);
      if (place == 0) store_cluster8(address_in(base + Memory::kInboxTops + (rank * kTiles + tile) * 8, owner), sum);
      continue;
    }
#endif
    const int64_t to = (int64_t{unit} * call.rows + (first + vector) / l.ratio) * a.H + kv * l.ratio + (first + vector) % l.ratio;
    *reinterpret_cast<float4 *>(call.in_workspace<float>(l.units_at) + to * D + place) = x;
    if (place == 0) call.in_workspace<float2>(l.unit_tops)[to] = sum;
  }
#if __CUDA_ARCH__ >= 900
  if (call.clusters) {
    cluster_arrive();
    cluster_wait();
    merge_inbox<D, kTiles>(call, shared, Memory::kInboxTops, kv, octet, rank, first, vectors, end);
  }
#endif
}

}  // namespace attention
}  // namespace cuda
}  // namespace bitmtp
