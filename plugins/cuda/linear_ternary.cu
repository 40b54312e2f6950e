#include "linear_row.cuh"
#include "ternary_pass.cuh"
#include "ternary_window.cuh"

namespace bitmtp {
namespace cuda {

namespace {

template <int kGroup>
int32_t launch_ternary(const LinearArgs &args, const LinearPlan &plan, void *stream) {
  if (args.M > 1 && args.M <= kMostWindow && plan.units > 0) {
    if (const auto status = launch_pass<kGroup>(args, plan.units, stream)) return *status;
    if (const auto status = launch_window<kGroup>(args, plan.units, stream)) return *status;
  }
  return launch_shape<Kind::kTernary, kGroup>(args, plan, stream);
}

}  // namespace

template <>
int32_t launch_linear<Kind::kTernary>(const LinearArgs &args, const LinearPlan &plan, int32_t group_size, void *stream) {
  switch (group_size) {
    case 0: return launch_ternary<0>(args, plan, stream);
    case 64: return launch_ternary<64>(args, plan, stream);
    default: return launch_ternary<128>(args, plan, stream);
  }
}

}  // namespace cuda
}  // namespace bitmtp
