// Instructions that attention is made of. Every fp32 operation whose rounding reaches a result is spelled out, so that no compiler
// fuses it in one instantiation and not in another.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "staging.cuh"

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
// A maximum to subtract from scores: that of no score at all is -inf, from which nothing may be subtracted.
__device__ __forceinline__ float reference_of(float maximum) { return maximum == minus_infinity() ? 0.0f : maximum; }

// Sums and maxima over the lanes whose index differs in bits below `width`; every lane gets the result.
template <int width>
__device__ __forceinline__ float lanes_sum(float x) {
#pragma unroll
  for (int bit = width / 2; bit > 0; bit /= 2) x = add(x, __shfl_xor_sync(kAllLanes, x, bit));
  return x;
}
template <int width>
__device__ __forceinline__ float lanes_max(float x) {
#pragma unroll
  for (int bit = width / 2; bit > 0; bit /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, bit));
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

// d += a b, a 16 x 16, b 16 x 8. Rows 0-7 of a are the high, rows 8-15 the low halves of eight vectors.
__device__ __forceinline__ void mma(float (&d)[4], uint4 a, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

// Barrier of the 64 threads of one pair of warps.
__device__ __forceinline__ void pair_barrier(int32_t pair) { asm volatile("bar.sync %0, 64;" ::"r"(pair + 1) : "memory"); }

// ---- clusters ---------------------------------------------------------------------------------------------------------

#if __CUDA_ARCH__ >= 900
// Every thread of every block of the cluster arrives, then waits.
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// Stores at a shared address of this block's, but in block `rank` of the cluster.
__device__ __forceinline__ uint32_t address_in(uint32_t address, int32_t rank) {
  uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}
__device__ __forceinline__ void store_cluster16(uint32_t address, float4 x) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w) : "memory");
}
__device__ __forceinline__ void store_cluster8(uint32_t address, float2 x) {
  asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(x.x), "f"(x.y) : "memory");
}
#endif

// ---- shared memory ----------------------------------------------------------------------------------------------------

__device__ __forceinline__ uint4 load_shared16(uint32_t address) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(address) : "memory");
  return x;
}
__device__ __forceinline__ uint2 load_shared8(uint32_t address) {
  uint2 x;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "r"(address) : "memory");
  return x;
}
__device__ __forceinline__ uint32_t load_shared4(uint32_t address) {
  uint32_t x;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
  return x;
}
__device__ __forceinline__ void store_shared16(uint32_t address, uint4 x) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}
__device__ __forceinline__ void store_shared8(uint32_t address, uint2 x) {
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(address), "r"(x.x), "r"(x.y) : "memory");
}
__device__ __forceinline__ void store_shared4(uint32_t address, uint32_t x) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
}

__device__ __forceinline__ void copy_async16(uint32_t to, const void *from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(__cvta_generic_to_global(from)) : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most kPending of this thread's groups are under way.
template <int kPending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace attention
}  // namespace cuda
}  // namespace bitmtp
