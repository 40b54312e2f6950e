// The product of packed weight rows with int8 activation rows: the loop that TernaryLinear, DualPlaneLinear and GreedyHead share,
// at any width from two rows on. Rule 5 of docs/numerics.md in the order of fold.h. (Same bits: packed_row.cuh, a single row;
// ternary_pass.cuh, ternary_window.cuh and packed_ring.cuh, some windows of 2 to 16; head_team.cuh, ternary heads.)
//
// A block of 8 warps takes a block of 32 (or 16) weight rows; each warp is one lane of the fold and holds several 16-byte weight
// loads in flight, the first of them issued before the previous kernel has ended. The product is int8 mma: weights are the A
// operand, unpacked in registers, rows of activations the columns of B. Blocks loop over their share of the weight rows, and load
// the next rows while they finish the last.
#pragma once

#include <cuda_fp16.h>

#include "codes.cuh"
#include "fold.h"
#include "launch.cuh"
#include "weight.cuh"

namespace bitmtp {
namespace cuda {

// kGroup: columns of a scale group, 64 or 128, or 0 for one scale a row. kTiles: columns in eights.
// kLaneRows: weight rows of a lane, 4 (16-byte loads) or 2. kSets: row blocks that a thread block takes side by side, which then
// share activations in L1.
template <Kind kKind_, int kGroup_, int kTiles_, int kLaneRows_, int kSets_>
struct PackedShape {
  static constexpr Kind kKind = kKind_;
  static constexpr bool kGrouped = kGroup_ > 0;
  static constexpr int kShift = kGroup_ == 128 ? 1 : 0;  // fold.h
  static constexpr int kTiles = kTiles_;
  static constexpr int kLaneRows = kLaneRows_;
  static constexpr int kSets = kSets_;

  using Code = Codes<kKind>;
  static constexpr int kPlanes = Code::kPlanes;
  static constexpr int kLoads = 16 / Code::kWordColumns;  // of a plane, in a step
  static constexpr int kQuads = Code::kWordColumns / 4;   // activation words that meet one weight word
  static constexpr int kRows = 8 * kLaneRows;
  static constexpr int kColumns = 8 * kTiles;
  static constexpr int kSlabColumns = 8;
  static constexpr int kPairs = kLaneRows / 2;
  static constexpr int kThreads = 32 * kFoldLanes * kSets;
  static constexpr int kBlocks = kTiles <= 2 && kSets == 1 ? 2 : 1;  // of a multiprocessor
  // Steps of weights and of activations in flight, as registers allow.
  static constexpr int kStepLoads = kLoads * kPlanes;
  static constexpr bool kTight = kTiles == 1 && kStepLoads == 1 && kGrouped && kLaneRows == 4;
  static constexpr int kDepth = kTiles == 2 ? (kStepLoads >= 2 ? 2 : 4) : kTight ? 6 : 8 / kStepLoads;
  static constexpr int kAhead = kTiles > 1 ? 2 : kTight ? 3 : kDepth;
  // Ternary: two planes of bits go to one accumulator and two to another that counts 4 times, which saves shifts; wide windows lack
  // the registers.
  static constexpr bool kSecond = kKind == Kind::kComposed || (kKind == Kind::kTernary && (kTiles == 1 || (kTiles == 2 && !kGrouped)));
  static_assert(kDepth % kAhead == 0, "slots of the rings are fixed at compile time");
};

struct PackedArgs {
  const uint32_t *table;
  const uint32_t *refinement;  // Kind::kComposed
  const uint16_t *scales;
  int32_t rows;
  int32_t steps;
  int32_t groups;
};

inline PackedArgs packed_args(const bitmtp_weight &w) {
  PackedArgs p = {};
  p.table = static_cast<const uint32_t *>(w.table);
  p.refinement = reinterpret_cast<const uint32_t *>(w.refinement);
  p.scales = w.scales;
  p.rows = w.rows;
  p.steps = pad64(w.width) / kStepColumns;
  p.groups = groups_of(w.width, w.group_size);
  return p;
}

// An int32 below 2^22, exact: added as bits to 1.5 * 2^23 it becomes that float's low bits.
__device__ __forceinline__ float exact_float(int32_t i) { return __int_as_float(i + 0x4B400000) - 12582912.0f; }

__device__ __forceinline__ float half_to_float(uint32_t bits) { return __half2float(__ushort_as_half(static_cast<unsigned short>(bits))); }

// Weights pass once, so they leave L1 to the activations. Not as read-only data (ld.global.nc), which ptxas moves behind the wait for
// the previous kernel.
__device__ __forceinline__ void load_words(uint32_t (&w)[4], const uint32_t *p) {
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "l"(p));
}
__device__ __forceinline__ void load_words(uint32_t (&w)[2], const uint32_t *p) {
  asm volatile("ld.global.L1::no_allocate.v2.u32 {%0,%1}, [%2];" : "=r"(w[0]), "=r"(w[1]) : "l"(p));
}
// Scales of a lane's rows, two fp16 a word. Neighbouring groups share sectors: these may stay in L1.
__device__ __forceinline__ void load_scales(uint32_t (&s)[2], const uint16_t *p) {
  asm volatile("ld.global.v2.u32 {%0,%1}, [%2];" : "=r"(s[0]), "=r"(s[1]) : "l"(p));
}
__device__ __forceinline__ void load_scales(uint32_t (&s)[1], const uint16_t *p) {
  asm volatile("ld.global.u32 %0, [%1];" : "=r"(s[0]) : "l"(p));
}

__device__ __forceinline__ uint32_t load_row_scale(const uint16_t *p) {
  uint16_t bits;
  asm volatile("ld.global.u16 %0, [%1];" : "=h"(bits) : "l"(p));
  return bits;
}

template <class S>
struct WeightStep {
  uint32_t words[S::kPlanes][S::kLoads][S::kLaneRows];
  uint32_t scales[S::kGrouped ? S::kLaneRows / 2 : 1];
};

template <class S>
struct ActivationStep {
  uint32_t quads[S::kTiles][4];
};

template <class S>
struct Accumulators {
  // Adding 1.5 * 2^23 as bits makes an int32 below 2^22 the low bits of that float: starting there, an accumulator is its own
  // conversion. |dot| of a group: at most 128 * 128 * 136.
  static constexpr int32_t kStart = S::kGrouped ? 0x4B400000 : 0;

  int32_t first[S::kPairs][S::kTiles][4];
  int32_t second[S::kSecond ? S::kPairs : 1][S::kTiles][4];
  int32_t sums[S::kTiles][4];  // of activation codes, by column; ternary only

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int t = 0; t < S::kTiles; ++t) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
#pragma unroll
        for (int p = 0; p < S::kPairs; ++p) {
          first[p][t][c] = kStart;
          if constexpr (S::kSecond) second[p][t][c] = 0;
        }
        sums[t][c] = 0;
      }
    }
  }

  __device__ __forceinline__ int32_t dot(int pair, int tile, int c) const {
    const int32_t d = product(pair, tile, c);
    if constexpr (S::Code::kZeroPoint) return d - sums[tile][c];
    return d;
  }
  // The dot but for the zero point.
  __device__ __forceinline__ int32_t product(int pair, int tile, int c) const {
    int32_t d = first[pair][tile][c];
    if constexpr (S::kSecond) d += second[pair][tile][c] >> S::Code::kSecondShift;
    return d;
  }

  // A step's products. `start`: the first of a unit.
  __device__ __forceinline__ void add(const WeightStep<S> &w, const ActivationStep<S> &x, bool start) {
    if (start) clear();
    if constexpr (S::Code::kZeroPoint) add_codes(sums, x);
    multiply(w, x);
  }

  // Adds a step's activation codes to the sums of their columns.
  __device__ __forceinline__ static void add_codes(int32_t (&sums)[S::kTiles][4], const ActivationStep<S> &x) {
    constexpr uint32_t kOnes = 0x01010101u;
#pragma unroll
    for (int t = 0; t < S::kTiles; ++t) {
      mma<true>(sums[t], kOnes, kOnes, kOnes, kOnes, x.quads[t][0], x.quads[t][2]);
      mma<true>(sums[t], kOnes, kOnes, kOnes, kOnes, x.quads[t][1], x.quads[t][3]);
    }
  }

  __device__ __forceinline__ void multiply(const WeightStep<S> &w, const ActivationStep<S> &x) {
    if constexpr (S::kKind == Kind::kTernary) {
#pragma unroll
      for (int p = 0; p < S::kPairs; ++p) {
        const uint32_t low = w.words[0][0][2 * p], high = w.words[0][0][2 * p + 1];
        constexpr uint32_t kLow = 0x03030303u, kNext = 0x0C0C0C0Cu;
        const uint32_t low4 = low >> 4, high4 = high >> 4;
#pragma unroll
        for (int t = 0; t < S::kTiles; ++t) {
          mma<true>(first[p][t], low & kLow, high & kLow, low4 & kLow, high4 & kLow, x.quads[t][0], x.quads[t][2]);
          if constexpr (S::kSecond)
            mma<true>(second[p][t], low & kNext, high & kNext, low4 & kNext, high4 & kNext, x.quads[t][1], x.quads[t][3]);
          else
            mma<true>(first[p][t], (low >> 2) & kLow, (high >> 2) & kLow, (low >> 6) & kLow, (high >> 6) & kLow, x.quads[t][1],
                      x.quads[t][3]);
        }
      }
    } else if constexpr (S::kKind == Kind::kInt8) {
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
#pragma unroll
        for (int p = 0; p < S::kPairs; ++p) {
          constexpr uint32_t kFlip = 0x80808080u;
          const uint32_t a0 = w.words[0][i][2 * p] ^ kFlip, a1 = w.words[0][i][2 * p + 1] ^ kFlip;
          const uint32_t a2 = w.words[0][i + 1][2 * p] ^ kFlip, a3 = w.words[0][i + 1][2 * p + 1] ^ kFlip;
#pragma unroll
          for (int t = 0; t < S::kTiles; ++t) mma<false>(first[p][t], a0, a1, a2, a3, x.quads[t][i], x.quads[t][i + 1]);
        }
      }
    } else {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int p = 0; p < S::kPairs; ++p) {
          add_nibbles(first[p], w.words[0][i][2 * p], w.words[0][i][2 * p + 1], x, i);
          if constexpr (S::kKind == Kind::kComposed)
            add_nibbles(second[p], w.words[S::kPlanes - 1][i][2 * p], w.words[S::kPlanes - 1][i][2 * p + 1], x, i);
        }
      }
    }
  }

 private:
  __device__ __forceinline__ static void add_nibbles(int32_t (&d)[S::kTiles][4], uint32_t low, uint32_t high,
                                                     const ActivationStep<S> &x, int i) {
    constexpr uint32_t kTop = 0xF0F0F0F0u, kFlip = 0x80808080u;
    const uint32_t a0 = masked(low << 4, kTop, kFlip), a1 = masked(high << 4, kTop, kFlip);
    const uint32_t a2 = masked(low, kTop, kFlip), a3 = masked(high, kTop, kFlip);
#pragma unroll
    for (int t = 0; t < S::kTiles; ++t) mma<false>(d[t], a0, a1, a2, a3, x.quads[t][2 * i], x.quads[t][2 * i + 1]);
  }
};

// Lanes' results of one slab of eight columns, on their way to the threads that finish them. Rows are padded to spread the banks.
template <class S>
struct alignas(16) PackedShared {
  float lanes[2][S::kSets][kFoldLanes][S::kSlabColumns][S::kRows + 4];
};

// Runs a block's share of the rows. The sink says where activations are and takes the results:
//   start()                  after the wait, once
//   row(column)              activation row of a column 0 .. kColumns-1 of this block (any valid one past the last)
//   prepare(tile, n, column) before the rows are computed: thread-private loads for the element it will get in that tile
//   finish(tile, n, column, y)   y = row dot times the weight's scales. Called by every thread that has an element, also with n or
//                                column past the end, by whole warps: 32 rows of one column where kRows is 32
template <class S, class Sink>
__device__ __forceinline__ void packed_rows(const PackedArgs &a, Sink &sink) {
  __shared__ PackedShared<S> shared;
  const int lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
  const int split = (threadIdx.x >> 5) % kFoldLanes, set = threadIdx.x / (32 * kFoldLanes);
  const int element = threadIdx.x % (32 * kFoldLanes);
  const int element_row = element % S::kRows, element_column = element / S::kRows;
  const bool has_element = element_column < S::kSlabColumns;

  const int32_t tiles = ceil_div(a.rows, 8), blocks = ceil_div(a.rows, S::kRows * S::kSets);
  constexpr int shift = S::kShift;
  const int32_t count = lane_steps(a.steps, shift, split);

  // Words of the lane's tile and row before its first load; rows past the end read those of the last tile.
  const auto tile_of = [&](int32_t block) {
    const int32_t tile = (block * S::kSets + set) * (S::kRows / 8) + g * S::kLaneRows / 8;
    return tile < tiles ? tile : tiles - 1;
  };
  const int32_t in_tile = g * S::kLaneRows % 8;

  // The lane's step base + p, base a multiple of kDepth, lies 8 * (base + p) steps after its first one; with a shift, 7 less where
  // p is odd. So pointers move once in kDepth steps, and offsets are constants of the unrolled loop.
  static_assert(S::kDepth % 2 == 0, "parity of a slot is that of its steps");
  constexpr int kWords = S::kLoads * 32;  // between steps
  constexpr int odd = shift * -7;
  const int64_t to_refinement = S::kPlanes == 2 ? a.refinement - a.table : 0;

  WeightStep<S> weights[S::kDepth];
  ActivationStep<S> activations[S::kAhead];

  const auto first_words = [&](int32_t tile) {
    return a.table + (static_cast<int64_t>(tile) * a.steps + (split << shift)) * kWords + q * 8 + in_tile;
  };
  const auto first_scales = [&](int32_t tile) { return a.scales + (static_cast<int64_t>(tile) * a.groups + split) * 8 + in_tile; };
  // Slot p's step of those that `from` and `scales` stand at; i is its number among the lane's.
  const auto load_weights = [&](WeightStep<S> &w, const uint32_t *from, const uint16_t *scales, int p, int32_t i) {
    if (p % 2 == 1) from += odd * kWords;
#pragma unroll
    for (int l = 0; l < S::kLoads; ++l) {
      load_words(w.words[0][l], from + p * 8 * kWords + l * 32);
      if constexpr (S::kPlanes == 2) load_words(w.words[1][l], from + to_refinement + p * 8 * kWords + l * 32);
    }
    if constexpr (S::kGrouped) {
      if (p % 2 == 1 || unit_ends(i, shift, count)) load_scales(w.scales, scales + (p >> shift) * 64);
    }
  };

  // One scale a row: it comes from memory as late as the weights do, so it leaves as early; and it stays fp16 until it is needed,
  // or the conversion would hold up everything between here and there.
  const auto row_scale_of = [&](int32_t block) -> uint32_t {
    const int32_t n = (block * S::kSets + set) * S::kRows + element_row;
    return S::kGrouped || !has_element ? 0u : load_row_scale(a.scales + (n < a.rows ? n : a.rows - 1));
  };

  int32_t block = blockIdx.x;
  const uint32_t *words = first_words(tile_of(block));
  const uint16_t *scales = S::kGrouped ? first_scales(tile_of(block)) : nullptr;
#pragma unroll
  for (int p = 0; p < S::kDepth; ++p)
    if (p < count) load_weights(weights[p], words, scales, p, p);
  uint32_t row_scale = row_scale_of(block);

  release_next();
  wait_for_previous();
  sink.start();

  const int32_t *row[S::kTiles];
#pragma unroll
  for (int t = 0; t < S::kTiles; ++t) row[t] = sink.row(8 * t + g) + (split << shift) * 16 + q * S::kQuads;
  // The lane's step base + p.
  const auto load_activations = [&](ActivationStep<S> &x, int32_t base, int p) {
    const int32_t at = base * (8 * 16) + (p % 2 == 1 ? odd * 16 : 0);
#pragma unroll
    for (int t = 0; t < S::kTiles; ++t) {
#pragma unroll
      for (int l = 0; l < S::kLoads; ++l) {
        const int32_t *from = row[t] + at + p * (8 * 16) + l * 4 * S::kQuads;
        if constexpr (S::kQuads == 4) {
          const int4 v = *reinterpret_cast<const int4 *>(from);
          x.quads[t][0] = v.x, x.quads[t][1] = v.y, x.quads[t][2] = v.z, x.quads[t][3] = v.w;
        } else if constexpr (S::kQuads == 2) {
          const int2 v = *reinterpret_cast<const int2 *>(from);
          x.quads[t][2 * l] = v.x, x.quads[t][2 * l + 1] = v.y;
        } else {
          x.quads[t][l] = *from;
        }
      }
    }
  };
#pragma unroll
  for (int p = 0; p < S::kAhead; ++p)
    if (p < count) load_activations(activations[p], 0, p);

  int parity = 0;
  for (; block < blocks; block += gridDim.x) {
    const int32_t first_row = (block * S::kSets + set) * S::kRows;
    const int32_t n = first_row + element_row;
    const bool more = block + static_cast<int32_t>(gridDim.x) < blocks;
    // Where the next rows begin, less the kDepth steps that a refill adds.
    const int32_t next_tile = tile_of(more ? block + static_cast<int32_t>(gridDim.x) : block);
    const uint32_t *next_words = first_words(next_tile) - S::kDepth * 8 * kWords;
    const uint16_t *next_scales = S::kGrouped ? first_scales(next_tile) - (S::kDepth >> shift) * 64 : nullptr;
    if (has_element) {
#pragma unroll
      for (int t = 0; t < S::kTiles; ++t) sink.prepare(t, n, 8 * t + element_column);
    }

    Accumulators<S> acc;
    acc.clear();
    float folded[S::kGrouped ? S::kLaneRows : 1][S::kTiles][2] = {};
    for (int32_t base = 0; base < count; base += S::kDepth) {
#pragma unroll
      for (int p = 0; p < S::kDepth; ++p) {
        const int32_t i = base + p;
        if (i >= count) break;
        WeightStep<S> &w = weights[p];
        ActivationStep<S> &x = activations[p % S::kAhead];
        acc.add(w, x, S::kGrouped && (shift == 0 || p % 2 == 0));
        if constexpr (S::kGrouped) {
          if (p % 2 == 1 || unit_ends(i, shift, count)) {
#pragma unroll
            for (int r = 0; r < S::kLaneRows; ++r) {
              const float scale = half_to_float(r % 2 == 0 ? w.scales[r / 2] & 0xFFFFu : w.scales[r / 2] >> 16);
#pragma unroll
              for (int t = 0; t < S::kTiles; ++t) {
#pragma unroll
                for (int c = 0; c < 2; ++c) {
                  const float dot = __int_as_float(acc.dot(r / 2, t, 2 * (r % 2) + c)) - 12582912.0f;
                  folded[r][t][c] = fmaf(dot, scale, folded[r][t][c]);
                }
              }
            }
          }
        }
        // A slot whose turns in these rows are over goes on with the next rows.
        const bool same = i + S::kDepth < count;
        if (same || more)
          load_weights(w, same ? words : next_words, same ? scales : next_scales, p + S::kDepth, same ? i + S::kDepth : p);
        if (i + S::kAhead < count)
          load_activations(x, base, p + S::kAhead);
        else if (more)
          load_activations(x, 0, p % S::kAhead);
      }
      words += S::kDepth * 8 * kWords;
      if constexpr (S::kGrouped) scales += (S::kDepth >> shift) * 64;
    }

#pragma unroll
    for (int t = 0; t < S::kTiles; ++t) {
      auto &lanes = shared.lanes[parity][set];
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float out[S::kLaneRows];
#pragma unroll
        for (int r = 0; r < S::kLaneRows; ++r) {
          if constexpr (S::kGrouped)
            out[r] = folded[r][t][c];
          else
            out[r] = __int_as_float(acc.dot(r / 2, t, 2 * (r % 2) + c));
        }
        float *to = &lanes[split][2 * q + c][g * S::kLaneRows];
        if constexpr (S::kLaneRows == 4)
          *reinterpret_cast<float4 *>(to) = make_float4(out[0], out[1], out[2], out[3]);
        else
          *reinterpret_cast<float2 *>(to) = make_float2(out[0], out[1]);
      }
      __syncthreads();
      // The other half of `shared` takes the next slab, so that one barrier a slab is enough.
      if (has_element) {
        float y;
        if constexpr (S::kGrouped) {
          float l[kFoldLanes];
#pragma unroll
          for (int s = 0; s < kFoldLanes; ++s) l[s] = lanes[s][element_column][element_row];
          y = combine_lanes(l) * S::Code::kUnit;
        } else {
          int32_t l[kFoldLanes];
#pragma unroll
          for (int s = 0; s < kFoldLanes; ++s) l[s] = __float_as_int(lanes[s][element_column][element_row]);
          y = static_cast<float>(combine_lanes(l)) * (half_to_float(row_scale) * S::Code::kUnit);
        }
        sink.finish(t, n, 8 * t + element_column, y);
      }
      parity ^= 1;
    }
    if (more) row_scale = row_scale_of(block + static_cast<int32_t>(gridDim.x));
    words = next_words + S::kDepth * 8 * kWords;
    if constexpr (S::kGrouped) scales = next_scales + (S::kDepth >> shift) * 64;
  }
}

// Blocks share nothing but what they declare, which two or more of them have to find at once: the driver knows best.
inline LaunchSettings packed_settings() { return {programmatic_launch(), 1, 0, false}; }

// Grid of a shape: as many blocks as fit at once, or `most` a multiprocessor, or fewer; groups of columns share the device.
template <class S>
dim3 packed_grid(int32_t rows, int32_t column_groups, int32_t most = S::kBlocks) {
  const int32_t blocks = ceil_div(rows, S::kRows * S::kSets);
  const int32_t fit = ceil_div(multiprocessors() * (most < S::kBlocks ? most : S::kBlocks), column_groups);
  return dim3(static_cast<unsigned>(blocks < fit ? blocks : fit), static_cast<unsigned>(column_groups));
}

}  // namespace cuda
}  // namespace bitmtp
