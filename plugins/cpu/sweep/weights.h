// Random packed weights for the cases, with the plain codes beside them.
#pragma once

#include <string>
#include <vector>

#include "harness.h"

namespace sweep {

// `role` of a dual-plane weight: with both planes, or the base alone. Codes take every value their bits admit, also those that an
// exporter never writes, and so do the padding rows and columns.
struct TestWeight {
  TestWeight(Random &random, int32_t kind, bool both_planes, int32_t rows, int32_t width, int32_t group_size);

  // The signed code of a row and column: 16q + r where both planes are there.
  int32_t code(int32_t row, int32_t column) const { return codes[static_cast<size_t>(row) * padded + column]; }
  // The scale of a row in a group, including the 1/16 of composed codes.
  float scale(int32_t row, int32_t group) const;
  float half(int32_t row, int32_t column) const { return half_to_float(table16[static_cast<size_t>(row) * record.width + column]); }

  bitmtp_weight record;
  int32_t padded;         // columns
  int32_t group_columns;  // of the padded width where group_size is 0
  int32_t groups;
  std::vector<int32_t> codes;  // [rows up to a multiple of 8, padded]; none for fp16
  Array<uint16_t> table16;
  Array<int32_t> table;
  Array<int32_t> refinement;
  Array<uint16_t> scales;
};

// "dual W8 37x130/64"
std::string describe(const TestWeight &weight);

// int32[M, padded/4]: any byte in the row's columns, zeros past them. Rows 0 and 1 hold nothing but 127 and -128.
Array<int32_t> random_codes(Random &random, int32_t M, int32_t width);

// Rule 5 for one row of the weight and one row of activation codes, before act_scale.
float reference_dot(const TestWeight &weight, int32_t row, const int8_t *codes);

}  // namespace sweep
