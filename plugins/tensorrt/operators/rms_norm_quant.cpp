#include "bitmtp/abi.h"
#include "plugin.h"

namespace bitmtp {
namespace tensorrt {

namespace {

struct RmsNormQuant {
  static constexpr const char *kName = "RmsNormQuant";
  enum Input { kHidden, kWeight };
  enum Output { kCodes, kScale };

  int32_t width = 0;
  float epsilon = 0;

  template <class Visit>
  void fields(Visit &&visit) {
    visit("width", width);
    visit("epsilon", epsilon);
  }

  void check() const {
    if (width < 1) throw Fault(format("width is %d, expected at least 1", width));
    check_epsilon(epsilon);
  }

  Ports ports() const {
    return {{{"hidden", DataType::kFLOAT, {kSlots, width}}, {"weight", DataType::kFLOAT, {width}}},
            {codes_port(width), scale_port("act_scale")}};
  }

  int64_t workspace_bytes(const Call &) const { return 0; }

  int32_t launch(const Call &call, cudaStream_t stream) const {
    bitmtp_rms_norm_quant_args args = {};
    args.hidden = call.in<float>(kHidden);
    args.weight = call.in<float>(kWeight);
    args.codes = call.out<int32_t>(kCodes);
    args.scale = call.out<float>(kScale);
    args.epsilon = epsilon;
    args.M = call.slots();
    args.K = width;
    return bitmtp_cuda_rms_norm_quant(&args, stream);
  }
};

const Registrar<RmsNormQuant> registrar;

}  // namespace

}  // namespace tensorrt
}  // namespace bitmtp
