// What comes before scores: the shared memory of attend_kernel, and what its blocks do of a narrow window before their first step.
#pragma once

#include <cstdint>

#include "attention_feed.cuh"
#include "attention_fold.cuh"
#include "attention_layout.cuh"
#include "bitmtp/abi.h"
#include "kv_rows.cuh"

namespace bitmtp {
namespace cuda {
namespace attention {

// Shared memory of attend_kernel, in bytes from its start, for so many tiles of query vectors.
template <int D, bool kNested, bool kOwn, int kTiles>
struct AttendMemory {
  static constexpr int kVectors = kTiles * kTile;
  // Whose slices are merged at a time: a narrow window has few, and fits beside other kernels' blocks.
  static constexpr int kAtOnce = kOwn ? 4 : kVectors;
  static constexpr int kScales = kTiles * kFragments<D>;        // QueryScale [kVectors]
  static constexpr int kTops = kScales + kVectors * 8;          // float2 [kSlices, kVectors]: reference, sum of weights
  static constexpr int kSums = kTops + kSlices * kVectors * 8;  // float4 [kSlices, kAtOnce, D/4]
  static constexpr int kRows = kSums + kSlices * kAtOnce * D * 4;
  static constexpr int kOwnRow = Stored<D, kNested>::kOwnRow;
  static_assert(kTops % 16 == 0 && kSums % 16 == 0 && kRows % 16 == 0, "loads of 16 bytes");

  // `rows`: of a narrow window, whose stored form stands at the end; scales follow.
  static BITMTP_BOTH int32_t bytes(int32_t rows) { return kRows + rows * (kOwnRow + (kNested ? 4 : 0)); }
  // Where four columns of a slice's sum for a vector stand: so that the eight lanes of a phase, two eighths of four pairs of vectors,
  // meet no bank twice.
  static __device__ __forceinline__ int32_t sum_at(int32_t slice, int32_t vector, int32_t quad) {
    const int32_t pair = vector / 2 % 4, swizzle = D == 128 ? pair : pair % 2 + pair / 2 * 4;
    return (slice * kAtOnce + vector) * (D / 4) + (quad ^ swizzle);
  }
};

// Prepares a narrow window: this block's query vectors and, where its unit has window positions, the window's keys and values: several
// heads for each warp, of one sort. `first` is the number of the block's first vector, heads of a row together.
template <int D, bool kNested>
struct Preparation {
  using Memory = AttendMemory<D, kNested, true, 1>;
  const AttentionCall &call;
  uint8_t *shared;
  int32_t kv, first, vectors;
  int32_t group, i;                         // of this lane
  int32_t query_position, window_position;  // lane r: that of the r-th row among the block's vectors, and of window row r
  int32_t window_heads = 0;

  __device__ __forceinline__ Preparation(const AttentionCall &c, uint8_t *memory, int32_t kv_head, int32_t first_vector, int32_t count,
                                         int32_t lane)
      : call(c), shared(memory), kv(kv_head), first(first_vector), vectors(count), group(lane / kHeadLanes<D>), i(lane % kHeadLanes<D>) {
    const int32_t last = c.args.M - 1;
    query_position = c.args.positions[min(c.first_row + c.row_of(first) + lane, last)];
    window_position = c.args.positions[min(lane, last)];
  }

  struct Head {
    int32_t row, head, position, index;  // index: of the vector, or of the window's heads, keys and values in turn
    bool query, real;
  };
  __device__ __forceinline__ int32_t query_tasks() const { return (vectors + kHeadsOfWarp<D> - 1) / kHeadsOfWarp<D>; }
  __device__ __forceinline__ int32_t tasks() const { return query_tasks() + (window_heads + kHeadsOfWarp<D> - 1) / kHeadsOfWarp<D>; }
  // All lanes of a warp together.
  __device__ __forceinline__ Head head_of(int32_t task) const {
    const bitmtp_nested_kv_attention_args &a = call.args;
    const bool query = task < query_tasks();
    const int32_t index = kHeadsOfWarp<D> * (query ? task : task - query_tasks()) + group, count = query ? vectors : window_heads;
    const int32_t known = max(min(index, count - 1), 0), ratio = call.layout.ratio, row = query ? call.row_of(first + known) : known / 2;
    const int32_t position = __shfl_sync(kAllLanes, query ? query_position : window_position, query ? row - call.row_of(first) : row);
    if (query) return {call.first_row + row, kv * ratio + first + known - row * ratio, position, index, true, index < count};
    return {row, a.H + known % 2 * a.Hkv + kv, position, index, false, index < count};
  }
  __device__ __forceinline__ HeadInputs inputs(const Head &h) const { return head_inputs<D>(call.args, h.position, h.head, i); }
  __device__ __forceinline__ HeadParts raw(const Head &h) const { return raw_head<D>(call.args, h.row, h.head, i); }

  // One head of each group of lanes.
  __device__ __forceinline__ void run(const Head &h, const HeadInputs &in, const HeadParts &x) const {
    constexpr int kRow = Stored<D, kNested>::kRow;
    const bitmtp_nested_kv_attention_args &a = call.args;
    const Prepared head = prepared_head<D>(in, a.epsilon, x);
    if (h.query) {
      if (!h.real) return;
      const QueryScale scale = write_query<D, kNested>(head, a.softmax_scale, h.index, i, reinterpret_cast<uint4 *>(shared));
      if (i == 0) reinterpret_cast<QueryScale *>(shared + Memory::kScales)[h.index] = scale;
      return;
    }
    const StoredParts<D, kNested> stored = stored_parts<D, kNested>(head, i);
    if (!h.real) return;
    const int32_t value = h.index % 2;
    uint8_t *own = shared + Memory::kRows + h.row * Memory::kOwnRow;
    write_stored<D, kNested>(stored, i, own + value * kRow, reinterpret_cast<uint32_t *>(own + (2 + value) * kRow),
                             reinterpret_cast<uint16_t *>(shared + Memory::kRows + a.M * Memory::kOwnRow) + h.index);
  }

  // The window's rows of this KV head to the outputs. All threads of the block.
  __device__ __forceinline__ void store_window() const {
    constexpr int kRow = Stored<D, kNested>::kRow, kPieces = kRow / 16;
    const bitmtp_nested_kv_attention_args &a = call.args;
    const uint8_t *own = shared + Memory::kRows;
#pragma unroll 1
    for (int32_t n = threadIdx.x; n < window_heads * kPieces; n += kThreads) {
      const int32_t index = n / kPieces, m = index / 2, value = index % 2, byte = 16 * (n % kPieces);
      const int64_t entry = int64_t{m} * 2 * a.Hkv + kv + value * a.Hkv;
      const uint8_t *from = own + m * Memory::kOwnRow + value * kRow + byte;
      const auto store = [&](void *plane, const uint8_t *piece) {
        *reinterpret_cast<uint4 *>(static_cast<uint8_t *>(plane) + entry * kRow + byte) = *reinterpret_cast<const uint4 *>(piece);
      };
      store(a.new_rows, from);
      if (!kNested) continue;
      store(a.new_refinement, from + 2 * kRow);
      if (byte == 0) a.new_scale[entry] = reinterpret_cast<const uint16_t *>(own + a.M * Memory::kOwnRow)[index];
    }
  }
};

}  // namespace attention
}  // namespace cuda
}  // namespace bitmtp
