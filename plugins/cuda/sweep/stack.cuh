// A model without attention on random weights: launches that depend on each other as those of a step do.
#pragma once

#include <algorithm>
#include <memory>

#include "device.h"

namespace sweep {

static __global__ void fill_words(uint32_t *words, size_t n, uint32_t seed) {
  for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < n; i += static_cast<size_t>(gridDim.x) * blockDim.x) {
    uint32_t z = (static_cast<uint32_t>(i) + seed) * 0x9E3779B9u;
    z = (z ^ (z >> 16)) * 0x85EBCA6Bu;
    z = (z ^ (z >> 13)) * 0xC2B2AE35u;
    words[i] = z ^ (z >> 16);
  }
}

inline void fill(void *p, size_t bytes, uint32_t seed) { fill_words<<<512, 256>>>(static_cast<uint32_t *>(p), bytes / 4, seed); }

// A weight of random codes with scales of 2^-10, made on the device.
class RandomWeight {
 public:
  RandomWeight(int32_t kind, bool both_planes, int32_t rows, int32_t width, int32_t group_size, uint32_t seed)
      : table_(table_bytes(kind, rows, width)), refinement_(both_planes ? table_.size() : 0), scales_(scale_count(rows, width, group_size)) {
    fill(table_.data(), table_.size(), seed);
    fill(refinement_.data(), refinement_.size(), seed + 1);
    const std::vector<uint16_t> scales(scales_.size(), 0x1400);
    require(cudaMemcpy(scales_.data(), scales.data(), scales.size() * 2, cudaMemcpyHostToDevice), "scales");
    record_ = bitmtp_weight{table_.data(), both_planes ? reinterpret_cast<const int32_t *>(refinement_.data()) : nullptr,
                            kind == BITMTP_FP16 ? nullptr : scales_.data(), kind, rows, width, group_size};
  }
  const bitmtp_weight &record() const { return record_; }
  double bytes() const { return static_cast<double>(table_.size() + refinement_.size() + (record_.scales != nullptr ? scales_.size() * 2 : 0)); }

 private:
  static size_t table_bytes(int32_t kind, int32_t rows, int32_t width) {
    const size_t codes = static_cast<size_t>((rows + 7) / 8 * 8) * ((width + 63) / 64 * 64);
    return kind == BITMTP_FP16 ? (static_cast<size_t>(rows) * width * 2 + 3) / 4 * 4
                               : codes / (kind == BITMTP_TERNARY ? 4 : kind == BITMTP_DUAL ? 2 : 1);
  }
  static size_t scale_count(int32_t rows, int32_t width, int32_t group_size) {
    const int32_t padded = (width + 63) / 64 * 64;
    return static_cast<size_t>((rows + 7) / 8 * 8) * (group_size > 0 ? (padded + group_size - 1) / group_size : 1);
  }
  DeviceArray<uint8_t> table_, refinement_;
  DeviceArray<uint16_t> scales_;
  bitmtp_weight record_;
};

struct StackShape {
  const char *name;
  int32_t hidden, qkv, ffn, layers, group_size, activation, vocabulary, head_kind;
};

class Stack {
 public:
  Stack(const StackShape &shape, int32_t most_rows)
      : shape_(shape), embedding_(shape.head_kind, false, shape.vocabulary, shape.hidden, shape.group_size, 7), ids_(most_rows), slots_(most_rows),
        codes_(static_cast<size_t>(most_rows) * padded_words(std::max(shape.ffn, std::max(shape.hidden, shape.qkv)))), scale_(most_rows),
        hidden_(static_cast<size_t>(most_rows) * shape.hidden), wide_(static_cast<size_t>(most_rows) * std::max(2 * shape.ffn, shape.qkv)),
        norm_(std::vector<float>(static_cast<size_t>(std::max(shape.ffn, shape.hidden)), 1.0f)), token_(most_rows), probability_(most_rows) {
    for (int32_t l = 0; l < shape.layers; ++l) {
      const auto make = [&](int32_t rows, int32_t width, uint32_t seed) {
        weights_.push_back(std::make_unique<RandomWeight>(BITMTP_TERNARY, false, rows, width, shape.group_size, 1000u * static_cast<uint32_t>(l) + seed));
      };
      make(shape.qkv, shape.hidden, 11);
      make(shape.hidden, shape.hidden, 12);
      make(2 * shape.ffn, shape.hidden, 13);
      make(shape.hidden, shape.ffn, 14);
    }
    std::vector<int32_t> ids(most_rows), slots(most_rows);
    for (int32_t m = 0; m < most_rows; ++m) ids[m] = (m * 37 + 5) % shape.vocabulary, slots[m] = m;
    require(cudaMemcpy(ids_.data(), ids.data(), ids.size() * 4, cudaMemcpyHostToDevice), "ids");
    require(cudaMemcpy(slots_.data(), slots.data(), slots.size() * 4, cudaMemcpyHostToDevice), "slots");
    bitmtp_greedy_head_args head{};
    head.weight = embedding_.record();
    head.h = most_rows;
    head.top_k = 1;
    workspace_ = std::make_unique<DeviceArray<uint8_t>>(static_cast<size_t>(bitmtp_cuda_greedy_head_workspace_bytes(&head)));
    finish();
  }

  // A step of M rows with h outputs. Two norms, four projections and a gate a layer; where qkv is twice the hidden size, a gate
  // stands in attention's place, else nothing does.
  void enqueue(int32_t M, int32_t h, cudaStream_t stream) const {
    const bitmtp_token_embedding_args embedding{ids_.data(), nullptr, embedding_.record(), hidden_.data(), M, 0};
    require(bitmtp_cuda_token_embedding(&embedding, stream), "embedding");
    for (int32_t l = 0; l < shape_.layers; ++l) {
      const auto linear = [&](int32_t which, float *out, bool residual) {
        const bitmtp_linear_args args{codes_.data(), scale_.data(), weights_[4 * l + which]->record(), residual ? out : nullptr, out, M};
        require(bitmtp_cuda_ternary_linear(&args, stream), "linear");
      };
      const auto norm = [&] {
        const bitmtp_rms_norm_quant_args args{hidden_.data(), norm_.data(), codes_.data(), scale_.data(), 1e-5f, M, shape_.hidden};
        require(bitmtp_cuda_rms_norm_quant(&args, stream), "norm");
      };
      const auto gate = [&](int32_t F, int32_t activation) {
        const bitmtp_gated_act_quant_args args{wide_.data(), activation == BITMTP_RELU2 ? norm_.data() : nullptr, codes_.data(), scale_.data(), 1e-5f, M, F, activation};
        require(bitmtp_cuda_gated_act_quant(&args, stream), "gate");
      };
      norm();
      linear(0, wide_.data(), false);
      if (shape_.qkv == 2 * shape_.hidden) gate(shape_.hidden, BITMTP_SILU);
      linear(1, hidden_.data(), true);
      norm();
      linear(2, wide_.data(), false);
      gate(shape_.ffn, shape_.activation);
      linear(3, hidden_.data(), true);
    }
    const bitmtp_rms_norm_quant_args last{hidden_.data(), norm_.data(), codes_.data(), scale_.data(), 1e-5f, M, shape_.hidden};
    require(bitmtp_cuda_rms_norm_quant(&last, stream), "norm");
    const bitmtp_greedy_head_args head{codes_.data(), scale_.data(), slots_.data(), embedding_.record(), token_.data(), probability_.data(),
                                       nullptr, workspace_->data(), M, h, 1};
    require(bitmtp_cuda_greedy_head(&head, stream), "head");
  }

  // Everything that a step leaves: hidden rows, probabilities, tokens.
  std::vector<uint32_t> result(int32_t M) const {
    std::vector<uint32_t> all;
    const auto add = [&](const void *p, size_t words) {
      all.resize(all.size() + words);
      require(cudaMemcpy(all.data() + all.size() - words, p, words * 4, cudaMemcpyDeviceToHost), "result");
    };
    add(hidden_.data(), static_cast<size_t>(M) * shape_.hidden);
    add(probability_.data(), M);
    add(token_.data(), M);
    return all;
  }
  void poison() const {
    require(cudaMemset(hidden_.data(), 0xFF, hidden_.size() * 4), "poison");
    require(cudaMemset(wide_.data(), 0xFF, wide_.size() * 4), "poison");
    require(cudaMemset(codes_.data(), 0x7F, codes_.size() * 4), "poison");
    require(cudaMemset(token_.data(), 0xFF, token_.size() * 4), "poison");
  }
  double weight_bytes() const {
    double all = embedding_.bytes();
    for (const auto &w : weights_) all += w->bytes();
    return all;
  }

 private:
  static size_t padded_words(int32_t n) { return static_cast<size_t>((n + 63) / 64 * 16); }

  StackShape shape_;
  RandomWeight embedding_;
  std::vector<std::unique_ptr<RandomWeight>> weights_;
  DeviceArray<int32_t> ids_, slots_, codes_;
  DeviceArray<float> scale_, hidden_, wide_, norm_;
  DeviceArray<int32_t> token_;
  DeviceArray<float> probability_;
  std::unique_ptr<DeviceArray<uint8_t>> workspace_;
};

// What `enqueue` puts into a stream, captured and instantiated.
class Graph {
 public:
  template <class Enqueue>
  Graph(bool programmatic, const Enqueue &enqueue) {
    require(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream");
    const int32_t before = bitmtp_cuda_set_programmatic_launch(programmatic ? 1 : 0);
    require(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capture");
    enqueue(stream_);
    cudaGraph_t graph;
    require(cudaStreamEndCapture(stream_, &graph), "end of capture");
    require(cudaGraphInstantiate(&exec_, graph, 0), "instantiate");
    require(cudaGraphDestroy(graph), "graph");
    bitmtp_cuda_set_programmatic_launch(before);
  }
  Graph(const Graph &) = delete;
  Graph &operator=(const Graph &) = delete;
  ~Graph() {
    cudaGraphExecDestroy(exec_);
    cudaStreamDestroy(stream_);
  }
  void replay() const { require(cudaGraphLaunch(exec_, stream_), "graph launch"); }
  void wait() const { require(cudaStreamSynchronize(stream_), "replay"); }
  cudaStream_t stream() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
  cudaGraphExec_t exec_ = nullptr;
};

}  // namespace sweep
