// The arithmetic of docs/numerics.md on this device, outside the dots. The library is compiled without contraction: a product and
// a sum are fused only where fmaf is written. Sums are split over the threads of a block by element index and combined by a fixed
// tree, both functions of the number of elements alone.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

namespace bitmtp {
namespace cuda {

constexpr uint32_t kWholeWarp = 0xFFFFFFFFu;
constexpr float kExpLow = -87.3f;

// Rule 7, where x lies in kExpLow .. 88.3; elsewhere any value.
__device__ __forceinline__ float exponential_inside(float x) {
  // The nearest integer, half to even: in this range the sum has no fraction, and its low bits are the integer's.
  const float sum = x * 1.44269504f + 12582912.0f;
  const float n = sum - 12582912.0f;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 0.00138141739f;
  p = p * r + 0.00836892147f;
  p = p * r + 0.0416684076f;
  p = p * r + 0.166665196f;
  p = p * r + 0.49999994f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  return p * __int_as_float(static_cast<int32_t>(static_cast<uint32_t>(__float_as_int(sum) + 127) << 23));
}

__device__ __forceinline__ float exponential(float x) {
  x = x < kExpLow ? kExpLow : x;
  return exponential_inside(x > 88.3f ? 88.3f : x);
}

__device__ __forceinline__ float softmax_weight(float x) { return x < kExpLow ? 0.0f : exponential(x); }

// a / b and 1 / sqrt(x) without a branch: correctly rounded where b and x lie in 2^-100 .. 2^100 and the quotient is no subnormal, else
// the hardware's estimate, which is 0 for a b above 2^126.
__device__ __forceinline__ bool is_moderate(float x) { return x >= 0x1p-100f && x <= 0x1p100f; }
__device__ __forceinline__ float quotient(float a, float b) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(b));
  const float finer = fmaf(r, fmaf(-b, r, 1.0f), r), q = a * finer;
  return is_moderate(b) ? fmaf(finer, fmaf(-b, q, a), q) : a * r;
}
__device__ __forceinline__ float reciprocal_root(float x) {
  float r;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  const float square = r * r, rest = fmaf(r, r, -square);
  const float error = fmaf(-x, rest, fmaf(-x, square, 1.0f));
  return is_moderate(x) ? fmaf(fmaf(error, 0.375f, 0.5f), r * error, r) : r;
}

// Half to even; a NaN gives 0.
__device__ __forceinline__ int32_t round_code(float x, int32_t low, int32_t high) {
  const int32_t rounded = __float2int_rn(x);
  return rounded < low ? low : rounded > high ? high : rounded;
}

// Order of int32 keys is the order of the values; -0 must have been made 0.
__device__ __forceinline__ int32_t float_key(float x) {
  const int32_t bits = __float_as_int(x);
  return bits ^ ((bits >> 31) & 0x7FFFFFFF);
}
__device__ __forceinline__ float key_float(int32_t key) { return __int_as_float(key ^ ((key >> 31) & 0x7FFFFFFF)); }

// Both operands of an addition swap places between two lanes, which changes no bit: every lane ends with the same sum.
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = x + __shfl_xor_sync(kWholeWarp, x, step);
  return x;
}

// Over a block of whole warps, at most 32; every thread gets the result. `scratch` holds 32 values and serves one call.
__device__ __forceinline__ float block_sum(float x, float *scratch) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  x = warp_sum(x);
  if (lane == 0) scratch[warp] = x;
  __syncthreads();
  return warp_sum(lane < warps ? scratch[lane] : 0.0f);
}

}  // namespace cuda
}  // namespace bitmtp
