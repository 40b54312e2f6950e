#include "weights.h"

namespace sweep {

namespace {

int32_t up(int32_t n, int32_t step) { return (n + step - 1) / step * step; }

int32_t bits_of(int32_t kind) { return kind == BITMTP_TERNARY ? 2 : kind == BITMTP_DUAL ? 4 : 8; }

size_t plane_words(int32_t kind, int32_t rows, int32_t width) {
  return kind == BITMTP_FP16 ? 0 : static_cast<size_t>(up(rows, 8)) * up(width, 64) * bits_of(kind) / 32;
}

void set_code(Array<int32_t> &plane, int32_t bits, int32_t padded, int32_t row, int32_t column, uint32_t code) {
  const int32_t columns = 32 / bits;
  const int32_t in = column % columns;
  const size_t word = (static_cast<size_t>(row / 8) * (padded / columns) + column / columns) * 8 + row % 8;
  plane[word] = static_cast<int32_t>(static_cast<uint32_t>(plane[word]) | code << (8 * (in % 4) + bits * (in / 4)));
}

}  // namespace

TestWeight::TestWeight(Random &random, int32_t kind, bool both_planes, int32_t rows, int32_t width, int32_t group_size)
    : padded(up(width, 64)),
      group_columns(group_size > 0 ? group_size : padded),
      groups((padded + group_columns - 1) / group_columns),
      table16(kind == BITMTP_FP16 ? static_cast<size_t>(rows) * width : 0),
      table(plane_words(kind, rows, width)),
      refinement(both_planes ? plane_words(kind, rows, width) : 0),
      scales(kind == BITMTP_FP16 ? 0 : static_cast<size_t>(up(rows, 8)) * groups) {
  record = bitmtp_weight{table.data(), both_planes ? refinement.data() : nullptr, scales.data(), kind, rows, width, group_size};
  if (kind == BITMTP_FP16) {
    record.table = table16.data();
    record.scales = nullptr;
    for (size_t i = 0; i < table16.size(); ++i) table16[i] = float_to_half(random.uniform(-1.0f, 1.0f));
    return;
  }
  for (size_t i = 0; i < scales.size(); ++i) scales[i] = float_to_half(random.uniform(0.0f, 0.05f));
  const int32_t bits = bits_of(kind);
  const int32_t zero_point = kind == BITMTP_TERNARY ? 1 : 1 << (bits - 1);
  codes.resize(static_cast<size_t>(up(rows, 8)) * padded);
  const bool extreme = random.integer(0, 3) == 0;  // only the largest and the smallest codes: what could overflow does
  for (int32_t row = 0; row < up(rows, 8); ++row) {
    for (int32_t column = 0; column < padded; ++column) {
      const uint32_t drawn = static_cast<uint32_t>(random.bits());
      const uint32_t most = (1u << bits) - 1;
      const uint32_t q = extreme ? (drawn >> 16 & 7 ? most : 0) : drawn & most;
      set_code(table, bits, padded, row, column, q);
      int32_t code = static_cast<int32_t>(q) - zero_point;
      if (both_planes) {
        const uint32_t r = extreme ? q : drawn >> 8 & 15;
        set_code(refinement, bits, padded, row, column, r);
        code = 16 * code + static_cast<int32_t>(r) - 8;
      }
      codes[static_cast<size_t>(row) * padded + column] = code;
    }
  }
}

float TestWeight::scale(int32_t row, int32_t group) const {
  const float s = half_to_float(scales[(static_cast<size_t>(row / 8) * groups + group) * 8 + row % 8]);
  return record.refinement != nullptr ? s / 16.0f : s;
}

std::string describe(const TestWeight &weight) {
  static const char *const kinds[] = {"fp16", "int8", "ternary", "dual W4"};
  const bitmtp_weight &w = weight.record;
  return std::string(w.refinement != nullptr ? "dual W8" : kinds[w.kind]) + " " + std::to_string(w.rows) + "x" +
         std::to_string(w.width) + "/" + std::to_string(w.group_size);
}

Array<int32_t> random_codes(Random &random, int32_t M, int32_t width) {
  const int32_t padded = up(width, 64);
  Array<int32_t> codes(static_cast<size_t>(M) * padded / 4);
  int8_t *bytes = reinterpret_cast<int8_t *>(codes.data());
  for (int32_t m = 0; m < M; ++m)
    for (int32_t k = 0; k < width; ++k)
      bytes[static_cast<size_t>(m) * padded + k] =
          static_cast<int8_t>(m == 0 ? 127 : m == 1 ? -128 : random.integer(-128, 127));
  return codes;
}

float reference_dot(const TestWeight &weight, int32_t row, const int8_t *codes) {
  float acc = 0.0f;
  for (int32_t g = 0; g < weight.groups; ++g) {
    int64_t dot = 0;
    for (int32_t k = g * weight.group_columns; k < (g + 1) * weight.group_columns && k < weight.padded; ++k)
      dot += static_cast<int64_t>(codes[k]) * weight.code(row, k);
    acc = acc + static_cast<float>(dot) * weight.scale(row, g);
  }
  return acc;
}

}  // namespace sweep
