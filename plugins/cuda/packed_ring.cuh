// The product of packed weight rows, ternary or in planes of 4 bits, with 2 to 16 activation rows at a time, for TernaryLinear
// and DualPlaneLinear where it was measured to be faster: weights pass through weight_ring.cuh, activations stay
// in registers where they all find room. The bits are those of packed_rows.cuh: the same products, folded in the order of fold.h.
//
// A block is a warp that fills the ring and eight that are the lanes of the fold; it takes a run of tiles, 32 rows at a time, of which
// the last may be fewer. Codes stay unsigned, as they lie in memory: the sum of a column's activation codes times the zero point,
// which is the same for all rows, is subtracted from the dot.
#pragma once

#include "packed_rows.cuh"
#include "weight_ring.cuh"

namespace bitmtp {
namespace cuda {

// kGroup, kTiles: as in PackedShape. kSteps: steps of activations in registers. kHold: those are all steps of a lane. kStagePairs: pairs
// of a lane's steps in a stage, of which the ring has kRing. kBuffers: slabs of results in shared memory.
template <Kind kKind_, int kGroup_, int kTiles_, int kSteps_, bool kHold_, int kStagePairs_, int kRing_, int kBuffers_>
struct RingShape {
  static constexpr Kind kKind = kKind_;
  static constexpr bool kGrouped = kGroup_ > 0;
  static constexpr int kShift = kGroup_ == 128 ? 1 : 0;  // fold.h
  static constexpr int kTiles = kTiles_;
  static constexpr int kSteps = kSteps_;
  static constexpr bool kHold = kHold_;
  static constexpr int kStagePairs = kStagePairs_;
  static constexpr int kRing = kRing_;
  static constexpr int kBuffers = kBuffers_;

  using Code = Codes<kKind>;
  static constexpr int kPlanes = Code::kPlanes;
  static constexpr int kLoads = 16 / Code::kWordColumns;  // of a plane, in a step
  static constexpr int kQuads = Code::kWordColumns / 4;   // activation words that meet one weight word
  static constexpr int kRowTiles = 4;
  static constexpr int kRows = 8 * kRowTiles;
  static constexpr int kColumns = 8 * kTiles;
  static constexpr int kWorkers = 32 * kFoldLanes;  // threads
  static constexpr int kThreads = kWorkers + 32;
  static constexpr int kStageSteps = 2 * kFoldLanes * kStagePairs;
  static constexpr int32_t kZero = kKind == Kind::kTernary ? 1 : kKind == Kind::kBase ? 128 : 136;  // times 1 / kUnit
  // Two planes of bits go to accumulators of their own, which saves shifts; wide windows lack the registers.
  static constexpr bool kSecond = (kKind == Kind::kTernary || kKind == Kind::kBase) && (kTiles == 1 || !kGrouped);
  static constexpr int kZeros = kHold && kGrouped ? kSteps >> kShift : 1;
  static_assert(kSteps % (2 * kStagePairs) == 0, "registers hold the activations of whole stages");
};

template <class S>
struct RingDots {
  using Quads = uint32_t[S::kTiles][4];
  static constexpr int kPairs = 2;  // of rows that a lane has

  int32_t first[kPairs][S::kTiles][4];
  int32_t second[S::kSecond ? kPairs : 1][S::kTiles][4];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int p = 0; p < kPairs; ++p) {
#pragma unroll
      for (int t = 0; t < S::kTiles; ++t) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          first[p][t][c] = 0;
          if constexpr (S::kSecond) second[p][t][c] = 0;
        }
      }
    }
  }

  // Row r of the lane's four, its column c of a tile; the zero point is still in it.
  __device__ __forceinline__ int32_t dot(int r, int tile, int c) const {
    const int i = 2 * (r % 2) + c;
    int32_t d = first[r / 2][tile][i];
    if constexpr (S::kSecond && S::kKind == Kind::kTernary) d += second[r / 2][tile][i] >> 2;
    if constexpr (S::kSecond && S::kKind == Kind::kBase) d += second[r / 2][tile][i] << 4;
    return d;
  }

  // Adds a step's activation codes, times the zero point, to the sums of their columns.
  __device__ __forceinline__ static void add_codes(int32_t (&sums)[S::kTiles][4], const Quads &x) {
    constexpr uint32_t kZeros = 0x01010101u * S::kZero;
#pragma unroll
    for (int t = 0; t < S::kTiles; ++t) {
      mma<true>(sums[t], kZeros, kZeros, kZeros, kZeros, x[t][0], x[t][2]);
      mma<true>(sums[t], kZeros, kZeros, kZeros, kZeros, x[t][1], x[t][3]);
    }
  }

  // Adds a step's products; `w`: four rows of each plane's loads.
  __device__ __forceinline__ void add(const uint32_t (&w)[S::kPlanes][S::kLoads][4], const Quads &x) {
#pragma unroll
    for (int p = 0; p < kPairs; ++p) {
      const int a = 2 * p, b = 2 * p + 1;  // rows
      if constexpr (S::kKind == Kind::kTernary) {
        const uint32_t low = w[0][0][a], high = w[0][0][b], low4 = low >> 4, high4 = high >> 4;
        constexpr uint32_t kLow = 0x03030303u, kNext = 0x0C0C0C0Cu;
#pragma unroll
        for (int t = 0; t < S::kTiles; ++t) {
          mma<true>(first[p][t], low & kLow, high & kLow, low4 & kLow, high4 & kLow, x[t][0], x[t][2]);
          if constexpr (S::kSecond)
            mma<true>(second[p][t], low & kNext, high & kNext, low4 & kNext, high4 & kNext, x[t][1], x[t][3]);
          else
            mma<true>(first[p][t], low >> 2 & kLow, high >> 2 & kLow, low >> 6 & kLow, high >> 6 & kLow, x[t][1], x[t][3]);
        }
      } else if constexpr (S::kKind == Kind::kBase) {
        const uint32_t low = w[0][0][a], high = w[0][0][b], low2 = w[0][1][a], high2 = w[0][1][b];
        constexpr uint32_t kLow = 0x0F0F0F0Fu, kTop = ~kLow;
#pragma unroll
        for (int t = 0; t < S::kTiles; ++t) {
          mma<true>(first[p][t], low & kTop, high & kTop, low2 & kTop, high2 & kTop, x[t][1], x[t][3]);
          if constexpr (S::kSecond)
            mma<true>(second[p][t], low & kLow, high & kLow, low2 & kLow, high2 & kLow, x[t][0], x[t][2]);
          else
            mma<true>(first[p][t], low << 4 & kTop, high << 4 & kTop, low2 << 4 & kTop, high2 << 4 & kTop, x[t][0], x[t][2]);
        }
      } else {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint32_t low = w[0][i][a], high = w[0][i][b], low2 = w[1][i][a], high2 = w[1][i][b];
          const uint32_t m0 = composed(low << 4, low2), m1 = composed(high << 4, high2);
          const uint32_t m2 = composed(low, low2 >> 4), m3 = composed(high, high2 >> 4);
#pragma unroll
          for (int t = 0; t < S::kTiles; ++t) mma<true>(first[p][t], m0, m1, m2, m3, x[t][2 * i], x[t][2 * i + 1]);
        }
      }
    }
  }

 private:
  // High nibbles of one, low ones of the other: one instruction.
  __device__ __forceinline__ static uint32_t composed(uint32_t high, uint32_t low) { return (high & 0xF0F0F0F0u) | (low & 0x0F0F0F0Fu); }
};

// The first tile of a block's run: every block has as many as any other, but for one.
__device__ __forceinline__ int32_t ring_tile(const PackedArgs &a, uint32_t block) {
  return static_cast<int32_t>(static_cast<int64_t>(block) * ceil_div(a.rows, 8) / gridDim.x);
}

// Results of eight columns; four more rows spread the banks.
template <class S>
using RingLanes = float[S::kBuffers][kFoldLanes][8][S::kRows + 4];
template <class S>
using RingBarriers = uint64_t[2][S::kRing];

// A barrier of the workers.
template <class S>
__device__ __forceinline__ void meet() { asm volatile("bar.sync 1, %0;" ::"n"(S::kWorkers) : "memory"); }

// Runs a block's share of the rows. The sink is as in packed_rows.cuh; `n` past the end is the weight's number of rows.
template <class S, class Sink>
__device__ __forceinline__ void packed_ring(const PackedArgs &a, Sink &sink) {
  extern __shared__ __align__(128) uint8_t dynamic[];
  __shared__ alignas(16) RingLanes<S> lanes;
  __shared__ alignas(8) RingBarriers<S> barriers;
  const int lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3, split = threadIdx.x >> 5;
  const int32_t first_tile = ring_tile(a, blockIdx.x), end_tile = ring_tile(a, blockIdx.x + 1);
  const int32_t end_row = 8 * end_tile < a.rows ? 8 * end_tile : a.rows;
  WeightRing<S> ring(a, dynamic, barriers);
  if (split == kFoldLanes) {
    ring.fill(a, first_tile, end_tile);
    return;
  }

  constexpr int shift = S::kShift;
  const int32_t count = lane_steps(a.steps, shift, split), pairs = ceil_div(a.steps, 2 * kFoldLanes);  // pairs of any lane
  const int element_row = threadIdx.x % S::kRows, element_column = threadIdx.x / S::kRows;
  // One scale a row: it stays fp16 until it is needed, or the conversion would hold up everything between here and there.
  const auto row_scale_of = [&](int32_t first) -> uint32_t {
    const int32_t n = first + element_row;
    return S::kGrouped ? 0u : load_row_scale(a.scales + (n < a.rows ? n : a.rows - 1));
  };
  uint32_t row_scale = row_scale_of(8 * first_tile);

  release_next();
  wait_for_previous();
  sink.start();

  const int32_t *row[S::kTiles];
#pragma unroll
  for (int t = 0; t < S::kTiles; ++t) row[t] = sink.row(8 * t + g) + q * S::kQuads;
  typename RingDots<S>::Quads activations[S::kSteps];
  // The lane's step i; past the last one, nothing.
  const auto load_activations = [&](typename RingDots<S>::Quads &x, int32_t i) {
    const int32_t at = lane_step(i, shift, split) * 16;
#pragma unroll
    for (int t = 0; t < S::kTiles; ++t) {
      x[t][0] = x[t][1] = x[t][2] = x[t][3] = 0;
      if (i >= count) continue;
#pragma unroll
      for (int l = 0; l < S::kLoads; ++l) {
        const int32_t *from = row[t] + at + l * 4 * S::kQuads;
        if constexpr (S::kQuads == 4) {
          const int4 v = *reinterpret_cast<const int4 *>(from);
          x[t][0] = v.x, x[t][1] = v.y, x[t][2] = v.z, x[t][3] = v.w;
        } else {
          const int2 v = *reinterpret_cast<const int2 *>(from);
          x[t][2 * l] = v.x, x[t][2 * l + 1] = v.y;
        }
      }
    }
  };
#pragma unroll
  for (int p = 0; p < S::kSteps; ++p) load_activations(activations[p], p);

  // The zero point's share of the dots, by unit of the fold.
  int32_t zeros[S::kZeros][S::kTiles][4] = {};
  if constexpr (S::kHold) {
#pragma unroll
    for (int p = 0; p < S::kSteps; ++p) RingDots<S>::add_codes(zeros[S::kGrouped ? p >> shift : 0], activations[p]);
  }

  const int tile = g / 2, in_tile = g % 2 * 4;  // of the lane's four rows, in a stage
  int parity = 0;
  for (int32_t first = 8 * first_tile; first < end_row; first += S::kRows) {
    const bool more = first + S::kRows < end_row;
    const int32_t n = first + element_row < end_row ? first + element_row : a.rows;
#pragma unroll
    for (int t = 0; t < S::kTiles; ++t) sink.prepare(t, n, 8 * t + element_column);

    RingDots<S> dots;
    dots.clear();
    float folded[S::kGrouped ? 4 : 1][S::kTiles][2] = {};
    if constexpr (!S::kHold && !S::kGrouped) {
#pragma unroll
      for (int t = 0; t < S::kTiles; ++t) zeros[0][t][0] = zeros[0][t][1] = zeros[0][t][2] = zeros[0][t][3] = 0;
    }
    for (int32_t base = 0; S::kHold ? base == 0 : base < 2 * pairs; base += S::kSteps) {
#pragma unroll
      for (int u = 0; u < S::kSteps; u += 2) {
        const int in_stage = u / 2 % S::kStagePairs;
        if (in_stage == 0) {
          if (base + u >= 2 * pairs) break;
          ring.await();
        }
        if (base + u < count) {
#pragma unroll
          for (int p = u; p < u + 2; ++p) {
            // The step and the unit of the stage.
            const int step = 2 * kFoldLanes * in_stage + (shift == 1 ? 2 * split + p % 2 : split + p % 2 * kFoldLanes);
            uint32_t w[S::kPlanes][S::kLoads][4];
#pragma unroll
            for (int i = 0; i < S::kPlanes; ++i) {
#pragma unroll
              for (int l = 0; l < S::kLoads; ++l) {
                const uint4 v = *reinterpret_cast<const uint4 *>(ring.words(i, tile, step) + l * 32 + q * 8 + in_tile);
                w[i][l][0] = v.x, w[i][l][1] = v.y, w[i][l][2] = v.z, w[i][l][3] = v.w;
              }
            }
            const bool starts = S::kGrouped && (p & shift) == 0;
            int32_t(&zero)[S::kTiles][4] = zeros[S::kHold && S::kGrouped ? p >> shift : 0];
            if (starts) dots.clear();
            if constexpr (!S::kHold) {
              if (starts) {
#pragma unroll
                for (int t = 0; t < S::kTiles; ++t) zero[t][0] = zero[t][1] = zero[t][2] = zero[t][3] = 0;
              }
              RingDots<S>::add_codes(zero, activations[p]);
            }
            dots.add(w, activations[p]);
            if constexpr (S::kGrouped) {
              if ((p & shift) != shift) continue;
              const uint2 four = *reinterpret_cast<const uint2 *>(ring.scales(tile, step >> shift) + in_tile / 2);
#pragma unroll
              for (int r = 0; r < 4; ++r) {
                const uint32_t two = r < 2 ? four.x : four.y;
                float scale = half_to_float(r % 2 == 0 ? two & 0xFFFFu : two >> 16);
                if (shift == 0 && p % 2 == 1 && base + p >= count) scale = 0.0f;  // there is no such step; what lies here is old
#pragma unroll
                for (int t = 0; t < S::kTiles; ++t) {
#pragma unroll
                  for (int c = 0; c < 2; ++c) folded[r][t][c] = fmaf(exact_float(dots.dot(r, t, c) - zero[t][c]), scale, folded[r][t][c]);
                }
              }
            }
          }
        }
        if (in_stage + 1 == S::kStagePairs || base + u + 2 >= 2 * pairs) ring.leave();
        if constexpr (!S::kHold) {
#pragma unroll
          for (int p = u; p < u + 2; ++p) {
            if (base + p + S::kSteps < 2 * pairs)
              load_activations(activations[p], base + p + S::kSteps);
            else if (more)
              load_activations(activations[p], p);
          }
        }
        if (base + u + 2 >= 2 * pairs) break;
      }
    }

#pragma unroll
    for (int t = 0; t < S::kTiles; ++t) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float out[4];
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          if constexpr (S::kGrouped)
            out[r] = folded[r][t][c];
          else
            out[r] = __int_as_float(dots.dot(r, t, c) - zeros[0][t][c]);
        }
        *reinterpret_cast<float4 *>(&lanes[parity][split][2 * q + c][4 * g]) = make_float4(out[0], out[1], out[2], out[3]);
      }
      meet<S>();
      float y;
      if constexpr (S::kGrouped) {
        float l[kFoldLanes];
#pragma unroll
        for (int s = 0; s < kFoldLanes; ++s) l[s] = lanes[parity][s][element_column][element_row];
        y = combine_lanes(l) * S::Code::kUnit;
      } else {
        int32_t l[kFoldLanes];
#pragma unroll
        for (int s = 0; s < kFoldLanes; ++s) l[s] = __float_as_int(lanes[parity][s][element_column][element_row]);
        y = static_cast<float>(combine_lanes(l)) * (half_to_float(row_scale) * S::Code::kUnit);
      }
      sink.finish(t, n, 8 * t + element_column, y);
      // Of two buffers the next slab takes the other one, so that one barrier a slab is enough.
      if constexpr (S::kBuffers == 2)
        parity ^= 1;
      else
        meet<S>();
    }
    if (more) row_scale = row_scale_of(first + S::kRows);
  }
}

// As many stages as a shape wants, or as the device has room for.
template <class S>
LaunchSettings ring_settings() {
  constexpr int32_t kBytes = sizeof(RingStage<S>);
  const int32_t fit = (shared_memory_of_block() - static_cast<int32_t>(sizeof(RingLanes<S>) + sizeof(RingBarriers<S>))) / kBytes;
  return {programmatic_launch(), 1, (fit < S::kRing ? fit : S::kRing) * kBytes};
}

// A block a multiprocessor, or fewer.
inline dim3 ring_grid(int32_t rows) {
  const int32_t tiles = ceil_div(rows, 8), fit = multiprocessors();
  return dim3(static_cast<unsigned>(tiles < fit ? tiles : fit));
}

// Calls `with` with the shape that serves a weight, by what was measured: stages of whole rows where those are short.
template <Kind kKind, int kGroup, int kTiles, class With>
int32_t with_ring_shape(const PackedArgs &a, const With &with) {
  const int32_t pairs = ceil_div(a.steps, 2 * kFoldLanes);
  if constexpr (kKind == Kind::kTernary) {
    if (pairs <= 3) return with(RingShape<kKind, kGroup, kTiles, 6, true, 3, 4, 2>{});
    return with(RingShape<kKind, kGroup, kTiles, kTiles == 1 ? 8 : 4, false, 2, 6, 2>{});
  } else {
    constexpr bool kBase = kKind == Kind::kBase;  // has half the bytes
    if constexpr (kGroup != 64 || kTiles == 1) {  // else registers do not hold them
      if (pairs <= 4) return with(RingShape<kKind, kGroup, kTiles, 8, true, kBase ? 2 : 1, kBase ? 3 : 6, 1>{});
    }
    return with(RingShape<kKind, kGroup, kTiles, 4, false, 1, kBase ? 6 : 3, 1>{});
  }
}

}  // namespace cuda
}  // namespace bitmtp
