#include "plugin.h"
#include "weights.h"

namespace bitmtp {
namespace tensorrt {

namespace {

struct TokenEmbedding {
  static constexpr const char *kName = "TokenEmbedding";
  enum Input { kTokenIds, kTable, kScales, kRefinement, kMaskEmbeddings };
  enum Output { kHidden };

  Choice kind{kWeightKinds};
  WeightSizes weight;

  template <class Visit>
  void fields(Visit &&visit) {
    visit("kind", kind);
    weight.fields(visit);
  }

  void check() const { weight.check(); }

  Ports ports() const {
    const int32_t k = kind.value();
    return {{{"token_ids", DataType::kINT32, {kSlots}},
             weight.table("table", k),
             weight.scales(k),
             weight.refinement(k),
             {"mask_embeddings", DataType::kFLOAT, {extent_of(kMaskEmbeddings), weight.width}, Presence::kOptional}},
            {{"hidden", DataType::kFLOAT, {kSlots, weight.width}}}};
  }

  int64_t workspace_bytes(const Call &) const { return 0; }

  int32_t launch(const Call &call, cudaStream_t stream) const {
    bitmtp_token_embedding_args args = {};
    args.token_ids = call.in<int32_t>(kTokenIds);
    args.mask_embeddings = call.in<float>(kMaskEmbeddings);
    args.weight = weight.record(kind.value(), call.in<void>(kTable), call.in<uint16_t>(kScales), call.in<int32_t>(kRefinement));
    args.hidden = call.out<float>(kHidden);
    args.M = call.slots();
    args.P = call.has(kMaskEmbeddings) ? call.extent(kMaskEmbeddings) : 0;
    return bitmtp_cuda_token_embedding(&args, stream);
  }
};

const Registrar<TokenEmbedding> registrar;

}  // namespace

}  // namespace tensorrt
}  // namespace bitmtp
