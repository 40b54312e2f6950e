// Inputs of NestedKVAttention, and one run of it with everything around its buffers guarded.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "../../cpu/sweep/attention_reference.h"  // the descriptions of sizes, models, windows and stored rows
#include "device.h"

namespace sweep {

enum class Shape { causal, tree, padded };

std::vector<float> normals(Random &random, size_t n, float spread);
AttentionModel make_model(Random &random, const AttentionSizes &s, int32_t rotary_rows);

// `rows` stored rows, of which those from `history` on are poison, and the refinement below kv4 is too.
StoredRows make_history(Random &random, const AttentionSizes &s, int32_t rows, int32_t history, int32_t kv4);

// Slots that a row of the shape sees: its ancestors and itself, or only itself in the spare slots of a padded window.
AttentionWindow make_window(Random &random, const AttentionSizes &s, int32_t M, int32_t history, int32_t kv4, Shape shape);

// Runs the operator twice, workspace and outputs poisoned. `fault` says what went wrong, besides the values: an error, a guard band
// written, or two runs that differ.
AttentionResult run_attention(const AttentionModel &model, const StoredRows &history, int32_t capacity,
                              const AttentionWindow &window, std::string &fault);

}  // namespace sweep
