// Times NestedKVAttention as a step would run it: one call a layer, chained in a CUDA graph, each layer with a KV buffer of its own,
// as many layers as the L2 cannot hold.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "attention_cases.cuh"
#include "bitmtp/abi.h"

namespace sweep {

namespace {

constexpr int32_t kHead = 128;
constexpr int64_t kOutOfCache = int64_t{512} << 20;
constexpr int kReplays = 30;

void must(cudaError_t error, const char *what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

__global__ void fill_bits(uint32_t *words, int64_t n, uint32_t keep, uint32_t set, uint32_t seed) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += int64_t{gridDim.x} * blockDim.x) {
    uint32_t x = static_cast<uint32_t>(i) * 0x9E3779B9u + seed;
    x = (x ^ x >> 16) * 0x85EBCA6Bu;
    x = (x ^ x >> 13) * 0xC2B2AE35u;
    words[i] = ((x ^ x >> 16) & keep) | set;
  }
}

class Memory {
 public:
  ~Memory() {
    for (void *p : blocks_) cudaFree(p);
  }
  // Words of random bits & keep | set.
  template <class T>
  T *take(int64_t bytes, uint32_t keep, uint32_t set) {
    void *p = nullptr;
    bytes = (bytes + 255) / 256 * 256;
    must(cudaMalloc(&p, bytes), "cudaMalloc");
    blocks_.push_back(p);
    fill_bits<<<1024, 256>>>(static_cast<uint32_t *>(p), bytes / 4, keep, set, static_cast<uint32_t>(blocks_.size()));
    must(cudaGetLastError(), "fill");
    return static_cast<T *>(p);
  }
  template <class T>
  T *copy(const std::vector<T> &v) {
    T *p = take<T>(static_cast<int64_t>(v.size() * sizeof(T)), 0, 0);
    must(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice), "cudaMemcpy");
    return p;
  }

 private:
  std::vector<void *> blocks_;
};

constexpr uint32_t kUnitHalves = 0x83FF83FFu, kHalf = 0x38003800u;    // halves of magnitude 0.5 .. 1
constexpr uint32_t kUnitFloat = 0x807FFFFFu, kFloat = 0x3F000000u;    // floats of the same
constexpr uint32_t kScales = 0x03FF03FFu, kSmallScale = 0x2C002C00u;  // halves of 1/16 .. 1/8

enum class View { fp16, kv8, kv4 };

struct Timing {
  double us, bytes;
};

struct Heads {
  int32_t query, kv;
};

Timing time_view(const Heads &heads, View view, int32_t M, int32_t capacity) {
  const bool nested = view != View::fp16;
  const int32_t history = capacity - 32;
  const int64_t row = int64_t{2} * heads.kv * kHead * (nested ? 1 : 4) / 2;  // bytes of a plane
  const int64_t read = history * (view == View::fp16 ? row : row * (view == View::kv8 ? 2 : 1) + 4 * heads.kv);
  const int32_t layers = static_cast<int32_t>(std::max<int64_t>(4, (kOutOfCache + read - 1) / read));
  Memory memory;
  std::vector<int32_t> positions(M), mask(M);
  for (int32_t m = 0; m < M; ++m) positions[m] = history + m, mask[m] = static_cast<int32_t>((2u << m) - 1u);
  bitmtp_nested_kv_attention_args a = {};
  a.qkv = memory.take<float>(int64_t{M} * (heads.query + 2 * heads.kv) * kHead * 4, kUnitFloat, kFloat);
  a.positions = memory.copy(positions);
  a.mask = memory.copy(mask);
  a.history_length = memory.copy(std::vector<int32_t>{history});
  a.kv4_length = view == View::kv4 ? a.history_length : nullptr;
  a.rotary = memory.take<float>(int64_t{capacity + M} * kHead * 4, kUnitFloat, kFloat);
  a.q_norm = memory.take<float>(kHead * 4, kUnitFloat, kFloat);
  a.k_norm = memory.take<float>(kHead * 4, kUnitFloat, kFloat);
  a.codes = memory.take<int32_t>(int64_t{M} * heads.query * kHead, 0, 0);
  a.scale = memory.take<float>(M * 4, 0, 0);
  a.softmax_scale = 0.088388348f, a.epsilon = 1e-6f;
  a.M = M, a.H = heads.query, a.Hkv = heads.kv, a.D = kHead, a.capacity = capacity, a.rotary_rows = capacity + M;
  a.kv_kind = nested ? BITMTP_KV_NESTED : BITMTP_KV_FP16;
  a.workspace = memory.take<void>(bitmtp_cuda_nested_kv_attention_workspace_bytes(&a), ~0u, 0);
  std::vector<bitmtp_nested_kv_attention_args> calls;
  const int64_t rows = capacity + M;
  for (int32_t layer = 0; layer < layers; ++layer) {
    // Rows are slots of one buffer: history, then the workspace that takes the window's.
    uint8_t *base = nested ? memory.take<uint8_t>(rows * row, ~0u, 0x11111111u)
                           : memory.take<uint8_t>(rows * row, kUnitHalves, kHalf);
    a.history = base, a.new_rows = base + capacity * row;
    if (nested) {
      uint8_t *refinement = memory.take<uint8_t>(rows * row, ~0u, 0);
      uint16_t *scale = memory.take<uint16_t>(rows * 4 * heads.kv, kScales, kSmallScale);
      a.history_refinement = reinterpret_cast<int32_t *>(refinement), a.history_scale = scale;
      a.new_refinement = reinterpret_cast<int32_t *>(refinement + capacity * row);
      a.new_scale = scale + int64_t{capacity} * 2 * heads.kv;
    }
    calls.push_back(a);
  }
  must(cudaDeviceSynchronize(), "fill");

  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t replay;
  must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
  for (const auto &call : calls) must(static_cast<cudaError_t>(bitmtp_cuda_nested_kv_attention(&call, stream)), "launch");
  must(cudaStreamEndCapture(stream, &graph), "capture");
  must(cudaGraphInstantiate(&replay, graph, 0), "instantiate");
  cudaEvent_t start, stop;
  must(cudaEventCreate(&start), "event");
  must(cudaEventCreate(&stop), "event");
  std::vector<float> ms;
  for (int i = 0; i < kReplays + 5; ++i) {
    must(cudaEventRecord(start, stream), "event");
    must(cudaGraphLaunch(replay, stream), "replay");
    must(cudaEventRecord(stop, stream), "event");
    must(cudaEventSynchronize(stop), "replay");
    float t = 0.0f;
    must(cudaEventElapsedTime(&t, start, stop), "event");
    if (i >= 5) ms.push_back(t);
  }
  std::sort(ms.begin(), ms.end());
  cudaEventDestroy(start);
  cudaEventDestroy(stop);
  cudaGraphExecDestroy(replay);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
  return {ms[ms.size() / 2] * 1e3 / layers, static_cast<double>(read)};
}

}  // namespace

void attention_bench(const char *timed) {
  std::printf("NestedKVAttention, heads of %d (query heads/KV heads); us a call in a graph over %lld MiB of KV, median of %d replays\n", kHead,
              static_cast<long long>(kOutOfCache >> 20), kReplays);
  const auto time = [timed](const Heads &heads, int32_t M, int32_t capacity) {
    double fp16 = 0.0;
    for (View view : {View::fp16, View::kv8, View::kv4}) {
      char name[64];
      std::snprintf(name, sizeof name, "%2d/%-2d history %5d M=%-2d %-4s", heads.query, heads.kv, capacity - 32, M,
                    view == View::fp16 ? "fp16" : view == View::kv8 ? "KV8" : "KV4");
      if (std::strstr(name, timed) == nullptr) continue;
      const Timing t = time_view(heads, view, M, capacity);
      if (view == View::fp16) fp16 = t.us;
      std::printf("%s %8.2f us %7.2f MB %7.0f GB/s", name, t.us, t.bytes * 1e-6, t.bytes / t.us * 1e-3);
      if (fp16 > 0.0) std::printf("  %.2fx fp16", fp16 / t.us);
      std::printf("\n");
      std::fflush(stdout);
    }
  };
  for (int32_t capacity : {1024, 8192, 32768}) {
    for (int32_t M : {1, 9, 15}) time({16, 8}, M, capacity);
  }
  for (const Heads &heads : {Heads{32, 32}, Heads{32, 8}}) {
    for (int32_t M : {1, 5}) time(heads, M, 512);
  }
}

}  // namespace sweep
