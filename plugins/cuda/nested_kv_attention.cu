// NestedKVAttention on a GPU: rules 9 to 11 of docs/numerics.md with this engine's own fixed orders of addition.
//
//   1. prepare (windows of more than one row): queries as split fragments, keys and values to their stored form
//   2. attend: a thread block for each KV head, unit of positions and group of query tiles; at M = 1 it prepares for itself
//   3. fold: units in a fixed tree, then sub-norm and int8 of the row
//
// What does not come from the step's own kernels (history, its length, kv4_length, mask, positions, rotary table) is read before the
// wait for the previous kernel, which launch.cuh's rule about a step's first kernel makes safe.
#include <cuda_runtime.h>

#include <cstdint>

#include "attention_attend.cuh"
#include "attention_fold.cuh"
#include "attention_layout.cuh"
#include "bitmtp/abi.h"
#include "export.h"
#include "kv_rows.cuh"
#include "launch.cuh"

namespace bitmtp {
namespace cuda {
namespace attention {

namespace {

constexpr int32_t kPrepareThreads = 128;

// A warp for each head of each row.
template <int D, bool kNested>
__global__ void __launch_bounds__(kPrepareThreads) prepare_kernel(const __grid_constant__ AttentionCall call) {
  const bitmtp_nested_kv_attention_args &a = call.args;
  const AttentionLayout &l = call.layout;
  const int32_t lane = threadIdx.x % 32, heads = a.H + 2 * a.Hkv;
  const int64_t task = (int64_t{blockIdx.x} * kPrepareThreads + threadIdx.x) / 32;
  release_next();
  const bool inside = task < int64_t{a.M} * heads;
  const int32_t m = inside ? static_cast<int32_t>(task / heads) : 0, head = static_cast<int32_t>(task % heads);
  const Rotation rotation = rotation_of<D>(a, m, lane);
  wait_for_previous();
  if (!inside) return;
  const float4 x = prepared_head<D>(a, m, head, lane, rotation);
  if (head < a.H) {
    const int32_t query = m * l.ratio + head % l.ratio;
    const int64_t tile = int64_t{head / l.ratio} * l.tiles + query / kTile;
    uint4 *fragments = call.in_workspace<uint4>(l.queries) + tile * (D / 16 * 32);
    const float factor = write_query<D, kNested>(x, a.softmax_scale, query % kTile, lane, fragments);
    if (lane == 0) call.in_workspace<float>(l.factors)[tile * kTile + query % kTile] = factor;
    return;
  }
  const int64_t entry = int64_t{m} * 2 * a.Hkv + (head - a.H);
  write_piece<D, kNested>(stored_piece<kNested>(x, lane), lane,
                          static_cast<uint8_t *>(a.new_rows) + entry * Stage<D, kNested>::kRow,
                          reinterpret_cast<uint32_t *>(a.new_refinement) + entry * (D / 8), a.new_scale + entry);
}

// launch() with dynamic shared memory, of any size the device has.
int32_t start(void (*kernel)(AttentionCall), dim3 grid, int32_t threads, int32_t bytes, void *stream, const AttentionCall &call) {
  const cudaError_t raised = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (raised != cudaSuccess) return raised;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = bytes;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &attribute;
  config.numAttrs = programmatic_launch() ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, call);
}

template <int D, bool kNested>
int32_t run(const bitmtp_nested_kv_attention_args &a, void *stream) {
  using Memory = AttendMemory<D, kNested>;
  AttentionCall call = {};
  call.args = a;
  call.layout = attention_layout(a);
  const AttentionLayout &l = call.layout;
  if (a.M > 1) {
    const int64_t warps = int64_t{a.M} * (a.H + 2 * a.Hkv);
    const dim3 grid(static_cast<unsigned>((warps * 32 + kPrepareThreads - 1) / kPrepareThreads));
    const int32_t error = launch(prepare_kernel<D, kNested>, grid, dim3(kPrepareThreads), stream, call);
    if (error != 0) return error;
  }
  for (int32_t first = 0; first < a.M; first += l.rows) {
    call.first_row = first;
    call.rows = a.M - first < l.rows ? a.M - first : l.rows;
    call.first_tile = first * l.ratio / kTile;
    call.tiles = (call.rows * l.ratio + kTile - 1) / kTile;
    call.groups = (call.tiles + kMostTiles - 1) / kMostTiles;
    call.block_tiles = (call.tiles + call.groups - 1) / call.groups;
    const dim3 grid(static_cast<unsigned>(int64_t{l.units} * call.groups * a.Hkv));
    const int32_t threads = call.block_tiles * kStripes * 32;
    int32_t error = start(attend_kernel<D, kNested>, grid, threads, Memory(call.block_tiles).bytes, stream, call);
    if (error != 0) return error;
    error = launch(fold_kernel<D, kNested>, dim3(a.H, call.rows), dim3(kFoldThreads), stream, call);
    if (error != 0) return error;
  }
  return 0;
}

bool aligned(const void *p, uintptr_t bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; }

bool valid_sizes(const bitmtp_nested_kv_attention_args &a) {
  if (a.M < 1 || a.M > 65535 || a.Hkv < 1 || a.H < a.Hkv || a.H > 1024 || a.H % a.Hkv != 0) return false;
  if (a.capacity < 0 || a.capacity > 1 << 28 || a.rotary_rows < 1) return false;
  return (a.D == 64 || a.D == 128) && (a.kv_kind == BITMTP_KV_FP16 || a.kv_kind == BITMTP_KV_NESTED);
}

bool valid(const bitmtp_nested_kv_attention_args &a) {
  if (!valid_sizes(a)) return false;
  const void *vectors[] = {a.qkv,    a.rotary, a.history,  a.history_refinement, a.qkv_bias,      a.q_norm,
                           a.k_norm, a.sub_norm, a.new_rows, a.new_refinement,     a.workspace};
  for (const void *p : vectors) {
    if (!aligned(p, 16)) return false;
  }
  return aligned(a.history_scale, 4);
}

}  // namespace

}  // namespace attention
}  // namespace cuda
}  // namespace bitmtp

BITMTP_API int64_t bitmtp_cuda_nested_kv_attention_workspace_bytes(const bitmtp_nested_kv_attention_args *args) {
  return bitmtp::cuda::attention::valid_sizes(*args) ? bitmtp::cuda::attention::attention_layout(*args).bytes : 0;
}

BITMTP_API int32_t bitmtp_cuda_nested_kv_attention(const bitmtp_nested_kv_attention_args *args, void *stream) {
  using bitmtp::cuda::attention::run;
  if (!bitmtp::cuda::attention::valid(*args)) return cudaErrorInvalidValue;
  if (args->kv_kind == BITMTP_KV_NESTED) return args->D == 64 ? run<64, true>(*args, stream) : run<128, true>(*args, stream);
  return args->D == 64 ? run<64, false>(*args, stream) : run<128, false>(*args, stream);
}
