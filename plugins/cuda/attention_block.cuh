// The heart of NestedKVAttention on a GPU: up to two tiles of eight query vectors over a step of 16 positions, by a pair of warps. Each
// warp dots one score tile of eight keys, and adds up the values of all sixteen in half of the columns.
//
// Dots run on the tensor cores with fp32's accuracy: a query, and later a softmax weight, is split in two fp16 numbers that fill the
// two halves of an instruction's sixteen rows, while codes are exact in fp16. The same instructions run for one query vector and
// for eight, and tiles never meet, so a row's bits cannot depend on those.
#pragma once

#include <cstdint>

#include "attention_feed.cuh"
#include "attention_layout.cuh"
#include "attention_math.cuh"
#include "kv_rows.cuh"

namespace bitmtp {
namespace cuda {
namespace attention {

// Reads slot n of a feeder.
template <int D, bool kNested>
struct SlotReader {
  using S = Stored<D, kNested>;
  uint32_t slot;  // shared address

  // Words of key `key` of the step from byte `at` of its head, or of what of its value the warp adds up.
  template <int words>
  __device__ __forceinline__ void load(uint32_t (&x)[words], bool value, bool fine, int32_t key, int32_t at) const {
    const int32_t piece = at >> 4;
    const int32_t place = value ? staged_value<S::kRow / 2>(key, piece) : staged_key<S::kRow>(key % kKeys, piece);
    const uint32_t address = slot + (fine ? S::kPlane : 0) + place + (at & 15);
    if constexpr (words == 4) {
      const uint4 v = load_shared16(address);
      x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
    } else if constexpr (words == 2) {
      const uint2 v = load_shared8(address);
      x[0] = v.x, x[1] = v.y;
    } else {
      x[0] = load_shared4(address);
    }
  }
};

// Dots of a tile with the warp's eight keys of a step, zero points on, over the even and the odd steps of the sum: elements 0 and 1
// (high parts), 2 and 3 (low parts) are those of query vector lane/4 with keys key_of(2*(lane%4)) and key_of(2*(lane%4) + 1). Odd steps
// of nibbles count sixteenfold.
struct Dots {
  float even[4], odd[4];
};

// Steps share what is loaded of the queries: fragments of kTiles tiles from shared address `queries` on.
template <int D, bool kNested, bool kFine, int kTiles, int kSteps, class Reader>
__device__ __forceinline__ void dot_keys(const Reader (&readers)[kSteps], int32_t half, uint32_t queries, int32_t lane,
                                         Dots (&dots)[kSteps][kTiles]) {
  const int32_t key = kKeys * half + key_of(lane / 4), thread = lane % 4;
  constexpr int kWords = D / 32;
  uint32_t base[kSteps][kWords], refinement[kSteps][kWords];
#pragma unroll
  for (int32_t s = 0; s < kSteps; ++s) {
    if constexpr (kNested) {
      readers[s].load(base[s], false, false, key, 4 * kWords * thread);
      if (kFine) readers[s].load(refinement[s], false, true, key, 4 * kWords * thread);
    }
#pragma unroll
    for (int32_t t = 0; t < kTiles; ++t) dots[s][t] = Dots{};
  }
#pragma unroll
  for (int32_t w = 0; w < D / 32; ++w) {
    uint32_t x[kSteps][4];
#pragma unroll
    for (int32_t s = 0; s < kSteps; ++s) {
      if constexpr (!kNested) {
        readers[s].load(x[s], false, false, key, 16 * (4 * w + thread));
      } else if constexpr (kFine) {
        const uint32_t low = composed_low(base[s][w], refinement[s][w]), high = composed_high(base[s][w], refinement[s][w]);
        x[s][0] = low & 0x00FF00FFu, x[s][1] = low >> 8 & 0x00FF00FFu, x[s][2] = high & 0x00FF00FFu, x[s][3] = high >> 8 & 0x00FF00FFu;
      } else {
        const uint32_t low = base[s][w], high = low >> 8;
        x[s][0] = low & 0x000F000Fu, x[s][1] = high & 0x000F000Fu, x[s][2] = low & 0x00F000F0u, x[s][3] = high & 0x00F000F0u;
      }
    }
#pragma unroll
    for (int32_t t = 0; t < kTiles; ++t) {
      const uint32_t at = queries + ((t * (D / 16) + 2 * w) * 32 + lane) * 16;
      const uint4 even = load_shared16(at), odd = load_shared16(at + 32 * 16);
#pragma unroll
      for (int32_t s = 0; s < kSteps; ++s) {
        mma(dots[s][t].even, even, x[s][0], x[s][1]);
        mma(dots[s][t].odd, odd, x[s][2], x[s][3]);
      }
    }
  }
}

// Sums of a tile over a slice's keys, in half of the columns: elements 0 and 1 by high parts of the weights, 2 and 3 by low ones, of
// query vector lane/4 and places 8*i + 2*(lane%4) and the next.
template <int D>
struct Sums {
  float tile[D / 16][4];
};

// Adds the step's values, weighted. Weights are fragments of both score tiles.
template <int D, bool kNested, bool kFine, int kTiles, class Reader>
__device__ __forceinline__ void add_values(const Reader &reader, const uint4 (&weights)[kTiles], int32_t lane,
                                           Sums<D> (&sums)[kTiles]) {
  const int32_t n = lane / 4, thread = lane % 4;
  const auto feed = [&](int32_t i, uint32_t first, uint32_t second) {
#pragma unroll
    for (int32_t t = 0; t < kTiles; ++t) mma(sums[t].tile[i], weights[t], first, second);
  };
  const auto key = [&](int32_t i, int32_t k) { return kKeys * i + key_of(2 * thread + k); };  // score tile, which of the thread's two
  if constexpr (kNested) {
    // A word is eight columns: at D = 128 of one n, at D = 64 of two, its low nibbles and its high ones.
    const int32_t at = 4 * (D == 64 ? n / 2 : n);
    uint32_t low[2][2], high[2][2];
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) {
#pragma unroll
      for (int32_t k = 0; k < 2; ++k) {
        uint32_t base[1], refinement[1];
        reader.load(base, true, false, key(i, k), at);
        if (kFine) reader.load(refinement, true, true, key(i, k), at);
        low[i][k] = kFine ? composed_low(base[0], refinement[0]) : base[0];
        high[i][k] = kFine ? composed_high(base[0], refinement[0]) : base[0];
        if (D == 64 && n % 2 == 1) low[i][k] = kFine ? high[i][k] : base[0] >> 4;
      }
    }
#pragma unroll
    for (int32_t c = 0; c < 4; ++c) {
      const uint32_t bytes = 0x4400u + 0x1111u * c;  // byte c of the two keys to bytes 0 and 2
      uint32_t x[2], y[2];
#pragma unroll
      for (int32_t i = 0; i < 2; ++i) {
        const uint32_t l = __byte_perm(low[i][0], low[i][1], bytes);
        x[i] = kFine ? low_bytes(l) : low_nibbles(l);
        if (D == 64) continue;
        const uint32_t h = kFine ? __byte_perm(high[i][0], high[i][1], bytes) : l;
        y[i] = kFine ? low_bytes(h) : high_nibbles(h);
      }
      feed(c, x[0], x[1]);
      if constexpr (D == 128) feed(4 + c, y[0], y[1]);
    }
  } else {
    constexpr int kWords = D / 32;                               // of a key, two columns each
    constexpr int kAtOnce = kTiles == 2 && kWords == 4 ? 2 : kWords;  // as registers allow
#pragma unroll
    for (int32_t part = 0; part < kWords; part += kAtOnce) {
      uint32_t x[2][2][kAtOnce];
#pragma unroll
      for (int32_t i = 0; i < 2; ++i) {
#pragma unroll
        for (int32_t k = 0; k < 2; ++k) reader.load(x[i][k], true, false, key(i, k), 4 * (kWords * n + part));
      }
#pragma unroll
      for (int32_t w = 0; w < kAtOnce; ++w) {
        feed(2 * (part + w), __byte_perm(x[0][0][w], x[0][1][w], 0x5410), __byte_perm(x[1][0][w], x[1][1][w], 0x5410));
        feed(2 * (part + w) + 1, __byte_perm(x[0][0][w], x[0][1][w], 0x7632), __byte_perm(x[1][0][w], x[1][1][w], 0x7632));
      }
    }
  }
}

}  // namespace attention
}  // namespace cuda
}  // namespace bitmtp
