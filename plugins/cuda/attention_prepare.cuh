// What a thread block of attend_kernel does first: its shared memory, its query vectors, and stored rows of a narrow window.
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

// Shared memory of attend_kernel, in bytes from its start.
template <int D, bool kNested, int kTiles>
struct AttendMemory {
  static constexpr int kVectors = kTile * kTiles;
  static constexpr int kPadded = D + 8;                          // floats: so that eight rows of sums meet no bank twice
  static constexpr int kFragments = kTiles * (D / 16) * 32 * 16;  // later the cluster's units of this block's vectors: as many bytes
  static_assert(kFragments == kOctet * kTiles * D * 4, "the inbox lies where the fragments were");
  static constexpr int kInboxTops = kFragments;                    // float2 [kOctet, kTiles]
  static constexpr int kScales = kInboxTops + kOctet * kTiles * 8;  // QueryScale [kVectors]
  static constexpr int kTops = kScales + kVectors * 8;              // float2 [kWarps, kVectors]: largest score, largest scale of a value
  static constexpr int kTotals = kTops + kWarps * kVectors * 8;     // float [kWarps, kVectors]
  static constexpr int kKeyScales = kTotals + kWarps * kVectors * 4;
  static constexpr int kExchange = kKeyScales + (kNested ? kWarps * kMostSteps * 16 * 4 : 0);
  static constexpr int kRings = (kExchange + kWarps * kTiles * kMostSteps * 32 * 8 + 127) / 128 * 128;
  static constexpr int kStaging = kWarps * Stored<D, kNested>::kRing;
  static constexpr int kMerging = kSlices * kVectors * kPadded * 4;
  static constexpr int kOwn = kRings + (kStaging > kMerging ? kStaging : kMerging);
  static constexpr int kOwnRow = Stored<D, kNested>::kOwnRow;

  // `rows`: of the window, whose stored form stands here; scales follow.
  static BITMTP_BOTH int32_t bytes(int32_t rows) { return kOwn + rows * (kOwnRow + (kNested ? 4 : 0)); }
};

// Prepares this block's query vectors and, where its unit has window positions and the window is narrow, the window's keys and values:
// four heads for each warp, of one sort. `first` is the number of the block's first vector, heads of a row together.
template <int D, bool kNested, int kTiles>
struct Preparation {
  using Memory = AttendMemory<D, kNested, kTiles>;
  const AttentionCall &call;
  uint8_t *shared;
  int32_t kv, first, vectors, window_heads;
  bool keep;  // stored rows go to the outputs as well
  int32_t group, i;                       // of this lane
  int32_t query_position, window_position;  // lane r: that of the r-th row among the block's vectors, and of window row r

  __device__ __forceinline__ Preparation(const AttentionCall &c, uint8_t *memory, int32_t kv_head, int32_t first_vector, int32_t count,
                                         int32_t stored_heads, bool kept, int32_t lane)
      : call(c), shared(memory), kv(kv_head), first(first_vector), vectors(count), window_heads(stored_heads), keep(kept),
        group(lane / kHeadLanes), i(lane % kHeadLanes) {
    const int32_t last = c.args.M - 1;
    query_position = c.args.positions[min(c.first_row + first / c.layout.ratio + lane, last)];
    window_position = stored_heads > 0 ? c.args.positions[min(lane, last)] : 0;
  }

  struct Head {
    int32_t row, head, position, index;  // index: of the vector, or of the window's heads, keys and values in turn
    bool query, real;
  };
  __device__ __forceinline__ int32_t query_tasks() const { return (vectors + kHeadsOfWarp - 1) / kHeadsOfWarp; }
  __device__ __forceinline__ int32_t tasks() const { return query_tasks() + (window_heads + kHeadsOfWarp - 1) / kHeadsOfWarp; }
  // All lanes of a warp together.
  __device__ __forceinline__ Head head_of(int32_t task) const {
    const bitmtp_nested_kv_attention_args &a = call.args;
    const bool query = task < query_tasks();
    const int32_t index = kHeadsOfWarp * (query ? task : task - query_tasks()) + group, count = query ? vectors : window_heads;
    const int32_t known = max(min(index, count - 1), 0), ratio = call.layout.ratio, row = (first + known) / ratio;
    const int32_t query_at = __shfl_sync(kAllLanes, query_position, row - first / ratio);
    const int32_t window_at = __shfl_sync(kAllLanes, window_position, known / 2);
    if (query) return {call.first_row + row, kv * ratio + (first + known) % ratio, query_at, index, true, index < count};
    return {known / 2, a.H + known % 2 * a.Hkv + kv, window_at, index, false, index < count};
  }
  __device__ __forceinline__ HeadInputs<D> inputs(const Head &h) const { return head_inputs<D>(call.args, h.position, h.head, i); }

  // One head of each group of lanes, its inputs given.
  __device__ __forceinline__ void run(const Head &h, const HeadInputs<D> &in) const {
    constexpr int kRow = Stored<D, kNested>::kRow;
    const bitmtp_nested_kv_attention_args &a = call.args;
    HeadParts<D> x = raw_head<D>(a, h.row, h.head, i);
    prepare_head<D>(a, h.head, in, x);
    const float maximum = head_max<D>(x);
    if (h.query) {
      const float sum = head_sum<D>(x);
      if (!h.real) return;
      uint4 *fragments = reinterpret_cast<uint4 *>(shared) + h.index / kTile * (D / 16 * 32);
      const QueryScale scale = write_query<D, kNested>(x, maximum, sum, a.softmax_scale, h.index % kTile, i, fragments);
      if (i == 0) reinterpret_cast<QueryScale *>(shared + Memory::kScales)[h.index] = scale;
      return;
    }
    const StoredParts<D, kNested> stored = stored_parts<D, kNested>(x, maximum, i);
    if (!h.real) return;
    const int32_t value = h.index % 2;
    uint8_t *own = shared + Memory::kOwn + h.row * Memory::kOwnRow;
    write_stored<D, kNested>(stored, i, own + value * kRow, reinterpret_cast<uint32_t *>(own + (2 + value) * kRow),
                             reinterpret_cast<uint16_t *>(shared + Memory::kOwn + a.M * Memory::kOwnRow) + h.index);
    if (!keep) return;
    const int64_t entry = int64_t{h.row} * 2 * a.Hkv + kv + value * a.Hkv;
    write_stored<D, kNested>(stored, i, static_cast<uint8_t *>(a.new_rows) + entry * kRow,
                             reinterpret_cast<uint32_t *>(a.new_refinement) + entry * (D / 8), a.new_scale + entry);
  }
};

}  // namespace attention
}  // namespace cuda
}  // namespace bitmtp
