// The product of packed weight rows with one activation row, which TernaryLinear, DualPlaneLinear and GreedyHead share: dp4a, the
// weights in registers before the previous kernel has ended. The bits are those of packed_rows.cuh, which takes two rows and more:
// int32 dots have no order, and groups fold in the order of fold.h.
//
// With one row, tensor cores spend seven columns of eight on nothing, and a launch is over before a ring of loads has turned: what
// counts is how much of the weight is on its way before the wait, and how few instructions stand between the wait and the result.
// A warp's load is 512 bytes: kWords words of 8 * kSpan rows, 16 bytes a lane. A lane adds up its words of a scale group, the lanes
// that share its rows add up theirs by shuffles, the dots of a block meet in shared memory, and eight threads a row fold them.
#pragma once

#include "numerics.cuh"
#include "packed_rows.cuh"

namespace bitmtp {
namespace cuda {

// kSpan: tiles of 8 rows that a load lies across: 1, 2 or 4. kSets: loads side by side, of other rows, for the same activations.
// kLoads: of each set that a warp has in registers at once, which is a turn. kBlocks: of a multiprocessor, so that this kernel's and
// the next one's fit. kLong: a row may take several turns. kMany: a block may take several blocks of rows.
template <Kind kKind_, int kGroup_, int kSpan_, int kSets_, int kWarps_, int kLoads_, int kBlocks_, bool kLong_ = false, bool kMany_ = false>
struct RowShape {
  static constexpr Kind kKind = kKind_;
  using Code = Codes<kKind>;
  static constexpr bool kGrouped = kGroup_ > 0;
  static constexpr int kSpan = kSpan_;
  static constexpr int kSets = kSets_;
  static constexpr int kWarps = kWarps_;
  static constexpr int kLoads = kLoads_;
  static constexpr int kBlocks = kBlocks_;
  static constexpr bool kLong = kLong_;
  static constexpr bool kMany = kMany_;
  static constexpr bool kTurns = kLong || kMany;
  static constexpr int kPlanes = Code::kPlanes;
  static constexpr int kQuads = Code::kWordColumns / 4;       // activation words that meet one weight word
  static constexpr int kStepWords = 64 / Code::kWordColumns;  // of a row
  static constexpr int kWords = 16 / kSpan;                   // of a row, in a load
  static constexpr int kLoadRows = 8 * kSpan;
  static constexpr int kRows = kLoadRows * kSets;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int32_t kTurnWords = kWarps * kLoads * kWords;  // of a row
  // A chunk is as many loads as make whole units, or one load.
  static constexpr int kUnitWords = kGrouped ? kGroup_ / Code::kWordColumns : kWords;
  static constexpr int kUnitLoads = kUnitWords > kWords ? kUnitWords / kWords : 1;
  static constexpr int kUnits = kUnitWords < kWords ? kWords / kUnitWords : 1;
  static constexpr int kChunks = kLoads / kUnitLoads;  // of a warp, in a turn
  static constexpr int kParts = kGrouped ? kChunks * kWarps * kUnits : kWarps;  // dots of a row, in a turn
  // A thread folds kFolds of the dots of kFoldRows rows, kFoldStride apart; without groups it adds up those of one row.
  static constexpr int kFolds = kGrouped ? kParts / kFoldLanes : 1;
  static constexpr int kFoldStride = !kGrouped || kThreads > kRows * kFoldLanes ? kRows : kThreads / kFoldLanes;
  static constexpr int kFoldRows = kRows / kFoldStride;
  // Where the dots of a lane, and of the lanes that share its rows and unit, end up.
  static constexpr int kLanes = kWords / kUnits;
  static constexpr int kDots = 4 * kSets;
  static constexpr int kSpread = kDots < kLanes ? kDots : kLanes;
  static constexpr int kOwn = kDots / kSpread;
  static_assert(kLoads % kUnitLoads == 0, "whole units");
  static_assert(!kGrouped || kParts % kFoldLanes == 0, "the first of a turn's units belongs to the first lane of the fold");
  static_assert(kThreads >= kFoldStride, "a thread a row");
};

// The four unsigned bytes of w times the signed ones of x.
__device__ __forceinline__ int32_t dot4(uint32_t w, uint32_t x, int32_t sum) {
  int32_t d;
  asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(w), "r"(x), "r"(sum));
  return d;
}

// The dot of a row's unsigned codes, times a power of two that RowDot's kUnit takes back: bits stay in their places, with a sum for each.
// kZero: the zero point, times the same power.
template <Kind kind>
struct RowDot;
template <>
struct RowDot<Kind::kTernary> {
  static constexpr int32_t kZero = 64;
  static constexpr float kUnit = 1.0f / 64.0f;
  int32_t sums[4] = {};
  __device__ __forceinline__ void add(const uint32_t (&w)[1], const uint32_t (&x)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[i] = dot4(w[0] & 0x03030303u << 2 * i, x[i], sums[i]);
  }
  __device__ __forceinline__ int32_t value() const { return (sums[0] << 6) + (sums[1] << 4) + ((sums[2] << 2) + sums[3]); }
};
template <>
struct RowDot<Kind::kBase> {
  static constexpr int32_t kZero = 128;
  static constexpr float kUnit = 1.0f / 16.0f;
  int32_t sums[2] = {};
  __device__ __forceinline__ void add(const uint32_t (&w)[1], const uint32_t (&x)[2]) {
    sums[0] = dot4(w[0] & 0x0F0F0F0Fu, x[0], sums[0]);
    sums[1] = dot4(w[0] & 0xF0F0F0F0u, x[1], sums[1]);
  }
  __device__ __forceinline__ int32_t value() const { return (sums[0] << 4) + sums[1]; }
};
template <>
struct RowDot<Kind::kComposed> {
  static constexpr int32_t kZero = 136;  // 16 * 8 + 8
  static constexpr float kUnit = 1.0f / 16.0f;
  int32_t sum = 0;
  __device__ __forceinline__ void add(const uint32_t (&w)[2], const uint32_t (&x)[2]) {
    constexpr uint32_t kTop = 0xF0F0F0F0u;
    sum = dot4((w[0] << 4 & kTop) | (w[1] & ~kTop), x[0], sum);
    sum = dot4((w[0] & kTop) | (w[1] >> 4 & ~kTop), x[1], sum);
  }
  __device__ __forceinline__ int32_t value() const { return sum; }
};
template <>
struct RowDot<Kind::kInt8> {
  static constexpr int32_t kZero = 128;
  static constexpr float kUnit = 1.0f;
  int32_t sum = 0;
  __device__ __forceinline__ void add(const uint32_t (&w)[1], const uint32_t (&x)[1]) { sum = dot4(w[0], x[0], sum); }
  __device__ __forceinline__ int32_t value() const { return sum; }
};

// Adds each of a lane's dots over the lanes that share its rows and unit. Half of the dots are handed over at a time, while there are
// any; those from kOwn * own_slot(lane) on are the lane's in the end.
template <class S>
__device__ __forceinline__ void add_over_lanes(int32_t (&d)[S::kDots], int lane) {
  int bit = S::kLanes;
#pragma unroll
  for (int n = S::kDots; n > S::kOwn; n /= 2, bit /= 2) {
    const bool upper = (lane & bit) != 0;
#pragma unroll
    for (int i = 0; i < n / 2; ++i) {
      const int32_t keep = upper ? d[n / 2 + i] : d[i], give = upper ? d[i] : d[n / 2 + i];
      d[i] = keep + __shfl_xor_sync(kWholeWarp, give, bit);
    }
  }
#pragma unroll
  for (; bit > 1; bit /= 2) d[0] += __shfl_xor_sync(kWholeWarp, d[0], bit);
}

// What nothing writes, loaded before the wait: not as read-only data (ld.global.nc), which ptxas moves behind the wait.
__device__ __forceinline__ void load_early(uint32_t (&w)[4], const uint32_t *p) {
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "l"(p));
}
__device__ __forceinline__ uint32_t load_early(const uint16_t *p) {
  uint16_t bits;
  asm volatile("ld.global.u16 %0, [%1];" : "=h"(bits) : "l"(p));
  return bits;
}
// Activation words; volatile, so that all leave before one of them is waited for.
__device__ __forceinline__ void load_quads(uint32_t (&x)[4], const int32_t *p) {
  asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "l"(p));
}
__device__ __forceinline__ void load_quads(uint32_t (&x)[2], const int32_t *p) {
  asm volatile("ld.global.v2.u32 {%0,%1}, [%2];" : "=r"(x[0]), "=r"(x[1]) : "l"(p));
}
__device__ __forceinline__ void load_quads(uint32_t (&x)[1], const int32_t *p) {
  asm volatile("ld.global.u32 %0, [%1];" : "=r"(x[0]) : "l"(p));
}

// Grid of a shape; blocks that take several blocks of rows take the same number, as near as may be.
template <class S>
dim3 row_grid(int32_t rows) {
  const int32_t blocks = ceil_div(rows, S::kRows);
  const int32_t turns = S::kMany ? ceil_div(blocks, multiprocessors() * S::kBlocks) : 1;
  return dim3(static_cast<unsigned>(ceil_div(blocks, turns)));
}

// Runs a block's share of the rows. The sink takes the results:
//   start()                   after the wait, once: the activation row
//   prepare(i, n)             thread-private loads for row n, the i-th that the thread finishes of a block; n may be past the end
//   finish(i, block, row, y)  y = the dot of row `row` of that block of rows, times the weight's scales; one thread a row
//   ended(block)              every row of that block is finished; every thread
//   met()                     after every barrier; every thread
template <class S, class Sink>
__device__ __forceinline__ void packed_row(const PackedArgs &a, Sink &sink) {
  using Dot = RowDot<S::kKind>;
  __shared__ int32_t dots[S::kTurns ? 2 : 1][S::kParts][S::kRows + 4];  // four more spread the banks
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int word = lane % (32 / S::kSpan) / 2;
  const int lane_row = lane / (32 / S::kSpan) * 8 + lane % 2 * 4;  // the first of four, in a load
  // The thread's first row, and its lane of the fold.
  const int row = S::kGrouped ? threadIdx.x / kFoldLanes : threadIdx.x, fold = S::kGrouped ? threadIdx.x % kFoldLanes : 0;
  const bool folds = row < S::kFoldStride, finishes = folds && fold == 0;
  const int32_t row_words = a.steps * S::kStepWords, last_tile = ceil_div(a.rows, 8) - 1, blocks = ceil_div(a.rows, S::kRows);
  const int64_t to_refinement = S::kPlanes == 2 ? a.refinement - a.table : 0;

  const uint32_t *table[S::kSets];
  const uint16_t *scales[S::kFoldRows];
  const auto enter = [&](int32_t block) {
    const auto tile_of = [&](int r) {  // past the end the last one, again
      const int32_t tile = block * (S::kRows / 8) + r / 8;
      return static_cast<int64_t>(tile < last_tile ? tile : last_tile);
    };
#pragma unroll
    for (int s = 0; s < S::kSets; ++s) table[s] = a.table + tile_of(s * S::kLoadRows + lane_row) * row_words * 8 + lane_row % 8;
#pragma unroll
    for (int i = 0; i < S::kFoldRows; ++i) scales[i] = a.scales + tile_of(row + i * S::kFoldStride) * a.groups * 8 + row % 8;
  };
  // The word that the lane has of the warp's load j in the turn that begins with load `base` of the row.
  const auto word_of = [&](int32_t base, int j) {
    return (base + ((j / S::kUnitLoads) * S::kWarps + warp) * S::kUnitLoads + j % S::kUnitLoads) * S::kWords + word;
  };
  uint32_t words[S::kLoads][S::kSets][S::kPlanes][4];
  uint32_t x[S::kLoads][S::kQuads];
  uint32_t scale[S::kFoldRows][S::kFolds];  // fp16 until it is used: see packed_rows.cuh
  const int32_t *codes = nullptr;
  // What lies past the end of the row is 0.
  const auto load_weights = [&](int32_t base, int j) {
    const int32_t at = word_of(base, j);
#pragma unroll
    for (int s = 0; s < S::kSets; ++s) {
#pragma unroll
      for (int p = 0; p < S::kPlanes; ++p) {
        uint32_t(&w)[4] = words[j][s][p];
        if (at < row_words)
          load_early(w, table[s] + at * 8 + p * to_refinement);
        else
          w[0] = w[1] = w[2] = w[3] = 0;
      }
    }
  };
  const auto load_activations = [&](int32_t base, int j) {
    const int32_t at = word_of(base, j);
    if (at < row_words) {
      load_quads(x[j], codes + at * S::kQuads);
    } else {
#pragma unroll
      for (int q = 0; q < S::kQuads; ++q) x[j][q] = 0;
    }
  };
  const auto load_scale = [&](int32_t base) {
    const int32_t unit = S::kGrouped ? base / S::kUnitLoads * S::kUnits + fold : 0;
#pragma unroll
    for (int i = 0; i < S::kFoldRows; ++i) {
#pragma unroll
      for (int k = 0; k < S::kFolds; ++k) {
        scale[i][k] = 0;
        if (folds && unit + k * kFoldLanes < a.groups) scale[i][k] = load_early(scales[i] + (unit + k * kFoldLanes) * 8);
      }
    }
  };

  int32_t block = blockIdx.x, base = 0;
  enter(block);
#pragma unroll
  for (int j = 0; j < S::kLoads; ++j) load_weights(0, j);
  load_scale(0);
  release_next();
  wait_for_previous();
  codes = sink.start();
#pragma unroll
  for (int j = 0; j < S::kLoads; ++j) load_activations(0, j);
  const auto prepare = [&](int32_t b) {
    if (!finishes) return;
#pragma unroll
    for (int i = 0; i < S::kFoldRows; ++i) sink.prepare(i, b * S::kRows + row + i * S::kFoldStride);
  };
  prepare(block);

  Dot dot[S::kSets][4];
  int32_t ones = 0;
  float folded[S::kFoldRows] = {};
  int parity = 0;
  const auto clear_dots = [&] {
    ones = 0;
#pragma unroll
    for (int i = 0; i < S::kDots; ++i) dot[i / 4][i % 4] = Dot();
  };
  const auto leave_dots = [&](int part) {
    int32_t d[S::kDots];
#pragma unroll
    for (int i = 0; i < S::kDots; ++i) d[i] = dot[i / 4][i % 4].value() - Dot::kZero * ones;
    add_over_lanes<S>(d, lane);
    constexpr int kCopies = S::kLanes / S::kSpread;
    const int own = S::kOwn * (word % S::kLanes / kCopies);
    if (word % kCopies == 0) {
#pragma unroll
      for (int i = 0; i < S::kOwn; ++i) dots[parity][part][own / 4 * S::kLoadRows + lane_row + own % 4 + i] = d[i];
    }
  };
  for (;;) {
    int32_t next_base = base + S::kWarps * S::kLoads, next_block = block;
    const bool ends = !S::kLong || next_base * S::kWords >= row_words;
    if (ends) next_base = 0, next_block += gridDim.x;
    const bool more = S::kTurns && (S::kMany || !ends) && next_block < blocks;
    if (S::kMany && ends && more) enter(next_block);

#pragma unroll
    for (int c = 0; c < S::kChunks; ++c) {
      if constexpr (S::kGrouped) clear_dots();
#pragma unroll
      for (int l = 0; l < S::kUnitLoads; ++l) {
        const int j = c * S::kUnitLoads + l;
#pragma unroll
        for (int q = 0; q < S::kQuads; ++q) ones = __dp4a(static_cast<int>(x[j][q]), 0x01010101, ones);
#pragma unroll
        for (int i = 0; i < S::kDots; ++i) {
          uint32_t w[S::kPlanes];
#pragma unroll
          for (int p = 0; p < S::kPlanes; ++p) w[p] = words[j][i / 4][p][i % 4];
          dot[i / 4][i % 4].add(w, x[j]);
        }
        // The slot goes on with the next turn.
        if (more) {
          load_weights(next_base, j);
          if constexpr (S::kLong) load_activations(next_base, j);
        }
      }
      if constexpr (S::kGrouped) leave_dots((c * S::kWarps + warp) * S::kUnits + word / S::kLanes);
    }
    if constexpr (S::kGrouped) {
      __syncthreads();
      sink.met();
#pragma unroll
      for (int i = 0; i < S::kFoldRows; ++i) {
        const int r = row + i * S::kFoldStride;
        if (folds) {
#pragma unroll
          for (int k = 0; k < S::kFolds; ++k)
            folded[i] = fmaf(static_cast<float>(dots[parity][k * kFoldLanes + fold][r]), half_to_float(scale[i][k]), folded[i]);
        }
        if (ends) {
          // Neighbouring threads have the lanes of the fold: this is combine_lanes.
          float y = folded[i] + __shfl_xor_sync(kWholeWarp, folded[i], 4);
          y = y + __shfl_xor_sync(kWholeWarp, y, 2);
          y = y + __shfl_xor_sync(kWholeWarp, y, 1);
          if (finishes) sink.finish(i, block, r, y * Dot::kUnit);
          folded[i] = 0.0f;
        }
      }
      parity ^= S::kTurns;
      if (more) load_scale(next_base);
    } else if (ends) {
      leave_dots(warp);
      __syncthreads();
      sink.met();
      if (finishes) {
        int32_t sum = 0;
#pragma unroll
        for (int p = 0; p < S::kParts; ++p) sum += dots[parity][p][row];
        sink.finish(0, block, row, static_cast<float>(sum) * (half_to_float(scale[0][0]) * Dot::kUnit));
      }
      parity ^= S::kTurns;
      clear_dots();
      if (more) load_scale(0);
    }
    if (ends) sink.ended(block);
    if (!more) break;
    if (S::kMany && ends) prepare(next_block);
    base = next_base, block = next_block;
  }
}

}  // namespace cuda
}  // namespace bitmtp
