// Memory that nothing writes, on its way to shared memory before the previous kernel has ended: a bulk copy by one thread where the
// hardware has it, copies by all threads elsewhere. Addresses and sizes are multiples of 16 bytes.
#pragma once

#include <cstdint>

#include "launch.cuh"

namespace bitmtp {
namespace cuda {

__device__ __forceinline__ uint32_t shared_address(const void *p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// 16 bytes, by one thread, which waits for all of its own.
__device__ __forceinline__ void copy_async(void *to, const void *from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
__device__ __forceinline__ void wait_async() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Pieces that arrive one by one, as many as kMost. Every thread of the block calls every method alike.
template <int kMost>
class Staging {
 public:
#if __CUDA_ARCH__ >= 900
  __device__ __forceinline__ explicit Staging(uint64_t *arrived) : arrived_(arrived) {
    if (threadIdx.x == 0) {
#pragma unroll
      for (int i = 0; i < kMost; ++i) asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(arrived_ + i)));
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
  }
  // A part of piece `piece`, of whose parts `bytes` are to come in all: `expect` first, once.
  __device__ __forceinline__ void expect(int piece, uint32_t bytes) const {
    if (threadIdx.x == 0)
      asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(arrived_ + piece)), "r"(bytes) : "memory");
  }
  __device__ __forceinline__ void copy(int piece, void *to, const void *from, uint32_t bytes) const {
    if (threadIdx.x == 0)
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(to)), "l"(from),
                   "r"(bytes), "r"(shared_address(arrived_ + piece))
                   : "memory");
  }
  // After the last copy.
  __device__ __forceinline__ void close() const { __syncthreads(); }
  // Until the piece is there, for every thread of the block.
  __device__ __forceinline__ void await(int piece) const {
    uint32_t done = 0;
    while (done == 0) {
      asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], 0; selp.u32 %0, 1, 0, p;}"
                   : "=r"(done)
                   : "r"(shared_address(arrived_ + piece))
                   : "memory");
    }
  }

 private:
  uint64_t *arrived_;
#else
  __device__ __forceinline__ explicit Staging(uint64_t *) {}
  __device__ __forceinline__ void expect(int, uint32_t) const {}
  __device__ __forceinline__ void copy(int, void *to, const void *from, uint32_t bytes) const {
    for (uint32_t at = threadIdx.x * 16; at < bytes; at += blockDim.x * 16) copy_async(static_cast<char *>(to) + at, static_cast<const char *>(from) + at);
  }
  __device__ __forceinline__ void close() const {}
  __device__ __forceinline__ void await(int piece) const {
    if (piece > 0) return;  // all of them come together
    wait_async();
    __syncthreads();
  }
#endif
};

}  // namespace cuda
}  // namespace bitmtp
