// Sizes that follow from a bitmtp_weight. Always inlined, since kernels of every instruction set include this.
#pragma once

#include <cstdint>

#include "bitmtp/abi.h"

namespace bitmtp {

#define BITMTP_ALWAYS_INLINE static inline __attribute__((always_inline))

BITMTP_ALWAYS_INLINE int32_t padded(int32_t width) { return (width + 63) / 64 * 64; }

// Tiles of 8 rows.
BITMTP_ALWAYS_INLINE int32_t tiles_of(const bitmtp_weight &weight) { return (weight.rows + 7) / 8; }

// Columns of a scale group, and how many groups a row has.
BITMTP_ALWAYS_INLINE int32_t group_columns(const bitmtp_weight &weight) {
  return weight.group_size > 0 ? weight.group_size : padded(weight.width);
}
BITMTP_ALWAYS_INLINE int32_t groups_of(const bitmtp_weight &weight) {
  return (padded(weight.width) + group_columns(weight) - 1) / group_columns(weight);
}

}  // namespace bitmtp
