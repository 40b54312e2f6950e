// How NestedKVAttention divides its work and its workspace: functions of the sizes only.
//
// Tasks are pairs of a KV head and up to `rows` window rows, together `queries` query vectors, so that a key is unpacked once for
// all of them. In a window of up to kSplitRows rows a task is also one chunk of positions; its results wait in `partials` for
// `wave` chunks, and are then folded in order. A wider window has tasks enough, and each folds its chunks as it goes.
#pragma once

#include <cstdint>

#include "bitmtp/abi.h"

namespace bitmtp {

constexpr int32_t kChunk = 128;  // positions, docs/numerics.md
constexpr int32_t kTile = 32;    // keys unpacked at a time: with 128 columns 16 KiB, beside which the scores stay in L1
constexpr int32_t kSplitRows = 32;
constexpr int32_t kScoreStride = kChunk + 8;  // stores of eight may run over the chunk's end

// Offsets and sizes in floats.
struct AttentionLayout {
  bool split;
  int32_t ratio;    // query heads of a KV head
  int32_t rows;     // most window rows of a task
  int32_t queries;  // rows * ratio
  int32_t wave;     // chunks
  int32_t record;   // of one query and chunk, or of its fold: accumulator [D], maximum, sum
  // shared
  int64_t query;         // [M, H*D], after rotary
  int64_t output;        // [M, H*D]; without split, the place of query: a task reads its queries before it writes
  int64_t window_codes;  // [2*Hkv, M, D]: the window's stored rows as floats
  int64_t window_scale;  // [2*Hkv, M]
  int64_t state;         // [M*H, record], split only
  int64_t partials;      // [wave, M*H, record], split only
  // each thread's own, from `threads` + index * thread_floats
  int64_t threads;
  int64_t thread_floats;
  int64_t tile;         // [kTile, D]
  int64_t scores;       // [queries, kScoreStride]
  int64_t key_scale;    // [kScoreStride]
  int64_t value_scale;  // [kScoreStride]
  int64_t slots;        // int32 [rows, M]: each row's visible slots
  int64_t counts;       // int32 [rows]: how many
  int64_t own_state;    // [queries, record], without split only
  int64_t own_partial;  // [queries, record], without split only
};

static inline AttentionLayout attention_layout(const bitmtp_nested_kv_attention_args &args) {
  AttentionLayout l = {};
  const int64_t M = args.M, H = args.H, Hkv = args.Hkv, D = args.D;
  int64_t at = 0;
  const auto take = [&at](int64_t floats) {
    const int64_t here = at;
    at += (floats + 15) / 16 * 16;  // cache lines
    return here;
  };
  l.split = M <= kSplitRows;
  l.ratio = static_cast<int32_t>(H / Hkv);
  const int32_t fit = 40 / l.ratio;  // scores of 40 queries: 21 KiB
  l.rows = fit < 1 ? 1 : fit > 8 ? 8 : fit;
  l.queries = l.rows * l.ratio;
  l.record = static_cast<int32_t>(D) + 8;
  const int64_t chunk_floats = M * H * l.record;
  const int64_t wave = (int64_t{2} << 20) / chunk_floats;  // 8 MiB
  l.wave = static_cast<int32_t>(wave < 4 ? 4 : wave > 64 ? 64 : wave);

  l.query = take(M * H * D);
  l.output = l.split ? take(M * H * D) : l.query;
  l.window_codes = take(2 * Hkv * M * D);
  l.window_scale = take(2 * Hkv * M);
  if (l.split) {
    l.state = take(chunk_floats);
    l.partials = take(l.wave * chunk_floats);
  }
  l.threads = at;
  at = 0;
  l.tile = take(kTile * D);
  l.scores = take(int64_t{l.queries} * kScoreStride);
  l.key_scale = take(kScoreStride);
  l.value_scale = take(kScoreStride);
  l.slots = take(l.rows * M);
  l.counts = take(l.rows);
  if (!l.split) {
    l.own_state = take(int64_t{l.queries} * l.record);
    l.own_partial = take(int64_t{l.queries} * l.record);
  }
  l.thread_floats = at;
  return l;
}

}  // namespace bitmtp
