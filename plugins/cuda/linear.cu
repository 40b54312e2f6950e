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

LinearPlan plan_linear(int32_t rows, int32_t M) {
  const int32_t processors = multiprocessors();
  LinearPlan plan;
  plan.lane_rows = M <= 8 && ceil_div(rows, 16) <= processors ? 2 : 4;
  plan.sets = ceil_div(rows, 64) >= processors ? 2 : 1;
  plan.blocks = 2;
  plan.units = M > 1 && M <= kMostWindow ? ceil_div(ceil_div(rows, 16), processors) : 0;
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
  return bitmtp::cuda::linear(*args, bitmtp::cuda::plan_linear(args->weight.rows, args->M), stream);
}

BITMTP_API int32_t bitmtp_cuda_dual_plane_linear(const bitmtp_linear_args *args, void *stream) {
  if (args->weight.kind != BITMTP_DUAL) return cudaErrorInvalidValue;
  return bitmtp::cuda::linear(*args, bitmtp::cuda::plan_linear(args->weight.rows, args->M), stream);
}
