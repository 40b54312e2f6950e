// NestedKVAttention on a GPU: rules 9 to 11 of docs/numerics.md with this engine's own fixed orders of addition.
//
//   1. prepare (wide windows only): query vectors, and keys and values in their stored form; blocks of a narrow window do that for themselves
//   2. attend: a thread block for each KV head, unit of positions and one or two tiles of query vectors
//   3. finish: units of a row, then sub-norm and int8; by a cluster of blocks where there are clusters
//
// What does not come from the step's own kernels (history, its length, kv4_length, mask, positions, weights) is read before the wait for
// the previous kernel, which launch.cuh's rule about a step's first kernel makes safe.
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

// Two or four heads for each warp, of one sort: query vectors of whole tiles, of which the last is repeated to its tile's end; then keys
// and values.
template <int D, bool kNested>
__global__ void __launch_bounds__(kPrepareThreads) prepare_kernel(const __grid_constant__ AttentionCall call) {
  const bitmtp_nested_kv_attention_args &a = call.args;
  const AttentionLayout &l = call.layout;
  const int32_t i = threadIdx.x % kHeadLanes<D>, vectors = l.tiles * kTile, queries = a.Hkv * vectors, entries = a.M * 2 * a.Hkv;
  const int32_t index = static_cast<int32_t>((int64_t{blockIdx.x} * kPrepareThreads + threadIdx.x) / kHeadLanes<D>);
  release_next();
  const bool query = index < queries;
  const int32_t kv = index / vectors, vector = index - kv * vectors, known = min(vector, a.M * l.ratio - 1);
  const int32_t entry = min(index - queries, entries - 1);
  const int32_t m = query ? known / l.ratio : entry / (2 * a.Hkv);
  const int32_t head = query ? kv * l.ratio + known - m * l.ratio : a.H + entry - m * 2 * a.Hkv;
  const HeadInputs inputs = head_inputs<D>(a, a.positions[m], head, i);
  wait_for_previous();
  const Prepared prepared = prepared_head<D>(inputs, a.epsilon, raw_head<D>(a, m, head, i));
  if (query) {
    uint4 *fragments = call.in_workspace<uint4>(l.queries) + index / kTile * (kFragments<D> / 16);
    const QueryScale scale = write_query<D, kNested>(prepared, a.softmax_scale, vector % kTile, i, fragments);
    if (i == 0) call.in_workspace<QueryScale>(l.query_scales)[index] = scale;
    return;
  }
  const StoredParts<D, kNested> stored = stored_parts<D, kNested>(prepared, i);
  if (index >= queries + entries) return;
  constexpr int kRow = Stored<D, kNested>::kRow;
  write_stored<D, kNested>(stored, i, static_cast<uint8_t *>(a.new_rows) + int64_t{entry} * kRow,
                           reinterpret_cast<uint32_t *>(a.new_refinement) + int64_t{entry} * (D / 8), a.new_scale + entry);
}

template <int D, bool kNested, bool kOwn, int kTiles>
int32_t attend_as(const AttentionCall &call, int32_t tiles, void *stream) {
  const bitmtp_nested_kv_attention_args &a = call.args;
  const dim3 grid((tiles + kTiles - 1) / kTiles, a.Hkv, call.layout.units);
  LaunchSettings settings = {};
  settings.shared = AttendMemory<D, kNested, kOwn, kTiles>::bytes(kOwn ? a.M : 0);
  // Blocks start early, among those of the kernel before, whatever that has made of a multiprocessor's memory.
  settings.usual_carveout = false;
  return launch_as(settings, attend_kernel<D, kNested, kOwn, kTiles>, grid, dim3(kThreads), stream, call);
}

template <int D, bool kNested>
int32_t attend(const AttentionCall &call, void *stream) {
  const bitmtp_nested_kv_attention_args &a = call.args;
  const int32_t tiles = (call.rows * call.layout.ratio + kTile - 1) / kTile;
  if (a.M <= kOwnRows) return attend_as<D, kNested, true, 1>(call, tiles, stream);
  // Two tiles of a block share what it takes to unpack keys and values, and take longer than one: for where blocks of one tile do not all fit on
  // the device at once. Of two blocks for three tiles, half of one would have nothing to do.
  const bool fits = int64_t{tiles} * a.Hkv * call.layout.units <= int64_t{kBlocksOfProcessor} * multiprocessors();
  if (tiles == 1 || tiles == 3 || fits) return attend_as<D, kNested, false, 1>(call, tiles, stream);
  return attend_as<D, kNested, false, 2>(call, tiles, stream);
}

template <int kBlocks, int kQuads>
int32_t finish_as(const AttentionCall &call, void *stream) {
  LaunchSettings settings = {};
  settings.cluster = kBlocks;
  const dim3 threads(FinishShape<kBlocks, kQuads>::kThreads);
  return launch_as(settings, finish_kernel<kBlocks, kQuads>, dim3(kBlocks, call.rows), threads, stream, call);
}

template <int kBlocks>
int32_t finish(const AttentionCall &call, void *stream) {
  const bool wide = call.args.H * call.args.D / 4 / kParts > 64;
  return wide ? finish_as<kBlocks, 128>(call, stream) : finish_as<kBlocks, 64>(call, stream);
}

template <int D, bool kNested>
int32_t run(const bitmtp_nested_kv_attention_args &a, void *stream) {
  AttentionCall call = {};
  call.args = a;
  call.layout = attention_layout(a);
  call.inverse_of_ratio = static_cast<uint32_t>(((int64_t{1} << 31) + call.layout.ratio - 1) / call.layout.ratio);
  call.inverse_of_columns = 1.0f / static_cast<float>(a.H * a.D);
  int32_t error = 0;
  if (a.M > kOwnRows) {
    const int64_t threads = (int64_t{call.layout.tiles} * kTile + 2 * a.M) * a.Hkv * kHeadLanes<D>;
    const dim3 grid(static_cast<unsigned>((threads + kPrepareThreads - 1) / kPrepareThreads));
    error = launch(prepare_kernel<D, kNested>, grid, dim3(kPrepareThreads), stream, call);
  }
  for (int32_t first = 0; error == 0 && first < a.M; first += call.layout.rows) {
    call.first_row = first;
    call.rows = a.M - first < call.layout.rows ? a.M - first : call.layout.rows;
    error = attend<D, kNested>(call, stream);
    if (error == 0) error = clusters() ? finish<kParts>(call, stream) : finish<1>(call, stream);
  }
  return error;
}

bool aligned(const void *p, uintptr_t bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; }

bool valid_sizes(const bitmtp_nested_kv_attention_args &a) {
  if (a.M < 1 || a.M > 65535 || a.Hkv < 1 || a.H < a.Hkv || a.H > 1024 || a.H % a.Hkv != 0) return false;
  if (a.capacity < 0 || a.capacity > 1 << 25 || a.rotary_rows < 1) return false;
  // What grids take, and what is counted in 32 bits: words of a plane of the history, groups of four floats of the workspace.
  if (units_of(a.capacity + a.M) > 65535 || int64_t{a.capacity} * a.Hkv * a.D >> 32 != 0) return false;
  if (attention_layout(a).bytes >> 36 != 0) return false;
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
