#include "bitmtp/abi.h"
#include "plugin.h"

namespace bitmtp {
namespace tensorrt {

namespace {

constexpr Word kKvKinds[] = {{"nested", BITMTP_KV_NESTED}, {"fp16", BITMTP_KV_FP16}};

struct NestedKVAttention {
  static constexpr const char *kName = "NestedKVAttention";
  enum Input {
    kQkv,
    kPositions,
    kMask,
    kHistoryLength,
    kRotary,
    kHistory,
    kHistoryRefinement,
    kHistoryScale,
    kKv4Length,
    kQkvBias,
    kQNorm,
    kKNorm,
    kSubNorm
  };
  enum Output { kCodes, kScale, kNewRows, kNewRefinement, kNewScale };

  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  Choice kv{kKvKinds};
  float softmax_scale = 0;
  float epsilon = 0;

  template <class Visit>
  void fields(Visit &&visit) {
    visit("num_heads", num_heads);
    visit("num_kv_heads", num_kv_heads);
    visit("head_dim", head_dim);
    visit("kv", kv);
    visit("softmax_scale", softmax_scale);
    visit("epsilon", epsilon);
  }

  void check() const {
    if (num_kv_heads < 1 || num_heads < num_kv_heads || num_heads > 1024 || num_heads % num_kv_heads != 0) {
      throw Fault(format("has %d heads and %d KV heads, expected a multiple and at most 1024", num_heads, num_kv_heads));
    }
    if (!(softmax_scale > 0)) throw Fault(format("softmax_scale is %g, expected more than 0", softmax_scale));
    check_epsilon(epsilon);
    if (head_dim != 64 && head_dim != 128) throw Fault(format("head_dim is %d, expected 64 or 128", head_dim));
  }

  Ports ports() const {
    const bool nested = kv.value() == BITMTP_KV_NESTED;
    const Presence of_nested = nested ? Presence::kAlways : Presence::kNever;
    const Extent capacity = extent_of(kHistory);
    const int64_t kv_heads = int64_t{2} * num_kv_heads, width = (num_heads + kv_heads) * head_dim;
    const DataType rows = nested ? DataType::kINT32 : DataType::kHALF;
    const int64_t words = kv_heads * head_dim / 8, row = nested ? words : kv_heads * head_dim;
    const auto vector = [](const char *name, int64_t size) { return Port{name, DataType::kFLOAT, {size}, Presence::kOptional}; };
    return {{{"qkv", DataType::kFLOAT, {kSlots, width}},
             {"positions", DataType::kINT32, {kSlots}},
             {"mask", DataType::kINT32, {kSlots, extent_of(kQkv, 0, 32)}},
             {"history_length", DataType::kINT32, {1}},
             {"rotary", DataType::kFLOAT, {extent_of(kRotary), head_dim}},
             {"history", rows, {capacity, row}},
             {"history_refinement", DataType::kINT32, {capacity, words}, of_nested},
             {"history_scale", DataType::kHALF, {capacity, kv_heads}, of_nested},
             {"kv4_length", DataType::kINT32, {1}, Presence::kOptional},
             vector("qkv_bias", width),
             vector("q_norm", head_dim),
             vector("k_norm", head_dim),
             vector("sub_norm", int64_t{num_heads} * head_dim)},
            {codes_port(int64_t{num_heads} * head_dim),
             scale_port("scale"),
             {"new_rows", rows, {kSlots, row}},
             {"new_refinement", DataType::kINT32, {kSlots, words}, of_nested},
             {"new_scale", DataType::kHALF, {kSlots, kv_heads}, of_nested}}};
  }

  int64_t workspace_bytes(const Call &call) const {
    const bitmtp_nested_kv_attention_args args = record(call);
    return bitmtp_cuda_nested_kv_attention_workspace_bytes(&args);
  }

  int32_t launch(const Call &call, cudaStream_t stream) const {
    const bitmtp_nested_kv_attention_args args = record(call);
    return bitmtp_cuda_nested_kv_attention(&args, stream);
  }

  bitmtp_nested_kv_attention_args record(const Call &call) const {
    bitmtp_nested_kv_attention_args args = {};
    args.qkv = call.in<float>(kQkv);
    args.positions = call.in<int32_t>(kPositions);
    args.mask = call.in<int32_t>(kMask);
    args.history_length = call.in<int32_t>(kHistoryLength);
    args.kv4_length = call.in<int32_t>(kKv4Length);
    args.rotary = call.in<float>(kRotary);
    args.history = call.in<void>(kHistory);
    args.history_refinement = call.in<int32_t>(kHistoryRefinement);
    args.history_scale = call.in<uint16_t>(kHistoryScale);
    args.qkv_bias = call.in<float>(kQkvBias);
    args.q_norm = call.in<float>(kQNorm);
    args.k_norm = call.in<float>(kKNorm);
    args.sub_norm = call.in<float>(kSubNorm);
    args.codes = call.out<int32_t>(kCodes);
    args.scale = call.out<float>(kScale);
    args.new_rows = call.out<void>(kNewRows);
    args.new_refinement = call.out<int32_t>(kNewRefinement);
    args.new_scale = call.out<uint16_t>(kNewScale);
    args.workspace = call.workspace;
    args.softmax_scale = softmax_scale;
    args.epsilon = epsilon;
    args.M = call.slots();
    args.H = num_heads;
    args.Hkv = num_kv_heads;
    args.D = head_dim;
    args.capacity = call.extent(kHistory);
    args.rotary_rows = call.extent(kRotary);
    args.kv_kind = kv.value();
    return args;
  }
};

const Registrar<NestedKVAttention> registrar;

}  // namespace

}  // namespace tensorrt
}  // namespace bitmtp
