// What a warp has of its slice of a unit, and how a step changes it: scores, weights, values, all in registers.
//
// Weights are powers of two relative to a reference, which follows the largest of them (a score plus log2 of the value's scale) when that
// has grown out of what fp16 holds: seldom, and for each query vector by its own keys alone.
#pragma once

#include <cstdint>

#include "attention_block.cuh"
#include "attention_feed.cuh"
#include "attention_fold.cuh"
#include "attention_layout.cuh"
#include "attention_math.cuh"
#include "attention_sight.cuh"
#include "kv_rows.cuh"

namespace bitmtp {
namespace cuda {
namespace attention {

constexpr float kRaise = 8.0f;  // log2 of a weight when it becomes the reference, so that fp16 holds what rounding leaves of smaller ones
constexpr float kMost = 15.0f;  // log2 of a weight that fp16 still holds

// What a row sees, for one query vector.
struct Limit {
  int32_t row;   // of a tree, else kEveryRow
  int32_t seen;  // positions below this
};

__device__ __forceinline__ float scale_of(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }

// Of so many tiles of query vectors; v of a tile is 2*(lane%4) or the next.
template <int D, bool kNested, bool kOwn, int kTiles>
struct Slice {
  Feeder<D, kNested, kOwn> &feeder;
  const uint32_t queries;  // shared address of their fragments
  const int32_t lane;
  // To be set before the first step.
  Limit limit[kTiles][2];
  QueryScale query[kTiles][2];
  bool trees;  // among all of the warp's vectors
  Keys<D, kNested> keys;
  Values<D, kNested> values;
  Scales scales;
  float reference[kTiles][2], total[kTiles][2] = {};
  Sums<D> sums[kTiles] = {};

  __device__ __forceinline__ Slice(Feeder<D, kNested, kOwn> &rows, uint32_t fragments, int32_t its_lane)
      : feeder(rows), queries(fragments), lane(its_lane) {
    each([&](int32_t t, int32_t v) { reference[t][v] = kLeast; });
  }

  // Brings rows of the window, and the form in which history is to be read, into a step that is fetched: as all rows but those of a tree
  // see it.
  __device__ __forceinline__ void mend(int32_t step) {
    feeder.mend_keys(keys, scales, step, kEveryRow);
    feeder.mend_values(values, step, kEveryRow);
  }

  // A step that is fetched, and mended where it has to be, after which the next is on its way if there is `more`. kTree: one with rows of
  // the window, some of which see no prefix of it.
  template <bool kFine, bool kTree>
  __device__ __forceinline__ void take(int32_t step, bool more) {
    // Rows of a tree have the step to themselves, after those that see a prefix of the window. Calls f(row).
    const auto each_order = [&](const auto &f) {
      int32_t row = kEveryRow;
      f(row);
      if constexpr (kTree) {
#pragma unroll 1
        while (true) {
          int32_t after = INT32_MAX;
          each([&](int32_t t, int32_t v) { after = min(after, limit[t][v].row > row ? limit[t][v].row : INT32_MAX); });
          row = __reduce_min_sync(kAllLanes, after);
          if (row == INT32_MAX) return;
          f(row);
        }
      }
    };
    const auto its = [&](int32_t t, int32_t v, int32_t row) { return !kTree || limit[t][v].row == row; };

    // ---- scores ----
    // Codes of keys are dotted as numbers in units of 2^-24, and composed ones count sixteenfold.
    constexpr float kZero = kFine ? -136.0f * 0x1p-24f : -8.0f * 0x1p-24f, kUnit = kFine ? 0.0625f : 1.0f;
    float zero[kTiles][2] = {}, factor[kTiles][2];
    each([&](int32_t t, int32_t v) {
      if (kNested) zero[t][v] = mul(query[t][v].sum, kZero);
      factor[t][v] = kNested ? mul(query[t][v].factor, kUnit * 0x1p24f) : query[t][v].factor;
    });
    float score[kTiles][4], value_scale[kTiles][4];
    each_key([&](int32_t t, int32_t i) { score[t][i] = minus_infinity(), value_scale[t][i] = 1.0f; });
    each_order([&](int32_t row) {
      if (kTree && row != kEveryRow) feeder.mend_keys(keys, scales, step, row);
      float dots[kTiles][4];
      dot_keys<D, kNested, kFine>(keys, queries, lane, zero, dots);
      each_key([&](int32_t t, int32_t i) {
        const int32_t k = i / 2, v = i % 2;
        const float its_score = mul(kNested ? mul(dots[t][i], scale_of(scales.key[k])) : dots[t][i], factor[t][v]);
        const float its_value_scale = kNested ? mul(scale_of(scales.value[k]), kUnit) : 1.0f;
        if (its(t, v, row)) value_scale[t][i] = its_value_scale, score[t][i] = its_score;
      });
    });
    if ((kFine || !kNested) && feeder.windowed(step)) {
      each_key([&](int32_t t, int32_t i) {
        if (feeder.position(step) + lane / 4 + 8 * (i / 2) >= limit[t][i % 2].seen) score[t][i] = minus_infinity();
      });
    }
    if (more) {
      feeder.fetch_keys(keys, step + 1);
      feeder.fetch_scales(scales, step + 1);
    }

    // ---- weights ----
    float top[kTiles][2];
    bool grown = false;
    each([&](int32_t t, int32_t v) {
      const auto weighed = [&](int32_t i) { return kNested ? add(score[t][i], log2_of(value_scale[t][i])) : score[t][i]; };
      top[t][v] = fmaxf(weighed(v), weighed(2 + v));
      grown = grown || top[t][v] > add(reference[t][v], kMost);
    });
    if (__any_sync(kAllLanes, grown)) raise(top);
    float weight[kTiles][4];
    each_key([&](int32_t t, int32_t i) { weight[t][i] = power2(sub(score[t][i], reference[t][i % 2])); });
    each([&](int32_t t, int32_t v) { total[t][v] = add(total[t][v], add(weight[t][v], weight[t][2 + v])); });
    each_key([&](int32_t t, int32_t i) { weight[t][i] = kNested ? mul(weight[t][i], value_scale[t][i]) : weight[t][i]; });

    // ---- values ----
    each_order([&](int32_t row) {
      if (kTree && row != kEveryRow) feeder.mend_values(values, step, row);
      WeightParts parts[kTiles];
#pragma unroll
      for (int32_t t = 0; t < kTiles; ++t) {
        float its_weight[4];
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) its_weight[i] = its(t, i % 2, row) ? weight[t][i] : 0.0f;
        parts[t] = weight_parts(its_weight);
      }
      add_values<D, kNested, kFine>(values, parts, sums);
    });
    if (more) feeder.fetch_values(values, step + 1);
  }

 private:
  // f(t, v) for a lane's query vectors; f(t, 2*k + v) for each of those with each of its keys.
  template <class F>
  __device__ __forceinline__ static void each(const F &f) {
#pragma unroll
    for (int32_t t = 0; t < kTiles; ++t) f(t, 0), f(t, 1);
  }
  template <class F>
  __device__ __forceinline__ static void each_key(const F &f) {
#pragma unroll
    for (int32_t t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) f(t, i);
    }
  }
  // Makes the largest of a query vector's weights, of which each lane has some, its reference, if that has grown too much.
  __device__ __forceinline__ void raise(const float (&tops)[kTiles][2]) {
    float factor[kTiles][2];
    bool summed = false;
    each([&](int32_t t, int32_t v) {
      float &its = reference[t][v];
      const float old = its, largest = lanes_max<4, 32>(tops[t][v]), raised = sub(largest, kRaise);
      const bool grown = largest > add(old, kMost);
      its = grown ? raised : old;
      factor[t][v] = grown ? power2(sub(old, raised)) : 1.0f;
      summed = summed || (grown && old != kLeast);
    });
    if (!__any_sync(kAllLanes, summed)) return;  // sums are zeros still
    each([&](int32_t t, int32_t v) {
      total[t][v] = mul(total[t][v], factor[t][v]);
#pragma unroll
      for (int32_t i = 0; i < D / 16; ++i) {
        sums[t].tile[i][v] = mul(sums[t].tile[i][v], factor[t][v]);
        sums[t].tile[i][2 + v] = mul(sums[t].tile[i][2 + v], factor[t][v]);
      }
    });
  }
};

}  // namespace attention
}  // namespace cuda
}  // namespace bitmtp
