#include "export.h"
#include "linear.cuh"

namespace bitmtp {
namespace cuda {

template <>
int32_t launch_linear<Kind::kTernary>(const LinearArgs &, const LinearPlan &, int32_t, void *);
template <>
int32_t launch_linear<Kind::kBase>(const LinearArgs &, const LinearPlan &, int32_t, void *);
template <>
int32_t launch_linear<Kind::kComposed>(const LinearArgs &, const LinearPlan &, int32_t, void *);

LinearPlan plan_linear(const bitmtp_weight &weight, int32_t M) {
  const int32_t rows = weight.rows, processors = multiprocessors();
  const int32_t steps = lane_steps(pad64(weight.width) / kStepColumns, weight.group_size == 128 ? 1 : 0, 0);
  LinearPlan plan;
  plan.lane_rows = M <= 8 && ceil_div(rows, 16) <= processors ? 2 : 4;
  plan.sets = ceil_div(rows, 64) >= processors ? 2 : 1;
  plan.blocks = 2;
  plan.units = 0, plan.ring = false;
  if (M < 2 || M > kMostWindow) return plan;
  // packed_ring.cuh where it was a tenth faster: rows that are too long or too many for what ternary_window.cuh holds, and weights in
  // planes but those of so many rows that packed_rows.cuh keeps all of its loads in flight.
  if (weight.kind == BITMTP_TERNARY) {
    const int32_t units = ceil_div(ceil_div(rows, 16), processors);
    plan.ring = weight.group_size > 0 && ((units > 3 && steps > 4) || (units > 1 && steps > 8 && M > 8));
    plan.units = plan.ring ? 0 : units;
  } else {
    plan.ring = ceil_div(rows, 32) <= 4 * processors;
  }
  return plan;
}

int32_t linear(const bitmtp_linear_args &a, const LinearPlan &plan, void *stream) {
  if (!valid_weight(a.weight) || a.M < 1 || a.M > kMostSlots || a.codes == nullptr || a.act_scale == nullptr || a.out == nullptr)
    return cudaErrorInvalidValue;
  const LinearArgs args = {packed_args(a.weight), a.codes, a.act_scale, a.residual, a.out, a.M};
  const int32_t group_size = a.weight.group_size;
  if (a.weight.kind == BITMTP_TERNARY) return launch_linear<Kind::kTernary>(args, plan, group_size, stream);
  if (a.weight.refinement != nullptr) return launch_linear<Kind::kComposed>(args, plan, group_size, stream);
  return launch_linear<Kind::kBase>(args, plan, group_size, stream);
}

}  // namespace cuda
}  // namespace bitmtp

BITMTP_API int32_t bitmtp_cuda_ternary_linear(const bitmtp_linear_args *args, void *stream) {
  if (args->weight.kind != BITMTP_TERNARY) return cudaErrorInvalidValue;
  return bitmtp::cuda::linear(*args, bitmtp::cuda::plan_linear(args->weight, args->M), stream);
}

BITMTP_API int32_t bitmtp_cuda_dual_plane_linear(const bitmtp_linear_args *args, void *stream) {
  if (args->weight.kind != BITMTP_DUAL) return cudaErrorInvalidValue;
  return bitmtp::cuda::linear(*args, bitmtp::cuda::plan_linear(args->weight, args->M), stream);
}
