// The weight codes of a step of 64 columns, unpacked in registers as the A operand of int8 mma.m16n8k32.
//
// A step of one row is 16 words of activation codes, "quads". A warp loads a step's weight words four at a time; lane (g, q) =
// (lane / 4, lane mod 4) has the q-th word of its rows. `quad(i)` of a word gives the codes that meet the lane's i-th activation word
// of that load, times a power of two that the dot is freed of later. Zero points: the 4- and 8-bit codes become signed by flipping
// their top bit; the ternary ones stay unsigned, and the sum of the activation codes is subtracted from the dot.
#pragma once

#include <cstdint>

#include "bitmtp/abi.h"

namespace bitmtp {
namespace cuda {

// One plane as it is laid out in memory.
enum class Kind { kTernary, kBase, kComposed, kInt8 };

template <Kind kind>
struct Codes;

// w & mask, ^ flip: one instruction.
__device__ __forceinline__ uint32_t masked(uint32_t w, uint32_t mask, uint32_t flip) { return (w & mask) ^ flip; }

template <>
struct Codes<Kind::kTernary> {
  static constexpr int kPlanes = 1;
  static constexpr int kWordColumns = 16;
  static constexpr bool kZeroPoint = true;  // 1
  static constexpr int kSecondShift = 2;    // the second accumulator counts 4 times
  static constexpr float kUnit = 1.0f;
};
template <>
struct Codes<Kind::kBase> {
  static constexpr int kPlanes = 1;
  static constexpr int kWordColumns = 8;
  static constexpr bool kZeroPoint = false;
  static constexpr int kSecondShift = 0;  // no second accumulator
  static constexpr float kUnit = 0.0625f;  // codes 16q
};
template <>
struct Codes<Kind::kComposed> {
  static constexpr int kPlanes = 2;
  static constexpr int kWordColumns = 8;
  static constexpr bool kZeroPoint = false;
  static constexpr int kSecondShift = 4;   // codes 16q in the first, 16r in the second
  static constexpr float kUnit = 0.0625f;  // the composed code's scale is s/16
};
template <>
struct Codes<Kind::kInt8> {
  static constexpr int kPlanes = 1;
  static constexpr int kWordColumns = 4;
  static constexpr bool kZeroPoint = false;
  static constexpr int kSecondShift = 0;
  static constexpr float kUnit = 1.0f;
};

// d += a * b over 16 rows, 8 columns and 32 of K; a unsigned or signed, b signed.
template <bool kUnsigned>
__device__ __forceinline__ void mma(int32_t (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  if constexpr (kUnsigned) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
}

}  // namespace cuda
}  // namespace bitmtp
