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

template <int D, bool kNested>
struct Slice {
  Feeder<D, kNested> &feeder;
  const uint32_t queries;  // shared address of their fragments
  const int32_t lane;
  // Of query vectors 2*(lane%4) and the next; to be set before the first step.
  Limit limit[2];
  QueryScale query[2];
  bool trees;  // among all of the warp's vectors
  Keys<D, kNested> keys;
  Values<D, kNested> values;
  Scales scales;
  float reference[2] = {kLeast, kLeast}, total[2] = {};
  Sums<D> sums = {};

  __device__ __forceinline__ Slice(Feeder<D, kNested> &rows, uint32_t fragments, int32_t its_lane)
      : feeder(rows), queries(fragments), lane(its_lane) {}

  // A step that is fetched, after which the next is on its way if there is `more`. kMended: one with rows of the window, or with history
  // that is read coarsely within a fine step.
  template <bool kFine, bool kMended>
  __device__ __forceinline__ void take(int32_t step, bool more) {
    const bool own = kMended && feeder.windowed(step);
    // Rows of a tree have steps with positions of the window to themselves, after those that see a prefix of it. Calls f(row).
    const auto each_order = [&](const auto &f) {
      int32_t row = kEveryRow;
      f(row);
      if constexpr (kMended) {
#pragma unroll 1
        while (own && trees) {
          const auto after = [&](int32_t x) { return x > row ? x : INT32_MAX; };
          row = __reduce_min_sync(kAllLanes, min(after(limit[0].row), after(limit[1].row)));
          if (row == INT32_MAX) return;
          f(row);
        }
      }
    };
    const auto its = [&](int32_t v, int32_t row) { return !own || limit[v].row == row; };

    // ---- scores ----
    // Codes of keys are dotted as numbers in units of 2^-24, and composed ones count sixteenfold.
    constexpr float kZero = kFine ? -136.0f * 0x1p-24f : -8.0f * 0x1p-24f, kUnit = kFine ? 0.0625f : 1.0f;
    float zero[2] = {}, factor[2];
#pragma unroll
    for (int32_t v = 0; v < 2; ++v) {
      if (kNested) zero[v] = mul(query[v].sum, kZero);
      factor[v] = kNested ? mul(query[v].factor, kUnit * 0x1p24f) : query[v].factor;
    }
    float score[4], value_scale[4];
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) score[i] = minus_infinity(), value_scale[i] = 1.0f;
    each_order([&](int32_t row) {
      if constexpr (kMended) feeder.mend_keys(keys, scales, step, row);
      float dots[4];
      dot_keys<D, kNested, kFine>(keys, queries, lane, zero, dots);
#pragma unroll
      for (int32_t k = 0; k < 2; ++k) {
        const int32_t position = feeder.position(step) + lane / 4 + 8 * k;
        const float key_scale = kNested ? scale_of(scales.key[k]) : 1.0f;
        const float its_value_scale = kNested ? mul(scale_of(scales.value[k]), kUnit) : 1.0f;
#pragma unroll
        for (int32_t v = 0; v < 2; ++v) {
          const int32_t i = 2 * k + v;
          const float its_score = mul(kNested ? mul(dots[i], key_scale) : dots[i], factor[v]);
          if (!kMended || its(v, row)) value_scale[i] = its_value_scale;
          if (!kMended || (its(v, row) && position < limit[v].seen)) score[i] = its_score;
        }
      }
    });
    if (more) {
      feeder.fetch_keys(keys, step + 1);
      feeder.fetch_scales(scales, step + 1);
    }

    // ---- weights ----
    float top[2];
#pragma unroll
    for (int32_t v = 0; v < 2; ++v) {
      const auto weighed = [&](int32_t i) { return kNested ? add(score[i], log2_of(value_scale[i])) : score[i]; };
      top[v] = fmaxf(weighed(v), weighed(2 + v));
    }
    if (__any_sync(kAllLanes, top[0] > add(reference[0], kMost) || top[1] > add(reference[1], kMost))) {
#pragma unroll
      for (int32_t v = 0; v < 2; ++v) raise(v, lanes_max<4, 32>(top[v]));
    }
    float weight[4];
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) weight[i] = power2(sub(score[i], reference[i % 2]));
#pragma unroll
    for (int32_t v = 0; v < 2; ++v) total[v] = add(total[v], add(weight[v], weight[2 + v]));
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) weight[i] = kNested ? mul(weight[i], value_scale[i]) : weight[i];

    // ---- values ----
    each_order([&](int32_t row) {
      if constexpr (kMended) {
        feeder.mend_values(values, step, row);
        float its_weight[4];
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) its_weight[i] = its(i % 2, row) ? weight[i] : 0.0f;
        add_values<D, kNested, kFine>(values, weight_parts(its_weight), sums);
      } else {
        add_values<D, kNested, kFine>(values, weight_parts(weight), sums);
      }
    });
    if (more) feeder.fetch_values(values, step + 1);
  }

 private:
  // Makes the largest of a query vector's weights its reference, if that has grown too much.
  __device__ __forceinline__ void raise(int32_t v, float largest) {
    if (!(largest > add(reference[v], kMost))) return;
    const float old = reference[v], raised = sub(largest, kRaise), factor = power2(sub(old, raised));
    reference[v] = raised;
    if (old == kLeast) return;  // sums are zeros still
    total[v] = mul(total[v], factor);
#pragma unroll
    for (int32_t i = 0; i < D / 16; ++i) {
      sums.tile[i][v] = mul(sums.tile[i][v], factor);
      sums.tile[i][2 + v] = mul(sums.tile[i][2 + v], factor);
    }
  }
};

}  // namespace attention
}  // namespace cuda
}  // namespace bitmtp
