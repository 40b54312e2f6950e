// NestedKVAttention as docs/numerics.md states it, one row, head and position at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "bitmtp/abi.h"

namespace sweep {

struct AttentionSizes {
  int32_t H, Hkv, D, kind;
  bool bias, qk_norm, sub_norm;
};

// What outlives a window: parameters, and the stored rows of history.
struct AttentionModel {
  AttentionSizes sizes;
  float epsilon, softmax_scale;
  std::vector<float> bias, q_norm, k_norm, sub_norm;  // empty where the sizes say so
  int32_t rotary_rows;
  std::vector<float> rotary;
};

// Rows of a KV buffer, in the planes of the layout.
struct StoredRows {
  std::vector<int32_t> base, refinement;  // nested
  std::vector<uint16_t> scale;            // nested
  std::vector<uint16_t> half;             // fp16

  void resize(const AttentionSizes &s, int32_t rows);
  void copy_row(const AttentionSizes &s, int32_t to, const StoredRows &from, int32_t row);
};

struct AttentionWindow {
  int32_t M, history, kv4;
  std::vector<float> qkv;
  std::vector<int32_t> positions;
  std::vector<std::vector<int32_t>> visible;  // slots of each row, ascending
};

struct AttentionResult {
  StoredRows stored;
  std::vector<int8_t> codes;
  std::vector<float> scale;
};

AttentionResult reference_attention(const AttentionModel &model, const StoredRows &history, const AttentionWindow &window);

}  // namespace sweep
