// What the operators with a packed weight share: its attributes, ports and record. Layouts: bitmtp/abi.h.
#pragma once

#include "bitmtp/abi.h"
#include "operator.h"

namespace bitmtp {
namespace tensorrt {

constexpr Word kWeightKinds[] = {{"fp16", BITMTP_FP16}, {"int8", BITMTP_INT8}, {"ternary", BITMTP_TERNARY}, {"dual", BITMTP_DUAL}};

constexpr int64_t kTileRows = 8;

struct WeightSizes {
  int32_t rows = 0;
  int32_t width = 0;
  int32_t group_size = 0;

  template <class Visit>
  void fields(Visit &&visit) {
    visit("rows", rows);
    visit("width", width);
    visit("group_size", group_size);
  }

  void check() const {
    if (rows < 1 || width < 1) throw Fault(format("has %d rows and width %d, expected at least 1", rows, width));
    if (group_size != 0 && group_size != 64 && group_size != 128) {
      throw Fault(format("group_size is %d, expected 0, 64 or 128", group_size));
    }
  }

  int64_t tiles() const { return (rows + kTileRows - 1) / kTileRows; }
  int64_t groups() const { return group_size == 0 ? 1 : (pad64(width) + group_size - 1) / group_size; }

  Port table(const char *name, int32_t kind) const {
    if (kind == BITMTP_FP16) return {name, DataType::kHALF, {rows, width}};
    const int64_t codes = kind == BITMTP_INT8 ? 4 : kind == BITMTP_TERNARY ? 16 : 8;  // of a word
    return {name, DataType::kINT32, {tiles(), pad64(width) / codes, kTileRows}};
  }
  Port scales(int32_t kind) const {
    return {"scales", DataType::kHALF, {tiles(), groups(), kTileRows}, kind == BITMTP_FP16 ? Presence::kNever : Presence::kAlways};
  }
  Port refinement(int32_t kind) const {
    return {"refinement", DataType::kINT32, {tiles(), pad64(width) / 8, kTileRows},
            kind == BITMTP_DUAL ? Presence::kOptional : Presence::kNever};
  }

  // refinement: null where there is no such port.
  bitmtp_weight record(int32_t kind, const void *table, const uint16_t *scales, const int32_t *refinement) const {
    return {table, refinement, scales, kind, rows, width, group_size};
  }
};

}  // namespace tensorrt
}  // namespace bitmtp
