// Rule 5 for a tile of 8 output rows and a block of activation rows: shared by the linear operators and the head.
//
// Lanes are output rows. A packed word of the eight rows is one load; a shift and a mask give the codes that meet an activation
// word, which is broadcast. Zero points come off at the end of a group, as (zero point) * (sum of the group's activation codes).
#pragma once

#include "arith.h"
#include "int_dot.h"
#include "weight.h"

namespace bitmtp {
namespace BITMTP_ISA {

// ---- the weight kinds: how one packed word of a tile becomes codes ------------------------------------------------------

// kParts: activation words that one packed word meets. kRun: packed words between two settle() of the dots; it divides the
// words of 64 columns. `at` is the word's offset in a plane.
struct TernaryCodes {
  typedef Small Codes;
  static constexpr int32_t kParts = 4, kRun = 4, kZeroPoint = 1;
  static constexpr float kScale = 1.0f;
  const int32_t *table;
  __attribute__((always_inline)) explicit TernaryCodes(const bitmtp_weight &w) : table(static_cast<const int32_t *>(w.table)) {}
  __attribute__((always_inline)) void load(int64_t at) { word = load_word(table + at); }
  __attribute__((always_inline)) void prefetch(int64_t at) const { __builtin_prefetch(table + at); }
  __attribute__((always_inline)) Small part(int s) const { return small(mask_bytes(shift_right(word, 2 * s), 0x03)); }
  Word word;
};

struct BaseCodes {
  typedef Small Codes;
  static constexpr int32_t kParts = 2, kRun = 4, kZeroPoint = 8;
  static constexpr float kScale = 1.0f;
  const int32_t *table;
  __attribute__((always_inline)) explicit BaseCodes(const bitmtp_weight &w) : table(static_cast<const int32_t *>(w.table)) {}
  __attribute__((always_inline)) void load(int64_t at) { word = load_word(table + at); }
  __attribute__((always_inline)) void prefetch(int64_t at) const { __builtin_prefetch(table + at); }
  __attribute__((always_inline)) Small part(int s) const { return small(mask_bytes(shift_right(word, 4 * s), 0x0F)); }
  Word word;
};

// (q + 8) * 16 + (r + 8) = (16q + r) + 136, and it fits a byte.
struct ComposedCodes {
  typedef Bytes Codes;
  static constexpr int32_t kParts = 2, kRun = 4, kZeroPoint = 136 - kByteBias;
  static constexpr float kScale = 0.0625f;
  const int32_t *table;
  const int32_t *refinement;
  __attribute__((always_inline)) explicit ComposedCodes(const bitmtp_weight &w)
      : table(static_cast<const int32_t *>(w.table)), refinement(w.refinement) {}
  __attribute__((always_inline)) void load(int64_t at) {
    word = load_word(table + at);
    fine = load_word(refinement + at);
  }
  __attribute__((always_inline)) void prefetch(int64_t at) const {
    __builtin_prefetch(table + at);
    __builtin_prefetch(refinement + at);
  }
  __attribute__((always_inline)) Bytes part(int s) const { return composed(word, fine, s); }
  Word word, fine;
};

struct Int8Codes {
  typedef Bytes Codes;
  static constexpr int32_t kParts = 1, kRun = 8, kZeroPoint = 128 - kByteBias;
  static constexpr float kScale = 1.0f;
  const int32_t *table;
  __attribute__((always_inline)) explicit Int8Codes(const bitmtp_weight &w) : table(static_cast<const int32_t *>(w.table)) {}
  __attribute__((always_inline)) void load(int64_t at) { word = load_word(table + at); }
  __attribute__((always_inline)) void prefetch(int64_t at) const { __builtin_prefetch(table + at); }
  __attribute__((always_inline)) Bytes part(int) const { return whole(word); }
  Word word;
};

// ---- activation rows ----------------------------------------------------------------------------------------------------

// kBlock: activation rows that share one unpacking, as many as there are registers for. kSpare: sums that those registers hold, at
// most, when fewer rows split theirs into independent chains.
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
constexpr int32_t kBlock = 8, kSpare = 10;
#elif defined(__ARM_FEATURE_DOTPROD) && defined(BITMTP_NEON_DOT)
constexpr int32_t kBlock = 8, kSpare = 8;
#elif defined(__AVX2__) || defined(BITMTP_NEON_DOT)
constexpr int32_t kBlock = 4, kSpare = 2;
#else
constexpr int32_t kBlock = 2, kSpare = 2;
#endif

// The processor's own prefetching falls behind where a line of weights meets several activation rows. In words of 4 bytes; tiles
// follow each other, and a prefetch past the last one is harmless.
constexpr int32_t kAhead = 1024;

constexpr int32_t kSums = 16384;  // 64 KiB of stack: at least 8 rows, at the most groups that plan_create lets through

constexpr int32_t kResident = 262144;  // bytes of activation codes that should stay in the second-level cache

// Activation rows that a pass over the weights takes along. A second pass costs reading the weights again, which with this many
// rows takes less time than the arithmetic.
BITMTP_INLINE int32_t rows_of_a_pass(const bitmtp_weight &w) {
  const int32_t summed = kSums / groups_of(w);
  const int32_t resident = kResident / padded(w.width) / kBlock * kBlock;
  const int32_t rows = resident < 16 ? 16 : resident;
  return rows < summed ? rows : summed;
}

struct ActivationRow {
  const int32_t *codes;
  const int32_t *sums;  // for each group: zero point * sum of the codes
};

BITMTP_INLINE void sum_codes(const int32_t *codes, const bitmtp_weight &w, int32_t zero_point, int32_t *sums) {
  const int8_t *bytes = reinterpret_cast<const int8_t *>(codes);
  const int32_t columns = padded(w.width);
  const int32_t step = group_columns(w);
  for (int32_t first = 0, g = 0; first < columns; first += step, ++g) {
    const int32_t last = columns - first < step ? columns : first + step;
    int32_t sum = 0;
    for (int32_t i = first; i < last; ++i) sum += bytes[i];
    sums[g] = static_cast<int32_t>(static_cast<uint32_t>(sum) * static_cast<uint32_t>(zero_point));
  }
}

// ---- the dot ------------------------------------------------------------------------------------------------------------

// acc[m] = sum over groups of float(dot) * scale, for the 8 rows of a tile and activation rows 0 .. kRows-1.
template <class Plane, int kRows>
static __attribute__((noinline)) void dot_tile(const bitmtp_weight &w, int64_t tile, const ActivationRow *rows, f8 *acc) {
  // One chain of dependent additions would leave the multipliers idle where there are few rows.
  constexpr int kChains = 4 * kRows <= kSpare ? 4 : 2 * kRows <= kSpare ? 2 : 1;
  constexpr int kColumns = 4 * Plane::kParts;  // of a packed word
  const int32_t words = padded(w.width) / kColumns;
  const int32_t group_words = group_columns(w) / kColumns;
  const int32_t groups = groups_of(w);
  const int64_t first = tile * words * 8;
  const uint16_t *scales = w.scales + tile * groups * 8;
  Plane plane(w);
  const int32_t *codes[kRows];
  f8 total[kRows];
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
    codes[m] = rows[m].codes;
    total[m] = f8{};
  }
  int32_t word = 0;
  for (int32_t g = 0; g < groups; ++g) {
    const int32_t last = words - word < group_words ? words : word + group_words;
    Dot<typename Plane::Codes> dots[kRows][kChains];
    for (; word < last; word += Plane::kRun) {
      Quad quads[kRows];
#pragma GCC unroll 8
      for (int r = 0; r < Plane::kRun; ++r) {
        const int64_t at = first + static_cast<int64_t>(word + r) * 8;
        if (r % 2 == 0) plane.prefetch(at + kAhead);
        plane.load(at);
#pragma GCC unroll 4
        for (int s = 0; s < Plane::kParts; ++s) {
          const int i = r * Plane::kParts + s;  // activation word of this run
          const typename Plane::Codes part = plane.part(s);
#pragma GCC unroll 8
          for (int m = 0; m < kRows; ++m) {
            if (i % 4 == 0) quads[m] = load_quad(codes[m] + word * Plane::kParts + i);
            dots[m][i % kChains].add(part, quads[m], i % 4);
          }
        }
      }
#pragma GCC unroll 8
      for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 4
        for (int c = 0; c < kChains; ++c) dots[m][c].settle();
    }
    const f8 scale = load_half8(scales + g * 8) * broadcast(Plane::kScale);
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      i8 dot = dots[m][0].total();
#pragma GCC unroll 4
      for (int c = 1; c < kChains; ++c) dot = dot + dots[m][c].total();
      dot = dot - broadcast(rows[m].sums[g]);
      total[m] += to_float(dot) * scale;
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) acc[m] = total[m];
}

// The same for 1 .. kBlock rows.
template <class Plane, int kRows = kBlock>
BITMTP_INLINE void dot_tile_block(const bitmtp_weight &w, int64_t tile, const ActivationRow *rows, int32_t count, f8 *acc) {
  if constexpr (kRows > 1) {
    if (count < kRows) return dot_tile_block<Plane, kRows - 1>(w, tile, rows, count, acc);
  }
  dot_tile<Plane, kRows>(w, tile, rows, acc);
}

}  // namespace BITMTP_ISA
}  // namespace bitmtp
