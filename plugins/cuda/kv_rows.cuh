// Heads of window rows, D/8 lanes each: bias, norm, rotary embedding; rounding of keys and values to their stored form; and codes of
// stored rows as fp16 numbers (rules 9 and 10 of docs/numerics.md). Lane i of a head has columns 4*i .. +3 and, part 1, those D/2 further.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "attention_layout.cuh"
#include "attention_math.cuh"
#include "bitmtp/abi.h"
#include "numerics.cuh"

namespace bitmtp {
namespace cuda {
namespace attention {

__device__ __forceinline__ float4 scale_by(float4 x, float f) { return {mul(x.x, f), mul(x.y, f), mul(x.z, f), mul(x.w, f)}; }
__device__ __forceinline__ float4 times(float4 x, float4 y) { return {mul(x.x, y.x), mul(x.y, y.y), mul(x.z, y.z), mul(x.w, y.w)}; }
__device__ __forceinline__ float4 plus(float4 x, float4 y) { return {add(x.x, y.x), add(x.y, y.y), add(x.z, y.z), add(x.w, y.w)}; }
__device__ __forceinline__ float4 minus(float4 x, float4 y) { return {sub(x.x, y.x), sub(x.y, y.y), sub(x.z, y.z), sub(x.w, y.w)}; }
__device__ __forceinline__ float largest(float4 x) { return fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)), fmaxf(fabsf(x.z), fabsf(x.w))); }
__device__ __forceinline__ float sum_squares(float4 x) {
  return add(add(mul(x.x, x.x), mul(x.y, x.y)), add(mul(x.z, x.z), mul(x.w, x.w)));
}
__device__ __forceinline__ float4 load4(const float *p) { return *reinterpret_cast<const float4 *>(p); }

template <int D>
constexpr int32_t kHeadLanes = D / 8;
template <int D>
constexpr int32_t kHeadsOfWarp = 32 / kHeadLanes<D>;

struct HeadParts {
  float4 part[2];
};

// What turns a head (of H + 2*Hkv) of a row at `position` into queries, keys or values. What a head has none of is loaded as what changes
// nothing, so that no load waits behind a branch.
struct HeadInputs {
  HeadParts bias, norm;
  float4 cosine, sine;
  bool normed;
};
// Nothing of it is computed in a step: it may be read before the wait for the previous kernel.
template <int D>
__device__ __forceinline__ HeadInputs head_inputs(const bitmtp_nested_kv_attention_args &a, int32_t position, int32_t head, int32_t i) {
  const bool value = head >= a.H + a.Hkv;
  const float *norm = value ? nullptr : head < a.H ? a.q_norm : a.k_norm;
  const float *row = a.rotary + int64_t{min(max(position, 0), a.rotary_rows - 1)} * D + 4 * i;
  const float4 none = {0.0f, 0.0f, 0.0f, 0.0f}, one = {1.0f, 1.0f, 1.0f, 1.0f};
  HeadInputs in;
  in.normed = norm != nullptr;
  in.cosine = value ? one : load4(row), in.sine = value ? none : load4(row + D / 2);
#pragma unroll
  for (int32_t j = 0; j < 2; ++j) {
    in.norm.part[j] = norm ? load4(norm + D / 2 * j + 4 * i) : one;
    in.bias.part[j] = a.qkv_bias ? load4(a.qkv_bias + int64_t{head} * D + D / 2 * j + 4 * i) : none;
  }
  return in;
}

template <int D>
__device__ __forceinline__ HeadParts raw_head(const bitmtp_nested_kv_attention_args &a, int32_t m, int32_t head, int32_t i) {
  const float *from = a.qkv + (int64_t{m} * (a.H + 2 * a.Hkv) + head) * D + 4 * i;
  return {load4(from), load4(from + D / 2)};
}

// A head with bias, norm and rotary embedding, the largest of its magnitudes and its sum.
struct Prepared {
  HeadParts x;
  float most, sum;
};
// All lanes of a warp together, whatever their heads are. The norm's factor comes last, so that one pass over the lanes finds all three.
template <int D>
__device__ __forceinline__ Prepared prepared_head(const HeadInputs &in, float epsilon, HeadParts x) {
  const auto sum_of = [](float4 v) { return add(add(v.x, v.y), add(v.z, v.w)); };
#pragma unroll
  for (int32_t j = 0; j < 2; ++j) x.part[j] = plus(x.part[j], in.bias.part[j]);
  float squares = add(sum_squares(x.part[0]), sum_squares(x.part[1]));
  const float4 low = times(x.part[0], in.norm.part[0]), high = times(x.part[1], in.norm.part[1]);
  x.part[0] = minus(times(low, in.cosine), times(high, in.sine));
  x.part[1] = plus(times(high, in.cosine), times(low, in.sine));
  float most = fmaxf(largest(x.part[0]), largest(x.part[1])), sum = add(sum_of(x.part[0]), sum_of(x.part[1]));
#pragma unroll
  for (int bit = kHeadLanes<D> / 2; bit > 0; bit /= 2) {
    squares = add(squares, __shfl_xor_sync(kAllLanes, squares, bit));
    most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, bit));
    sum = add(sum, __shfl_xor_sync(kAllLanes, sum, bit));
  }
  const float factor = in.normed ? inverse_root(add(mul(squares, 1.0f / D), epsilon)) : 1.0f;
  return {{scale_by(x.part[0], factor), scale_by(x.part[1], factor)}, mul(most, factor), mul(sum, factor)};
}

// ---- queries ----------------------------------------------------------------------------------------------------------

// What turns a dot of a query vector into a score of log2, and the sum of the vector as it stands in its fragments: codes are
// dotted with their zero point on, which this takes off.
struct QueryScale {
  float factor, sum;
};

// Writes query vector `column` (0 .. 7) of a tile to its fragments [D/16, 32]: high parts of both halves of a step, then low parts.
template <int D, bool kNested>
__device__ __forceinline__ QueryScale write_query(const Prepared &head, float softmax_scale, int32_t column, int32_t i, uint4 *fragments) {
  const Shift shift = shift_of(head.most);
#pragma unroll
  for (int32_t j = 0; j < 2; ++j) {
    const float4 y = scale_by(head.x.part[j], shift.up);
    uint4 f;
    split(y.x, kNested ? y.z : y.y, f.x, f.z);
    split(kNested ? y.y : y.z, y.w, f.y, f.w);
    const QueryPlace at = query_place<D, kNested>(kHeadLanes<D> * j + i);
    fragments[at.step * 32 + column * 4 + at.thread] = f;
  }
  return {mul(mul(softmax_scale, kLog2e), shift.down), mul(head.sum, shift.up)};
}

// ---- stored form ------------------------------------------------------------------------------------------------------

// Half to even: between 2^23 and 2^24 there are integers alone. A NaN becomes `low`.
constexpr float kWhole = 12582912.0f;
__device__ __forceinline__ float rounded_over(float whole, float x, float low, float high) {
  return add(fminf(fmaxf(x, low), high), whole);
}
// The low bytes of four.
__device__ __forceinline__ uint32_t low_byte_each(const float (&x)[4]) {
  const uint32_t low = __byte_perm(__float_as_uint(x[0]), __float_as_uint(x[1]), 0x0040);
  return __byte_perm(low, __byte_perm(__float_as_uint(x[2]), __float_as_uint(x[3]), 0x0040), 0x5410);
}

// A lane's share of a stored head: of each part a word of both planes, which it has with a neighbour, or four halves; and the scale.
template <int D, bool kNested>
struct StoredParts {
  uint2 words[2];  // base, refinement; else halves
  uint16_t scale;
};

// All lanes of a warp together.
template <int D, bool kNested>
__device__ __forceinline__ StoredParts<D, kNested> stored_parts(const Prepared &head, int32_t i) {
  StoredParts<D, kNested> stored = {};
  const __half scale = __float2half_rn(fmaxf(quotient(head.most, 7.0f), 0x1p-14f));
  const float s = __half2float(scale), inverse = quotient(1.0f, s), fine = mul(16.0f, inverse);
#pragma unroll
  for (int32_t j = 0; j < 2; ++j) {
    const float v[4] = {head.x.part[j].x, head.x.part[j].y, head.x.part[j].z, head.x.part[j].w};
    if constexpr (kNested) {
      float q[4], r[4];
#pragma unroll
      for (int32_t b = 0; b < 4; ++b) {
        constexpr float kZero = kWhole + 8.0f;  // the zero point
        q[b] = rounded_over(kZero, mul(v[b], inverse), -7.0f, 7.0f);
        r[b] = rounded_over(kZero, mul(sub(v[b], mul(sub(q[b], kZero), s)), fine), -8.0f, 7.0f);
      }
      const int32_t nibble = 4 * (i % 2);  // even lanes hold columns 0-3 of a word, odd ones 4-7
      const uint32_t base = (low_byte_each(q) & 0x0F0F0F0Fu) << nibble, refinement = (low_byte_each(r) & 0x0F0F0F0Fu) << nibble;
      stored.words[j] = {base | __shfl_xor_sync(kAllLanes, base, 1), refinement | __shfl_xor_sync(kAllLanes, refinement, 1)};
    } else {
      stored.words[j] = {bits_of(__floats2half2_rn(v[0], v[1])), bits_of(__floats2half2_rn(v[2], v[3]))};
    }
  }
  stored.scale = __half_as_ushort(scale);
  return stored;
}

// To a head's place in each plane (nested: D/8 words and one scale; else `rows` alone, D halves).
template <int D, bool kNested>
__device__ __forceinline__ void write_stored(const StoredParts<D, kNested> &stored, int32_t i, void *rows, uint32_t *refinement,
                                             uint16_t *scale) {
#pragma unroll
  for (int32_t j = 0; j < 2; ++j) {
    const int32_t lane = kHeadLanes<D> * j + i;
    if (!kNested) {
      static_cast<uint2 *>(rows)[lane] = stored.words[j];
    } else if (i % 2 == 0) {
      static_cast<uint32_t *>(rows)[lane / 2] = stored.words[j].x;
    } else {
      refinement[lane / 2] = stored.words[j].y;
    }
  }
  if (kNested && i == 0) *scale = stored.scale;
}

// ---- codes ------------------------------------------------------------------------------------------------------------
// A code with its zero point on, in the low bits of a half, is a subnormal fp16 number in units of 2^-24: exact, and no work at all.
// Keys are read so. Values, whose sum is much smaller than that of their zero points, are brought to signed numbers first:
// over_1024() of n is the fp16 number 1024 + n.

constexpr float kSubnormal = 0x1p24f;  // turns a dot with such numbers into one with codes

// Nibbles 0 and 4 of x (counted in halves: the low four bits of each) less 8, and nibbles 1 and 5.
__device__ __forceinline__ uint32_t low_nibbles(uint32_t x) {
  return bits_of(__hadd2(halves_of(over_1024<0x000F000F>(x)), halves_of(0xE408E408u)));  // - 1032
}
__device__ __forceinline__ uint32_t high_nibbles(uint32_t x) {
  return bits_of(__hfma2(halves_of(over_1024<0x00F000F0>(x)), halves_of(0x2C002C00u), halves_of(0xD480D480u)));  // / 16 - 72
}
// Bytes 0 and 2 of x less 136.
__device__ __forceinline__ uint32_t low_bytes(uint32_t x) {
  return bits_of(__hadd2(halves_of(over_1024<0x00FF00FF>(x)), halves_of(0xE488E488u)));  // - 1160
}
// Composed codes 16q + r + 136 of a word's columns 0-3 and 4-7, a byte each.
__device__ __forceinline__ uint32_t composed_low(uint32_t base, uint32_t refinement) {
  return (base << 4 & 0xF0F0F0F0u) | (refinement & 0x0F0F0F0Fu);
}
__device__ __forceinline__ uint32_t composed_high(uint32_t base, uint32_t refinement) {
  return (base & 0xF0F0F0F0u) | (refinement >> 4 & 0x0F0F0F0Fu);
}

}  // namespace attention
}  // namespace cuda
}  // namespace bitmtp
