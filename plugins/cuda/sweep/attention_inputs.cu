#include "attention_inputs.cuh"

#include <cstring>

#include "bitmtp/abi.h"

namespace sweep {

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

AttentionResult run_attention(const AttentionModel &model, const StoredRows &history, int32_t capacity,
                              const AttentionWindow &w, std::string &fault) {
  const AttentionSizes &s = model.sizes;
  const bool nested = s.kind == BITMTP_KV_NESTED;
  const int32_t words = (w.M + 31) / 32;
  std::vector<int32_t> mask(static_cast<size_t>(w.M) * words, 0);
  for (int32_t m = 0; m < w.M; ++m) {
    for (int32_t slot : w.visible[m]) mask[m * words + slot / 32] |= static_cast<int32_t>(1u << (slot % 32));
    if (w.M % 32 != 0) mask[m * words + words - 1] |= static_cast<int32_t>(~0u << (w.M % 32));  // nobody may look at these
  }
  AttentionResult result;
  result.stored.resize(s, w.M);
  const DeviceArray<float> qkv(w.qkv), rotary(model.rotary), bias(model.bias), q_norm(model.q_norm), k_norm(model.k_norm),
      sub_norm(model.sub_norm);
  const DeviceArray<int32_t> positions(w.positions), visible(mask), length(&w.history, 1), kv4(&w.kv4, 1), base(history.base),
      refinement(history.refinement);
  const DeviceArray<uint16_t> scales(history.scale), half(history.half);
  bitmtp_nested_kv_attention_args a = {};
  a.qkv = qkv.data(), a.positions = positions.data(), a.mask = visible.data();
  a.history_length = length.data(), a.kv4_length = w.kv4 == 0 ? nullptr : kv4.data();
  a.rotary = rotary.data(), a.history = nested ? static_cast<const void *>(base.data()) : half.data();
  if (nested) a.history_refinement = refinement.data(), a.history_scale = scales.data();
  if (s.bias) a.qkv_bias = bias.data();
  if (s.qk_norm) a.q_norm = q_norm.data(), a.k_norm = k_norm.data();
  if (s.sub_norm) a.sub_norm = sub_norm.data();
  a.softmax_scale = model.softmax_scale, a.epsilon = model.epsilon;
  a.M = w.M, a.H = s.H, a.Hkv = s.Hkv, a.D = s.D, a.capacity = capacity, a.rotary_rows = model.rotary_rows, a.kv_kind = s.kind;
  const size_t workspace_bytes = static_cast<size_t>(bitmtp_cuda_nested_kv_attention_workspace_bytes(&a));

  for (int32_t run = 0; run < 2; ++run) {
    const DeviceOutput<int8_t> codes(static_cast<size_t>(w.M) * s.H * s.D);
    const DeviceOutput<float> scale(w.M);
    const DeviceOutput<uint16_t> new_half(result.stored.half.size()), new_scale(result.stored.scale.size());
    const DeviceOutput<int32_t> new_base(result.stored.base.size()), new_refinement(result.stored.refinement.size());
    const DeviceOutput<uint8_t> workspace(workspace_bytes);
    a.codes = reinterpret_cast<int32_t *>(codes.data()), a.scale = scale.data(), a.workspace = workspace.data();
    a.new_rows = nested ? static_cast<void *>(new_base.data()) : new_half.data();
    if (nested) a.new_refinement = new_refinement.data(), a.new_scale = new_scale.data();
    require(bitmtp_cuda_nested_kv_attention(&a, nullptr), "attention");
    finish();
    bool intact[6];
    AttentionResult got;
    got.codes = codes.read(intact[0]), got.scale = scale.read(intact[1]), got.stored.half = new_half.read(intact[2]);
    got.stored.scale = new_scale.read(intact[3]), got.stored.base = new_base.read(intact[4]);
    got.stored.refinement = new_refinement.read(intact[5]);
    for (bool each : intact) {
      if (!each) fault = "wrote outside its outputs";
    }
    workspace.read(intact[0]);
    if (!intact[0]) fault = "wrote outside its workspace";
    if (run == 1 && (got.codes != result.codes || std::memcmp(got.scale.data(), result.scale.data(), got.scale.size() * 4) != 0 ||
                     got.stored.base != result.stored.base || got.stored.refinement != result.stored.refinement ||
                     got.stored.scale != result.stored.scale || got.stored.half != result.stored.half)) {
      fault = "two runs differ";
    }
    result = got;
  }
  return result;
}

}  // namespace sweep
