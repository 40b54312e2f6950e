// What a row of the window sees of the window: its mask.
#pragma once

#include <cstdint>

#include "attention_layout.cuh"
#include "bitmtp/abi.h"

namespace bitmtp {
namespace cuda {
namespace attention {

constexpr int32_t kNowhere = -1;   // a slot that is none
constexpr int32_t kEveryRow = -1;  // in place of a row: all that see a prefix of the window

BITMTP_BOTH int32_t within(int32_t x, int32_t low, int32_t high) { return x < low ? low : x > high ? high : x; }

struct Sight {
  int32_t count;  // visible slots
  bool prefix;    // they are slots 0 .. count-1
};

__device__ __forceinline__ uint32_t mask_word(const bitmtp_nested_kv_attention_args &a, int32_t row, int32_t word) {
  const uint32_t bits = static_cast<uint32_t>(a.mask[int64_t{row} * ((a.M + 31) / 32) + word]);
  const int32_t rest = a.M - 32 * word;
  return rest >= 32 ? bits : bits & ((1u << rest) - 1u);
}

// Of a row, the first word of whose mask is given.
__device__ __forceinline__ Sight sight_of(const bitmtp_nested_kv_attention_args &a, int32_t row, uint32_t word) {
  int32_t count = __popc(word), past = 32 - __clz(word);
#pragma unroll 1
  for (int32_t w = 1; w < (a.M + 31) / 32; ++w) {
    const uint32_t bits = mask_word(a, row, w);
    count += __popc(bits);
    if (bits != 0) past = 32 * w + 32 - __clz(bits);
  }
  return {count, count == past};
}

// The t-th visible slot of a row.
__device__ __forceinline__ int32_t visible_slot(const bitmtp_nested_kv_attention_args &a, int32_t row, int32_t t) {
#pragma unroll 1
  for (int32_t w = 0; w < (a.M + 31) / 32; ++w) {
    uint32_t bits = mask_word(a, row, w);
    const int32_t n = __popc(bits);
    if (t < n) {
#pragma unroll 1
      for (; t > 0; --t) bits &= bits - 1;
      return 32 * w + __ffs(static_cast<int32_t>(bits)) - 1;
    }
    t -= n;
  }
  return kNowhere;
}

__device__ __forceinline__ int32_t history_of(const bitmtp_nested_kv_attention_args &a) {
  return within(a.history_length[0], 0, a.capacity);
}

}  // namespace attention
}  // namespace cuda
}  // namespace bitmtp
