// What the kernels of ternary windows share: codes unpacked and multiplied, the zero point's share of a dot, and the end of the fold.
//
// A unit is 16 weight rows, two tiles of 8. Lane (g, q) = (lane / 4, lane mod 4) has word q of rows 2 (g mod 4) and 2 (g mod 4) + 1 of
// tile g / 4, and of activations quads 4q .. 4q + 3 of column g: it has results of those two rows and columns 2q and 2q + 1.
#pragma once

#include "numerics.cuh"
#include "packed_rows.cuh"

namespace bitmtp {
namespace cuda {

constexpr int kUnitRows = 16;
// Codes are multiplied by 64, their place in a byte.
constexpr float kTernaryUnit = 1.0f / 64.0f;
// What an accumulator starts from, see exact_float.
template <bool kGrouped>
constexpr int32_t kTernaryStart = kGrouped ? 0x4B400000 : 0;

// A step's activations for a lane, or zeros where it has no such step. Volatile, so that all leave before one is waited for.
__device__ __forceinline__ void load_activations(uint32_t (&x)[4], const int32_t *p, bool exists) {
  x[0] = x[1] = x[2] = x[3] = 0;
  if (exists) asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "l"(p));
}

// As mma<true>, from `start` in place of what d holds.
__device__ __forceinline__ void mma_from(int32_t start, int32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(start));
}

// A step of a unit, added to dots or, where it `starts` them, in their place. Activations that are loaded side by side are multiplied
// side by side: others would have to be moved into neighbouring registers first, two instructions a product.
template <bool kGrouped, int kTiles>
__device__ __forceinline__ void multiply_step(int32_t (&dots)[kTiles][4], uint2 w, const uint32_t (&x)[kTiles][4], bool starts) {
  constexpr uint32_t kTop = 0xC0C0C0C0u;
  const uint32_t first[4] = {w.x << 6 & kTop, w.y << 6 & kTop, w.x << 4 & kTop, w.y << 4 & kTop};
  const uint32_t second[4] = {w.x << 2 & kTop, w.y << 2 & kTop, w.x & kTop, w.y & kTop};
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    if (starts)
      mma_from(kTernaryStart<kGrouped>, dots[t], first, x[t][0], x[t][1]);
    else
      mma<true>(dots[t], first[0], first[1], first[2], first[3], x[t][0], x[t][1]);
  }
#pragma unroll
  for (int t = 0; t < kTiles; ++t) mma<true>(dots[t], second[0], second[1], second[2], second[3], x[t][2], x[t][3]);
}

// The zero point's share of a dot: 64 times the sum of the column's codes, which on tensor cores would take as long as a unit does.
// First what the lane has of column g of a tile, then the two columns of which it has results.
template <int kTiles>
__device__ __forceinline__ void add_codes(int32_t (&sums)[kTiles], const uint32_t (&x)[kTiles][4]) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[t] = __dp4a(static_cast<int32_t>(x[t][i]), 0x01010101, sums[t]);
  }
}
template <bool kGrouped, int kTiles>
__device__ __forceinline__ void spread_sums(int32_t (&sums)[kTiles], int32_t (&zero)[kTiles][2]) {
  const int q = threadIdx.x % 4;
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    int32_t sum = sums[t] + __shfl_xor_sync(kWholeWarp, sums[t], 1);
    sum += __shfl_xor_sync(kWholeWarp, sum, 2);
#pragma unroll
    for (int c = 0; c < 2; ++c) zero[t][c] = kTernaryStart<kGrouped> + 64 * __shfl_sync(kWholeWarp, sum, 4 * (2 * q + c));
    sums[t] = 0;
  }
}

// A scale group's dots join the fold; `scales` of both rows.
template <int kTiles>
__device__ __forceinline__ void fold_group(float (&folded)[kTiles][4], const int32_t (&dots)[kTiles][4], const int32_t (&zero)[kTiles][2], uint32_t scales) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float scale = half_to_float(i == 0 ? scales & 0xFFFFu : scales >> 16);
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int c = 0; c < 2; ++c)
        folded[t][2 * i + c] = fmaf(__int_as_float(dots[t][2 * i + c]) - __int_as_float(zero[t][c]), scale, folded[t][2 * i + c]);
    }
  }
}

// A row's product with a column, before the column's scale, of the fold's lanes that lie `stride` apart.
template <bool kGrouped>
__device__ __forceinline__ float combine_parts(const float *parts, int stride, uint32_t row_scale) {
  if constexpr (kGrouped) {
    float l[kFoldLanes];
#pragma unroll
    for (int s = 0; s < kFoldLanes; ++s) l[s] = parts[s * stride];
    return combine_lanes(l) * kTernaryUnit;
  } else {
    int32_t l[kFoldLanes];
#pragma unroll
    for (int s = 0; s < kFoldLanes; ++s) l[s] = __float_as_int(parts[s * stride]);
    return static_cast<float>(combine_lanes(l)) * (half_to_float(row_scale) * kTernaryUnit);
  }
}

}  // namespace cuda
}  // namespace bitmtp
