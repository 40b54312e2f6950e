// Instructions that attention is made of. Every fp32 operation whose rounding reaches a result is spelled out, so that no compiler
// fuses it in one instantiation and not in another.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace bitmtp {
namespace cuda {
namespace attention {

constexpr uint32_t kAllLanes = 0xFFFFFFFFu;
constexpr float kLog2e = 1.44269504f;

__device__ __forceinline__ float mul(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ float add(float a, float b) { return __fadd_rn(a, b); }
__device__ __forceinline__ float sub(float a, float b) { return __fsub_rn(a, b); }
__device__ __forceinline__ float fma_(float a, float b, float c) { return __fmaf_rn(a, b, c); }

// 2^x; 0 for -inf and where the result would be subnormal. Scores are kept in units of log2, so this is the one exponential.
__device__ __forceinline__ float power2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float minus_infinity() { return __int_as_float(0xFF800000); }

// Sums and maxima over the lanes whose index differs in bits from `first` to below `last`; every lane gets the result.
template <int first, int last>
__device__ __forceinline__ float lanes_sum(float x) {
#pragma unroll
  for (int bit = last / 2; bit >= first; bit /= 2) x = add(x, __shfl_xor_sync(kAllLanes, x, bit));
  return x;
}
template <int first, int last>
__device__ __forceinline__ float lanes_max(float x) {
#pragma unroll
  for (int bit = last / 2; bit >= first; bit /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, bit));
  return x;
}

// The power of two that brings a positive x into [2^13, 2^14), and its inverse: fp16 then holds x, and what rounding x to fp16 leaves,
// without running out of exponent.
struct Shift {
  float up, down;
};
__device__ __forceinline__ Shift shift_of(float x) {
  const int32_t exponent = min(max(__float_as_int(x) >> 23, 14), 253);
  return {__int_as_float((267 - exponent) << 23), __int_as_float((exponent - 13) << 23)};
}

__device__ __forceinline__ uint32_t bits_of(__half2 x) { return *reinterpret_cast<const uint32_t *>(&x); }
__device__ __forceinline__ __half2 halves_of(uint32_t x) { return *reinterpret_cast<const __half2 *>(&x); }

// The bits of x in `mask`, over those of the fp16 number 1024 in both halves, in one instruction.
template <uint32_t mask>
__device__ __forceinline__ uint32_t over_1024(uint32_t x) {
  uint32_t y;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(y) : "r"(x), "n"(mask), "n"(0x64006400));  // (x & mask) | 0x64006400
  return y;
}

// x and y to fp16, and what that leaves of them.
__device__ __forceinline__ void split(float x, float y, uint32_t &high, uint32_t &low) {
  const __half2 h = __floats2half2_rn(x, y);
  const float2 f = __half22float2(h);
  high = bits_of(h);
  low = bits_of(__floats2half2_rn(sub(x, f.x), sub(y, f.y)));
}

// Reciprocal square root by the hardware's approximation.
__device__ __forceinline__ float inverse_root(float x) {
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// d += a b, a 16 x 16, b 16 x 8.
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// An 8 x 8 matrix of halves, two neighbours of a row a lane, transposed.
__device__ __forceinline__ uint32_t transposed(uint32_t x) {
  uint32_t y;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

// By the hardware's approximation; -inf for 0.
__device__ __forceinline__ float log2_of(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// From a shared address.
__device__ __forceinline__ uint4 load_shared16(uint32_t address) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(address) : "memory");
  return x;
}

}  // namespace attention
}  // namespace cuda
}  // namespace bitmtp
