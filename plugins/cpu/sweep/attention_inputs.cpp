#include "attention_inputs.h"

namespace sweep {

std::string describe(const AttentionSizes &s) {
  return "H=" + std::to_string(s.H) + " Hkv=" + std::to_string(s.Hkv) + " D=" + std::to_string(s.D) +
         (s.kind == BITMTP_KV_FP16 ? " fp16" : " nested") + (s.bias ? " bias" : "") + (s.qk_norm ? " qk_norm" : "") +
         (s.sub_norm ? " sub_norm" : "");
}

std::vector<float> normals(Random &random, size_t n, float spread) {
  std::vector<float> x(n);
  for (float &v : x) v = spread * random.normal();
  return x;
}

AttentionModel make_model(Random &random, const AttentionSizes &s, int32_t rotary_rows) {
  AttentionModel model{s, 1e-5f, 0.0f, {}, {}, {}, {}, rotary_rows, {}};
  model.softmax_scale = random.bits() % 8 == 0 ? 4.0f : random.uniform(0.03f, 0.2f);  // at times most weights are 0
  const int32_t heads = s.H + 2 * s.Hkv;
  if (s.bias) model.bias = normals(random, static_cast<size_t>(heads) * s.D, 0.5f);
  if (s.qk_norm) model.q_norm = normals(random, s.D, 1.0f), model.k_norm = normals(random, s.D, 1.0f);
  if (s.sub_norm) model.sub_norm = normals(random, static_cast<size_t>(s.H) * s.D, 1.0f);
  for (size_t i = 0; i < static_cast<size_t>(rotary_rows) * s.D; ++i) model.rotary.push_back(random.uniform(-1.0f, 1.0f));
  return model;
}

StoredRows make_history(Random &random, const AttentionSizes &s, int32_t rows, int32_t history, int32_t kv4) {
  StoredRows stored;
  stored.resize(s, rows);
  const size_t heads = 2 * static_cast<size_t>(s.Hkv), words = heads * s.D / 8;
  for (size_t i = 0; i < stored.base.size(); ++i) {
    uint32_t word = static_cast<uint32_t>(random.bits());
    for (int32_t n = 0; n < 32; n += 4) {
      if ((word >> n & 15u) == 0) word |= 1u << n;  // the base keeps to +-7
    }
    const bool known = i / words < static_cast<size_t>(history), coarse = i / words < static_cast<size_t>(kv4);
    stored.base[i] = known ? static_cast<int32_t>(word) : -1;
    stored.refinement[i] = coarse ? 0x5A5A5A5A : known ? static_cast<int32_t>(random.bits()) : -1;
  }
  for (size_t i = 0; i < stored.scale.size(); ++i) {
    stored.scale[i] = i / heads < static_cast<size_t>(history) ? float_to_half(random.uniform(0.001f, 0.5f)) : 0x7E00;
  }
  for (size_t i = 0; i < stored.half.size(); ++i) {
    stored.half[i] = i / (heads * s.D) < static_cast<size_t>(history) ? float_to_half(random.normal()) : 0x7E00;
  }
  return stored;
}

AttentionWindow make_window(Random &random, const AttentionSizes &s, int32_t M, int32_t history, int32_t kv4, Shape shape) {
  AttentionWindow w{M, history, kv4, {}, {}, {}};
  w.qkv = normals(random, static_cast<size_t>(M) * (s.H + 2 * s.Hkv) * s.D, random.uniform(0.1f, 3.0f));
  for (int32_t m = 0; m < M; ++m) {
    std::vector<int32_t> slots;
    const int32_t parent = shape == Shape::tree ? random.integer(-1, m - 1) : m - 1;
    const bool spare = shape == Shape::padded && m >= M - M / 3;
    if (parent >= 0 && !spare) slots = w.visible[parent];
    slots.push_back(m);
    w.positions.push_back(spare ? (m % 2 == 0 ? -7 : 1 << 30) : history + static_cast<int32_t>(slots.size()) - 1);
    w.visible.push_back(slots);
  }
  return w;
}

std::vector<int32_t> pack_mask(const AttentionWindow &w) {
  const int32_t words = (w.M + 31) / 32;
  std::vector<int32_t> mask(static_cast<size_t>(w.M) * words, 0);
  for (int32_t m = 0; m < w.M; ++m) {
    for (int32_t slot : w.visible[m]) mask[m * words + slot / 32] |= static_cast<int32_t>(1u << (slot % 32));
    if (w.M % 32 != 0) mask[m * words + words - 1] |= static_cast<int32_t>(~0u << (w.M % 32));
  }
  return mask;
}

Lossless::Lossless(Random &random, const AttentionSizes &s, int32_t p)
    : random_(random), sizes_(s), p_(p), model_(make_model(random, s, p + 65)), qkv_(make_window(random, s, p + 1, 0, 0, Shape::causal).qkv) {
  sequence_.resize(s, p + 1);
}

AttentionWindow Lossless::alone(int32_t first, int32_t count) const {
  const size_t row = qkv_.size() / static_cast<size_t>(p_ + 1);
  AttentionWindow w{count, 0, 0, {}, {}, {}};
  w.qkv.assign(qkv_.begin() + first * row, qkv_.begin() + (first + count) * row);
  for (int32_t m = 0; m < count; ++m) {
    w.positions.push_back(first + m);
    w.visible.push_back({m});
  }
  return w;
}

void Lossless::store(int32_t first, int32_t M, const StoredRows &stored) {
  for (int32_t m = 0; m < M; ++m) sequence_.copy_row(sizes_, first + m, stored, m);
}

AttentionWindow Lossless::window(int32_t before, int32_t after, bool tree) {
  const size_t row = qkv_.size() / static_cast<size_t>(p_ + 1);
  AttentionWindow w{0, p_ - before, 0, {}, {}, {}};
  std::vector<int32_t> path;
  const auto push = [&](int32_t position, const float *values) {
    w.qkv.insert(w.qkv.end(), values, values + row);
    w.positions.push_back(position);
    w.visible.push_back(path);
    w.visible.back().push_back(w.M++);
  };
  const auto decoy = [&](int32_t position) { push(position, normals(random_, row, 1.0f).data()); };
  for (int32_t position = p_ - before; position <= p_; ++position) {
    if (tree) decoy(position);
    push(position, qkv_.data() + position * row);
    path = w.visible.back();
  }
  for (int32_t i = 0; i < after; ++i) decoy(p_ + 1);
  return w;
}

StoredRows Lossless::history(int32_t capacity, int32_t history) {
  StoredRows stored = make_history(random_, sizes_, capacity, 0, 0);
  for (int32_t i = 0; i < history; ++i) stored.copy_row(sizes_, i, sequence_, i);
  return stored;
}

}  // namespace sweep
