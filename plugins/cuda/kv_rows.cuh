// Heads of a window row, a warp each: bias, norm, rotary embedding; rounding of keys and values to their stored form; and codes of
// stored rows as fp16 numbers (rules 9 and 10 of docs/numerics.md). Lane i holds columns 4i .. 4i+3; lanes from D/4 on hold zeros.
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

// What turns this lane's columns of row m's queries and keys.
struct Rotation {
  float4 cosine, sine;
};
template <int D>
__device__ __forceinline__ Rotation rotation_of(const bitmtp_nested_kv_attention_args &a, int32_t m, int32_t lane) {
  const float4 zero = {0.0f, 0.0f, 0.0f, 0.0f};
  if (lane >= D / 4) return {zero, zero};
  const float *row = a.rotary + int64_t{min(max(a.positions[m], 0), a.rotary_rows - 1)} * D + 4 * lane % (D / 2);
  return {load4(row), load4(row + D / 2)};
}

// Head `head` (of H + 2*Hkv) of row m.
template <int D>
__device__ __forceinline__ float4 prepared_head(const bitmtp_nested_kv_attention_args &a, int32_t m, int32_t head, int32_t lane,
                                                const Rotation &rotation) {
  const bool inside = lane < D / 4;
  const float4 zero = {0.0f, 0.0f, 0.0f, 0.0f};
  const int32_t column = 4 * lane;
  float4 x = inside ? load4(a.qkv + (int64_t{m} * (a.H + 2 * a.Hkv) + head) * D + column) : zero;
  if (a.qkv_bias && inside) x = plus(x, load4(a.qkv_bias + int64_t{head} * D + column));
  if (head >= a.H + a.Hkv) return x;  // a value
  const float *norm = head < a.H ? a.q_norm : a.k_norm;
  if (norm) {
    const float factor = rms_factor(lanes_sum<32>(sum_squares(x)), D, a.epsilon);
    if (inside) x = times(scale_by(x, factor), load4(norm + column));
  }
  constexpr int kPartner = D / 8;  // the lane half a head away
  const float4 other = {__shfl_xor_sync(kAllLanes, x.x, kPartner), __shfl_xor_sync(kAllLanes, x.y, kPartner),
                        __shfl_xor_sync(kAllLanes, x.z, kPartner), __shfl_xor_sync(kAllLanes, x.w, kPartner)};
  const float4 straight = times(x, rotation.cosine);
  const float4 crossed = scale_by(times(other, rotation.sine), lane < D / 8 ? -1.0f : 1.0f);
  return plus(straight, crossed);
}

// ---- queries ----------------------------------------------------------------------------------------------------------

// Writes query vector `row` (0 .. 7) of a tile to its fragments [D/16, 32]; gives what turns a dot with it into a score of log2.
template <int D, bool kNested>
__device__ __forceinline__ float write_query(float4 x, float softmax_scale, int32_t row, int32_t lane, uint4 *fragments) {
  const Shift shift = shift_of(lanes_max<32>(largest(x)));
  x = scale_by(x, shift.up);
  uint4 f;
  if (kNested) {
    split(x.x, x.z, f.x, f.y);
    split(x.y, x.w, f.z, f.w);
  } else {
    split(x.x, x.y, f.x, f.y);
    split(x.z, x.w, f.z, f.w);
  }
  if (lane < D / 4) {
    const QueryPlace at = query_place<D, kNested>(lane);
    fragments[at.step * 32 + row * 4 + at.thread] = f;
  }
  return mul(mul(softmax_scale, kLog2e), shift.down);
}

// ---- stored form ------------------------------------------------------------------------------------------------------

__device__ __forceinline__ int32_t round_code(float x, float low, float high) {
  return x == x ? __float2int_rn(fminf(fmaxf(x, low), high)) : 0;
}

// A lane's part of a stored head: word lane/2 of both planes and the scale, or four halves.
struct StoredPiece {
  uint32_t base, refinement;
  uint16_t scale;
  uint2 halves;
};

template <bool kNested>
__device__ __forceinline__ StoredPiece stored_piece(float4 x, int32_t lane) {
  StoredPiece piece = {};
  if (!kNested) {
    piece.halves = {bits_of(__floats2half2_rn(x.x, x.y)), bits_of(__floats2half2_rn(x.z, x.w))};
    return piece;
  }
  const float amax = lanes_max<32>(largest(x));
  const __half scale = __float2half_rn(fmaxf(__fdiv_rn(amax, 7.0f), 0x1p-14f));
  const float s = __half2float(scale), inverse = __fdiv_rn(1.0f, s), fine = mul(16.0f, inverse);
  const float v[4] = {x.x, x.y, x.z, x.w};
  uint32_t base = 0, refinement = 0;
#pragma unroll
  for (int32_t b = 0; b < 4; ++b) {
    const int32_t q = round_code(mul(v[b], inverse), -7.0f, 7.0f);
    const int32_t r = round_code(mul(sub(v[b], mul(static_cast<float>(q), s)), fine), -8.0f, 7.0f);
    base |= static_cast<uint32_t>(q + 8) << (8 * b);
    refinement |= static_cast<uint32_t>(r + 8) << (8 * b);
  }
  const int32_t nibble = 4 * (lane % 2);  // even lanes hold columns 0-3 of a word, odd ones 4-7
  base <<= nibble;
  refinement <<= nibble;
  piece.base = base | __shfl_xor_sync(kAllLanes, base, 1);
  piece.refinement = refinement | __shfl_xor_sync(kAllLanes, refinement, 1);
  piece.scale = __half_as_ushort(scale);
  return piece;
}

// To a head's place in each plane (nested: D/8 words and one scale; else `rows` alone, D halves).
template <int D, bool kNested>
__device__ __forceinline__ void write_piece(const StoredPiece &piece, int32_t lane, void *rows, uint32_t *refinement,
                                            uint16_t *scale) {
  if (lane >= D / 4) return;
  if (!kNested) {
    static_cast<uint2 *>(rows)[lane] = piece.halves;
    return;
  }
  if (lane % 2 == 0) static_cast<uint32_t *>(rows)[lane / 2] = piece.base;
  if (lane % 2 == 1) refinement[lane / 2] = piece.refinement;
  if (lane == 0) *scale = piece.scale;
}

// ---- codes ------------------------------------------------------------------------------------------------------------
// over_1024() of n is the fp16 number 1024 + n.

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
