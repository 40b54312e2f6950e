#include "ternary_row.cuh"

namespace bitmtp {
namespace cuda {

template <>
int32_t launch_linear<Kind::kTernary>(const LinearArgs &args, const LinearPlan &plan, int32_t group_size, void *stream) {
  if (args.M == 1) {
    switch (group_size) {
      case 0: return launch_ternary_row<0>(args, stream);
      case 64: return launch_ternary_row<64>(args, stream);
      default: return launch_ternary_row<128>(args, stream);
    }
  }
  switch (group_size) {
    case 0: return launch_shape<Kind::kTernary, 0>(args, plan, stream);
    case 64: return launch_shape<Kind::kTernary, 64>(args, plan, stream);
    default: return launch_shape<Kind::kTernary, 128>(args, plan, stream);
  }
}

}  // namespace cuda
}  // namespace bitmtp
