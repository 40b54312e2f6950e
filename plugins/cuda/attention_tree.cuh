// Rows of a tree, each of which has an order of the window's slots of its own: keys and values are read row by row from where they are
// stored, for the few steps that hold window positions.
#pragma once

#include <cstdint>

#include "attention_feed.cuh"
#include "attention_layout.cuh"
#include "attention_math.cuh"
#include "attention_sight.cuh"
#include "bitmtp/abi.h"

namespace bitmtp {
namespace cuda {
namespace attention {

// Reads a step as one row sees it. Lane i < 16 knows where key i of the step is: a window slot, or (from kPast down) a history row.
constexpr int32_t kPast = kNowhere - 1;

template <int D, bool kNested>
struct TreeReader {
  using S = Stored<D, kNested>;
  const Feeder<D, kNested> &feeder;
  int32_t source;  // of key `lane`

  __device__ __forceinline__ TreeReader(const Feeder<D, kNested> &f, int32_t step, int32_t row, int32_t limit) : feeder(f) {
    const int32_t p = f.position(step) + f.lane;
    source = p < f.history ? kPast - p : p < limit ? visible_slot(f.a, row, p - f.history) : kNowhere;
  }

  template <int words>
  __device__ __forceinline__ void load(uint32_t (&x)[words], bool value, bool fine, int32_t key, int32_t at) const {
    const bitmtp_nested_kv_attention_args &a = feeder.a;
    const WindowRows window = feeder.window();
    const int32_t from = __shfl_sync(kAllLanes, source, key), p = kPast - from;
    if (value) at += S::kRow / 2 * feeder.half;
    const uint8_t *word = nullptr;
    if (from >= 0) {
      word = (fine ? window.refinement : window.rows) + from * window.stride + (value ? window.value : 0) + at;
    } else if (from <= kPast && !(fine && p < feeder.kv4)) {
      const uint8_t *rows = fine ? reinterpret_cast<const uint8_t *>(a.history_refinement) : static_cast<const uint8_t *>(a.history);
      word = rows + (int64_t{p} * 2 * a.Hkv + feeder.kv + (value ? a.Hkv : 0)) * S::kRow + at;
    }
    const uint32_t otherwise = fine ? 0x88888888u : 0u;
#pragma unroll
    for (int32_t w = 0; w < words; ++w) x[w] = word != nullptr ? reinterpret_cast<const uint32_t *>(word)[w] : otherwise;
  }

  // As Feeder::scales.
  __device__ __forceinline__ uint4 scales(int32_t half, int32_t thread, int32_t step) const {
    const float unit = feeder.unit_of_code(step);
    const int32_t first = kKeys * half + key_of(2 * thread), second = kKeys * half + key_of(2 * thread + 1);
    const float s[4] = {scale(first, false), scale(second, false), scale(first, true), scale(second, true)};
    return {__float_as_uint(mul(s[0], unit)), __float_as_uint(mul(s[1], unit)), __float_as_uint(mul(s[2], unit)),
            __float_as_uint(mul(s[3], unit))};
  }

 private:
  __device__ __forceinline__ float scale(int32_t key, bool value) const {
    const bitmtp_nested_kv_attention_args &a = feeder.a;
    const WindowRows window = feeder.window();
    const int32_t from = __shfl_sync(kAllLanes, source, key);
    if (!kNested || from == kNowhere) return 1.0f;
    const uint16_t bits = from >= 0 ? window.scale[from * window.scale_stride + (value ? window.value_scale : 0)]
                                    : a.history_scale[(int64_t{kPast - from} * 2 + (value ? 1 : 0)) * a.Hkv + feeder.kv];
    return __half2float(__ushort_as_half(bits));
  }
};

}  // namespace attention
}  // namespace cuda
}  // namespace bitmtp
