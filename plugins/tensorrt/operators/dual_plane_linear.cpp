#include "plugin.h"
#include "weights.h"

namespace bitmtp {
namespace tensorrt {

namespace {

struct DualPlaneLinear {
  static constexpr const char *kName = "DualPlaneLinear";
  enum Input { kCodes, kActScale, kBase, kScales, kRefinement, kResidual };
  enum Output { kOut };

  WeightSizes weight;

  template <class Visit>
  void fields(Visit &&visit) {
    weight.fields(visit);
  }

  void check() const { weight.check(); }

  Ports ports() const {
    return {{codes_port(weight.width),
             scale_port("act_scale"),
             weight.table("base", BITMTP_DUAL),
             weight.scales(BITMTP_DUAL),
             weight.refinement(BITMTP_DUAL),
             {"residual", DataType::kFLOAT, {kSlots, weight.rows}, Presence::kOptional}},
            {{"out", DataType::kFLOAT, {kSlots, weight.rows}}}};
  }

  int64_t workspace_bytes(const Call &) const { return 0; }

  int32_t launch(const Call &call, cudaStream_t stream) const {
    bitmtp_linear_args args = {};
    args.codes = call.in<int32_t>(kCodes);
    args.act_scale = call.in<float>(kActScale);
    args.weight = weight.record(BITMTP_DUAL, call.in<void>(kBase), call.in<uint16_t>(kScales), call.in<int32_t>(kRefinement));
    args.residual = call.in<float>(kResidual);
    args.out = call.out<float>(kOut);
    args.M = call.slots();
    return bitmtp_cuda_dual_plane_linear(&args, stream);
  }
};

const Registrar<DualPlaneLinear> registrar;

}  // namespace

}  // namespace tensorrt
}  // namespace bitmtp
