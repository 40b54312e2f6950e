// NestedKVAttention: rules 9 to 11 of docs/numerics.md. attention_layout.h says how the work is divided.
//
//   1. every head of every row: bias, norm, rotary; queries go to the workspace, keys and values to their stored form
//   2. chunks of 128 positions: scores, softmax weights, weighted values; folded in ascending order
//   3. every row: sub-norm, int8
#include "arith.h"
#include "attention_layout.h"
#include "bitmtp/abi.h"
#include "kernels.h"
#include "kv_rows.h"
#include "team.h"

namespace bitmtp {
namespace BITMTP_ISA {

namespace {

constexpr int32_t kMaxHead = 1024;  // validate.cpp admits no wider head

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

// ---- phase 1 ----------------------------------------------------------------------------------------------------------

// Head `head` (of H + 2*Hkv) of row m, ready to be stored.
void prepare(const Call &call, int32_t m, int32_t head, float *x) {
  const auto &a = call.args;
  const int32_t D = a.D, half = a.D / 2;
  const float *in = a.qkv + (int64_t{m} * (a.H + 2 * a.Hkv) + head) * D;
  for (int32_t i = 0; i < D; ++i) x[i] = in[i];
  if (a.qkv_bias) {
    const float *bias = a.qkv_bias + int64_t{head} * D;
    for (int32_t i = 0; i < D; ++i) x[i] += bias[i];
  }
  if (head >= a.H + a.Hkv) return;  // a value
  const float *norm = head < a.H ? a.q_norm : a.k_norm;
  if (norm) {
    const float factor = rms_factor(lane_sum_squares(x, D), D, a.epsilon);
    for (int32_t i = 0; i < D; ++i) x[i] = x[i] * factor * norm[i];
  }
  const float *cosine = a.rotary + int64_t{within(a.positions[m], 0, a.rotary_rows - 1)} * D;
  const float *sine = cosine + half;
  for (int32_t i = 0; i < half; ++i) {
    const float x1 = x[i], x2 = x[i + half];
    x[i] = x1 * cosine[i] - x2 * sine[i];
    x[i + half] = x2 * cosine[i] + x1 * sine[i];
  }
}

// Rounds KV head kv (K heads, then V heads) of row m to its stored form.
void store_row(const Call &call, int32_t m, int32_t kv, const float *x) {
  const auto &a = call.args;
  const int32_t D = a.D;
  const int64_t entry = int64_t{m} * 2 * a.Hkv + kv;
  const int64_t in_window = int64_t{kv} * a.M + m;
  float *codes = call.workspace + call.layout.window_codes + in_window * D;
  float *scale = call.workspace + call.layout.window_scale + in_window;
  if (call.nested()) {
    const int64_t word = entry * (D / 8);
    a.new_scale[entry] = write_nested(x, D, static_cast<int32_t *>(a.new_rows) + word, a.new_refinement + word, codes);
    *scale = half_to_float(a.new_scale[entry]) * 0.0625f;
  } else {
    write_half(x, D, static_cast<uint16_t *>(a.new_rows) + entry * D, codes);
    *scale = 1.0f;
  }
}

void prepare_rows(const Call &call, const Team &team) {
  const auto &a = call.args;
  const int32_t heads = a.H + 2 * a.Hkv;
  alignas(32) float x[kMaxHead];
  int64_t first, last;
  team.range(int64_t{a.M} * heads, first, last);
  for (int64_t task = first; task < last; ++task) {
    const int32_t m = static_cast<int32_t>(task / heads), head = static_cast<int32_t>(task % heads);
    if (head < a.H) {
      prepare(call, m, head, call.workspace + call.layout.query + (int64_t{m} * a.H + head) * a.D);
    } else {
      prepare(call, m, head, x);
      store_row(call, m, head - a.H, x);
    }
  }
}

// ---- phase 2: one chunk -----------------------------------------------------------------------------------------------

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

  // Leaves each query's accumulator, maximum and sum in records[(i * row_records + r) * record]. Queries without a position in the
  // chunk have none.
  void attend(int32_t chunk, float *records, int64_t row_records) {
    const int32_t start = chunk * kChunk;
    past_ = within(call_.history - start, 0, kChunk);
    slot_ = most(start - call_.history, 0);
    const int32_t value_head = task_.head + call_.args.Hkv;
    read_scales(start, task_.head, own(call_.layout.key_scale));
    read_scales(start, value_head, own(call_.layout.value_scale));
    each_tile(start, task_.head, [&](int32_t i, int32_t r, const Rows &rows, int32_t at, int32_t n, const float *scale) BITMTP_LAMBDA {
      float *s = scores(i, r) + at;
      for (int32_t j = 0; j < n; j += kLanes) {
        const f8 dots = dot_eight(query(i, r), rows, j, n);
        store8(s + j, dots * scales_of(rows, scale, j, n) * broadcast(call_.args.softmax_scale));
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
    each_tile(start, value_head, [&](int32_t i, int32_t r, const Rows &rows, int32_t at, int32_t n, const float *scale) BITMTP_LAMBDA {
      float *w = scores(i, r) + at;
      for (int32_t j = 0; j < n; ++j) w[j] *= scale[rows.slots ? rows.slots[j] : j];
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
  void read_tile(int32_t position, int32_t n, int32_t kv) const {
    constexpr int32_t kAhead = 16;  // rows: heads lie apart in memory, too far for the hardware to see a stream
    const auto &a = call_.args;
    float *tile = own(call_.layout.tile);
    if (!call_.nested()) {
      const int64_t stride = int64_t{2} * a.Hkv * a.D;
      const uint16_t *row = static_cast<const uint16_t *>(a.history) + position * stride + int64_t{kv} * a.D;
      for (int32_t j = 0; j < n; ++j, row += stride, tile += a.D) {
        for (int32_t i = 0; i < a.D; i += 32) __builtin_prefetch(row + kAhead * stride + i);
        read_half(row, a.D, tile);
      }
      return;
    }
    const int32_t words = a.D / 8;
    const int64_t stride = int64_t{2} * a.Hkv * words;
    const int64_t first = position * stride + int64_t{kv} * words;
    const int32_t *base = static_cast<const int32_t *>(a.history) + first;
    const int32_t *refinement = a.history_refinement + first;
    for (int32_t j = 0; j < n; ++j, base += stride, refinement += stride, tile += a.D) {
      const bool fine = position + j >= call_.kv4;
      for (int32_t i = 0; i < words; i += 16) {
        __builtin_prefetch(base + kAhead * stride + i);
        if (fine) __builtin_prefetch(refinement + kAhead * stride + i);
      }
      if (fine) {
        read_nested(base, refinement, words, tile);
      } else {
        read_nested(base, nullptr, words, tile);
      }
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
  int32_t past_ = 0;  // positions of the chunk that are history
  int32_t slot_ = 0;  // which visible slot is the first window position of the chunk
};

// ---- phase 2: folds ---------------------------------------------------------------------------------------------------

// A chunk's record into the state, which is that of no chunk if `first`.
BITMTP_INLINE void fold(float *state, const float *chunk, int32_t D, bool first) {
  if (first) {
    std::memcpy(state, chunk, static_cast<size_t>(D + 2) * sizeof(float));
    return;
  }
  const float m = max_of(state[D], chunk[D]);
  const float a = exp1_weight(state[D] - m), b = exp1_weight(chunk[D] - m);
  for (int32_t i = 0; i < D; i += kLanes) {
    store8(state + i, load8(state + i) * broadcast(a) + load8(chunk + i) * broadcast(b));
  }
  state[D] = m;
  state[D + 1] = state[D + 1] * a + chunk[D + 1] * b;
}

// Zeros for a row that sees nothing.
BITMTP_INLINE void finish(float *out, const float *state, int32_t D, bool empty) {
  for (int32_t i = 0; i < D; i += kLanes) {
    store8(out + i, empty ? f8{} : load8(state + i) / broadcast(state[D + 1]));
  }
}

int32_t chunks_of(int32_t positions) { return (positions + kChunk - 1) / kChunk; }

int32_t most_chunks(const Call &call) {
  int32_t visible = 0;
  for (int32_t m = 0; m < call.args.M; ++m) visible = most(visible, call.visible(m, nullptr));
  return chunks_of(call.history + visible);
}

void attend_split(const Call &call, const Team &team) {
  const auto &a = call.args;
  const AttentionLayout &l = call.layout;
  const int32_t tiles = (a.M + l.rows - 1) / l.rows;
  const int64_t queries = int64_t{a.M} * a.H;
  const int32_t chunks = most_chunks(call);
  float *partials = call.workspace + l.partials;
  float *states = call.workspace + l.state;
  Worker worker(call, team.index);
  int64_t first, last;
  // Rows that see nothing are finished too, so there is always a wave.
  for (int32_t wave = 0; wave == 0 || wave < chunks; wave += l.wave) {
    const int32_t in_wave = least(l.wave, chunks - wave);
    // Chunks outermost: a thread reads all heads of the rows that it has brought near.
    team.range(int64_t{in_wave} * a.Hkv * tiles, first, last);
    for (int64_t task = first; task < last; ++task) {
      const int32_t tile = static_cast<int32_t>(task % tiles);
      const int32_t head = static_cast<int32_t>(task / tiles % a.Hkv);
      const int32_t chunk = static_cast<int32_t>(task / tiles / a.Hkv);
      const int32_t row = tile * l.rows;
      worker.begin(Task{head, row, least(l.rows, a.M - row)});
      worker.attend(wave + chunk, partials + (chunk * queries + int64_t{row} * a.H + head * l.ratio) * l.record, a.H);
    }
    team.barrier();
    team.range(queries, first, last);
    for (int64_t q = first; q < last; ++q) {
      const int32_t own = chunks_of(call.history + call.visible(static_cast<int32_t>(q / a.H), nullptr));
      float *state = states + q * l.record;
      for (int32_t c = 0; c < in_wave && wave + c < own; ++c) {
        fold(state, partials + (c * queries + q) * l.record, a.D, wave + c == 0);
      }
      if (wave + l.wave >= chunks) finish(call.workspace + l.output + q * a.D, state, a.D, own == 0);
    }
    team.barrier();
  }
}

void attend_tiles(const Call &call, const Team &team) {
  const auto &a = call.args;
  const AttentionLayout &l = call.layout;
  const int32_t tiles = (a.M + l.rows - 1) / l.rows;
  Worker worker(call, team.index);
  float *states = worker.own(l.own_state), *partials = worker.own(l.own_partial);
  // Later rows of a causal window see more: neighbours go to different threads.
  for (int64_t task = team.index; task < int64_t{a.Hkv} * tiles; task += team.count) {
    const int32_t row = static_cast<int32_t>(task % tiles) * l.rows;
    const Task t{static_cast<int32_t>(task / tiles), row, least(l.rows, a.M - row)};
    worker.begin(t);
    int32_t chunks = 0;
    for (int32_t i = 0; i < t.rows; ++i) chunks = most(chunks, chunks_of(call.history + worker.counts()[i]));
    for (int32_t c = 0; c < chunks; ++c) {
      worker.attend(c, partials, l.ratio);
      for (int32_t q = 0; q < t.rows * l.ratio; ++q) {
        if (worker.positions(q / l.ratio, c) > 0) fold(states + q * l.record, partials + q * l.record, a.D, c == 0);
      }
    }
    for (int32_t q = 0; q < t.rows * l.ratio; ++q) {
      const int64_t at = int64_t{row + q / l.ratio} * a.H + t.head * l.ratio + q % l.ratio;
      const bool empty = call.history + worker.counts()[q / l.ratio] == 0;
      finish(call.workspace + l.output + at * a.D, states + q * l.record, a.D, empty);
    }
  }
  team.barrier();
}

// ---- phase 3 ----------------------------------------------------------------------------------------------------------

void quantise_rows(const Call &call, const Team &team) {
  const auto &a = call.args;
  const int32_t K = a.H * a.D;
  int64_t first, last;
  team.range(a.M, first, last);
  for (int64_t m = first; m < last; ++m) {
    const float *x = call.workspace + call.layout.output + m * K;
    int32_t *codes = a.codes + m * (pad64(K) / 4);
    if (!a.sub_norm) {
      quantise_row(x, K, codes, a.scale + m);
      continue;
    }
    const f8 factor = broadcast(rms_factor(lane_sum_squares(x, K), K, a.epsilon));
    const auto norm = [&](int32_t i) BITMTP_LAMBDA { return load8(x + i) * factor * load8(a.sub_norm + i); };
    quantise_row_of(norm, K, codes, a.scale + m);
  }
}

}  // namespace

void nested_kv_attention(const bitmtp_nested_kv_attention_args &args, const Team &team) {
  const Call call(args);
  prepare_rows(call, team);
  team.barrier();
  if (call.layout.split) {
    attend_split(call, team);
  } else {
    attend_tiles(call, team);
  }
  quantise_rows(call, team);
}

}  // namespace BITMTP_ISA
}  // namespace bitmtp
