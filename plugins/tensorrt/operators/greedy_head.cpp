#include "plugin.h"
#include "weights.h"

namespace bitmtp {
namespace tensorrt {

namespace {

struct GreedyHead {
  static constexpr const char *kName = "GreedyHead";
  enum Input { kCodes, kActScale, kHeadSlots, kTable, kScales, kRefinement };
  enum Output { kTokenIds, kProbability, kLogits };

  Choice kind{kWeightKinds};
  WeightSizes weight;
  int32_t top_k = 0;

  template <class Visit>
  void fields(Visit &&visit) {
    visit("kind", kind);
    weight.fields(visit);
    visit("top_k", top_k);
  }

  void check() const {
    weight.check();
    if (top_k < 1 || top_k > 16 || top_k > weight.rows) throw Fault(format("top_k is %d, expected 1 to 16, at most rows", top_k));
  }

  Ports ports() const {
    const int32_t k = kind.value();
    const Extent outputs = extent_of(kHeadSlots);
    return {{codes_port(weight.width),
             scale_port("act_scale"),
             {"head_slots", DataType::kINT32, {outputs}},
             weight.table("table", k),
             weight.scales(k),
             weight.refinement(k)},
            {{"token_ids", DataType::kINT32, {outputs, top_k}},
             {"probability", DataType::kFLOAT, {outputs, top_k}},
             {"logits", DataType::kFLOAT, {outputs, weight.rows}, Presence::kOptional}}};
  }

  int64_t workspace_bytes(const Call &call) const {
    const bitmtp_greedy_head_args args = record(call);
    return bitmtp_cuda_greedy_head_workspace_bytes(&args);
  }

  int32_t launch(const Call &call, cudaStream_t stream) const {
    const bitmtp_greedy_head_args args = record(call);
    return bitmtp_cuda_greedy_head(&args, stream);
  }

  bitmtp_greedy_head_args record(const Call &call) const {
    bitmtp_greedy_head_args args = {};
    args.codes = call.in<int32_t>(kCodes);
    args.act_scale = call.in<float>(kActScale);
    args.head_slots = call.in<int32_t>(kHeadSlots);
    args.weight = weight.record(kind.value(), call.in<void>(kTable), call.in<uint16_t>(kScales), call.in<int32_t>(kRefinement));
    args.token_ids = call.out<int32_t>(kTokenIds);
    args.probability = call.out<float>(kProbability);
    args.logits = call.out<float>(kLogits);
    args.workspace = call.workspace;
    args.M = call.slots();
    args.h = call.extent(kHeadSlots);
    args.top_k = top_k;
    return args;
  }
};

const Registrar<GreedyHead> registrar;

}  // namespace

}  // namespace tensorrt
}  // namespace bitmtp
