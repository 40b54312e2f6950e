// Weights of a block's rows on their way to shared memory, for packed_ring.cuh: a ring of stages that one warp fills, far ahead of the
// eight that empty it, and from before the previous kernel has ended.
//
// A stage is S::kStageSteps steps, or a whole row where that is shorter, of S::kRowTiles tiles of 8 rows: the same number of steps for
// each lane of the fold. They lie here as they do in memory, so what is next to itself there comes in one bulk copy: a plane of a
// tile, or of all tiles where the stage has whole rows. Few and long copies: each costs some 60 ns of the multiprocessor's copy engine.
#pragma once

#include "packed_rows.cuh"
#include "staging.cuh"

namespace bitmtp {
namespace cuda {

template <class S>
struct RingStage {
  static constexpr int kStepWords = S::kLoads * 32;                // of a tile
  static constexpr int kUnits = S::kStageSteps >> S::kShift;       // scale groups
  uint32_t words[S::kPlanes][S::kRowTiles * S::kStageSteps * kStepWords];
  uint32_t scales[S::kGrouped ? S::kRowTiles * kUnits * 4 : 4];  // fp16 of 8 rows a group
};

__device__ __forceinline__ uint32_t dynamic_shared_memory() {
  uint32_t bytes;
  asm volatile("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
  return bytes;
}

// Until the barrier has gone through its phase of that parity.
__device__ __forceinline__ void await_phase(const uint64_t *barrier, uint32_t parity) {
  uint32_t done = 0;
  while (done == 0) {
#if __CUDA_ARCH__ >= 900
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
#else
    asm volatile("{.reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
#endif
                 : "=r"(done)
                 : "r"(shared_address(barrier)), "r"(parity)
                 : "memory");
  }
}

template <class S>
class WeightRing {
 public:
  using Stage = RingStage<S>;

  // Every thread of the block makes it, with room for as many stages as the launch gave, S::kRing at most, and two barriers each.
  __device__ __forceinline__ WeightRing(const PackedArgs &a, void *stages, uint64_t (*barriers)[S::kRing])
      : steps_(a.steps < S::kStageSteps ? a.steps : S::kStageSteps),
        count_(dynamic_shared_memory() / sizeof(Stage)),
        stages_(static_cast<Stage *>(stages)),
        full_(barriers[0]),
        empty_(barriers[1]) {
    if (threadIdx.x == 0) {
#pragma unroll
      for (int i = 0; i < S::kRing; ++i) {
        asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(full_ + i)), "n"(kFillers) : "memory");
        asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(empty_ + i)), "n"(32 * kFoldLanes) : "memory");
      }
#if __CUDA_ARCH__ >= 900
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
    }
    __syncthreads();
  }

  // The filling warp: all stages of the tiles first .. end-1, S::kRowTiles at a time.
  __device__ __forceinline__ void fill(const PackedArgs &a, int32_t first, int32_t end) {
    for (int32_t tile = first; tile < end; tile += S::kRowTiles) {
      const int32_t tiles = end - tile < S::kRowTiles ? end - tile : S::kRowTiles;
      for (int32_t step = 0; step < a.steps; step += S::kStageSteps) {
        if (turns_ > 0) await_phase(empty_ + slot_, (turns_ + 1) & 1);
        fill_stage(a, tile, tiles, step);
        next();
      }
    }
  }

  // An emptying warp: until the next stage is there.
  __device__ __forceinline__ void await() const { await_phase(full_ + slot_, turns_ & 1); }
  // Words of a tile's step in that stage, and scales of a tile's group.
  __device__ __forceinline__ const uint32_t *words(int plane, int tile, int step) const {
    return stages_[slot_].words[plane] + (tile * steps_ + step) * Stage::kStepWords;
  }
  __device__ __forceinline__ const uint32_t *scales(int tile, int unit) const {
    return stages_[slot_].scales + (tile * ((steps_ + S::kShift) >> S::kShift) + unit) * 4;
  }
  // The end of the stage, which the warp has read. Every thread arrives for itself: racecheck does not see that one lane behind
  // __syncwarp() speaks for all.
  __device__ __forceinline__ void leave() {
    uint64_t state;
    asm volatile("mbarrier.arrive.shared.b64 %0, [%1];" : "=l"(state) : "r"(shared_address(empty_ + slot_)) : "memory");
    next();
  }

 private:
#if __CUDA_ARCH__ >= 900
  static constexpr int kFillers = 1;
#else
  static constexpr int kFillers = 32;
#endif

  __device__ __forceinline__ void next() {
    if (++slot_ == count_) slot_ = 0, ++turns_;
  }

  __device__ __forceinline__ void fill_stage(const PackedArgs &a, int32_t tile, int32_t tiles, int32_t step) {
    Stage &stage = stages_[slot_];
    const int32_t steps = a.steps - step < steps_ ? a.steps - step : steps_;
    const uint32_t bytes = steps * Stage::kStepWords * 4, scale_bytes = S::kGrouped ? ((steps + S::kShift) >> S::kShift) * 16 : 0;
    const bool whole = steps == a.steps;  // rows: the tiles are one piece
    // Pieces of a plane, then of scales.
    const auto copy_piece = [&](int t, int plane) {
      const uint32_t times = whole ? tiles : 1;
      if (plane < S::kPlanes) {
        const uint32_t *table = plane == 0 ? a.table : a.refinement;
        const int64_t from = (static_cast<int64_t>(tile + t) * a.steps + step) * Stage::kStepWords;
        copy(stage.words[plane] + t * steps_ * Stage::kStepWords, table + from, times * bytes);
      } else if (S::kGrouped && plane == S::kPlanes) {
        const int32_t units = (steps_ + S::kShift) >> S::kShift;
        const int64_t from = (static_cast<int64_t>(tile + t) * a.groups + (step >> S::kShift)) * 8;
        copy(stage.scales + t * units * 4, a.scales + from, times * scale_bytes);
      }
    };
#if __CUDA_ARCH__ >= 900
    const int lane = threadIdx.x % 32, t = lane % S::kRowTiles;
    const uint32_t all = tiles * (S::kPlanes * bytes + scale_bytes);
    if (lane == 0) asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(full_ + slot_)), "r"(all) : "memory");
    if (t < (whole ? 1 : tiles)) copy_piece(t, lane / S::kRowTiles);
#else
    for (int t = 0; t < (whole ? 1 : tiles); ++t) {
#pragma unroll
      for (int plane = 0; plane <= S::kPlanes; ++plane) copy_piece(t, plane);
    }
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(full_ + slot_)) : "memory");
#endif
  }

  // By one lane where there are bulk copies, else by all of them.
  __device__ __forceinline__ void copy(void *to, const void *from, uint32_t bytes) const {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(to)), "l"(from), "r"(bytes),
                 "r"(shared_address(full_ + slot_))
                 : "memory");
#else
    for (uint32_t at = threadIdx.x % 32 * 16; at < bytes; at += 32 * 16) copy_async(static_cast<char *>(to) + at, static_cast<const char *>(from) + at);
#endif
  }

  const int32_t steps_;  // of a stage, but for the last of a row
  const uint32_t count_;
  Stage *const stages_;
  uint64_t *const full_, *const empty_;
  uint32_t slot_ = 0;
  uint32_t turns_ = 0;
};

}  // namespace cuda
}  // namespace bitmtp
