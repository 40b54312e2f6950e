// NestedKVAttention: rules 9 to 11 of docs/numerics.md. attention_layout.h says how the work is divided.
//
//   1. every head of every row: bias, norm, rotary; queries go to the workspace, keys and values to their stored form
//   2. chunks of 128 positions: scores, softmax weights, weighted values; folded in ascending order
//   3. every row: sub-norm, int8
#include "arith.h"
#include "attention_chunk.h"
#include "attention_layout.h"
#include "bitmtp/abi.h"
#include "kernels.h"
#include "kv_rows.h"
#include "team.h"

namespace bitmtp {
namespace BITMTP_ISA {

namespace {

constexpr int32_t kMaxHead = 1024;  // validate.cpp admits no wider head

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

// ---- phase 2 ----------------------------------------------------------------------------------------------------------

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
