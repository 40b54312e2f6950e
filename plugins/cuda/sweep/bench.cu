// Times by CUDA graphs whose launches rotate over copies of the weights larger than the L2.
#include <algorithm>

#include "../linear.cuh"
#include "stack.cuh"

namespace sweep {

namespace {

constexpr double kOutOfCache = 320e6;  // bytes of weights that a graph passes over
constexpr int kReplays = 15;

// Median microseconds of a replay.
double time_graph(const Graph &graph, int replays = kReplays) {
  cudaEvent_t start, stop;
  require(cudaEventCreate(&start), "event");
  require(cudaEventCreate(&stop), "event");
  std::vector<float> ms;
  for (int i = 0; i < replays + 3; ++i) {
    require(cudaEventRecord(start, graph.stream()), "event");
    graph.replay();
    require(cudaEventRecord(stop, graph.stream()), "event");
    require(cudaEventSynchronize(stop), "replay");
    float t;
    require(cudaEventElapsedTime(&t, start, stop), "event");
    if (i >= 3) ms.push_back(t);
  }
  cudaEventDestroy(start);
  cudaEventDestroy(stop);
  std::sort(ms.begin(), ms.end());
  return 1e3 * ms[ms.size() / 2];
}

__global__ void __launch_bounds__(512) read_all(const uint4 *p, size_t n, uint32_t *out) {
  uint32_t x = 0;
  const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
  size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x;
  for (; i + 7 * step < n; i += 8 * step) {
    uint4 v[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) v[k] = p[i + k * step];
#pragma unroll
    for (int k = 0; k < 8; ++k) x ^= v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
  }
  for (; i < n; i += step) x ^= p[i].x;
  if (x == 0x12345678u) *out = x;
}

// GB/s that a plain read reaches; the copy's, reads and writes counted, goes to `copy`.
double measure_bandwidth(double &copy) {
  const size_t bytes = size_t{1} << 30;
  const DeviceArray<uint8_t> from(bytes), to(bytes);
  fill(from.data(), bytes, 3);
  finish();
  const Graph copies(false, [&](cudaStream_t s) { require(cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDeviceToDevice, s), "copy"); });
  copy = 2e-3 * static_cast<double>(bytes) / time_graph(copies);
  const Graph reads(false, [&](cudaStream_t s) {
    read_all<<<132 * 4, 512, 0, s>>>(reinterpret_cast<const uint4 *>(from.data()), bytes / 16, reinterpret_cast<uint32_t *>(to.data()));
  });
  return 1e-3 * static_cast<double>(bytes) / time_graph(reads);
}

struct Times {
  double with, without;  // programmatic launch; microseconds a launch
};

// `launch(i, stream)` enqueues the call on copy i.
template <class Launch>
Times time_copies(int copies, const Launch &launch) {
  const int launches = std::max(copies, 24) / copies * copies;
  Times t = {};
  for (bool programmatic : {true, false}) {
    const Graph graph(programmatic, [&](cudaStream_t s) {
      for (int i = 0; i < launches; ++i) launch(i % copies, s);
    });
    (programmatic ? t.with : t.without) = time_graph(graph) / launches;
  }
  return t;
}

struct Case {
  const char *name;
  int32_t kind;
  bool both_planes;
  int32_t rows, width, group_size;

  std::string line() const {
    return std::string(name) + " " + std::to_string(rows) + "x" + std::to_string(width) + "/" + std::to_string(group_size);
  }
};

class Bench {
 public:
  Bench(bool quick, const char *timed) : quick_(quick), timed_(timed) {
    double copy;
    read_ = measure_bandwidth(copy);
    std::printf("device memory: copy %.0f GB/s (read + written), read %.0f GB/s. us a launch in a graph over rotated weights, programmatic launch\n"
                "on and off; share: of the read bandwidth, with it on\n", copy, read_);
    std::printf("%-26s %3s %8s %8s %7s %6s %6s\n", "", "M", "on", "off", "MB", "GB/s", "share");
  }

  void linear(const Case &c, std::vector<int32_t> widths) {
    keep_timed(c.line(), widths);
    if (widths.empty()) return;
    std::vector<std::unique_ptr<RandomWeight>> weights;
    double bytes = 0.0;
    do {
      weights.push_back(std::make_unique<RandomWeight>(c.kind, c.both_planes, c.rows, c.width, c.group_size, static_cast<uint32_t>(weights.size())));
      bytes = weights[0]->bytes();
    } while (bytes * static_cast<double>(weights.size()) < kOutOfCache && !(quick_ && weights.size() >= 8));
    const int32_t most = *std::max_element(widths.begin(), widths.end());
    const DeviceArray<int32_t> codes(static_cast<size_t>(most) * ((c.width + 63) / 64 * 16));
    fill(codes.data(), codes.size() * 4, 5);
    const DeviceArray<float> scale(std::vector<float>(most, 0.01f)), out(static_cast<size_t>(most) * c.rows);
    finish();
    for (int32_t M : widths) {
      const bitmtp::cuda::LinearPlan plan = bitmtp::cuda::plan_linear(weights[0]->record(), M);
      const Times t = time_copies(static_cast<int>(weights.size()), [&](int i, cudaStream_t s) {
        const bitmtp_linear_args args{codes.data(), scale.data(), weights[i]->record(), nullptr, out.data(), M};
        require(bitmtp::cuda::linear(args, plan, s), c.name);
      });
      row(c.line(), M, t, bytes);
    }
  }

  void head(const Case &c, std::vector<int32_t> outputs) {
    keep_timed(c.line(), outputs);
    if (outputs.empty()) return;
    std::vector<std::unique_ptr<RandomWeight>> weights;
    double bytes = 0.0;
    do {
      weights.push_back(std::make_unique<RandomWeight>(c.kind, c.both_planes, c.rows, c.width, c.group_size, static_cast<uint32_t>(weights.size())));
      bytes = weights[0]->bytes();
    } while (bytes * static_cast<double>(weights.size()) < kOutOfCache);
    const int32_t most = *std::max_element(outputs.begin(), outputs.end());
    const DeviceArray<int32_t> codes(static_cast<size_t>(most) * ((c.width + 63) / 64 * 16)), ids(most);
    fill(codes.data(), codes.size() * 4, 5);
    std::vector<int32_t> order(most);
    for (int32_t i = 0; i < most; ++i) order[i] = i;
    const DeviceArray<int32_t> slots(order);
    const DeviceArray<float> scale(std::vector<float>(most, 0.01f)), probability(most);
    finish();
    for (int32_t h : outputs) {
      bitmtp_greedy_head_args args{codes.data(), scale.data(), slots.data(), weights[0]->record(), ids.data(), probability.data(), nullptr, nullptr, most, h, 1};
      const DeviceArray<uint8_t> workspace(static_cast<size_t>(bitmtp_cuda_greedy_head_workspace_bytes(&args)));
      args.workspace = workspace.data();
      const Times t = time_copies(static_cast<int>(weights.size()), [&](int i, cudaStream_t s) {
        args.weight = weights[i]->record();
        require(bitmtp_cuda_greedy_head(&args, s), c.name);
      });
      row(c.line(), h, t, bytes);
    }
  }

  void rowwise() {
    const DeviceArray<float> input(size_t{16} * 2 * 6912), weight(std::vector<float>(6912, 1.0f)), scale(16);
    const DeviceArray<int32_t> codes(size_t{16} * 6912 / 4);
    fill(input.data(), input.size() * 4, 9);
    // Random bits are no numbers to norm: small integers are.
    std::vector<float> values(input.size());
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i * 2654435761u % 1000) * 0.01f - 5.0f;
    require(cudaMemcpy(input.data(), values.data(), values.size() * 4, cudaMemcpyHostToDevice), "values");
    for (int32_t M : {1, 15}) {
      if (is_timed("norm 2560", M)) row("norm 2560", M, time_copies(24, [&](int, cudaStream_t s) {
            const bitmtp_rms_norm_quant_args args{input.data(), weight.data(), codes.data(), scale.data(), 1e-5f, M, 2560};
            require(bitmtp_cuda_rms_norm_quant(&args, s), "norm");
          }), 0.0);
      if (is_timed("gate relu2 sub-norm 6912", M)) row("gate relu2 sub-norm 6912", M, time_copies(24, [&](int, cudaStream_t s) {
            const bitmtp_gated_act_quant_args args{input.data(), weight.data(), codes.data(), scale.data(), 1e-5f, M, 6912, BITMTP_RELU2};
            require(bitmtp_cuda_gated_act_quant(&args, s), "gate");
          }), 0.0);
      if (is_timed("gate silu 6144", M)) row("gate silu 6144", M, time_copies(24, [&](int, cudaStream_t s) {
            const bitmtp_gated_act_quant_args args{input.data(), nullptr, codes.data(), scale.data(), 1e-5f, M, 6144, BITMTP_SILU};
            require(bitmtp_cuda_gated_act_quant(&args, s), "gate");
          }), 0.0);
    }
  }

  void step(const StackShape &shape) {
    const std::string name = std::string("step but attention, ") + shape.name;
    std::vector<int32_t> widths = {1, 9, 15};
    keep_timed(name, widths);
    if (widths.empty()) return;
    const Stack stack(shape, 15);
    for (int32_t M : widths) {
      const int32_t h = M == 15 ? 8 : M;  // 15 slots draft a block of 8
      Times t = {};
      for (bool programmatic : {true, false}) {
        const Graph graph(programmatic, [&](cudaStream_t s) { stack.enqueue(M, h, s); });
        (programmatic ? t.with : t.without) = time_graph(graph);
      }
      row(name, M, t, stack.weight_bytes());
    }
  }

 private:
  bool is_timed(const std::string &name, int32_t M) const { return (name + " M=" + std::to_string(M) + " ").find(timed_) != std::string::npos; }
  void keep_timed(const std::string &name, std::vector<int32_t> &widths) const {
    widths.erase(std::remove_if(widths.begin(), widths.end(), [&](int32_t M) { return !is_timed(name, M); }), widths.end());
  }
  void row(const std::string &name, int32_t M, const Times &t, double bytes) {
    std::printf("%-26s %3d %8.2f %8.2f", name.c_str(), M, t.with, t.without);
    if (bytes > 0.0) std::printf(" %7.2f %6.0f %5.0f%%", bytes * 1e-6, 1e-3 * bytes / t.with, 0.1 * bytes / t.with / read_);
    std::printf("\n");
    std::fflush(stdout);
  }
  bool quick_;
  std::string timed_;
  double read_;
};

}  // namespace

void bench(bool quick, const char *timed) {
  Bench bench(quick, timed);
  const std::vector<int32_t> widths = quick ? std::vector<int32_t>{1} : std::vector<int32_t>{1, 5, 9, 15};
  for (const Case &c : {Case{"W2", BITMTP_TERNARY, false, 3840, 2560, 0}, Case{"W2", BITMTP_TERNARY, false, 2560, 2560, 0},
                        Case{"W2", BITMTP_TERNARY, false, 13824, 2560, 0}, Case{"W2", BITMTP_TERNARY, false, 2560, 6912, 0},
                        Case{"W2", BITMTP_TERNARY, false, 4096, 2048, 128}, Case{"W2", BITMTP_TERNARY, false, 2048, 2048, 128},
                        Case{"W2", BITMTP_TERNARY, false, 12288, 2048, 128}, Case{"W2", BITMTP_TERNARY, false, 2048, 6144, 128},
                        Case{"W2", BITMTP_TERNARY, false, 6144, 2560, 128}, Case{"W2", BITMTP_TERNARY, false, 2560, 4096, 128},
                        Case{"W2", BITMTP_TERNARY, false, 19456, 2560, 128}, Case{"W2", BITMTP_TERNARY, false, 2560, 9728, 128}})
    bench.linear(c, widths);
  const std::vector<int32_t> nested = quick ? std::vector<int32_t>{1} : std::vector<int32_t>{1, 5};
  for (const Case &c : {Case{"W4", BITMTP_DUAL, false, 11008, 4096, 128}, Case{"W8", BITMTP_DUAL, true, 11008, 4096, 128},
                        Case{"W4", BITMTP_DUAL, false, 4096, 11008, 128}, Case{"W8", BITMTP_DUAL, true, 4096, 11008, 128},
                        Case{"W4", BITMTP_DUAL, false, 12288, 4096, 128}, Case{"W8", BITMTP_DUAL, true, 12288, 4096, 128},
                        Case{"W4", BITMTP_DUAL, false, 4096, 4096, 128}, Case{"W8", BITMTP_DUAL, true, 4096, 4096, 128},
                        Case{"W4", BITMTP_DUAL, false, 22016, 4096, 128}, Case{"W8", BITMTP_DUAL, true, 22016, 4096, 128}})
    bench.linear(c, nested);
  const std::vector<int32_t> outputs = quick ? std::vector<int32_t>{1} : std::vector<int32_t>{1, 8, 9};
  bench.head({"head int8", BITMTP_INT8, false, 128256, 2560, 0}, outputs);
  bench.head({"head W2", BITMTP_TERNARY, false, 151669, 2048, 128}, outputs);
  bench.rowwise();
  if (!quick) bench.linear({"prefill", BITMTP_TERNARY, false, 13824, 2560, 0}, {64, 128});
  bench.step({"BitNet-2B", 2560, 3840, 6912, 30, 0, BITMTP_RELU2, 128256, BITMTP_INT8});
  bench.step({"Bonsai-1.7B", 2048, 4096, 6144, 28, 128, BITMTP_SILU, 151669, BITMTP_TERNARY});
}

}  // namespace sweep
