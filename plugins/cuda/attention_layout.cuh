// How NestedKVAttention divides its work and its workspace on a GPU: functions of the sizes only, but for where history ends.
//
// What a row's bits depend on is the position of a key alone. Positions form steps of 16, the depth of one tensor-core instruction;
// the steps of a unit go to four slices in turn. A unit has two, four or eight steps a slice, wider where positions are higher, so
// that a short context has units enough for the whole device and a long one leaves few partial results. Eight units make an octet.
// A unit has one maximum and one sum of values a slice; slices add up in order, then the units of an octet, then the octets. Query
// vectors (window rows times heads of a KV head) go in tiles of eight, which never meet.
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

constexpr int32_t kKeys = 8;   // of a score tile: what one warp of a slice dots at a time
constexpr int32_t kStep = 16;  // keys
constexpr int32_t kSlices = 4;
constexpr int32_t kRound = kStep * kSlices;  // positions: a step of every slice
constexpr int32_t kMostSteps = 8;            // of a slice of a unit
constexpr int32_t kWarps = 2 * kSlices;
constexpr int32_t kThreads = 32 * kWarps;
constexpr int32_t kTile = 8;     // query vectors
constexpr int32_t kOctet = 8;    // units, and thread blocks of a cluster
constexpr int32_t kOwnRows = 32;  // widest window whose keys and values a thread block rounds for itself
constexpr int64_t kMostPartials = int64_t{64} << 20;  // bytes; a wide window over a long history goes in slices of rows

// ---- units ------------------------------------------------------------------------------------------------------------

constexpr int32_t kWide = 2048, kWider = 8192;  // from these positions slices have four and eight steps
constexpr int32_t kUnitsToWide = kWide / (2 * kRound);
constexpr int32_t kUnitsToWider = kUnitsToWide + (kWider - kWide) / (4 * kRound);
static_assert(kUnitsToWide % kOctet == 0 && kUnitsToWider % kOctet == 0, "an octet has units of one width");

BITMTP_BOTH int32_t unit_of(int32_t position) {
  if (position < kWide) return position / (2 * kRound);
  if (position < kWider) return kUnitsToWide + (position - kWide) / (4 * kRound);
  return kUnitsToWider + (position - kWider) / (8 * kRound);
}
BITMTP_BOTH int32_t unit_start(int32_t unit) {
  if (unit < kUnitsToWide) return unit * 2 * kRound;
  if (unit < kUnitsToWider) return kWide + (unit - kUnitsToWide) * 4 * kRound;
  return kWider + (unit - kUnitsToWider) * 8 * kRound;
}
BITMTP_BOTH int32_t unit_steps(int32_t unit) { return unit < kUnitsToWide ? 2 : unit < kUnitsToWider ? 4 : 8; }
BITMTP_BOTH int32_t units_of(int32_t positions) { return positions > 0 ? unit_of(positions - 1) + 1 : 0; }
BITMTP_BOTH int32_t octets_of(int32_t positions) { return (units_of(positions) + kOctet - 1) / kOctet; }

// ---- the order of keys and columns in fragments -----------------------------------------------------------------------
// The tensor cores sum over an index that may be permuted at will. The orders below are chosen so that a thread's codes lie in one
// load and a warp's loads meet no shared memory bank twice.

// The key of a score tile that stands in its column n (0 .. 7).
BITMTP_BOTH int32_t key_of(int32_t n) { return (n & 1) ? 4 + ((n >> 1) ^ 1) : n >> 1; }

// The place (0 .. D-1) in an accumulator row of a head's column: half, tile of the half, column of the tile.
template <int D>
BITMTP_BOTH int32_t place_of(int32_t column) {
  const int32_t half = column / (D / 2), n = column % (D / 2) / (D / 16), tile = column % (D / 16);
  return half * (D / 2) + 8 * tile + n;
}

// Where columns 4*lane .. 4*lane + 3 of a query vector go: step of the sum, and the group of the thread that feeds them.
struct QueryPlace {
  int32_t step, thread;
};
template <int D, bool kNested>
BITMTP_BOTH QueryPlace query_place(int32_t lane) {
  const int32_t half = lane % 2;
  if (kNested) return {2 * (lane / 2 % (D / 32)) + half, lane / 2 / (D / 32)};
  return {2 * (lane / 8) + half, lane / 2 % 4};
}

// Byte offset of 16-byte piece `piece` of row `row` of a staged score tile with rows of kBytes, and of a step's half rows of values.
template <int kBytes>
BITMTP_BOTH int32_t staged_key(int32_t row, int32_t piece) {
  if (kBytes >= 128) return row * kBytes + ((piece ^ ((row & 1) << 2 | (row & 2))) << 4);
  if (kBytes == 64) return row * kBytes + ((piece ^ (row & 2)) << 4);
  return (row ^ (row >> 1 & 2)) * kBytes + (piece << 4);
}
template <int kBytes>
BITMTP_BOTH int32_t staged_value(int32_t row, int32_t piece) {
  if (kBytes == 128) return row * kBytes + ((piece ^ (row & 3) << 1) << 4);
  if (kBytes == 64) return row * kBytes + ((piece ^ (row & 2)) << 4);
  return row * kBytes + (piece << 4);
}

// ---- workspace --------------------------------------------------------------------------------------------------------

struct AttentionLayout {
  int32_t ratio;          // query heads of a KV head
  int32_t units, octets;  // most that any row can see
  int32_t rows;           // of a slice; a multiple of 8 where there are several slices
  // offsets in bytes
  int64_t units_at;    // float [units, rows*H, D], where clusters do not merge octets
  int64_t unit_tops;   // float2 [units, rows*H]: maximum, sum
  int64_t octets_at;   // float [octets, rows*H, D]
  int64_t octet_tops;  // float2 [octets, rows*H]
  int64_t bytes;
};

inline AttentionLayout attention_layout(const bitmtp_nested_kv_attention_args &a, bool clusters) {
  AttentionLayout l = {};
  int64_t at = 0;
  const auto take = [&at](int64_t bytes) {
    const int64_t here = at;
    at += (bytes + 255) / 256 * 256;
    return here;
  };
  l.ratio = a.H / a.Hkv;
  l.units = units_of(a.capacity + a.M);
  l.octets = octets_of(a.capacity + a.M);
  const int64_t row_bytes = int64_t{l.octets + (clusters ? 0 : l.units)} * a.H * (a.D + 2) * 4;
  const int64_t fit = kMostPartials / row_bytes / 8 * 8;
  l.rows = fit >= a.M ? a.M : fit < 8 ? (a.M < 8 ? a.M : 8) : static_cast<int32_t>(fit);
  const int64_t heads = int64_t{l.rows} * a.H;
  if (!clusters) {
    l.units_at = take(l.units * heads * a.D * 4);
    l.unit_tops = take(l.units * heads * 8);
  }
  l.octets_at = take(l.octets * heads * a.D * 4);
  l.octet_tops = take(l.octets * heads * 8);
  l.bytes = at;
  return l;
}

}  // namespace attention
}  // namespace cuda
}  // namespace bitmtp
