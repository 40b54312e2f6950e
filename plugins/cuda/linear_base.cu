#include "linear_row.cuh"

namespace bitmtp {
namespace cuda {

template <>
int32_t launch_linear<Kind::kBase>(const LinearArgs &args, const LinearPlan &plan, int32_t group_size, void *stream) {
  switch (group_size) {
    case 0: return launch_shape<Kind::kBase, 0>(args, plan, stream);
    case 64: return launch_shape<Kind::kBase, 64>(args, plan, stream);
    default: return launch_shape<Kind::kBase, 128>(args, plan, stream);
  }
}

}  // namespace cuda
}  // namespace bitmtp
