#include "attention_run.cuh"

#include <cstring>

#include "bitmtp/abi.h"

namespace sweep {

AttentionResult run_attention(const AttentionModel &model, const StoredRows &history, int32_t capacity,
                              const AttentionWindow &w, std::string &fault) {
  const AttentionSizes &s = model.sizes;
  const bool nested = s.kind == BITMTP_KV_NESTED;
  AttentionResult result;
  result.stored.resize(s, w.M);
  const DeviceArray<float> qkv(w.qkv), rotary(model.rotary), bias(model.bias), q_norm(model.q_norm), k_norm(model.k_norm),
      sub_norm(model.sub_norm);
  const DeviceArray<int32_t> positions(w.positions), visible(pack_mask(w)), length(&w.history, 1), kv4(&w.kv4, 1), base(history.base),
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
