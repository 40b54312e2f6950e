#include "head_row.cuh"

namespace bitmtp {
namespace cuda {

template <>
int32_t launch_head<Kind::kBase>(const HeadArgs &args, int32_t group_size, void *stream) {
  switch (group_size) {
    case 0: return launch_head_shape<Kind::kBase, 0>(args, stream);
    case 64: return launch_head_shape<Kind::kBase, 64>(args, stream);
    default: return launch_head_shape<Kind::kBase, 128>(args, stream);
  }
}

}  // namespace cuda
}  // namespace bitmtp
