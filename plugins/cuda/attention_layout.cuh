// How NestedKVAttention divides its work and its workspace on a GPU: functions of the sizes only, but for where history ends.
//
// What a row's bits depend on is the position of a key alone. Positions form blocks of 32; the four blocks of a chunk of 128 go to
// four warps side by side (stripes), and one, two or four chunks make a unit, wider where positions are higher, so that a short
// context has units enough for the whole device and a long one leaves few partial results. Inside a unit a stripe folds its blocks
// in ascending order, then the stripes fold in order; the units of a row fold in a fixed tree by unit index. Query vectors (window
// rows times heads of a KV head) go in tiles of eight, which never meet.
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

constexpr int32_t kKeys = 32;  // of a block
constexpr int32_t kStripes = 4;
constexpr int32_t kChunk = kKeys * kStripes;
constexpr int32_t kTile = 8;       // query vectors
constexpr int32_t kMostTiles = 4;  // of a thread block
constexpr int64_t kMostPartials = int64_t{64} << 20;  // bytes; a wide window over a long history goes in slices of rows

// ---- units ------------------------------------------------------------------------------------------------------------

constexpr int32_t kWide = 2048, kWider = 8192;  // from these positions units have two and four chunks
constexpr int32_t kUnitsToWide = kWide / kChunk;
constexpr int32_t kUnitsToWider = kUnitsToWide + (kWider - kWide) / (2 * kChunk);

BITMTP_BOTH int32_t unit_of(int32_t position) {
  if (position < kWide) return position / kChunk;
  if (position < kWider) return kUnitsToWide + (position - kWide) / (2 * kChunk);
  return kUnitsToWider + (position - kWider) / (4 * kChunk);
}
BITMTP_BOTH int32_t unit_start(int32_t unit) {
  if (unit < kUnitsToWide) return unit * kChunk;
  if (unit < kUnitsToWider) return kWide + (unit - kUnitsToWide) * 2 * kChunk;
  return kWider + (unit - kUnitsToWider) * 4 * kChunk;
}
BITMTP_BOTH int32_t unit_chunks(int32_t unit) { return unit < kUnitsToWide ? 1 : unit < kUnitsToWider ? 2 : 4; }
BITMTP_BOTH int32_t units_of(int32_t positions) { return positions > 0 ? unit_of(positions - 1) + 1 : 0; }

// ---- the order of keys and columns in fragments -----------------------------------------------------------------------
// The tensor cores sum over an index that may be permuted at will. Both orders below are chosen so that a thread's codes lie in one
// load and a warp's loads meet no shared memory bank twice.

// The key of a block that stands in column n (0 .. 7) of score tile i (0 .. 3).
BITMTP_BOTH int32_t key_of(int32_t i, int32_t n) { return 8 * i + ((n & 1) ? 4 + ((n >> 1) ^ 1) : n >> 1); }

// The column of a head that accumulator tile `tile` (0 .. D/8 - 1) holds in its column n.
template <int D, bool kNested>
BITMTP_BOTH int32_t column_of(int32_t tile, int32_t n) {
  const int32_t part = tile / 8, i = tile % 8;
  return kNested ? 8 * (D / 64 * n + part) + i : 8 * (n + 8 * part) + i;
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

// Byte offset of 16-byte piece `piece` of row `row` in a staged plane with rows of kBytes.
template <int kBytes>
BITMTP_BOTH int32_t staged(int32_t row, int32_t piece) {
  if (kBytes >= 128) return row * kBytes + ((piece ^ ((row & 1) << 2 | (row & 2))) << 4);
  if (kBytes == 64) return row * kBytes + ((piece ^ (row & 2)) << 4);
  return (row ^ (row >> 1 & 2)) * kBytes + (piece << 4);
}

// ---- workspace --------------------------------------------------------------------------------------------------------

struct AttentionLayout {
  int32_t ratio;   // query heads of a KV head
  int32_t units;   // most that any row can see
  int32_t rows;    // of a slice; a multiple of 8 where there are several slices
  int32_t tiles;   // of the whole window
  // offsets in bytes
  int64_t tickets;   // int32 [rows]: heads of a row that are done
  int64_t queries;   // uint4 [Hkv, tiles, D/16, 32]: split query vectors as fragments, where M > 1
  int64_t factors;   // float [Hkv, tiles, 8]
  int64_t output;    // float [rows, H*D]
  int64_t partials;  // float [units, rows*H, D]
  int64_t sums;      // float2 [units, rows*H]: maximum, sum
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
  const int64_t row_bytes = int64_t{l.units} * a.H * (a.D + 2) * 4;
  const int64_t fit = kMostPartials / row_bytes / 8 * 8;
  l.rows = fit >= a.M ? a.M : fit < 8 ? (a.M < 8 ? a.M : 8) : static_cast<int32_t>(fit);
  l.tiles = static_cast<int32_t>((int64_t{a.M} * l.ratio + kTile - 1) / kTile);
  const int64_t slice = int64_t{l.rows} * a.H;
  l.tickets = take(int64_t{l.rows} * 4);
  if (a.M > 1) {
    l.queries = take(int64_t{a.Hkv} * l.tiles * (a.D / 16) * 32 * 16);
    l.factors = take(int64_t{a.Hkv} * l.tiles * kTile * 4);
  }
  l.output = take(slice * a.D * 4);
  l.partials = take(l.units * slice * a.D * 4);
  l.sums = take(l.units * slice * 8);
  l.bytes = at;
  return l;
}

}  // namespace attention
}  // namespace cuda
}  // namespace bitmtp
