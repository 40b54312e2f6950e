#include "attention_reference.h"

#include <cmath>

#include "harness.h"
#include "reference.h"

namespace sweep {

namespace {

using reference::lane_sum;

// Column i of a head in a plane of nibbles.
int32_t shift_of(int32_t i) { return 8 * (i % 4) + (i % 8 >= 4 ? 4 : 0); }
int32_t nibble(const std::vector<int32_t> &plane, size_t first, int32_t i) {
  return static_cast<int32_t>(static_cast<uint32_t>(plane[first + i / 8]) >> shift_of(i) & 15u) - 8;
}
void set_nibble(std::vector<int32_t> &plane, size_t first, int32_t i, int32_t value) {
  uint32_t word = static_cast<uint32_t>(plane[first + i / 8]);
  word = (word & ~(15u << shift_of(i))) | static_cast<uint32_t>(value + 8) << shift_of(i);
  plane[first + i / 8] = static_cast<int32_t>(word);
}

// A stored key or value: codes and the scale that turns them into numbers.
struct Entry {
  std::vector<float> codes;
  float scale;
};

Entry read(const AttentionSizes &s, const StoredRows &rows, int32_t row, int32_t kv, bool coarse) {
  Entry e{std::vector<float>(s.D), 1.0f};
  const size_t head = static_cast<size_t>(row) * 2 * s.Hkv + kv;
  for (int32_t i = 0; i < s.D; ++i) {
    if (s.kind == BITMTP_KV_FP16) {
      e.codes[i] = half_to_float(rows.half[head * s.D + i]);
    } else {
      const size_t first = head * (s.D / 8);
      e.codes[i] = static_cast<float>(16 * nibble(rows.base, first, i) + (coarse ? 0 : nibble(rows.refinement, first, i)));
    }
  }
  if (s.kind == BITMTP_KV_NESTED) e.scale = half_to_float(rows.scale[head]) / 16.0f;
  return e;
}

void write(const AttentionSizes &s, StoredRows &rows, int32_t row, int32_t kv, const std::vector<float> &x) {
  const size_t head = static_cast<size_t>(row) * 2 * s.Hkv + kv;
  if (s.kind == BITMTP_KV_FP16) {
    for (int32_t i = 0; i < s.D; ++i) rows.half[head * s.D + i] = float_to_half(x[i]);
    return;
  }
  float amax = 0.0f;
  for (float v : x) amax = std::fmax(amax, std::fabs(v));
  rows.scale[head] = float_to_half(std::fmax(amax / 7.0f, std::ldexp(1.0f, -14)));
  const float scale = half_to_float(rows.scale[head]), inverse = 1.0f / scale;
  for (int32_t i = 0; i < s.D; ++i) {
    const int32_t q = reference::round_to(x[i] * inverse, -7, 7);
    const int32_t r = reference::round_to((x[i] - static_cast<float>(q) * scale) * (16.0f * inverse), -8, 7);
    set_nibble(rows.base, head * (s.D / 8), i, q);
    set_nibble(rows.refinement, head * (s.D / 8), i, r);
  }
}

// Head `head` of H + 2*Hkv of a row: bias, norm, rotary.
std::vector<float> prepared(const AttentionModel &model, const AttentionWindow &window, int32_t m, int32_t head) {
  const AttentionSizes &s = model.sizes;
  const int32_t heads = s.H + 2 * s.Hkv;
  const float *in = window.qkv.data() + (static_cast<size_t>(m) * heads + head) * s.D;
  std::vector<float> x(in, in + s.D);
  if (s.bias) {
    for (int32_t i = 0; i < s.D; ++i) x[i] = x[i] + model.bias[static_cast<size_t>(head) * s.D + i];
  }
  if (head >= s.H + s.Hkv) return x;
  if (s.qk_norm) reference::rms_norm(x.data(), s.D, head < s.H ? model.q_norm.data() : model.k_norm.data(), model.epsilon);
  int32_t position = window.positions[m];
  position = position < 0 ? 0 : position >= model.rotary_rows ? model.rotary_rows - 1 : position;
  std::vector<float> y(s.D);
  for (int32_t i = 0; i < s.D; ++i) {
    const int32_t pair = i % (s.D / 2);
    const float c = model.rotary[static_cast<size_t>(position) * s.D + pair];
    const float sn = model.rotary[static_cast<size_t>(position) * s.D + s.D / 2 + pair];
    const float x1 = x[pair], x2 = x[pair + s.D / 2];
    y[i] = i < s.D / 2 ? x1 * c - x2 * sn : x2 * c + x1 * sn;
  }
  return y;
}

// One query over the entries of positions 0, 1, ...
std::vector<float> attend(const std::vector<float> &q, const std::vector<Entry> &keys, const std::vector<Entry> &values,
                          float softmax_scale) {
  const size_t D = q.size();
  std::vector<float> acc(D, 0.0f);
  float m = 0.0f, l = 1.0f;
  for (size_t start = 0; start < keys.size(); start += 128) {
    const size_t end = start + 128 < keys.size() ? start + 128 : keys.size();
    std::vector<float> e;
    for (size_t p = start; p < end; ++p) {
      std::vector<float> products(D);
      for (size_t i = 0; i < D; ++i) products[i] = q[i] * keys[p].codes[i];
      e.push_back((lane_sum(products) * keys[p].scale) * softmax_scale);
    }
    float chunk_m = e[0];
    for (float score : e) chunk_m = std::fmax(chunk_m, score);
    for (float &score : e) score = reference::softmax_weight(score - chunk_m);
    const float chunk_l = lane_sum(e);
    std::vector<float> chunk_acc(D, 0.0f);
    for (size_t p = start; p < end; ++p) {
      const float weight = e[p - start] * values[p].scale;
      for (size_t i = 0; i < D; ++i) chunk_acc[i] = chunk_acc[i] + weight * values[p].codes[i];
    }
    if (start == 0) {
      acc = chunk_acc, m = chunk_m, l = chunk_l;
      continue;
    }
    const float top = std::fmax(m, chunk_m);
    const float a = reference::softmax_weight(m - top), b = reference::softmax_weight(chunk_m - top);
    l = l * a + chunk_l * b;
    for (size_t i = 0; i < D; ++i) acc[i] = acc[i] * a + chunk_acc[i] * b;
    m = top;
  }
  for (float &v : acc) v = v / l;
  return acc;
}

}  // namespace

void StoredRows::resize(const AttentionSizes &s, int32_t rows) {
  const size_t heads = static_cast<size_t>(rows) * 2 * s.Hkv;
  const bool nested = s.kind == BITMTP_KV_NESTED;
  base.resize(nested ? heads * (s.D / 8) : 0);
  refinement.resize(base.size());
  scale.resize(nested ? heads : 0);
  half.resize(nested ? 0 : heads * s.D);
}

void StoredRows::copy_row(const AttentionSizes &s, int32_t to, const StoredRows &from, int32_t row) {
  const auto copy = [&](auto &target, const auto &source, size_t n) {
    for (size_t i = 0; i < n; ++i) target[to * n + i] = source[row * n + i];
  };
  const size_t heads = 2 * static_cast<size_t>(s.Hkv);
  if (s.kind == BITMTP_KV_FP16) {
    copy(half, from.half, heads * s.D);
    return;
  }
  copy(base, from.base, heads * (s.D / 8));
  copy(refinement, from.refinement, heads * (s.D / 8));
  copy(scale, from.scale, heads);
}

AttentionResult reference_attention(const AttentionModel &model, const StoredRows &history, const AttentionWindow &window) {
  const AttentionSizes &s = model.sizes;
  AttentionResult result;
  result.stored.resize(s, window.M);
  for (int32_t m = 0; m < window.M; ++m) {
    for (int32_t kv = 0; kv < 2 * s.Hkv; ++kv) write(s, result.stored, m, kv, prepared(model, window, m, s.H + kv));
  }
  const int32_t K = s.H * s.D, padded = (K + 63) / 64 * 64;
  result.codes.resize(static_cast<size_t>(window.M) * padded);
  std::vector<std::vector<float>> rows(window.M);
  for (int32_t g = 0; g < s.Hkv; ++g) {
    std::vector<Entry> past_keys, past_values;
    for (int32_t p = 0; p < window.history; ++p) {
      past_keys.push_back(read(s, history, p, g, p < window.kv4));
      past_values.push_back(read(s, history, p, s.Hkv + g, p < window.kv4));
    }
    for (int32_t m = 0; m < window.M; ++m) {
      std::vector<Entry> keys = past_keys, values = past_values;
      for (int32_t slot : window.visible[m]) {
        keys.push_back(read(s, result.stored, slot, g, false));
        values.push_back(read(s, result.stored, slot, s.Hkv + g, false));
      }
      for (int32_t h = g * (s.H / s.Hkv); h < (g + 1) * (s.H / s.Hkv); ++h) {
        const std::vector<float> y = attend(prepared(model, window, m, h), keys, values, model.softmax_scale);
        rows[m].insert(rows[m].end(), y.begin(), y.end());
      }
    }
  }
  for (int32_t m = 0; m < window.M; ++m) {
    if (s.sub_norm) reference::rms_norm(rows[m].data(), K, model.sub_norm.data(), model.epsilon);
    result.scale.push_back(reference::quantise(rows[m].data(), K, result.codes.data() + static_cast<size_t>(m) * padded));
  }
  return result;
}

}  // namespace sweep
