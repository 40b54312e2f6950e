// The heart of NestedKVAttention on a GPU: a tile of eight query vectors over a step of 16 positions, by one warp.
//
// Dots run on the tensor cores with fp32's accuracy: a query, and later a softmax weight, is split in two fp16 numbers, each of which
// takes an instruction, while codes are exact in fp16. The same instructions run for one query vector and for eight, and vectors never
// meet, so a row's bits cannot depend on those.
#pragma once

#include <cstdint>

#include "attention_feed.cuh"
#include "attention_layout.cuh"
#include "attention_math.cuh"
#include "kv_rows.cuh"

namespace bitmtp {
namespace cuda {
namespace attention {

// Dots of a step's keys with the vectors of each tile, zero points on: element 2*k + v is that of key lane/4 + 8*k with query vector
// 2*(lane%4) + v of the tile, added to start[tile][v]. Fragments of the queries start at shared address `queries`.
template <int D, bool kNested, bool kFine, int kTiles>
__device__ __forceinline__ void dot_keys(const Keys<D, kNested> &keys, uint32_t queries, int32_t lane, const float (&start)[kTiles][2],
                                         float (&dots)[kTiles][4]) {
  // Even and odd steps of the sum, high and low parts of the query: four sums, so that none waits long for the one before.
  float even_high[kTiles][4], even_low[kTiles][4] = {}, odd_high[kTiles][4] = {}, odd_low[kTiles][4] = {};
#pragma unroll
  for (int32_t t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) even_high[t][i] = start[t][i % 2];
  }
#pragma unroll
  for (int32_t w = 0; w < D / 32; ++w) {
    uint32_t even[4], odd[4];
#pragma unroll
    for (int32_t k = 0; k < 2; ++k) {
      if constexpr (!kNested) {
        const uint32_t(&x)[Keys<D, kNested>::kWords] = keys.base[k];
        even[k] = x[4 * w], even[k + 2] = x[4 * w + 1], odd[k] = x[4 * w + 2], odd[k + 2] = x[4 * w + 3];
      } else if constexpr (kFine) {
        const uint32_t low = composed_low(keys.base[k][w], keys.refinement[k][w]);
        const uint32_t high = composed_high(keys.base[k][w], keys.refinement[k][w]);
        even[k] = low & 0x00FF00FFu, even[k + 2] = low >> 8 & 0x00FF00FFu;
        odd[k] = high & 0x00FF00FFu, odd[k + 2] = high >> 8 & 0x00FF00FFu;
      } else {
        const uint32_t low = keys.base[k][w], high = low >> 8;
        even[k] = low & 0x000F000Fu, even[k + 2] = high & 0x000F000Fu;
        odd[k] = low & 0x00F000F0u, odd[k + 2] = high & 0x00F000F0u;
      }
    }
#pragma unroll
    for (int32_t t = 0; t < kTiles; ++t) {
      const uint32_t at = queries + t * kFragments<D> + (2 * w * 32 + lane) * 16;
      const uint4 q = load_shared16(at), r = load_shared16(at + 32 * 16);
      mma(even_high[t], even, q.x, q.y);
      mma(odd_high[t], odd, r.x, r.y);
      mma(even_low[t], even, q.z, q.w);
      mma(odd_low[t], odd, r.z, r.w);
    }
  }
  constexpr float kOdd = kNested && !kFine ? 0.0625f : 1.0f;  // nibbles of odd steps stand four bits higher
#pragma unroll
  for (int32_t t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) dots[t][i] = fma_(add(odd_high[t][i], odd_low[t][i]), kOdd, add(even_high[t][i], even_low[t][i]));
  }
}

// Sums of values: elements 2*r + v of tile i are column column_of(i, r) of the lane/4-th eighth, for query vector 2*(lane%4) + v.
template <int D>
struct Sums {
  float tile[D / 16][4];
};

// Softmax weights as the tensor cores take them: of keys value_of(lane%4, 0 and 1) and (2 and 3), for query vector lane/4.
struct WeightParts {
  uint32_t high[2], low[2];
};
// From those of key lane/4 + 8*k for query vector 2*(lane%4) + v, element 2*k + v.
__device__ __forceinline__ WeightParts weight_parts(const float (&weights)[4]) {
  WeightParts parts;
#pragma unroll
  for (int32_t k = 0; k < 2; ++k) {
    uint32_t high, low;
    split(weights[2 * k], weights[2 * k + 1], high, low);
    parts.high[k] = transposed(high), parts.low[k] = transposed(low);
  }
  return parts;
}

// Adds the step's values, weighted, to the sums of each tile of query vectors.
template <int D, bool kNested, bool kFine, int kTiles>
__device__ __forceinline__ void add_values(const Values<D, kNested> &values, const WeightParts (&weights)[kTiles], Sums<D> (&sums)[kTiles]) {
  const auto feed = [&](int32_t columns, const uint32_t (&x)[4]) {
#pragma unroll
    for (int32_t t = 0; t < kTiles; ++t) mma(sums[t].tile[columns], x, weights[t].high[0], weights[t].high[1]);
#pragma unroll
    for (int32_t t = 0; t < kTiles; ++t) mma(sums[t].tile[columns], x, weights[t].low[0], weights[t].low[1]);
  };
#pragma unroll
  for (int32_t w = 0; w < Values<D, kNested>::kWords; ++w) {
    if constexpr (!kNested) {
      const auto &v = values.base;
      const uint32_t x[4] = {__byte_perm(v[0][w], v[1][w], 0x5410), __byte_perm(v[0][w], v[1][w], 0x7632),
                             __byte_perm(v[2][w], v[3][w], 0x5410), __byte_perm(v[2][w], v[3][w], 0x7632)};
      feed(w, x);
    } else {
      uint32_t low[4], high[4];
#pragma unroll
      for (int32_t v = 0; v < 4; ++v) {
        low[v] = kFine ? composed_low(values.base[v][w], values.refinement[v][w]) : values.base[v][w];
        high[v] = kFine ? composed_high(values.base[v][w], values.refinement[v][w]) : 0;
      }
#pragma unroll
      for (int32_t c = 0; c < 4; ++c) {
        const uint32_t bytes = 0x4400u + 0x1111u * c;  // byte c of two keys to bytes 0 and 2
        uint32_t x[4];
#pragma unroll
        for (int32_t k = 0; k < 2; ++k) {
          const uint32_t l = __byte_perm(low[2 * k], low[2 * k + 1], bytes);
          const uint32_t h = kFine ? __byte_perm(high[2 * k], high[2 * k + 1], bytes) : l;
          x[2 * k] = kFine ? low_bytes(l) : low_nibbles(l);
          x[2 * k + 1] = kFine ? low_bytes(h) : high_nibbles(h);
        }
        feed(4 * w + c, x);
      }
    }
  }
}

}  // namespace attention
}  // namespace cuda
}  // namespace bitmtp
