// GatedActQuant: rule 8 of docs/numerics.md, then rules 4 (optional) and 3.
//
// The gate is computed again in each pass over a row (two, or three with sub-norm). That is a few percent of the projections
// around it and needs no memory for each thread.
#include "arith.h"
#include "bitmtp/abi.h"
#include "kernels.h"
#include "team.h"

namespace bitmtp {
namespace BITMTP_ISA {

namespace {

struct Silu {
  BITMTP_MEMBER f8 operator()(f8 gate, f8 up) const { return gate / (broadcast(1.0f) + exp8(-gate)) * up; }
};

struct Relu2 {
  BITMTP_MEMBER f8 operator()(f8 gate, f8 up) const {
    const f8 positive = select(gate < f8{}, f8{}, gate);  // keeps a NaN
    return positive * positive * up;
  }
};

template <class Gate>
void run(const bitmtp_gated_act_quant_args &args, const Team &team, const Gate &gate) {
  const int32_t F = args.F;
  int64_t first, last;
  team.range(args.M, first, last);
  for (int64_t m = first; m < last; ++m) {
    const float *x = args.gate_up + 2 * m * F;
    const auto gated = [&](int32_t i) BITMTP_LAMBDA { return gate(load_row(x, i, F), load_row(x + F, i, F)); };
    int32_t *codes = args.codes + m * (pad64(F) / 4);
    if (!args.sub_norm) {
      quantise_row_of(gated, F, codes, args.scale + m);
      continue;
    }
    f8 squares = {};
    for (int32_t i = 0; i < F; i += kLanes) {
      const f8 y = gated(i);
      squares += y * y;
    }
    const f8 factor = broadcast(rms_factor(combine_lanes(squares), F, args.epsilon));
    const auto norm = [&](int32_t i) BITMTP_LAMBDA { return gated(i) * factor * load_row(args.sub_norm, i, F); };
    quantise_row_of(norm, F, codes, args.scale + m);
  }
}

}  // namespace

void gated_act_quant(const bitmtp_gated_act_quant_args &args, const Team &team) {
  if (args.activation == BITMTP_SILU) {
    run(args, team, Silu{});
  } else {
    run(args, team, Relu2{});
  }
}

}  // namespace BITMTP_ISA
}  // namespace bitmtp
