// What RmsNormQuant and GatedActQuant share: a block holds a row of values in registers, four neighbours a thread and item, norms
// it (rule 4) where asked, and writes int8 codes and a scale (rule 3).
#pragma once

#include <type_traits>

#include "launch.cuh"
#include "numerics.cuh"
#include "weight.cuh"

namespace bitmtp {
namespace cuda {

constexpr int32_t kMostRowColumns = 32768;  // 1024 threads of 8 items

// Elements i .. i+3 of a row of n, zeros past its end. Rows of a multiple of four start on 16 bytes.
__device__ __forceinline__ float4 load_four(const float *row, int32_t i, int32_t n) {
  if (n % 4 == 0) return i < n ? *reinterpret_cast<const float4 *>(row + i) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  return make_float4(i < n ? row[i] : 0.0f, i + 1 < n ? row[i + 1] : 0.0f, i + 2 < n ? row[i + 2] : 0.0f,
                     i + 3 < n ? row[i + 3] : 0.0f);
}

__device__ __forceinline__ int32_t absolute_bits(float x) { return __float_as_int(x) & 0x7FFFFFFF; }

// Item k of thread t is the word t + k * threads of the row's codes. `values` are zero past the row's end.
template <int kItems>
struct Row {
  float4 values[kItems];

  __device__ __forceinline__ static int32_t column(int item) {
    return 4 * static_cast<int32_t>(threadIdx.x + item * blockDim.x);
  }

  __device__ __forceinline__ float sum_of_squares() const {
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
      const float4 v = values[k];
      sum = sum + ((v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w));
    }
    return sum;
  }

  __device__ __forceinline__ void scale_by(float factor, int item, float4 weight) {
    float4 &v = values[item];
    v = make_float4(v.x * factor * weight.x, v.y * factor * weight.y, v.z * factor * weight.z, v.w * factor * weight.w);
  }

  __device__ __forceinline__ void quantise(int32_t n, int32_t *codes, float *scale, int32_t *scratch) const {
    int32_t most = 0;
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
      const float4 v = values[k];
      most = max(most, max(max(absolute_bits(v.x), absolute_bits(v.y)), max(absolute_bits(v.z), absolute_bits(v.w))));
    }
    float amax = __int_as_float(block_max(most, scratch));
    amax = amax < 1e-10f ? 1e-10f : amax;
    const float inverse = 127.0f / amax;
    if (threadIdx.x == 0) *scale = amax / 127.0f;
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
      const int32_t i = column(k);
      if (i >= pad64(n)) break;
      const float4 v = values[k];
      const uint32_t word = (round_code(v.x * inverse, -127, 127) & 0xFF) | (round_code(v.y * inverse, -127, 127) & 0xFF) << 8 |
                            (round_code(v.z * inverse, -127, 127) & 0xFF) << 16 |
                            static_cast<uint32_t>(round_code(v.w * inverse, -127, 127)) << 24;
      codes[i / 4] = static_cast<int32_t>(word);
    }
  }
};

__device__ __forceinline__ float rms_factor(float sum_of_squares, int32_t n, float epsilon) {
  return 1.0f / sqrtf(sum_of_squares / static_cast<float>(n) + epsilon);
}

// Calls `with(std::integral_constant<int, kItems>, threads)` for a row of n columns.
template <class With>
int32_t with_row_shape(int32_t n, const With &with) {
  const int32_t words = pad64(n) / 4;
  const auto threads = [&](int32_t items) { return static_cast<unsigned>(ceil_div(ceil_div(words, items), 32) * 32); };
  if (words <= 1024) return with(std::integral_constant<int, 1>{}, threads(1));
  if (words <= 2048) return with(std::integral_constant<int, 2>{}, threads(2));
  if (words <= 4096) return with(std::integral_constant<int, 4>{}, threads(4));
  return with(std::integral_constant<int, 8>{}, threads(8));
}

}  // namespace cuda
}  // namespace bitmtp
