// The one order in which a row's group dots are added, for every kernel, width and device. Host code too: the sweep tests it.
//
// Steps are 64 columns. A unit is a scale group, or a step where a row has one scale. Unit u belongs to lane u mod 8 and a lane
// takes its units in ascending order, `acc = fma(float(dot), scale, acc)` from 0; lanes combine as in rule 2 of docs/numerics.md.
// With one scale a row the lanes add int32 dots, which have no order. A lane is a warp of the block in every kernel here.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define BITMTP_BOTH __host__ __device__ __forceinline__
#else
#define BITMTP_BOTH inline
#endif

namespace bitmtp {
namespace cuda {

constexpr int32_t kFoldLanes = 8;
constexpr int32_t kStepColumns = 64;

// How many steps a lane takes; `shift` is 1 for groups of 128 columns, else 0. The last group of 128 may be one step short.
BITMTP_BOTH int32_t lane_steps(int32_t steps, int32_t shift, int32_t lane) {
  const int32_t units = (steps + shift) >> shift;
  const int32_t mine = units > lane ? (units - lane + kFoldLanes - 1) / kFoldLanes : 0;
  const bool short_last = (units << shift) > steps && (units - 1) % kFoldLanes == lane;
  return (mine << shift) - (short_last ? 1 : 0);
}

// The i-th step of a lane.
BITMTP_BOTH int32_t lane_step(int32_t i, int32_t shift, int32_t lane) {
  return ((lane + kFoldLanes * (i >> shift)) << shift) + (i & shift);
}

// Whether a unit ends with the i-th of a lane's `count` steps.
BITMTP_BOTH bool unit_ends(int32_t i, int32_t shift, int32_t count) { return (i & shift) == shift || i + 1 == count; }

template <class T>
BITMTP_BOTH T combine_lanes(const T (&l)[kFoldLanes]) {
  return ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]));
}

}  // namespace cuda
}  // namespace bitmtp
