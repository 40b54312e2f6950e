// TernaryLinear and DualPlaneLinear.
#include <vector>

#include "harness.h"
#include "weights.h"

namespace sweep {

namespace {

enum Residual { kNone, kApart, kInPlace };

void check_linear(Sweep &sweep, Random &random, const TestWeight &weight, int32_t M, Residual residual) {
  const int32_t N = weight.record.rows;
  const size_t count = static_cast<size_t>(M) * N;
  const Array<int32_t> codes = random_codes(random, M, weight.record.width);
  Array<float> act_scale(M);
  for (int32_t m = 0; m < M; ++m) act_scale[m] = random.uniform(0.001f, 0.1f);
  Array<float> added(residual == kNone ? 0 : count);
  for (size_t i = 0; i < added.size(); ++i) added[i] = random.normal() * 10.0f;

  std::vector<float> expected(count);
  for (int32_t m = 0; m < M; ++m) {
    for (int32_t n = 0; n < N; ++n) {
      const int8_t *row = reinterpret_cast<const int8_t *>(codes.data()) + static_cast<size_t>(m) * weight.padded;
      const size_t i = static_cast<size_t>(m) * N + n;
      const float y = reference_dot(weight, n, row) * act_scale[m];
      expected[i] = residual == kNone ? y : y + added[i];
    }
  }

  Output out(count * sizeof(float));
  if (residual == kInPlace) out.starts_as(added.data());
  bitmtp_linear_args args{};
  args.codes = codes.data();
  args.act_scale = act_scale.data();
  args.weight = weight.record;
  args.residual = residual == kNone ? nullptr : residual == kApart ? added.data() : out.as<float>();
  args.out = out.as<float>();
  args.M = M;
  static const char *const residuals[] = {"", " + residual", " + residual in place"};
  const int32_t op = weight.record.kind == BITMTP_TERNARY ? BITMTP_TERNARY_LINEAR : BITMTP_DUAL_PLANE_LINEAR;
  sweep.check("Linear", describe(weight) + " M=" + std::to_string(M) + residuals[residual], op, &args,
              {{"out", &out, expected.data()}});
}

}  // namespace

void linear_cases(Sweep &sweep) {
  Random random = sweep.random("linear");
  const int32_t rows[] = {1, 7, 8, 9, 24, 37, 100};
  const int32_t widths[] = {1, 63, 64, 65, 96, 130, 192, 200, 320, 576};
  const int32_t repeats = sweep.quick() ? 1 : 4;
  for (int32_t M : {1, 2, 3, 5, 8, 9, 15, 16, 17, 33}) {
    for (int32_t kind : {0, 1, 2}) {  // ternary, W4, W8
      for (int32_t group_size : {0, 64, 128}) {
        for (int32_t i = 0; i < repeats; ++i) {
          const TestWeight weight(random, kind == 0 ? BITMTP_TERNARY : BITMTP_DUAL, kind == 2, rows[random.integer(0, 6)],
                                  widths[random.integer(0, 9)], group_size);
          check_linear(sweep, random, weight, M, static_cast<Residual>(random.integer(0, 2)));
        }
      }
    }
  }
  // The widest row there may be: more activation sums than a kernel keeps at once.
  for (int32_t kind : {BITMTP_TERNARY, BITMTP_DUAL}) {
    const TestWeight weight(random, kind, kind == BITMTP_DUAL, 3, 131072, 64);
    check_linear(sweep, random, weight, 9, kNone);
  }
}

}  // namespace sweep
