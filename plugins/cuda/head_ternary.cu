#include "head_row.cuh"
#include "head_team.cuh"

namespace bitmtp {
namespace cuda {

namespace {

template <int kGroup>
int32_t launch_ternary_head(const HeadArgs &args, void *stream) {
  if (args.h > 1) {
    const auto status = args.h <= 8 ? launch_head_team<TeamShape<kGroup, 1>>(args, stream) : launch_head_team<TeamShape<kGroup, 2>>(args, stream);
    if (status) return *status;
  }
  return launch_head_shape<Kind::kTernary, kGroup>(args, stream);
}

}  // namespace

template <>
int32_t launch_head<Kind::kTernary>(const HeadArgs &args, int32_t group_size, void *stream) {
  switch (group_size) {
    case 0: return launch_ternary_head<0>(args, stream);
    case 64: return launch_ternary_head<64>(args, stream);
    default: return launch_ternary_head<128>(args, stream);
  }
}

}  // namespace cuda
}  // namespace bitmtp
