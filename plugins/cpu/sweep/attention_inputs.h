// Random inputs of NestedKVAttention's cases, the same for every library.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attention_reference.h"
#include "harness.h"

namespace sweep {

enum class Shape { causal, tree, padded };

std::string describe(const AttentionSizes &s);
std::vector<float> normals(Random &random, size_t n, float spread);
AttentionModel make_model(Random &random, const AttentionSizes &s, int32_t rotary_rows);

// `rows` stored rows, of which those from `history` on are poison, and the refinement below kv4 is too.
StoredRows make_history(Random &random, const AttentionSizes &s, int32_t rows, int32_t history, int32_t kv4);

// Slots that a row of the shape sees: its ancestors and itself, or only itself in the spare slots of a padded window.
AttentionWindow make_window(Random &random, const AttentionSizes &s, int32_t M, int32_t history, int32_t kv4, Shape shape);

// The packed mask of a window. Bits past M are set: nobody may look at them.
std::vector<int32_t> pack_mask(const AttentionWindow &w);

// A row at position p of a sequence, and every kind of window that it may stand in.
class Lossless {
 public:
  Lossless(Random &random, const AttentionSizes &s, int32_t p);

  const AttentionModel &model() const { return model_; }
  // Positions first .. first + count - 1, each of which sees itself alone: what a row stores needs none of the others.
  AttentionWindow alone(int32_t first, int32_t count) const;
  // Takes what the M rows of such a window stored.
  void store(int32_t first, int32_t M, const StoredRows &stored);

  // A window in which `before` rows stand before the row and `after` ones behind it; in a tree, another branch's beside each.
  AttentionWindow window(int32_t before, int32_t after, bool tree);
  int32_t row(int32_t before, bool tree) const { return tree ? 2 * before + 1 : before; }
  // A buffer of `capacity` rows with the first `history` positions of the sequence.
  StoredRows history(int32_t capacity, int32_t history);

 private:
  Random &random_;
  AttentionSizes sizes_;
  int32_t p_;
  AttentionModel model_;
  std::vector<float> qkv_;
  StoredRows sequence_;
};

}  // namespace sweep
