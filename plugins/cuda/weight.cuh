// Sizes that follow from a bitmtp_weight (docs/numerics.md, Layouts), and what the kernels refuse.
#pragma once

#include <cstdint>

#include "bitmtp/abi.h"

namespace bitmtp {
namespace cuda {

constexpr int32_t kMostColumns = 65536;  // an int32 dot of a whole row of 4-bit codes times 16 stays within its type
constexpr int32_t kMostRows = 1 << 24;   // of a weight
constexpr int32_t kMostSlots = 65535;    // of a window: what a grid's second dimension takes

__host__ __device__ constexpr int32_t ceil_div(int32_t a, int32_t b) { return (a + b - 1) / b; }
__host__ __device__ constexpr int32_t pad64(int32_t n) { return (n + 63) / 64 * 64; }

inline bool valid_weight(const bitmtp_weight &w) {
  if (w.rows < 1 || w.rows > kMostRows || w.width < 1 || w.width > kMostColumns || w.table == nullptr) return false;
  if (w.kind == BITMTP_FP16) return true;
  if (w.kind != BITMTP_INT8 && w.kind != BITMTP_TERNARY && w.kind != BITMTP_DUAL) return false;
  if (w.refinement != nullptr && w.kind != BITMTP_DUAL) return false;
  return w.scales != nullptr && (w.group_size == 0 || w.group_size == 64 || w.group_size == 128);
}

// Groups of a row: G.
__host__ __device__ constexpr int32_t groups_of(int32_t width, int32_t group_size) {
  return group_size > 0 ? ceil_div(pad64(width), group_size) : 1;
}

}  // namespace cuda
}  // namespace bitmtp
