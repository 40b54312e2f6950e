// The heart of NestedKVAttention: one task's queries over one chunk of positions (rule 11 of docs/numerics.md).
#pragma once

#include "arith.h"
#include "attention_layout.h"
#include "bitmtp/abi.h"
#include "kv_rows.h"

namespace bitmtp {
namespace BITMTP_ISA {

namespace {

constexpr int32_t kRowsAhead = 16;  // of the row being read, to prefetch

BITMTP_INLINE int32_t least(int32_t a, int32_t b) { return a < b ? a : b; }
BITMTP_INLINE int32_t most(int32_t a, int32_t b) { return a > b ? a : b; }
BITMTP_INLINE int32_t within(int32_t x, int32_t low, int32_t high) { return least(most(x, low), high); }

struct Call {
  const bitmtp_nested_kv_attention_args &args;
  const AttentionLayout layout;
  float *const workspace;
  const int32_t history;  // positions
  const int32_t kv4;      // positions read without refinement

  explicit Call(const bitmtp_nested_kv_attention_args &a)
      : args(a),
        layout(attention_layout(a)),
        workspace(static_cast<float *>(a.workspace)),
        history(within(a.history_length[0], 0, a.capacity)),
        kv4(a.kv4_length ? a.kv4_length[0] : 0) {}

  bool nested() const { return args.kv_kind == BITMTP_KV_NESTED; }
  const float *window_codes(int32_t kv) const { return workspace + layout.window_codes + int64_t{kv} * args.M * args.D; }
  const float *window_scale(int32_t kv) const { return workspace + layout.window_scale + int64_t{kv} * args.M; }

  // Visible slots of row m, ascending, to slots unless that is null; their number.
  int32_t visible(int32_t m, int32_t *slots) const {
    const int32_t words = (args.M + 31) / 32;
    const int32_t *mask = args.mask + int64_t{m} * words;
    int32_t n = 0;
    for (int32_t w = 0; w < words; ++w) {
      uint32_t bits = static_cast<uint32_t>(mask[w]);
      if (w == words - 1 && args.M % 32 != 0) bits &= (1u << (args.M % 32)) - 1u;
      for (; bits != 0; bits &= bits - 1u, ++n) {
        if (slots) slots[n] = 32 * w + __builtin_ctz(bits);
      }
    }
    return n;
  }
};

// Keys or values as float codes: row j, or row slots[j] of a window.
struct Rows {
  const float *codes;
  int32_t D;
  const int32_t *slots;

  BITMTP_MEMBER const float *operator[](int32_t j) const { return codes + int64_t{slots ? slots[j] : j} * D; }
};

// Dots of q with rows j .. j+7; lanes past n repeat row j.
BITMTP_INLINE f8 dot_eight(const float *q, const Rows &rows, int32_t j, int32_t n) {
  const float *k[kLanes];
  f8 acc[kLanes];
#pragma GCC unroll 8
  for (int32_t u = 0; u < kLanes; ++u) {
    k[u] = rows[j + (j + u < n ? u : 0)];
    acc[u] = f8{};
  }
  for (int32_t i = 0; i < rows.D; i += kLanes) {
    const f8 x = load8(q + i);
#pragma GCC unroll 8
    for (int32_t u = 0; u < kLanes; ++u) acc[u] += x * load8(k[u] + i);
  }
  return combine_eight(acc);
}

// The scales of rows j .. j+7, anything in lanes past n.
BITMTP_INLINE f8 scales_of(const Rows &rows, const float *scale, int32_t j, int32_t n) {
  if (!rows.slots) return load8(scale + j);
  float s[kLanes] = {};
  for (int32_t u = 0; u < kLanes && j + u < n; ++u) s[u] = scale[rows.slots[j + u]];
  return load8(s);
}

// acc[i] += w[j] * row_j[i] over ascending j, for Width groups of eight columns from column i.
template <int32_t Width>
BITMTP_INLINE void accumulate_columns(float *acc, const float *w, const Rows &rows, int32_t n, int32_t i) {
  f8 sum[Width];
#pragma GCC unroll 8
  for (int32_t u = 0; u < Width; ++u) sum[u] = load8(acc + i + 8 * u);
  for (int32_t j = 0; j < n; ++j) {
    const f8 weight = broadcast(w[j]);
    const float *row = rows[j] + i;
#pragma GCC unroll 8
    for (int32_t u = 0; u < Width; ++u) sum[u] += weight * load8(row + 8 * u);
  }
#pragma GCC unroll 8
  for (int32_t u = 0; u < Width; ++u) store8(acc + i + 8 * u, sum[u]);
}

BITMTP_INLINE void accumulate(float *acc, const float *w, const Rows &rows, int32_t n) {
  int32_t i = 0;
  for (; i + 64 <= rows.D; i += 64) accumulate_columns<8>(acc, w, rows, n, i);
  for (; i + 32 <= rows.D; i += 32) accumulate_columns<4>(acc, w, rows, n, i);
  for (; i < rows.D; i += 8) accumulate_columns<1>(acc, w, rows, n, i);
}

// Scores s[0 .. n) become softmax weights, zeros up to the next eight; their maximum and lane sum.
BITMTP_INLINE void soften(float *s, int32_t n, float *maximum, float *sum) {
  for (int32_t j = n; j % kLanes != 0; ++j) s[j] = -__builtin_inff();
  f8 top = load8(s);
  for (int32_t j = kLanes; j < n; j += kLanes) top = max_of(top, load8(s + j));
  float m = top[0];
  for (int32_t i = 1; i < kLanes; ++i) m = max_of(m, top[i]);
  f8 l = {};
  for (int32_t j = 0; j < n; j += kLanes) {
    const f8 e = exp8_weight(load8(s + j) - broadcast(m));
    store8(s + j, e);
    l += e;
  }
  *maximum = m;
  *sum = combine_lanes(l);
}

struct Task {
  int32_t head;  // of the KV heads
  int32_t first, rows;
};

// A thread's work on one task, chunk by chunk.
class Worker {
 public:
  Worker(const Call &call, int32_t index)
      : call_(call), own_(call.workspace + call.layout.threads + index * call.layout.thread_floats) {}

  float *own(int64_t offset) const { return own_ + offset; }
  const int32_t *counts() const { return reinterpret_cast<const int32_t *>(own_ + call_.layout.counts); }

  void begin(const Task &task) {
    task_ = task;
    int32_t *counts = reinterpret_cast<int32_t *>(own_ + call_.layout.counts);
    for (int32_t i = 0; i < task.rows; ++i) counts[i] = call_.visible(task.first + i, slots(i));
  }

  // Positions of row i in a chunk.
  int32_t positions(int32_t i, int32_t chunk) const { return within(call_.history + counts()[i] - chunk * kChunk, 0, kChunk); }

  // Leaves each query's accumulator, maximum and sum in records[(i * row_records + r) * record]. Queries without a position in
  // the chunk have none.
  void attend(int32_t chunk, float *records, int64_t row_records) {
    const int32_t start = chunk * kChunk;
    fresh_ = chunk != chunk_;
    chunk_ = chunk;
    past_ = within(call_.history - start, 0, kChunk);
    slot_ = most(start - call_.history, 0);
    const int32_t value_head = task_.head + call_.args.Hkv;
    read_scales(start, task_.head, own(call_.layout.key_scale));
    read_scales(start, value_head, own(call_.layout.value_scale));
    each_tile(start, task_.head, [&](int32_t i, int32_t r, const Rows &rows, int32_t at, int32_t n, const float *s)
              BITMTP_LAMBDA {
      float *score = scores(i, r) + at;
      for (int32_t j = 0; j < n; j += kLanes) {
        const f8 dots = dot_eight(query(i, r), rows, j, n);
        store8(score + j, dots * scales_of(rows, s, j, n) * broadcast(call_.args.softmax_scale));
      }
    });
    for (int32_t i = 0; i < task_.rows; ++i) {
      const int32_t n = positions(i, chunk);
      for (int32_t r = 0; n > 0 && r < call_.layout.ratio; ++r) {
        float *record = records + (i * row_records + r) * call_.layout.record;
        std::memset(record, 0, static_cast<size_t>(call_.args.D) * sizeof(float));
        soften(scores(i, r), n, record + call_.args.D, record + call_.args.D + 1);
      }
    }
    each_tile(start, value_head, [&](int32_t i, int32_t r, const Rows &rows, int32_t at, int32_t n, const float *s)
              BITMTP_LAMBDA {
      float *w = scores(i, r) + at;
      for (int32_t j = 0; j < n; ++j) w[j] *= s[rows.slots ? rows.slots[j] : j];
      accumulate(records + (i * row_records + r) * call_.layout.record, w, rows, n);
    });
  }

 private:
  int32_t *slots(int32_t i) const {
    return reinterpret_cast<int32_t *>(own_ + call_.layout.slots) + int64_t{i} * call_.args.M;
  }
  float *scores(int32_t i, int32_t r) const {
    return own_ + call_.layout.scores + int64_t{i * call_.layout.ratio + r} * kScoreStride;
  }
  const float *query(int32_t i, int32_t r) const {
    const auto &a = call_.args;
    return call_.workspace + call_.layout.query +
           (int64_t{task_.first + i} * a.H + task_.head * call_.layout.ratio + r) * a.D;
  }

  void read_scales(int32_t start, int32_t kv, float *scale) const {
    const auto &a = call_.args;
    for (int32_t j = 0; j < past_; ++j) {
      scale[j] = call_.nested() ? half_to_float(a.history_scale[int64_t{start + j} * 2 * a.Hkv + kv]) * 0.0625f : 1.0f;
    }
  }

  // History rows position .. position + n - 1 of KV head kv, as floats in the tile.
  //
  // A head's piece of a row is a cache line or two, and the next row's lies too far away for the hardware to see a stream. With
  // split, the other heads' pieces are this thread's next tasks: the first task of a chunk brings whole rows near, which memory
  // serves far faster than single lines: with a history too long for the caches half the time of an attention was waiting.
  void read_tile(int32_t position, int32_t n, int32_t kv) const {
    const auto &a = call_.args;
    const int32_t piece = call_.nested() ? a.D / 8 : a.D;  // elements of a plane
    const int64_t stride = int64_t{2} * a.Hkv * piece;
    const int64_t first = position * stride + int64_t{kv} * piece;
    const bool whole_rows = call_.layout.split;
    const int64_t from = kRowsAhead * stride - (whole_rows ? int64_t{kv} * piece : 0);
    const int64_t to = from + (!whole_rows ? piece : fresh_ && kv == task_.head ? stride : 0);
    float *tile = own(call_.layout.tile);
    if (!call_.nested()) {
      const uint16_t *row = static_cast<const uint16_t *>(a.history) + first;
      for (int32_t j = 0; j < n; ++j, row += stride, tile += a.D) {
        for (int64_t i = from; i < to; i += 32) __builtin_prefetch(row + i);
        read_half(row, a.D, tile);
      }
      return;
    }
    const int32_t *base = static_cast<const int32_t *>(a.history) + first;
    const int32_t *refinement = a.history_refinement + first;
    for (int32_t j = 0; j < n; ++j, base += stride, refinement += stride, tile += a.D) {
      const bool fine = position + j >= call_.kv4;
      for (int64_t i = from; i < to; i += 16) {
        __builtin_prefetch(base + i);
        if (fine) __builtin_prefetch(refinement + i);
      }
      read_nested(base, fine ? refinement : nullptr, piece, tile);
    }
  }

  // Calls visit(row, head of the group, keys, offset in the chunk, number of keys, their scales) for a chunk's positions in
  // ascending order, up to kTile at a time: history first, then what each row sees of the window.
  template <class Visit>
  BITMTP_MEMBER void each_tile(int32_t start, int32_t kv, const Visit &visit) const {
    const int32_t D = call_.args.D;
    const float *past_scale = own(kv < call_.args.Hkv ? call_.layout.key_scale : call_.layout.value_scale);
    for (int32_t at = 0; at < past_; at += kTile) {
      const int32_t n = least(kTile, past_ - at);
      read_tile(start + at, n, kv);
      const Rows rows{own(call_.layout.tile), D, nullptr};
      for (int32_t i = 0; i < task_.rows; ++i) {
        for (int32_t r = 0; r < call_.layout.ratio; ++r) visit(i, r, rows, at, n, past_scale + at);
      }
    }
    const int32_t room = kChunk - past_;
    for (int32_t t = 0, left = 1; left > 0 && t < room; t += kTile) {
      left = 0;
      for (int32_t i = 0; i < task_.rows; ++i) {
        const int32_t n = least(kTile, least(room, counts()[i] - slot_) - t);
        left = most(left, counts()[i] - slot_ - t - kTile);
        const Rows rows{call_.window_codes(kv), D, slots(i) + slot_ + t};
        for (int32_t r = 0; n > 0 && r < call_.layout.ratio; ++r) visit(i, r, rows, past_ + t, n, call_.window_scale(kv));
      }
    }
  }

  const Call &call_;
  float *const own_;
  Task task_ = {};
  int32_t chunk_ = -1;
  bool fresh_ = false;  // this task is the first of the thread in the chunk
  int32_t past_ = 0;  // positions of the chunk that are history
  int32_t slot_ = 0;  // which visible slot is the first window position of the chunk
};

}  // namespace

}  // namespace BITMTP_ISA
}  // namespace bitmtp
