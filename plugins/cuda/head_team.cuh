// GreedyHead of a ternary table with several outputs. The bits are those of packed_rows.cuh: the same products, folded in the order of
// fold.h.
//
// A block of the vocabulary, 32 rows, is the work of a team of four warps, of which warp p has lanes p and p + 4 of the fold: a sum that
// combine_lanes() begins with is made within a warp. A multiprocessor has as many teams as fit, each with a barrier of its own: while one
// waits for memory, exchanges sums or reduces, others multiply. A warp fetches its own weights, ahead of their use and from before the
// previous kernel has ended, into a ring that no other warp sees; the outputs' activations lie in shared memory in the layout of mma's B
// operand. After a block's barrier each warp finishes every fourth output, a row a lane.
#pragma once

#include <algorithm>
#include <optional>

#include "greedy_head.cuh"
#include "staging.cuh"
#include "ternary_products.cuh"

namespace bitmtp {
namespace cuda {

// kGroup, kTiles: as in PackedShape. A unit is a scale group, or two steps where a row has one scale.
template <int kGroup_, int kTiles_>
struct TeamShape {
  static constexpr bool kGrouped = kGroup_ > 0;
  static constexpr int kTiles = kTiles_;
  static constexpr int kColumns = 8 * kTiles;
  static constexpr int kUnitSteps = kGroup_ == 64 ? 1 : 2;
  static constexpr int kWarps = 4;  // of a team
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kTeams = 4;  // of a block, at most
  static constexpr int kRing = kUnitSteps == 2 ? 2 : 3;  // stages: few, as activations wait behind what is on its way before them
  static constexpr int kFinish = kColumns / kWarps;  // outputs that a warp finishes, at most
};

// A unit of each of a warp's lanes of the fold.
template <class S>
struct alignas(16) TeamStage {
  uint32_t words[2][kHeadRows / 8][S::kUnitSteps * 32];  // as in memory, tile by tile
  uint32_t scales[S::kGrouped ? 2 : 1][kHeadRows / 2];   // fp16
};

template <class S>
struct TeamShared {
  TeamStage<S> ring[S::kWarps][S::kRing];
  float parts[2][S::kWarps][S::kColumns][kHeadRows + 4];  // rows are padded to spread the banks
};

// Dynamic shared memory of a block: activations, their sums by unit and column, teams.
template <class S>
struct TeamLayout {
  int32_t units, sums, teams;  // units of a row; where sums and teams begin
  __host__ __device__ explicit TeamLayout(const PackedArgs &a)
      : units(ceil_div(a.steps, S::kUnitSteps)), sums(units * S::kUnitSteps * S::kTiles * 512), teams(sums + units * S::kColumns * 4) {}
};

__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until all but the last `kLeft` groups of this thread's copies are there.
template <int kLeft>
__device__ __forceinline__ void await_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory"); }

// A warp's weights on their way, in the order in which it takes them: stages of a block, then of its team's next block.
template <class S>
class TeamFeed {
 public:
  __device__ __forceinline__ TeamFeed(const PackedArgs &a, TeamStage<S> *ring, int32_t part, int32_t units, int32_t block, int32_t stride)
      : a_(a), ring_(ring), taken_(ring), part_(part), units_(units), unit_(part), stride_(stride) {
    const int32_t lane = threadIdx.x % 32;
    filled_ = reinterpret_cast<uint8_t *>(ring) + lane * 16;
    left_ = part < units ? ceil_div(a.rows, 8) - kBlockTiles * block : 0;
    const int64_t tile = kBlockTiles * static_cast<int64_t>(block);
#pragma unroll
    for (int i = 0; i < S::kUnitSteps; ++i) words_[i] = a.table + (tile + i * kCopyTiles + lane / kTileLanes) * a.steps * 32 + lane % kTileLanes * 4;
    if constexpr (S::kGrouped) scales_ = a.scales + ((tile + lane % kBlockTiles) * a.groups + lane / kBlockTiles * S::kWarps) * 8;
#pragma unroll
    for (int i = 0; i + 1 < S::kRing; ++i) fetch();
  }

  // The next stage, when it is there.
  __device__ __forceinline__ const TeamStage<S> &next() {
    await_copies<S::kRing - 2>();
    __syncwarp();
    const TeamStage<S> &stage = *taken_;
    taken_ = taken_ + 1 == ring_ + S::kRing ? ring_ : taken_ + 1;
    return stage;
  }
  // Once after each next(): to where the stage before that one was. What does not exist, tiles past the end and steps past a row's,
  // is not fetched: old bits there meet zeros or end in rows that do not exist.
  __device__ __forceinline__ void fetch() {
    if (left_ > 0) {
      const int32_t lane = threadIdx.x % 32;
#pragma unroll
      for (int i = 0; i < S::kUnitSteps; ++i) {
#pragma unroll
        for (int l = 0; l < 2; ++l) {
          const bool exists = i * kCopyTiles + lane / kTileLanes < left_ && (unit_ + l * S::kWarps) * S::kUnitSteps + lane % kTileLanes / 8 < a_.steps;
          const uint32_t *const from = words_[i] + static_cast<uint32_t>(unit_ * (S::kUnitSteps * 32)) + l * (S::kWarps * S::kUnitSteps * 32);
          if (exists) copy_async(filled_ + (l * S::kUnitSteps + i) * 512, from);
        }
      }
      if constexpr (S::kGrouped) {
        if (lane < 2 * kBlockTiles && lane % kBlockTiles < left_ && unit_ + lane / kBlockTiles * S::kWarps < units_)
          copy_async(filled_ + sizeof(TeamStage<S>::words), scales_ + static_cast<uint32_t>(unit_ * 8));
      }
      unit_ += 2 * S::kWarps;
      if (unit_ >= units_) {
        unit_ = part_;
        left_ -= kBlockTiles * stride_;
        const int64_t tiles = kBlockTiles * static_cast<int64_t>(stride_);
#pragma unroll
        for (int i = 0; i < S::kUnitSteps; ++i) words_[i] += tiles * a_.steps * 32;
        if constexpr (S::kGrouped) scales_ += tiles * a_.groups * 8;
      }
      filled_ += sizeof(TeamStage<S>);
      if (filled_ >= reinterpret_cast<uint8_t *>(ring_ + S::kRing)) filled_ -= sizeof(TeamStage<S>) * S::kRing;
    }
    commit_copies();
  }

 private:
  static constexpr int kBlockTiles = kHeadRows / 8;
  static constexpr int kTileLanes = 8 * S::kUnitSteps;  // that copy a unit's words of a tile
  static constexpr int kCopyTiles = 32 / kTileLanes;

  const PackedArgs &a_;
  TeamStage<S> *const ring_, *taken_;
  uint8_t *filled_;  // the lane's first 16 bytes of the stage to be filled
  const int32_t part_, units_;
  int32_t unit_;
  const int32_t stride_;
  int32_t left_;  // tiles of the weight from the block on
  const uint32_t *words_[S::kUnitSteps];
  const uint16_t *scales_;
};

// As reduce_head_block, of the outputs `output`, `output` + `stride`, ... below `end`, where only the best token is asked for: chains of
// dependent instructions, which side by side hide each other's latency and share shuffles. Up to two outputs there is no asking which
// exist.
template <int kCount>
__device__ __forceinline__ void reduce_head_outputs(const HeadArgs &args, int32_t block, int32_t output, int32_t stride, int32_t end, const float (&logits)[kCount]) {
  constexpr int kOwnLanes = 32 / kCount;  // that end with the same sum
  const int32_t lane = threadIdx.x % 32, own = lane / kOwnLanes;
  const bool exists = block * kHeadRows + lane < args.weight.rows;
  float sums[kCount] = {}, maximum = 0.0f;
  int32_t winner = 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (i >= 2 && output + i * stride >= end) break;
    const float logit = exists ? logits[i] + 0.0f : -INFINITY;  // -0 ties with 0
    const int32_t key = float_key(logit), best = __reduce_max_sync(kWholeWarp, key);
    const int32_t first = __ffs(__ballot_sync(kWholeWarp, key == best)) - 1;  // the lowest id
    const float x = logit - key_float(best), weight = exponential_inside(x);
    sums[i] = x < kExpLow ? 0.0f : weight;
    if (i == own) maximum = key_float(best), winner = first;
  }
  // Sums in the order of warp_sum; half of them are handed over at a time.
  int bit = 16;
#pragma unroll
  for (int n = kCount / 2; n > 0; n /= 2, bit /= 2) {
    const bool upper = (lane & bit) != 0;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const float keep = upper ? sums[n + i] : sums[i], give = upper ? sums[i] : sums[n + i];
      sums[i] = keep + __shfl_xor_sync(kWholeWarp, give, bit);
    }
  }
#pragma unroll
  for (; bit > 0; bit /= 2) sums[0] = sums[0] + __shfl_xor_sync(kWholeWarp, sums[0], bit);
  if (lane % kOwnLanes == 0 && output + own * stride < end) {
    const int64_t at = static_cast<int64_t>(output + own * stride) * args.partials.blocks + block;
    args.partials.maximum[at] = maximum;
    args.partials.sum[at] = sums[0];
    args.partials.id[at] = block * kHeadRows + winner;
  }
}

// A barrier of a team.
template <class S>
__device__ __forceinline__ void meet_team(int32_t team) { asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "n"(S::kThreads) : "memory"); }

template <class S>
__global__ void __launch_bounds__(S::kThreads * S::kTeams, 1) head_team_kernel(const __grid_constant__ HeadArgs args) {
  extern __shared__ __align__(128) uint8_t dynamic[];
  __shared__ float act_scale[S::kColumns];
  const PackedArgs &a = args.weight;
  const TeamLayout<S> layout(a);
  const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4, part = threadIdx.x / 32 % S::kWarps, team = threadIdx.x / S::kThreads;
  const int32_t first_output = static_cast<int32_t>(blockIdx.y) * S::kColumns;
  const int32_t outputs = args.h - first_output < S::kColumns ? args.h - first_output : S::kColumns;
  uint4 *const activations = reinterpret_cast<uint4 *>(dynamic);  // [step][tile][lane]
  int32_t *const sums = reinterpret_cast<int32_t *>(dynamic + layout.sums);
  TeamShared<S> &shared = reinterpret_cast<TeamShared<S> *>(dynamic + layout.teams)[team];

  // Teams of a multiprocessor come last, so that few blocks are spread.
  const int32_t first_block = team * static_cast<int32_t>(gridDim.x) + static_cast<int32_t>(blockIdx.x);
  const int32_t stride = static_cast<int32_t>(gridDim.x * (blockDim.x / S::kThreads));
  TeamFeed<S> feed(a, shared.ring[part], part, layout.units, first_block, stride);

  release_next();
  wait_for_previous();

  const auto slot = [&](int32_t column) { return args.head_slots[first_output + (column < outputs ? column : outputs - 1)]; };
  if (threadIdx.x < S::kColumns) act_scale[threadIdx.x] = args.act_scale[slot(threadIdx.x)];
  // A unit of a tile at a time, also the zero point's share of its dots: 64 times the sum of a column's codes.
  for (int32_t i = threadIdx.x / 32; i < layout.units * S::kTiles; i += blockDim.x / 32) {
    const int32_t unit = i / S::kTiles, tile = i % S::kTiles;
    const int32_t *const row = args.codes + static_cast<int64_t>(slot(8 * tile + g)) * (a.steps * (kStepColumns / 4)) + q * 4;
    int32_t sum[1] = {};
#pragma unroll
    for (int s = 0; s < S::kUnitSteps; ++s) {
      const int32_t step = unit * S::kUnitSteps + s;
      uint4 x = {};
      if (step < a.steps) x = *reinterpret_cast<const uint4 *>(row + step * 16);
      activations[(step * S::kTiles + tile) * 32 + lane] = x;
      const uint32_t codes[1][4] = {{x.x, x.y, x.z, x.w}};
      add_codes(sum, codes);
    }
    sum[0] += __shfl_xor_sync(kWholeWarp, sum[0], 1);
    sum[0] += __shfl_xor_sync(kWholeWarp, sum[0], 2);
    if (q == 0) sums[unit * S::kColumns + 8 * tile + g] = kTernaryStart<S::kGrouped> + 64 * sum[0];
  }
  __syncthreads();

  int32_t zeros[S::kTiles][2] = {};  // of all of the warp's units
  if constexpr (!S::kGrouped) {
    for (int32_t unit = part; unit < layout.units; unit += S::kWarps) {
#pragma unroll
      for (int t = 0; t < S::kTiles; ++t) {
#pragma unroll
        for (int c = 0; c < 2; ++c) zeros[t][c] += sums[unit * S::kColumns + 8 * t + 2 * q + c];
      }
    }
  }

  const bool best_only = args.top_k == 1 && args.logits == nullptr;
  int turn = part, parity = 0;  // the first output that the warp finishes
  for (int32_t block = first_block; block < args.partials.blocks; block += stride) {
    const int32_t n = block * kHeadRows + lane;
    const uint32_t row_scale = S::kGrouped ? 0u : load_row_scale(a.scales + (n < a.rows ? n : a.rows - 1));
    int32_t dots[2][S::kTiles][4] = {};     // of pairs of the lane's four rows
    float folded[2][4][S::kTiles][2] = {};  // by lane of the fold and row
    for (int32_t first = part; first < layout.units; first += 2 * S::kWarps) {
      const TeamStage<S> &stage = feed.next();
#pragma unroll
      for (int l = 0; l < 2; ++l) {
        const int32_t unit = first + l * S::kWarps;
        if (l == 1 && unit >= layout.units) break;
        uint4 words[S::kUnitSteps];
        uint32_t codes[S::kUnitSteps][S::kTiles][4];
#pragma unroll
        for (int s = 0; s < S::kUnitSteps; ++s) {
          words[s] = *reinterpret_cast<const uint4 *>(stage.words[l][g / 2] + s * 32 + q * 8 + g % 2 * 4);
#pragma unroll
          for (int t = 0; t < S::kTiles; ++t) {
            const uint4 x = activations[((unit * S::kUnitSteps + s) * S::kTiles + t) * 32 + lane];
            codes[s][t][0] = x.x, codes[s][t][1] = x.y, codes[s][t][2] = x.z, codes[s][t][3] = x.w;
          }
        }
        if (l == 0) feed.fetch();
#pragma unroll
        for (int s = 0; s < S::kUnitSteps; ++s) {
          const bool starts = S::kGrouped && s == 0;
          multiply_step<S::kGrouped>(dots[0], make_uint2(words[s].x, words[s].y), codes[s], starts);
          multiply_step<S::kGrouped>(dots[1], make_uint2(words[s].z, words[s].w), codes[s], starts);
        }
        if constexpr (S::kGrouped) {
          const uint2 four = *reinterpret_cast<const uint2 *>(stage.scales[l] + g * 2);
          float zero[S::kTiles][2];
#pragma unroll
          for (int t = 0; t < S::kTiles; ++t) {
            const int2 two = *reinterpret_cast<const int2 *>(sums + unit * S::kColumns + 8 * t + 2 * q);
            zero[t][0] = __int_as_float(two.x), zero[t][1] = __int_as_float(two.y);
          }
#pragma unroll
          for (int r = 0; r < 4; ++r) {
            const uint32_t two = r < 2 ? four.x : four.y;
            const float scale = half_to_float(r % 2 == 0 ? two & 0xFFFFu : two >> 16);
#pragma unroll
            for (int t = 0; t < S::kTiles; ++t) {
#pragma unroll
              for (int c = 0; c < 2; ++c)
                folded[l][r][t][c] = fmaf(__int_as_float(dots[r / 2][t][2 * (r % 2) + c]) - zero[t][c], scale, folded[l][r][t][c]);
            }
          }
        }
      }
    }

#pragma unroll
    for (int t = 0; t < S::kTiles; ++t) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float out[4];
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          if constexpr (S::kGrouped)
            out[r] = folded[0][r][t][c] + folded[1][r][t][c];
          else
            out[r] = __int_as_float(dots[r / 2][t][2 * (r % 2) + c] - zeros[t][c]);
        }
        *reinterpret_cast<float4 *>(&shared.parts[parity][part][8 * t + 2 * q + c][4 * g]) = make_float4(out[0], out[1], out[2], out[3]);
      }
    }
    meet_team<S>(team);
    // The other half of `parts` takes the next block, so that one barrier a block is enough.
    float logits[S::kFinish] = {};
#pragma unroll
    for (int i = 0; i < S::kFinish; ++i) {
      const int column = turn + i * S::kWarps;
      if (i >= 2 && column >= outputs) break;
      const auto of = [&](int p) { return shared.parts[parity][p][column][lane]; };
      float y;
      if constexpr (S::kGrouped) {
        y = ((of(0) + of(2)) + (of(1) + of(3))) * kTernaryUnit;  // combine_lanes
      } else {
        int32_t dot = 0;
#pragma unroll
        for (int p = 0; p < S::kWarps; ++p) dot += __float_as_int(of(p));
        y = static_cast<float>(dot) * (half_to_float(row_scale) * kTernaryUnit);
      }
      logits[i] = y * act_scale[column];
    }
    if (best_only) {
      reduce_head_outputs(args, block, first_output + turn, S::kWarps, first_output + outputs, logits);
    } else {
#pragma unroll
      for (int i = 0; i < S::kFinish; ++i)
        if (turn + i * S::kWarps < outputs) reduce_head_block(args, block, first_output + turn + i * S::kWarps, logits[i]);
    }
    turn = (turn + 1) % S::kWarps;
    parity ^= 1;
  }
}

// Nothing where not two teams of a multiprocessor find room: one would wait more than it computes.
template <class S>
std::optional<int32_t> launch_head_team(const HeadArgs &args, void *stream) {
  const int32_t own = S::kColumns * 4, bytes = TeamLayout<S>(args.weight).teams;
  const int32_t groups = ceil_div(args.h, S::kColumns), fit = std::max(multiprocessors() / groups, 1);
  const int32_t grid = std::min(args.partials.blocks, fit);
  const int32_t room = (shared_memory_of_block() - own - bytes) / static_cast<int32_t>(sizeof(TeamShared<S>));
  if (room < 2) return std::nullopt;
  const int32_t teams = std::min({room, S::kTeams, ceil_div(args.partials.blocks, grid)});
  const LaunchSettings settings{programmatic_launch(), 1, bytes + teams * static_cast<int32_t>(sizeof(TeamShared<S>))};
  return launch_as(settings, head_team_kernel<S>, dim3(grid, groups), dim3(S::kThreads * teams), stream, args);
}

}  // namespace cuda
}  // namespace bitmtp
