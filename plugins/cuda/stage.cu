// stage and promote: the copies between steps, on the device.
#include <cstring>

#include "bitmtp/abi.h"
#include "export.h"
#include "launch.cuh"
#include "weight.cuh"

namespace bitmtp {
namespace cuda {

namespace {

// ---- stage ----------------------------------------------------------------------------------------------------------------

struct StageArgs {
  bitmtp_stage_args record;  // its host pointers are not used
  int32_t rows;              // prefix and drafts
  int32_t prefix[BITMTP_STAGE_TOKENS];
  const int32_t *outputs[BITMTP_STAGE_OUTPUTS];
  int32_t ends[BITMTP_STAGE_OUTPUTS];  // the row after an output's last one
};

__device__ int32_t stage_token(const StageArgs &a, int32_t i) {
  if (i < a.record.prefix_rows) return a.prefix[i];
  int32_t first = a.record.prefix_rows;
  for (int32_t o = 0; o < a.record.output_count; ++o) {
    if (i < a.ends[o]) return a.outputs[o][static_cast<int64_t>(i - first) * a.record.top_k];
    first = a.ends[o];
  }
  return 0;
}

__global__ void __launch_bounds__(128) stage_kernel(const __grid_constant__ StageArgs a) {
  release_next();
  wait_for_previous();
  const bitmtp_stage_args &r = a.record;
  const int32_t words = ceil_div(r.M, 32);
  for (int32_t i = threadIdx.x; i < r.M; i += blockDim.x) {
    r.token_ids[i] = stage_token(a, i);
    r.positions[i] = r.history + (i < a.rows ? i : 0);
  }
  for (int32_t at = threadIdx.x; at < r.M * words; at += blockDim.x) {
    const int32_t i = at / words, from = at % words * 32;  // slots from .. from+31 of row i
    const int32_t seen = i < a.rows - r.two_way ? i + 1 : a.rows;
    const int32_t visible = seen - from;  // of them, counted from the first
    uint32_t bits = visible <= 0 ? 0u : visible >= 32 ? 0xFFFFFFFFu : (1u << visible) - 1;
    if (i >= a.rows) bits = i / 32 == at % words ? 1u << (i % 32) : 0u;
    r.mask[at] = static_cast<int32_t>(bits);
  }
  for (int32_t i = threadIdx.x; i < r.h; i += blockDim.x) r.head_slots[i] = a.rows - r.heads + min(i, r.heads - 1);
  if (threadIdx.x == 0) {
    *r.history_length = r.history;
    *r.kv4_length = r.kv4_history;
  }
}

// ---- promote --------------------------------------------------------------------------------------------------------------

constexpr int32_t kPromotePlanes = 128;
constexpr int32_t kPromoteRows = 128;

struct PromoteArgs {
  bitmtp_kv_plane planes[kPromotePlanes];
  int32_t rows[kPromoteRows];
  int64_t capacity;
  int64_t at;
};

template <class Word>
__device__ __forceinline__ void copy_row(char *to, const char *from, int64_t bytes) {
  for (int64_t i = threadIdx.x; i < bytes / static_cast<int64_t>(sizeof(Word)); i += blockDim.x)
    reinterpret_cast<Word *>(to)[i] = reinterpret_cast<const Word *>(from)[i];
}

__global__ void __launch_bounds__(128) promote_kernel(const __grid_constant__ PromoteArgs a) {
  release_next();
  wait_for_previous();
  const bitmtp_kv_plane plane = a.planes[blockIdx.y];
  char *base = static_cast<char *>(plane.base);
  const char *from = base + (a.capacity + a.rows[blockIdx.x]) * plane.row_bytes;
  char *to = base + (a.at + blockIdx.x) * plane.row_bytes;
  if (plane.row_bytes % 16 == 0)
    copy_row<uint4>(to, from, plane.row_bytes);
  else if (plane.row_bytes % 4 == 0)
    copy_row<uint32_t>(to, from, plane.row_bytes);
  else
    copy_row<uint16_t>(to, from, plane.row_bytes);
}

}  // namespace

}  // namespace cuda
}  // namespace bitmtp

BITMTP_API int32_t bitmtp_cuda_stage(const bitmtp_stage_args *args, void *stream) {
  using namespace bitmtp::cuda;
  const bitmtp_stage_args &r = *args;
  if (r.prefix_rows < 0 || r.prefix_rows > BITMTP_STAGE_TOKENS || r.output_count < 0 || r.output_count > BITMTP_STAGE_OUTPUTS ||
      r.top_k < 1 || r.M > kMostSlots || r.h < 1)
    return cudaErrorInvalidValue;
  StageArgs stage = {};
  stage.record = r;
  if (r.prefix_rows > 0) std::memcpy(stage.prefix, r.prefix, static_cast<size_t>(r.prefix_rows) * sizeof(int32_t));
  stage.rows = r.prefix_rows;
  for (int32_t o = 0; o < r.output_count; ++o) {
    if (r.output_rows[o] < 0) return cudaErrorInvalidValue;
    stage.rows += r.output_rows[o];
    stage.outputs[o] = r.outputs[o];
    stage.ends[o] = stage.rows;
  }
  if (stage.rows > r.M || r.heads < 1 || r.heads > r.h || r.heads > stage.rows || r.two_way < 0 || r.two_way > stage.rows)
    return cudaErrorInvalidValue;
  return launch(stage_kernel, dim3(1), dim3(128), stream, stage);
}

BITMTP_API int32_t bitmtp_cuda_promote(const bitmtp_kv_plane *planes, int32_t count, int64_t capacity, const int32_t *rows, int32_t n,
                                       int64_t at, void *stream) {
  using namespace bitmtp::cuda;
  for (int32_t plane = 0; plane < count; plane += kPromotePlanes) {
    const int32_t plane_count = count - plane < kPromotePlanes ? count - plane : kPromotePlanes;
    for (int32_t row = 0; row < n; row += kPromoteRows) {
      const int32_t row_count = n - row < kPromoteRows ? n - row : kPromoteRows;
      PromoteArgs promote = {};
      std::memcpy(promote.planes, planes + plane, static_cast<size_t>(plane_count) * sizeof(bitmtp_kv_plane));
      std::memcpy(promote.rows, rows + row, static_cast<size_t>(row_count) * sizeof(int32_t));
      promote.capacity = capacity;
      promote.at = at + row;
      const dim3 grid(static_cast<unsigned>(row_count), static_cast<unsigned>(plane_count));
      const int32_t error = launch(promote_kernel, grid, dim3(128), stream, promote);
      if (error != 0) return error;
    }
  }
  return 0;
}
