// NestedKVAttention on a GPU: rules 9 to 11 of docs/numerics.md with this engine's own fixed orders of addition.
//
//   1. prepare (wide windows only): keys and values to their stored form; blocks of a narrow window do that for themselves
//   2. attend: a thread block for each KV head, unit of positions and group of query vectors
//   3. octets (only where there are no clusters, which merge an octet in shared memory): units of an octet
//   4. finish: octets of a row, then sub-norm and int8
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
constexpr int32_t kShortOctets = 3;

bool short_context(const bitmtp_nested_kv_attention_args &a) { return octets_of(a.capacity + a.M) <= kShortOctets; }

// Over a long context the blocks of a cluster wait for each other too much, against one launch more, and so they do where the device
// has no room for all clusters of an octet at once.
bool clustered(const bitmtp_nested_kv_attention_args &a) {
  const int64_t tiles = (int64_t{a.M} * (a.H / a.Hkv) + kTile - 1) / kTile;
  return clusters() && short_context(a) && tiles * a.Hkv * kOctet <= multiprocessors() * 5 / 3;
}

// Four keys and values of the window for each warp.
template <int D, bool kNested>
__global__ void __launch_bounds__(kPrepareThreads) prepare_kernel(const __grid_constant__ AttentionCall call) {
  const bitmtp_nested_kv_attention_args &a = call.args;
  const int32_t i = threadIdx.x % kHeadLanes;
  const int64_t index = (int64_t{blockIdx.x} * kPrepareThreads + threadIdx.x) / kHeadLanes, count = int64_t{a.M} * 2 * a.Hkv;
  release_next();
  const int64_t entry = index < count ? index : count - 1;
  const int32_t m = static_cast<int32_t>(entry / (2 * a.Hkv)), head = a.H + static_cast<int32_t>(entry % (2 * a.Hkv));
  const HeadInputs<D> inputs = head_inputs<D>(a, a.positions[m], head, i);
  wait_for_previous();
  HeadParts<D> x = raw_head<D>(a, m, head, i);
  prepare_head<D>(a, head, inputs, x);
  const StoredParts<D, kNested> stored = stored_parts<D, kNested>(x, head_max<D>(x), i);
  if (index >= count) return;
  constexpr int kRow = Stored<D, kNested>::kRow;
  write_stored<D, kNested>(stored, i, static_cast<uint8_t *>(a.new_rows) + entry * kRow,
                           reinterpret_cast<uint32_t *>(a.new_refinement) + entry * (D / 8), a.new_scale + entry);
}

template <int D, bool kNested, int kTiles>
int32_t attend(AttentionCall &call, void *stream) {
  const bitmtp_nested_kv_attention_args &a = call.args;
  constexpr int32_t kVectors = kTile * kTiles;
  call.groups = (call.rows * call.layout.ratio + kVectors - 1) / kVectors;
  const dim3 grid(static_cast<unsigned>(int64_t{call.layout.octets} * kOctet * call.groups * a.Hkv));
  const int32_t bytes = AttendMemory<D, kNested, kTiles>::bytes(a.M <= kOwnRows ? a.M : 0);
  // Several of its blocks have to find their shared memory on a multiprocessor, so the driver divides that.
  const LaunchSettings settings = {programmatic_launch(), call.clusters ? unsigned{kOctet} : 1u, bytes, false};
  return launch_as(settings, attend_kernel<D, kNested, kTiles>, grid, dim3(kThreads), stream, call);
}

template <int D, bool kNested>
int32_t run(const bitmtp_nested_kv_attention_args &a, void *stream) {
  AttentionCall call = {};
  call.clusters = clustered(a);
  call.args = a;
  call.layout = attention_layout(a, call.clusters);
  const AttentionLayout &l = call.layout;
  int32_t error = 0;
  if (a.M > kOwnRows) {
    const int64_t threads = int64_t{a.M} * 2 * a.Hkv * kHeadLanes;
    const dim3 grid(static_cast<unsigned>((threads + kPrepareThreads - 1) / kPrepareThreads));
    error = launch(prepare_kernel<D, kNested>, grid, dim3(kPrepareThreads), stream, call);
  }
  for (int32_t first = 0; error == 0 && first < a.M; first += l.rows) {
    call.first_row = first;
    call.rows = a.M - first < l.rows ? a.M - first : l.rows;
    // Over a long context two tiles a block: what is unpacked then serves both. fp16 has nothing to unpack, and more of it to wait for.
    const int32_t vectors = call.rows * l.ratio;
    const bool two = !short_context(a) && vectors > kTile && (kNested || vectors <= 2 * kTile);
    error = two ? attend<D, kNested, 2>(call, stream) : attend<D, kNested, 1>(call, stream);
    if (error == 0 && !call.clusters) {
      error = launch(octet_kernel<D>, dim3(call.rows * a.H, l.octets), dim3(D), stream, call);
    }
    if (error == 0) error = launch(finish_kernel, dim3(call.rows), dim3(kFinishThreads), stream, call);
  }
  return error;
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
  return bitmtp::cuda::attention::valid_sizes(*args) ? bitmtp::cuda::attention::attention_layout(*args, bitmtp::cuda::attention::clustered(*args)).bytes : 0;
}

BITMTP_API int32_t bitmtp_cuda_nested_kv_attention(const bitmtp_nested_kv_attention_args *args, void *stream) {
  using bitmtp::cuda::attention::run;
  if (!bitmtp::cuda::attention::valid(*args)) return cudaErrorInvalidValue;
  if (args->kv_kind == BITMTP_KV_NESTED) return args->D == 64 ? run<64, true>(*args, stream) : run<128, true>(*args, stream);
  return args->D == 64 ? run<64, false>(*args, stream) : run<128, false>(*args, stream);
}
