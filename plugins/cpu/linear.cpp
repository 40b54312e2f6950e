// TernaryLinear and DualPlaneLinear: rule 5 of docs/numerics.md.
#include "kernels.h"
#include "tile_dot.h"

namespace bitmtp {
namespace BITMTP_ISA {

namespace {

// y = acc * act_scale + residual, for the rows of the tile that exist.
BITMTP_INLINE void store_tile(const bitmtp_linear_args &args, int64_t tile, int64_t m, f8 acc) {
  const int32_t N = args.weight.rows;
  const int64_t at = m * N + tile * 8;
  f8 y = acc * broadcast(args.act_scale[m]);
  const int32_t left = N - static_cast<int32_t>(tile) * 8;
  if (left >= 8) {
    if (args.residual != nullptr) y += load8(args.residual + at);
    store8(args.out + at, y);
    return;
  }
  if (args.residual != nullptr) y += load_part(args.residual + at, left);
  for (int32_t l = 0; l < left; ++l) args.out[at + l] = y[l];
}

template <class Plane>
void run(const bitmtp_linear_args &args, const Team &team) {
  const bitmtp_weight &w = args.weight;
  const int32_t groups = groups_of(w);
  const int64_t row_words = padded(w.width) / 4;
  int64_t first, last;
  team.range(tiles_of(w), first, last);

  int32_t sums[kSums];
  const int32_t most = rows_of_a_pass(w);
  for (int32_t start = 0; start < args.M; start += most) {
    const int32_t rows = args.M - start < most ? args.M - start : most;
    for (int32_t m = 0; m < rows; ++m)
      sum_codes(args.codes + (start + m) * row_words, w, Plane::kZeroPoint, sums + static_cast<int64_t>(m) * groups);
    // A tile stays in the nearest cache while all of these rows meet it.
    const int32_t blocks = (rows + kBlock - 1) / kBlock;
    for (int64_t tile = first; tile < last; ++tile) {
      for (int32_t b = 0; b < blocks; ++b) {
        const int32_t from = static_cast<int32_t>(static_cast<int64_t>(rows) * b / blocks);
        const int32_t to = static_cast<int32_t>(static_cast<int64_t>(rows) * (b + 1) / blocks);
        ActivationRow block[kBlock];
        for (int32_t m = from; m < to; ++m)
          block[m - from] = {args.codes + (start + m) * row_words, sums + static_cast<int64_t>(m) * groups};
        f8 acc[kBlock];
        dot_tile_block<Plane>(w, tile, block, to - from, acc);
        for (int32_t m = from; m < to; ++m) store_tile(args, tile, start + m, acc[m - from]);
      }
    }
  }
}

}  // namespace

void linear(const bitmtp_linear_args &args, const Team &team) {
  if (args.weight.kind == BITMTP_TERNARY)
    run<TernaryCodes>(args, team);
  else if (args.weight.refinement != nullptr)
    run<ComposedCodes>(args, team);
  else
    run<BaseCodes>(args, team);
}

}  // namespace BITMTP_ISA
}  // namespace bitmtp
