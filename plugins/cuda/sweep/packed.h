// Weights on the device beside their plain codes, and rule 5 in the order of fold.h with plain loops.
#pragma once

#include <cmath>

#include "../../cpu/sweep/weights.h"
#include "../fold.h"
#include "device.h"

namespace sweep {

// The device's copy of a TestWeight.
struct DeviceWeight {
  explicit DeviceWeight(const TestWeight &host)
      : table(host.table), table16(host.table16), refinement(host.refinement), scales(host.scales), record(host.record) {
    record.table = record.kind == BITMTP_FP16 ? static_cast<const void *>(table16.data()) : table.data();
    record.refinement = host.record.refinement != nullptr ? refinement.data() : nullptr;
    record.scales = record.kind == BITMTP_FP16 ? nullptr : scales.data();
  }
  DeviceArray<int32_t> table;
  DeviceArray<uint16_t> table16;
  DeviceArray<int32_t> refinement;
  DeviceArray<uint16_t> scales;
  bitmtp_weight record;
};

// Before act_scale. `bound` gets the sum of |dot * scale|.
inline float folded_dot(const TestWeight &weight, int32_t row, const int8_t *codes, double &exact, double &bound) {
  using namespace bitmtp::cuda;
  const int32_t *line = weight.codes.data() + static_cast<size_t>(row) * weight.padded;
  float lanes[kFoldLanes] = {};
  int64_t whole = 0;
  exact = bound = 0.0;
  for (int32_t g = 0; g < weight.groups; ++g) {
    const int32_t first = g * weight.group_columns;
    const int32_t last = std::min(first + weight.group_columns, weight.padded);
    int32_t dot = 0;
    for (int32_t k = first; k < last; ++k) dot += codes[k] * line[k];
    const float scale = weight.scale(row, g);
    exact += static_cast<double>(dot) * scale;
    bound += std::fabs(static_cast<double>(dot) * scale);
    lanes[g % kFoldLanes] = std::fmaf(static_cast<float>(dot), scale, lanes[g % kFoldLanes]);
    whole += dot;
  }
  if (weight.record.group_size == 0) return static_cast<float>(whole) * weight.scale(row, 0);
  return combine_lanes(lanes);
}

inline std::string numbered(const char *name, int64_t value) { return std::string(" ") + name + "=" + std::to_string(value); }

}  // namespace sweep
