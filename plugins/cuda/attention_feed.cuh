// Where a warp's keys and values come from: rows of the history, which go straight from device memory to the registers that the tensor
// cores read, and rows of the window, which take their places once they are there.
//
// A lane has of a step (16 positions) a quarter of keys lane/4 and lane/4 + 8, and the lane/4-th eighth of the columns of values
// 2*(lane%4), the next, and those 8 further: see value_of.
#pragma once

#include <cstdint>

#include "attention_layout.cuh"
#include "attention_math.cuh"
#include "attention_sight.cuh"
#include "bitmtp/abi.h"

namespace bitmtp {
namespace cuda {
namespace attention {

template <int D, bool kNested>
struct Stored {
  static constexpr int kRow = kNested ? D / 2 : 2 * D;  // bytes of a head, of one plane
  static constexpr int kOwnRow = (kNested ? 4 : 2) * kRow;  // of a window row that a thread block rounds for itself
};

// One KV head of a window's stored rows, in device or shared memory, one row every `stride` bytes.
struct WindowRows {
  const uint8_t *rows, *refinement;  // of the key; the value lies `value` bytes further
  const uint16_t *scale;             // of the key; the value's is scale[value_scale]
  int64_t stride, value;
  int32_t scale_stride, value_scale;
};

BITMTP_BOTH int32_t value_of(int32_t thread, int32_t v) { return 2 * thread + v % 2 + 8 * (v / 2); }

// A lane's share of a step.
template <int D, bool kNested>
struct Keys {
  static constexpr int kWords = Stored<D, kNested>::kRow / 16;
  uint32_t base[2][kWords], refinement[2][kNested ? kWords : 1];
};
template <int D, bool kNested>
struct Values {
  static constexpr int kWords = Stored<D, kNested>::kRow / 32;
  uint32_t base[4][kWords], refinement[4][kNested ? kWords : 1];
};
// Of keys lane/4 and lane/4 + 8, and of their values, as stored.
struct Scales {
  uint16_t key[2], value[2];
};

template <int words>
__device__ __forceinline__ void load_words(uint32_t *x, const void *from) {
  if constexpr (words == 4) {
    const uint4 v = *static_cast<const uint4 *>(from);
    x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
  } else if constexpr (words == 2) {
    const uint2 v = *static_cast<const uint2 *>(from);
    x[0] = v.x, x[1] = v.y;
  } else {
    x[0] = *static_cast<const uint32_t *>(from);
  }
}

// kOwn: the window is narrow, its rows are in shared memory.
template <int D, bool kNested, bool kOwn>
struct Feeder {
  using S = Stored<D, kNested>;
  using KeyShare = Keys<D, kNested>;
  using ValueShare = Values<D, kNested>;

  const bitmtp_nested_kv_attention_args &a;
  const uint8_t *own;  // stored rows of a narrow window, in shared memory: keys, values, refinement of both; then scales
  int32_t first;       // position of step 0
  int32_t history, kv4;
  int32_t kv, lane;
  // Places in the history of this lane's shares: words of a plane from its start, of which a plane has fewer than 2^32, and scales. Those
  // of the step to be fetched next, and of the last row, which is read in place of rows past the end: they are replaced later.
  uint32_t key_at, last_key, value_at, last_value, scale_at, last_scale;

  __device__ __forceinline__ Feeder(const bitmtp_nested_kv_attention_args &args, const uint8_t *window_rows, int32_t first_position,
                                    int32_t length, int32_t coarse, int32_t head, int32_t its_lane)
      : a(args), own(window_rows), first(first_position), history(length), kv4(coarse), kv(head), lane(its_lane) {
    const uint32_t key = kv * (S::kRow / 4) + key_word(), value = (a.Hkv + kv) * (S::kRow / 4) + value_word();
    const uint32_t last = history - 1;
    key_at = (first + lane / 4) * row_words() + key, last_key = last * row_words() + key;
    value_at = (first + value_of(lane % 4, 0)) * row_words() + value, last_value = last * row_words() + value;
    scale_at = (first + lane / 4) * row_scales() + kv, last_scale = last * row_scales() + kv;
  }
  __device__ __forceinline__ uint32_t row_words() const { return a.Hkv * (S::kRow / 2); }
  __device__ __forceinline__ uint32_t row_scales() const { return 2 * a.Hkv; }
  // The first word of a head that this lane has of a key, and of a value.
  __device__ __forceinline__ uint32_t key_word() const { return (kNested ? S::kRow / 16 : 4) * (lane % 4); }
  __device__ __forceinline__ uint32_t value_word() const { return S::kRow / 32 * (lane / 4); }

  __device__ __forceinline__ int32_t position(int32_t step) const { return first + step * kRound; }
  __device__ __forceinline__ bool fine(int32_t step) const { return kNested && position(step) + kStep > kv4; }
  __device__ __forceinline__ bool windowed(int32_t step) const { return position(step) + kStep > history; }
  // Whether a step is to be mended: it has rows of the window, or is fine and has history that is to be read coarsely.
  __device__ __forceinline__ bool mixed(int32_t step) const { return windowed(step) || (fine(step) && position(step) < kv4); }

  // A lane's share of a key or value in one plane, from its first word on.
  __device__ __forceinline__ static void read_key(uint32_t *x, const uint32_t *words) {
    if constexpr (kNested) {
      load_words<KeyShare::kWords>(x, words);
    } else {
#pragma unroll
      for (int32_t j = 0; j < S::kRow / 64; ++j) load_words<4>(x + 4 * j, words + 16 * j);
    }
  }
  __device__ __forceinline__ static void read_value(uint32_t *x, const uint32_t *words) {
    constexpr int kAtOnce = ValueShare::kWords < 4 ? ValueShare::kWords : 4;
#pragma unroll
    for (int32_t j = 0; j < ValueShare::kWords; j += kAtOnce) load_words<kAtOnce>(x + j, words + j);
  }

  // Rows of the history, of which nothing is written in a step: this may run before the wait. Steps are fetched in ascending order, each
  // once.
  __device__ __forceinline__ void fetch_keys(KeyShare &keys, int32_t step) {
    if (position(step) >= history) return;
    const uint32_t *base = static_cast<const uint32_t *>(a.history);
    const uint32_t to[2] = {min(key_at, last_key), min(key_at + 8 * row_words(), last_key)};
    key_at += kRound * row_words();
#pragma unroll
    for (int32_t k = 0; k < 2; ++k) read_key(keys.base[k], base + to[k]);
    if constexpr (kNested) {
      const uint32_t *refinement = reinterpret_cast<const uint32_t *>(a.history_refinement);
      if (!fine(step)) return;
#pragma unroll
      for (int32_t k = 0; k < 2; ++k) read_key(keys.refinement[k], refinement + to[k]);
    }
  }
  __device__ __forceinline__ void fetch_values(ValueShare &values, int32_t step) {
    if (position(step) >= history) return;
    const uint32_t *base = static_cast<const uint32_t *>(a.history);
    uint32_t to[4];
#pragma unroll
    for (int32_t v = 0; v < 4; ++v) {
      to[v] = min(value_at + value_of(0, v) * row_words(), last_value);
      read_value(values.base[v], base + to[v]);
    }
    value_at += kRound * row_words();
    if constexpr (kNested) {
      const uint32_t *refinement = reinterpret_cast<const uint32_t *>(a.history_refinement);
      if (!fine(step)) return;
#pragma unroll
      for (int32_t v = 0; v < 4; ++v) read_value(values.refinement[v], refinement + to[v]);
    }
  }
  __device__ __forceinline__ void fetch_scales(Scales &scales, int32_t step) {
    if constexpr (kNested) {
      if (position(step) >= history) return;
      const uint32_t from = scale_at;
      scale_at += kRound * row_scales();
#pragma unroll
      for (int32_t k = 0; k < 2; ++k) {
        const uint32_t to = min(from + 8 * k * row_scales(), last_scale);
        scales.key[k] = a.history_scale[to], scales.value[k] = a.history_scale[to + a.Hkv];
      }
    }
  }

  // ---- what differs from that: rows of the window, rows of history that are read coarsely within a fine step ---------------

  __device__ __forceinline__ WindowRows window() const {
    constexpr int64_t kStride = S::kOwnRow;
    if (kOwn) return {own, own + 2 * S::kRow, reinterpret_cast<const uint16_t *>(own + a.M * kStride), kStride, S::kRow, 2, 1};
    const int64_t head = int64_t{kv} * S::kRow;
    return {static_cast<const uint8_t *>(a.new_rows) + head, reinterpret_cast<const uint8_t *>(a.new_refinement) + head,
            a.new_scale + kv, int64_t{2} * a.Hkv * S::kRow, int64_t{a.Hkv} * S::kRow, 2 * a.Hkv, a.Hkv};
  }
  // The window slot at the step's position lane % 16, as row `row` sees it, or as all rows but those of a tree do (kEveryRow): negative
  // where there is none.
  __device__ __forceinline__ int32_t slot_of_lane(int32_t step, int32_t row) const {
    const int32_t t = position(step) + lane % 16 - history;
    if (t < 0) return kNowhere;
    const int32_t slot = row == kEveryRow ? t : visible_slot(a, row, t);
    return slot < a.M ? slot : kNowhere;
  }
  template <int words>
  __device__ __forceinline__ static void clear(uint32_t (&x)[words], uint32_t word) {
#pragma unroll
    for (int32_t w = 0; w < words; ++w) x[w] = word;
  }

  __device__ __forceinline__ const uint32_t *key_share(const uint8_t *head) const {
    return reinterpret_cast<const uint32_t *>(head) + key_word();
  }
  __device__ __forceinline__ const uint32_t *value_share(const uint8_t *head) const {
    return reinterpret_cast<const uint32_t *>(head) + value_word();
  }
  // Of a step that is fetched, to be read as row `row` does, or all rows but those of a tree.
  __device__ __forceinline__ void mend_keys(KeyShare &keys, Scales &scales, int32_t step, int32_t row) const {
    const WindowRows rows = window();
    const int32_t slots = slot_of_lane(step, row);
#pragma unroll
    for (int32_t k = 0; k < 2; ++k) {
      const int32_t slot = __shfl_sync(kAllLanes, slots, lane / 4 + 8 * k);
      const int32_t p = position(step) + lane / 4 + 8 * k;
      if (p < history) {
        if (kNested && p < kv4) clear(keys.refinement[k], 0x88888888u);
        continue;
      }
      if (slot < 0) {  // no row sees it, but sums pass over it
        clear(keys.base[k], 0);
        scales.key[k] = scales.value[k] = 0;
        continue;
      }
      read_key(keys.base[k], key_share(rows.rows + slot * rows.stride));
      if (!kNested) continue;
      read_key(keys.refinement[k], key_share(rows.refinement + slot * rows.stride));
      const uint16_t *scale = rows.scale + slot * rows.scale_stride;
      scales.key[k] = scale[0], scales.value[k] = scale[rows.value_scale];
    }
  }
  __device__ __forceinline__ void mend_values(ValueShare &values, int32_t step, int32_t row) const {
    const WindowRows rows = window();
    const int32_t slots = slot_of_lane(step, row);
#pragma unroll
    for (int32_t v = 0; v < 4; ++v) {
      const int32_t slot = __shfl_sync(kAllLanes, slots, value_of(lane % 4, v));
      const int32_t p = position(step) + value_of(lane % 4, v);
      if (p < history) {
        if (kNested && p < kv4) clear(values.refinement[v], 0x88888888u);
        continue;
      }
      if (slot < 0) {
        clear(values.base[v], 0);
        continue;
      }
      read_value(values.base[v], value_share(rows.rows + slot * rows.stride + rows.value));
      if (kNested) read_value(values.refinement[v], value_share(rows.refinement + slot * rows.stride + rows.value));
    }
  }
};

}  // namespace attention
}  // namespace cuda
}  // namespace bitmtp
