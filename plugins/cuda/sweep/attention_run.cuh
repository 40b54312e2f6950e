// One run of NestedKVAttention with everything around its buffers guarded.
#pragma once

#include <cstdint>
#include <string>

#include "../../cpu/sweep/attention_inputs.h"
#include "device.h"

namespace sweep {

// Runs the operator twice, workspace and outputs poisoned. `fault` says what went wrong, besides the values: an error, a guard band
// written, or two runs that differ.
AttentionResult run_attention(const AttentionModel &model, const StoredRows &history, int32_t capacity,
                              const AttentionWindow &window, std::string &fault);

}  // namespace sweep
