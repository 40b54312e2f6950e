// Heads of window rows, eight lanes each: bias, norm, rotary embedding; rounding of keys and values to their stored form; and codes of
// stored rows as fp16 numbers (rules 9 and 10 of docs/numerics.md). Lane i of a head has columns 4*(8*j + i) .. +3 as its part j.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "attention_layout.cuh"
#include "attention_math.cuh"
#include "bitmtp/abi.h"

namespace bitmtp {
namespace cuda {
namespace attention {

__device__ __forceinline__ float4 scale_by(float4 x, float f) { return {mul(x.x, f), mul(x.y, f), mul(x.z, f), mul(x.w, f)}; }
__device__ __forceinline__ float4 times(float4 x, float4 y) { return {mul(x.x, y.x), mul(x.y, y.y), mul(x.z, y.z), mul(x.w, y.w)}; }
__device__ __forceinline__ float4 plus(float4 x, float4 y) { return {add(x.x, y.x), add(x.y, y.y), add(x.z, y.z), add(x.w, y.w)}; }
__device__ __forceinline__ float largest(float4 x) { return fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)), fmaxf(fabsf(x.z), fabsf(x.w))); }
__device__ __forceinline__ float sum_squares(float4 x) {
  return add(add(mul(x.x, x.x), mul(x.y, x.y)), add(mul(x.z, x.z), mul(x.w, x.w)));
}
__device__ __forceinline__ float rms_factor(float sum, int32_t n, float epsilon) {
  return __fdiv_rn(1.0f, __fsqrt_rn(add(__fdiv_rn(sum, static_cast<float>(n)), epsilon)));
}
__device__ __forceinline__ float4 load4(const float *p) { return *reinterpret_cast<const float4 *>(p); }

constexpr int32_t kHeadLanes = 8;
constexpr int32_t kHeadsOfWarp = 32 / kHeadLanes;

template <int D>
struct HeadParts {
  float4 part[D / (4 * kHeadLanes)];
};

// What turns a head (of H + 2*Hkv) of a row at `position` into queries, keys or values: nothing that a step computes, so it may be
// read before the wait for the previous kernel. Where there is no bias or norm, nothing is read.
template <int D>
struct HeadInputs {
  HeadParts<D> bias, norm;
  HeadParts<D / 2> cosine, sine;
};
template <int D>
__device__ __forceinline__ HeadInputs<D> head_inputs(const bitmtp_nested_kv_attention_args &a, int32_t position, int32_t head, int32_t i) {
  const float *norm = head < a.H ? a.q_norm : head < a.H + a.Hkv ? a.k_norm : nullptr;
  const float *row = a.rotary + int64_t{min(max(position, 0), a.rotary_rows - 1)} * D;
  HeadInputs<D> in = {};
#pragma unroll
  for (int32_t j = 0; j < D / 32; ++j) {
    const int32_t column = 4 * (kHeadLanes * j + i);
    if (a.qkv_bias) in.bias.part[j] = load4(a.qkv_bias + int64_t{head} * D + column);
    if (norm) in.norm.part[j] = load4(norm + column);
    if (j < D / 64) in.cosine.part[j] = load4(row + column), in.sine.part[j] = load4(row + D / 2 + column);
  }
  return in;
}

template <int D>
__device__ __forceinline__ HeadParts<D> raw_head(const bitmtp_nested_kv_attention_args &a, int32_t m, int32_t head, int32_t i) {
  const float *from = a.qkv + (int64_t{m} * (a.H + 2 * a.Hkv) + head) * D + 4 * i;
  HeadParts<D> x;
#pragma unroll
  for (int32_t j = 0; j < D / 32; ++j) x.part[j] = load4(from + 4 * kHeadLanes * j);
  return x;
}

// All lanes of a warp together, whatever their heads are.
template <int D>
__device__ __forceinline__ void prepare_head(const bitmtp_nested_kv_attention_args &a, int32_t head, const HeadInputs<D> &in,
                                             HeadParts<D> &x) {
  constexpr int kParts = D / 32;
  if (a.qkv_bias) {
#pragma unroll
    for (int32_t j = 0; j < kParts; ++j) x.part[j] = plus(x.part[j], in.bias.part[j]);
  }
  float squares = sum_squares(x.part[0]);
#pragma unroll
  for (int32_t j = 1; j < kParts; ++j) squares = add(squares, sum_squares(x.part[j]));
  const float factor = inverse_root(add(mul(lanes_sum<kHeadLanes>(squares), 1.0f / D), a.epsilon));
  const bool value = head >= a.H + a.Hkv;
  if (value) return;
  if (head < a.H ? a.q_norm != nullptr : a.k_norm != nullptr) {
#pragma unroll
    for (int32_t j = 0; j < kParts; ++j) x.part[j] = times(scale_by(x.part[j], factor), in.norm.part[j]);
  }
#pragma unroll
  for (int32_t j = 0; j < kParts / 2; ++j) {
    const float4 low = x.part[j], high = x.part[j + kParts / 2], c = in.cosine.part[j], s = in.sine.part[j];
    x.part[j] = plus(times(low, c), scale_by(times(high, s), -1.0f));
    x.part[j + kParts / 2] = plus(times(high, c), times(low, s));
  }
}

// Over a head's lanes; every lane gets the result.
template <int D>
__device__ __forceinline__ float head_max(const HeadParts<D> &x) {
  float m = largest(x.part[0]);
#pragma unroll
  for (int32_t j = 1; j < D / 32; ++j) m = fmaxf(m, largest(x.part[j]));
  return lanes_max<kHeadLanes>(m);
}
template <int D>
__device__ __forceinline__ float head_sum(const HeadParts<D> &x) {
  const auto all = [](float4 v) { return add(add(v.x, v.y), add(v.z, v.w)); };
  float sum = all(x.part[0]);
#pragma unroll
  for (int32_t j = 1; j < D / 32; ++j) sum = add(sum, all(x.part[j]));
  return lanes_sum<kHeadLanes>(sum);
}

// ---- queries ----------------------------------------------------------------------------------------------------------

// What turns a dot of a query vector into a score of log2, and the sum of the vector as it stands in its fragments: codes are
// dotted with their zero point on, which this takes off.
struct QueryScale {
  float factor, sum;
};

// Writes query vector `row` (0 .. 7) of a tile, whose maximum and sum are given, to its fragments [D/16, 32].
template <int D, bool kNested>
__device__ __forceinline__ QueryScale write_query(const HeadParts<D> &x, float maximum, float sum, float softmax_scale, int32_t row,
                                                  int32_t i, uint4 *fragments) {
  const Shift shift = shift_of(maximum);
#pragma unroll
  for (int32_t j = 0; j < D / 32; ++j) {
    const float4 y = scale_by(x.part[j], shift.up);
    uint4 f;
    if (kNested) {
      split(y.x, y.z, f.x, f.y);
      split(y.y, y.w, f.z, f.w);
    } else {
      split(y.x, y.y, f.x, f.y);
      split(y.z, y.w, f.z, f.w);
    }
    const QueryPlace at = query_place<D, kNested>(kHeadLanes * j + i);
    fragments[at.step * 32 + row * 4 + at.thread] = f;
  }
  return {mul(mul(softmax_scale, kLog2e), shift.down), mul(sum, shift.up)};
}

// ---- stored form ------------------------------------------------------------------------------------------------------

__device__ __forceinline__ int32_t round_code(float x, float low, float high) {
  return x == x ? __float2int_rn(fminf(fmaxf(x, low), high)) : 0;
}

// A lane's share of a stored head: of part j the word (8*j + i)/2 of both planes, or four halves; and the scale.
template <int D, bool kNested>
struct StoredParts {
  uint2 words[D / 32];  // base, refinement; else halves
  uint16_t scale;
};

// All lanes of a warp together.
template <int D, bool kNested>
__device__ __forceinline__ StoredParts<D, kNested> stored_parts(const HeadParts<D> &x, float maximum, int32_t i) {
  StoredParts<D, kNested> stored = {};
  const __half scale = __float2half_rn(fmaxf(__fdiv_rn(maximum, 7.0f), 0x1p-14f));
  const float s = __half2float(scale), inverse = __fdiv_rn(1.0f, s), fine = mul(16.0f, inverse);
#pragma unroll
  for (int32_t j = 0; j < D / 32; ++j) {
    const float v[4] = {x.part[j].x, x.part[j].y, x.part[j].z, x.part[j].w};
    if (!kNested) {
      stored.words[j] = {bits_of(__floats2half2_rn(v[0], v[1])), bits_of(__floats2half2_rn(v[2], v[3]))};
      continue;
    }
    uint32_t base = 0, refinement = 0;
#pragma unroll
    for (int32_t b = 0; b < 4; ++b) {
      const int32_t q = round_code(mul(v[b], inverse), -7.0f, 7.0f);
      const int32_t r = round_code(mul(sub(v[b], mul(static_cast<float>(q), s)), fine), -8.0f, 7.0f);
      base |= static_cast<uint32_t>(q + 8) << (8 * b);
      refinement |= static_cast<uint32_t>(r + 8) << (8 * b);
    }
    const int32_t nibble = 4 * (i % 2);  // even lanes hold columns 0-3 of a word, odd ones 4-7
    base <<= nibble;
    refinement <<= nibble;
    stored.words[j] = {base | __shfl_xor_sync(kAllLanes, base, 1), refinement | __shfl_xor_sync(kAllLanes, refinement, 1)};
  }
  stored.scale = __half_as_ushort(scale);
  return stored;
}

// To a head's place in each plane (nested: D/8 words and one scale; else `rows` alone, D halves).
template <int D, bool kNested>
__device__ __forceinline__ void write_stored(const StoredParts<D, kNested> &stored, int32_t i, void *rows, uint32_t *refinement,
                                             uint16_t *scale) {
#pragma unroll
  for (int32_t j = 0; j < D / 32; ++j) {
    const int32_t lane = kHeadLanes * j + i;
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
