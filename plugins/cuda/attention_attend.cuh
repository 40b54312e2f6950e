// First half of NestedKVAttention: thread blocks of a KV head, a unit of positions and up to four tiles of query vectors.
#pragma once

#include <cstdint>

#include "attention_block.cuh"
#include "attention_layout.cuh"
#include "attention_math.cuh"
#include "bitmtp/abi.h"
#include "kv_rows.cuh"
#include "launch.cuh"

namespace bitmtp {
namespace cuda {
namespace attention {

// A slice of the window's rows, and how its tiles are shared out.
struct AttentionCall {
  bitmtp_nested_kv_attention_args args;
  AttentionLayout layout;
  int32_t first_row, rows;
  int32_t first_tile, tiles;
  int32_t groups, block_tiles;  // thread blocks of a unit and KV head, and the tiles of each

  template <class T>
  BITMTP_BOTH T *in_workspace(int64_t offset) const {
    return reinterpret_cast<T *>(static_cast<uint8_t *>(args.workspace) + offset);
  }
};

BITMTP_BOTH int32_t within(int32_t x, int32_t low, int32_t high) { return x < low ? low : x > high ? high : x; }

// Shared memory of attend_kernel, in bytes from its start.
template <int D, bool kNested>
struct AttendMemory {
  // A stripe has room for two blocks without refinement or one with it; two of fp16 would leave an SM too few thread blocks.
  static constexpr int kStripe = (kNested || D == 64 ? 2 : 1) * Stage<D, kNested>::kCoarse;
  static constexpr int kFragments = D / 16 * 32 * 16;         // of a tile
  static constexpr int kOwn = kNested ? 4 * Stage<D, true>::kRow + 16 : 2 * Stage<D, false>::kRow;
  static constexpr int kPadded = D + 8;  // floats: stripes' results, so that eight rows of them meet no bank twice

  int32_t factors, own, stages, bytes;

  BITMTP_BOTH explicit AttendMemory(int32_t tiles) {
    factors = tiles * kFragments;
    own = factors + tiles * kTile * 4;
    stages = (own + kOwn + 127) / 128 * 128;
    const int32_t staging = kStripes * kStripe;
    const int32_t merging = tiles * kStripes * kTile * (kPadded + 2) * 4;
    bytes = stages + (staging > merging ? staging : merging);
  }
};

// ---- what a row sees --------------------------------------------------------------------------------------------------

struct Sight {
  int32_t count;  // visible slots
  bool prefix;    // they are slots 0 .. count-1
};

__device__ __forceinline__ uint32_t mask_word(const bitmtp_nested_kv_attention_args &a, int32_t row, int32_t word) {
  const uint32_t bits = static_cast<uint32_t>(a.mask[int64_t{row} * ((a.M + 31) / 32) + word]);
  const int32_t rest = a.M - 32 * word;
  return rest >= 32 ? bits : bits & ((1u << rest) - 1u);
}

__device__ __forceinline__ Sight sight_of(const bitmtp_nested_kv_attention_args &a, int32_t row) {
  int32_t count = 0, last = -1;
  for (int32_t w = 0; w < (a.M + 31) / 32; ++w) {
    const uint32_t bits = mask_word(a, row, w);
    count += __popc(bits);
    if (bits != 0) last = 32 * w + 31 - __clz(bits);
  }
  return {count, count == last + 1};
}

// The t-th visible slot of a row.
__device__ __forceinline__ int32_t visible_slot(const bitmtp_nested_kv_attention_args &a, int32_t row, int32_t t) {
  for (int32_t w = 0; w < (a.M + 31) / 32; ++w) {
    uint32_t bits = mask_word(a, row, w);
    const int32_t n = __popc(bits);
    if (t < n) {
      for (; t > 0; --t) bits &= bits - 1;
      return 32 * w + __ffs(static_cast<int32_t>(bits)) - 1;
    }
    t -= n;
  }
  return kNowhere;
}

__device__ __forceinline__ int32_t history_of(const bitmtp_nested_kv_attention_args &a) {
  return within(a.history_length[0], 0, a.capacity);
}

// ---- the unit's keys and values ---------------------------------------------------------------------------------------

// Brings one stripe of a unit near, block by block. All threads of the stripe call it together.
template <int D, bool kNested>
struct Feeder {
  using S = Stage<D, kNested>;
  static constexpr int kPieces = S::kRow / 16;

  const bitmtp_nested_kv_attention_args &a;
  const WindowRows &window;
  uint32_t memory;     // shared address of this stripe's
  int32_t stages;      // blocks that it holds
  int32_t kv, first;   // first position of block 0
  int32_t history, kv4;
  int32_t thread, threads;

  __device__ __forceinline__ int32_t position(int32_t block) const { return first + block * kChunk; }
  __device__ __forceinline__ uint32_t stage(int32_t block) const {
    return memory + (stages == 2 ? block % 2 * S::kCoarse : 0);
  }
  __device__ __forceinline__ bool fine(int32_t block) const { return position(block) + kKeys > kv4; }
  __device__ __forceinline__ bool windowed(int32_t block) const { return position(block) + kKeys > history; }

  // Starts copies of the block's history. Nothing of it is written in a step, so this may run before the wait.
  __device__ __forceinline__ void fetch(int32_t block) const {
    const int32_t p = position(block), keys = within(history - p, 0, kKeys);
    const uint32_t to = stage(block);
    const int64_t heads = 2 * a.Hkv;
    const int32_t piece = thread % kPieces, step = threads / kPieces;  // threads is a multiple of 32
    const int64_t stride = heads * S::kRow, value = int64_t{a.Hkv} * S::kRow;
    const int64_t first_byte = (p + thread / kPieces) * stride + kv * S::kRow + 16 * piece;
    const uint8_t *from = static_cast<const uint8_t *>(a.history) + first_byte;
    const uint8_t *fine_from = reinterpret_cast<const uint8_t *>(a.history_refinement) + first_byte;
    const bool both = kNested && fine(block);
    for (int32_t key = thread / kPieces; key < keys; key += step, from += step * stride) {
      const uint32_t at = to + staged<S::kRow>(key, piece);
      copy_async16(at + S::plane(kKey), from);
      copy_async16(at + S::plane(kValue), from + value);
      if (!both) continue;
      if (p + key >= kv4) {
        copy_async16(at + S::plane(kKeyRefinement), fine_from);
        copy_async16(at + S::plane(kValueRefinement), fine_from + value);
      } else {
        const uint4 none = {0x88888888u, 0x88888888u, 0x88888888u, 0x88888888u};
        store_shared16(at + S::plane(kKeyRefinement), none);
        store_shared16(at + S::plane(kValueRefinement), none);
      }
      fine_from += step * stride;
    }
    if (kNested && thread < keys) {
      const int64_t scale = (p + thread) * heads + kv;
      copy_async4(to + S::kScales + 4 * thread, a.history_scale + (scale & ~int64_t{1}));
      copy_async4(to + S::kScales + 4 * (kKeys + thread), a.history_scale + ((scale + a.Hkv) & ~int64_t{1}));
    }
  }

  // Writes the block's window rows, the t-th slot at position history + t as in a causal window, and zeros past the window.
  __device__ __forceinline__ void fill(int32_t block) const {
    const int32_t p = position(block), past = within(history - p, 0, kKeys);
    const uint32_t to = stage(block);
    const auto read = [&](const uint8_t *rows, int64_t offset, bool inside) {
      return inside ? *reinterpret_cast<const uint4 *>(rows + offset) : uint4{0, 0, 0, 0};
    };
    for (int32_t u = past * kPieces + thread; u < kKeys * kPieces; u += threads) {
      const int32_t key = u / kPieces, piece = u % kPieces, slot = p + key - history;
      const int64_t from = slot * window.stride + 16 * piece;
      const uint32_t at = to + staged<S::kRow>(key, piece);
      const bool inside = slot < a.M;
      store_shared16(at + S::plane(kKey), read(window.rows, from, inside));
      store_shared16(at + S::plane(kValue), read(window.rows, from + window.value, inside));
      if (!kNested) continue;
      store_shared16(at + S::plane(kKeyRefinement), read(window.refinement, from, inside));
      store_shared16(at + S::plane(kValueRefinement), read(window.refinement, from + window.value, inside));
    }
    if (kNested && thread >= past && thread < kKeys) {
      const int32_t slot = p + thread - history;
      const uint16_t *scale = window.scale + int64_t{slot} * window.scale_stride;
      const bool inside = slot < a.M;  // both halves of the pair, whichever is this head's
      store_shared4(to + S::kScales + 4 * thread, inside ? scale[0] * 0x10001u : 0u);
      store_shared4(to + S::kScales + 4 * (kKeys + thread), inside ? scale[window.value_scale] * 0x10001u : 0u);
    }
  }
};

// ---- the kernel -------------------------------------------------------------------------------------------------------

template <int D, bool kNested>
__global__ void __launch_bounds__(kMostTiles * kStripes * 32)
    attend_kernel(const __grid_constant__ AttentionCall call) {
  using S = Stage<D, kNested>;
  using Memory = AttendMemory<D, kNested>;
  extern __shared__ __align__(128) uint8_t shared[];
  const bitmtp_nested_kv_attention_args &a = call.args;
  const AttentionLayout &l = call.layout;
  const int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, stripe = warp % kStripes, block_tile = warp / kStripes;
  const int32_t kv = blockIdx.x % a.Hkv, group = blockIdx.x / a.Hkv % call.groups;
  release_next();

  // The highest units, which are the widest, come first; blocks past the last unit in use have nothing to do. The grid as a whole
  // still ends after its predecessor, since unit 0 is always in use.
  const int32_t history = history_of(a), end = history + a.M;
  const int32_t unit = units_of(end) - 1 - static_cast<int32_t>(blockIdx.x / (a.Hkv * call.groups));
  if (unit < 0) return;
  const int32_t start = unit_start(unit), chunks = unit_chunks(unit);

  const Memory memory(call.block_tiles);
  float *factors = reinterpret_cast<float *>(shared + memory.factors);
  uint8_t *own = shared + memory.own;  // the only window row's stored form, where M is 1
  WindowRows window;
  if (a.M == 1) {
    window = {own, own + 2 * S::kRow, reinterpret_cast<const uint16_t *>(own + 4 * S::kRow), 0, S::kRow, 0, 1};
  } else {
    const int64_t head = int64_t{kv} * S::kRow;
    window = {static_cast<const uint8_t *>(a.new_rows) + head, reinterpret_cast<const uint8_t *>(a.new_refinement) + head,
              a.new_scale + kv, int64_t{2} * a.Hkv * S::kRow, int64_t{a.Hkv} * S::kRow, 2 * a.Hkv, a.Hkv};
  }
  const int32_t threads = call.block_tiles * 32;  // of a stripe
  const int32_t kv4 = kNested && a.kv4_length ? within(a.kv4_length[0], 0, history) : 0;
  const int32_t stages = kNested ? (start + chunks * kChunk > kv4 ? 1 : 2) : Memory::kStripe / S::kCoarse;
  const Feeder<D, kNested> feeder{a,
                                  window,
                                  shared_address(shared) + memory.stages + stripe * Memory::kStripe,
                                  stages,
                                  kv,
                                  start + stripe * kKeys,
                                  history,
                                  kv4,
                                  block_tile * 32 + lane,
                                  threads};
  const int32_t blocks = within((end - feeder.first + kChunk - 1) / kChunk, 0, chunks);
  const int32_t turns = within((end - start + kChunk - 1) / kChunk, 0, chunks);  // blocks of the stripe that has most
  // The threads of a stripe share its stages: one warp where the block has one tile, else all of them turn together.
  const auto meet = [&] {
    if (call.block_tiles == 1)
      __syncwarp();
    else
      __syncthreads();
  };
  for (int32_t b = 0; b < stages; ++b) {
    if (b < blocks) feeder.fetch(b);
    commit_copies();
  }

  const int32_t slice_tile = group * call.block_tiles + block_tile, tile = call.first_tile + slice_tile;
  const int32_t query = tile * kTile + lane / 4, row = query / l.ratio;  // this thread's
  const bool real = row < call.first_row + call.rows;
  const Sight sight = real ? sight_of(a, row) : Sight{0, true};
  const int32_t limit = real ? history + sight.count : 0;  // the row sees the positions below
  const Rotation rotation = a.M == 1 ? rotation_of<D>(a, 0, lane) : Rotation{};
  wait_for_previous();

  if (blockIdx.x == 0) {
    for (int32_t i = threadIdx.x; i < call.rows; i += blockDim.x) call.in_workspace<int32_t>(l.tickets)[i] = 0;
  }
  uint4 *fragments = reinterpret_cast<uint4 *>(shared);
  const int32_t tiles_here = within(call.tiles - group * call.block_tiles, 0, call.block_tiles);
  if (a.M == 1) {
    const int32_t first = group * call.block_tiles * kTile, count = within(l.ratio - first, 0, call.block_tiles * kTile);
    for (int32_t q = warp; q < count; q += call.block_tiles * kStripes) {
      const float4 x = prepared_head<D>(a, 0, kv * l.ratio + first + q, lane, rotation);
      const float factor = write_query<D, kNested>(x, a.softmax_scale, q % kTile, lane, fragments + q / kTile * (D / 16 * 32));
      if (lane == 0) factors[q] = factor;
    }
    if (warp / 2 == 1 && history >= start && history < start + chunks * kChunk) {
      const int32_t value = warp % 2, head = kv + value * a.Hkv;
      const StoredPiece piece = stored_piece<kNested>(prepared_head<D>(a, 0, a.H + head, lane, rotation), lane);
      write_piece<D, kNested>(piece, lane, own + value * S::kRow, reinterpret_cast<uint32_t *>(own + (2 + value) * S::kRow),
                              reinterpret_cast<uint16_t *>(own + 4 * S::kRow) + value);
      if (group == 0) {
        write_piece<D, kNested>(piece, lane, static_cast<uint8_t *>(a.new_rows) + int64_t{head} * S::kRow,
                                reinterpret_cast<uint32_t *>(a.new_refinement) + head * (D / 8), a.new_scale + head);
      }
    }
  } else {
    const int64_t first = int64_t{kv} * l.tiles + call.first_tile + group * call.block_tiles;
    const uint4 *queries = call.in_workspace<const uint4>(l.queries) + first * (D / 16 * 32);
    for (int32_t i = threadIdx.x; i < tiles_here * (D / 16 * 32); i += blockDim.x) fragments[i] = queries[i];
    const float *prepared = call.in_workspace<const float>(l.factors) + first * kTile;
    for (int32_t i = threadIdx.x; i < tiles_here * kTile; i += blockDim.x) factors[i] = prepared[i];
  }
  __syncthreads();
  for (int32_t b = 0; b < stages && b < blocks; ++b) {
    if (feeder.windowed(b)) feeder.fill(b);
  }

  const uint32_t my_fragments = shared_address(fragments) + block_tile * Memory::kFragments;
  const float factor = factors[block_tile * kTile + lane / 4];
  Partial<D> state;
  state.clear();
  for (int32_t b = 0; b < turns; ++b) {
    if (stages == 2) {
      wait_copies<1>();
    } else {
      wait_copies<0>();
    }
    meet();
    const int32_t p = feeder.position(b);
    const bool windowed = feeder.windowed(b);
    const BlockReader<D, kNested, false> reader{feeder.stage(b), kv % 2 * 16, (kv + a.Hkv) % 2 * 16, window};
    const int32_t seen = windowed && !sight.prefix ? 0 : within(limit - p, 0, kKeys);
    if (__any_sync(kAllLanes, seen > 0)) {
      if (kNested && feeder.fine(b)) {
        attend_block<D, kNested, true, false>(reader, my_fragments, factor, seen, lane, state);
      } else {
        attend_block<D, kNested, false, false>(reader, my_fragments, factor, seen, lane, state);
      }
    }
    // Rows of a tree each have their own order of slots: one pass for each.
    uint32_t todo = windowed ? __ballot_sync(kAllLanes, !sight.prefix && limit > p) : 0;
    while (todo != 0) {
      const int32_t leader = __ffs(static_cast<int32_t>(todo)) - 1;
      const int32_t its_row = __shfl_sync(kAllLanes, row, leader), its_limit = __shfl_sync(kAllLanes, limit, leader);
      const int32_t mine = p + lane;
      const int32_t source = mine < history    ? kStaged
                             : mine < its_limit ? visible_slot(a, its_row, mine - history)
                                                : kNowhere;
      const BlockReader<D, kNested, true> gather{reader.stage, reader.key_shift, reader.value_shift, window, source};
      const int32_t its_seen = row == its_row ? within(limit - p, 0, kKeys) : 0;
      attend_block<D, kNested, kNested, true>(gather, my_fragments, factor, its_seen, lane, state);
      todo &= ~__ballot_sync(kAllLanes, row == its_row);
    }
    const int32_t next = b + stages;
    if (next < turns) {
      meet();
      if (next < blocks) {
        feeder.fetch(next);
        if (feeder.windowed(next)) feeder.fill(next);
      }
    }
    commit_copies();
  }

  // The stripes fold in order, where the stages were.
  float *merged = reinterpret_cast<float *>(shared + memory.stages);
  float2 *tops = reinterpret_cast<float2 *>(merged + call.block_tiles * kStripes * kTile * Memory::kPadded);
  __syncthreads();
  const int32_t place = (block_tile * kStripes + stripe) * kTile + lane / 4;
#pragma unroll
  for (int32_t i = 0; i < D / 8; ++i) {
    *reinterpret_cast<float2 *>(merged + place * Memory::kPadded + 8 * i + 2 * (lane % 4)) = {state.acc[i][0], state.acc[i][1]};
  }
  if (lane % 4 == 0) tops[place] = {state.m, state.l};
  __syncthreads();
  constexpr int kQuarters = D / 4;
  for (int32_t i = stripe * 32 + lane; i < kTile * kQuarters; i += kStripes * 32) {
    const int32_t q = i / kQuarters, column = 4 * (i % kQuarters), its_query = tile * kTile + q, its_row = its_query / l.ratio;
    if (its_row >= call.first_row + call.rows) continue;
    float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
    float m = minus_infinity(), total = 0.0f;
#pragma unroll
    for (int32_t s = 0; s < kStripes; ++s) m = fmaxf(m, tops[(block_tile * kStripes + s) * kTile + q].x);
    const float reference = reference_of(m);
#pragma unroll
    for (int32_t s = 0; s < kStripes; ++s) {
      const int32_t from = (block_tile * kStripes + s) * kTile + q;
      const float weight = power2(sub(tops[from].x, reference));
      const float4 x = load4(merged + from * Memory::kPadded + column);
      sum = {fma_(x.x, weight, sum.x), fma_(x.y, weight, sum.y), fma_(x.z, weight, sum.z), fma_(x.w, weight, sum.w)};
      total = fma_(tops[from].y, weight, total);
    }
    const int64_t slice_row = int64_t{unit} * call.rows + (its_row - call.first_row);
    const int64_t to = slice_row * a.H + kv * l.ratio + its_query % l.ratio;
    *reinterpret_cast<float4 *>(call.in_workspace<float>(l.partials) + to * D + column) = sum;
    if (column == 0) call.in_workspace<float2>(l.sums)[to] = {m, total};
  }
}

}  // namespace attention
}  // namespace cuda
}  // namespace bitmtp
