// How NestedKVAttention divides its work and its workspace on a GPU: functions of the sizes only, but for where history ends.
//
// What a row's bits depend on is the position of a key alone. Positions form steps of 16, the depth of one tensor-core instruction; the
// steps of a unit go to four slices in turn. A unit has one, four or eight steps a slice, wider where positions are higher, so that a
// short context has units enough for the whole device and a long one leaves few partial results. A slice has a sum of values and a
// reference, to whose power of two that is relative. Slices fold in order, then units, eight at a time. Query vectors (window rows times
// heads of a KV head) go in tiles of eight, which never meet.
#pragma once

#include <cstdint>

#include "bitmtp/abi.h"

#if defined(__CUDACC__)
#define BITMTP_BOTH __host__ __device__ __forceinline__
#else
#define BITMTP_BOTH inline
#endif

namespace bitmtp {
namespace cuda {
namespace attention {

constexpr int32_t kStep = 16;    // keys
constexpr int32_t kSlices = 4;  // of a unit, a warp each
constexpr int32_t kRound = kStep * kSlices;  // positions: a step of every slice
constexpr int32_t kThreads = 32 * kSlices;
constexpr int32_t kTile = 8;      // query vectors
constexpr int32_t kOwnRows = 2;  // widest window that a thread block prepares for itself: queries, keys and values
template <int D>
constexpr int32_t kFragments = D / 16 * 32 * 16;  // bytes of a tile of query vectors
constexpr int64_t kMostPartials = int64_t{64} << 20;  // bytes; a wide window over a long history goes in slices of rows

// ---- units ------------------------------------------------------------------------------------------------------------

constexpr int32_t kWide = 2048, kWider = 8192;  // from these positions slices have more steps
constexpr int32_t kWideSteps = 4, kWiderSteps = 8;
constexpr int32_t kUnitsToWide = kWide / kRound;
constexpr int32_t kUnitsToWider = kUnitsToWide + (kWider - kWide) / (kWideSteps * kRound);

BITMTP_BOTH int32_t unit_of(int32_t position) {
  if (position < kWide) return position / kRound;
  if (position < kWider) return kUnitsToWide + (position - kWide) / (kWideSteps * kRound);
  return kUnitsToWider + (position - kWider) / (kWiderSteps * kRound);
}
BITMTP_BOTH int32_t unit_start(int32_t unit) {
  if (unit < kUnitsToWide) return unit * kRound;
  if (unit < kUnitsToWider) return kWide + (unit - kUnitsToWide) * kWideSteps * kRound;
  return kWider + (unit - kUnitsToWider) * kWiderSteps * kRound;
}
BITMTP_BOTH int32_t unit_steps(int32_t unit) { return unit < kUnitsToWide ? 1 : unit < kUnitsToWider ? kWideSteps : kWiderSteps; }
BITMTP_BOTH int32_t units_of(int32_t positions) { return positions > 0 ? unit_of(positions - 1) + 1 : 0; }

// ---- the order of columns in fragments --------------------------------------------------------------------------------
// The tensor cores sum over an index that may be permuted at will. The orders below are chosen so that a thread's codes lie in few
// loads, and all of a sector is read at once.

// Where columns 4*quad .. 4*quad + 3 of a query vector go: step of the sum, and thread of the four that feed a key.
struct QueryPlace {
  int32_t step, thread;
};
template <int D, bool kNested>
BITMTP_BOTH QueryPlace query_place(int32_t quad) {
  const int32_t half = quad % 2;
  if (kNested) return {2 * (quad / 2 % (D / 32)) + half, quad / 2 / (D / 32)};
  return {2 * (quad / 8) + half, quad / 2 % 4};
}

// The column, of the D/8 that a thread sums up, whose sum stands in row `row` (0, 1) of its tile of accumulators `tile`.
template <bool kNested>
BITMTP_BOTH constexpr int32_t column_of(int32_t tile, int32_t row) {
  return kNested ? 8 * (tile / 4) + 4 * row + tile % 4 : 2 * tile + row;
}

// ---- workspace --------------------------------------------------------------------------------------------------------

struct AttentionLayout {
  int32_t ratio;  // query heads of a KV head
  int32_t units;  // most that any row can see
  int32_t rows;   // of a slice; a multiple of 8 where there are several slices
  int32_t tiles;  // of query vectors of a KV head, that are prepared beforehand; none for a narrow window
  // offsets in bytes
  int64_t queries;        // fragments [Hkv, tiles, D/16, 32] of 16 bytes
  int64_t query_scales;   // QueryScale [Hkv, tiles, kTile]
  int64_t units_at;   // float [units, rows*H, D]
  int64_t unit_tops;  // float2 [units, rows*H]: reference, sum of weights
  int64_t bytes;
};

inline AttentionLayout attention_layout(const bitmtp_nested_kv_attention_args &a) {
  AttentionLayout l = {};
  int64_t at = 0;
  const auto take = [&at](int64_t bytes) {
    const int64_t here = at;
    at += (bytes + 255) / 256 * 256;
    return here;
  };
  l.ratio = a.H / a.Hkv;
  l.units = units_of(a.capacity + a.M);
  const int64_t fit = kMostPartials / (int64_t{l.units} * a.H * (a.D + 2) * 4) / 8 * 8;
  l.rows = fit >= a.M ? a.M : fit < 8 ? (a.M < 8 ? a.M : 8) : static_cast<int32_t>(fit);
  const int64_t heads = int64_t{l.rows} * a.H;
  l.units_at = take(l.units * heads * a.D * 4);
  l.unit_tops = take(l.units * heads * 8);
  l.tiles = a.M > kOwnRows ? (a.M * l.ratio + kTile - 1) / kTile : 0;
  l.queries = take(int64_t{a.Hkv} * l.tiles * kTile * a.D * 4);
  l.query_scales = take(int64_t{a.Hkv} * l.tiles * kTile * 8);
  l.bytes = at;
  return l;
}

}  // namespace attention
}  // namespace cuda
}  // namespace bitmtp
