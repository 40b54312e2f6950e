// How the warps of a thread-block cluster tell each other what they found: every block has an array in shared memory that all blocks
// write, and goes on when the array is full. A cluster of more than one block takes compute capability 9.0; one block has a barrier.
//
// Nobody has to wait for readers: all that is ever written to a block has arrived when the block goes on, so it may end.
#pragma once

#include <cstdint>

#include "numerics.cuh"
#include "staging.cuh"

namespace bitmtp {
namespace cuda {

// What a stretch of a row adds to its norm and its scale.
struct Partial {
  float squares;
  int32_t most;  // bits of the largest magnitude
};
static_assert(sizeof(Partial) == 8, "one store");

template <int kBlocks, int kMost>
struct Exchange {
  alignas(16) Partial partials[kMost];
  uint64_t full;  // mbarrier

  // To be called before any block writes; the first `count` entries will be written, the others stay 0. Every thread of the cluster
  // calls it.
  __device__ __forceinline__ void open(uint32_t count) {
    for (uint32_t i = count + threadIdx.x; i < kMost; i += blockDim.x) partials[i] = {0.0f, 0};
    if constexpr (kBlocks > 1) {
      __syncthreads();
#if __CUDA_ARCH__ >= 900
      if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&full)) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&full)), "r"(count * 8) : "memory");
      }
      asm volatile("barrier.cluster.arrive.relaxed.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
    }
  }

  // Entry `at` of every block's array, by a whole warp whose lanes all have the value.
  __device__ __forceinline__ void put(int32_t at, Partial value) {
    const int32_t lane = threadIdx.x % 32;
    if constexpr (kBlocks > 1) {
#if __CUDA_ARCH__ >= 900
      if (lane < kBlocks) {
        asm volatile(
            "{\n\t.reg .b32 to, bar;\n\t"
            "mapa.shared::cluster.u32 to, %0, %2;\n\t"
            "mapa.shared::cluster.u32 bar, %1, %2;\n\t"
            "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [to], {%3, %4}, [bar];\n\t}"
            ::"r"(shared_address(&partials[at])), "r"(shared_address(&full)), "r"(lane), "r"(__float_as_int(value.squares)), "r"(value.most)
            : "memory");
      }
#endif
    } else if (lane == 0) {
      partials[at] = value;
    }
  }

  // Returns when all entries are there.
  __device__ __forceinline__ void wait() {
    if constexpr (kBlocks > 1) {
#if __CUDA_ARCH__ >= 900
      uint32_t done;
      do {
        asm volatile(
            "{\n\t.reg .pred p;\n\t"
            "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], 0;\n\t"
            "selp.u32 %0, 1, 0, p;\n\t}"
            : "=r"(done) : "r"(shared_address(&full)) : "memory");
      } while (done == 0);
#endif
    } else {
      __syncthreads();
    }
  }
};

}  // namespace cuda
}  // namespace bitmtp
