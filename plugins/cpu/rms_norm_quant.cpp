// RmsNormQuant: rule 4, then rule 3, of docs/numerics.md.
#include "arith.h"
#include "bitmtp/abi.h"
#include "kernels.h"
#include "team.h"

namespace bitmtp {
namespace BITMTP_ISA {

void rms_norm_quant(const bitmtp_rms_norm_quant_args &args, const Team &team) {
  const int32_t K = args.K;
  int64_t first, last;
  team.range(args.M, first, last);
  for (int64_t m = first; m < last; ++m) {
    const float *x = args.hidden + m * K;
    const f8 factor = broadcast(rms_factor(lane_sum_squares(x, K), K, args.epsilon));
    const auto norm = [&](int32_t i) BITMTP_LAMBDA {
      return load_row(x, i, K) * factor * load_row(args.weight, i, K);
    };
    quantise_row_of(norm, K, args.codes + m * (pad64(K) / 4), args.scale + m);
  }
}

}  // namespace BITMTP_ISA
}  // namespace bitmtp
