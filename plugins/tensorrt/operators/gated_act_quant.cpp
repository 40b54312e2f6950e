#include "bitmtp/abi.h"
#include "plugin.h"

namespace bitmtp {
namespace tensorrt {

namespace {

constexpr Word kActivations[] = {{"silu", BITMTP_SILU}, {"relu2", BITMTP_RELU2}};

struct GatedActQuant {
  static constexpr const char *kName = "GatedActQuant";
  enum Input { kGateUp, kSubNorm };
  enum Output { kCodes, kScale };

  int32_t width = 0;
  Choice activation{kActivations};
  float epsilon = 0;

  template <class Visit>
  void fields(Visit &&visit) {
    visit("width", width);
    visit("activation", activation);
    visit("epsilon", epsilon);
  }

  void check() const {
    if (width < 1) throw Fault(format("width is %d, expected at least 1", width));
    check_epsilon(epsilon);
  }

  Ports ports() const {
    return {{{"gate_up", DataType::kFLOAT, {kSlots, int64_t{2} * width}}, {"sub_norm", DataType::kFLOAT, {width}, Presence::kOptional}},
            {codes_port(width), scale_port("act_scale")}};
  }

  int64_t workspace_bytes(const Call &) const { return 0; }

  int32_t launch(const Call &call, cudaStream_t stream) const {
    bitmtp_gated_act_quant_args args = {};
    args.gate_up = call.in<float>(kGateUp);
    args.sub_norm = call.in<float>(kSubNorm);
    args.codes = call.out<int32_t>(kCodes);
    args.scale = call.out<float>(kScale);
    args.epsilon = epsilon;
    args.M = call.slots();
    args.F = width;
    args.activation = activation.value();
    return bitmtp_cuda_gated_act_quant(&args, stream);
  }
};

const Registrar<GatedActQuant> registrar;

}  // namespace

}  // namespace tensorrt
}  // namespace bitmtp
