// TernaryLinear and DualPlaneLinear: every width and every plan against the same expected bits, row by row, so that a row which
// depended on its window would show.
#include <algorithm>

#include "../linear.cuh"
#include "packed.h"

namespace sweep {

namespace {

using bitmtp::cuda::LinearPlan;

struct Rows {
  Rows(Random &random, const TestWeight &weight, int32_t count)
      : codes(random_codes(random, count, weight.record.width)), act_scale(count), residual(static_cast<size_t>(count) * weight.record.rows),
        plain(residual.size()), added(residual.size()) {
    const int32_t N = weight.record.rows;
    for (int32_t m = 0; m < count; ++m) act_scale[m] = random.uniform(0.001f, 0.1f);
    for (float &r : residual) r = 10.0f * random.normal();
    for (int32_t m = 0; m < count; ++m) {
      const int8_t *row = reinterpret_cast<const int8_t *>(codes.data()) + static_cast<size_t>(m) * weight.padded;
      for (int32_t n = 0; n < N; ++n) {
        const size_t i = static_cast<size_t>(m) * N + n;
        double exact, bound;
        const float dot = folded_dot(weight, n, row, exact, bound);
        plain[i] = dot * act_scale[m];
        added[i] = plain[i] + residual[i];
        // The documented bound between engines, here for the expected values themselves.
        if (!(std::fabs(plain[i] - exact * act_scale[m]) <= 1e-6 * weight.groups * bound * act_scale[m] + 1e-30)) within_bound = false;
      }
    }
  }
  Array<int32_t> codes;
  std::vector<float> act_scale, residual, plain, added;
  bool within_bound = true;
};

void run_case(Report &report, const std::string &name, const TestWeight &weight, const DeviceWeight &device, const Rows &rows, int32_t first,
              int32_t M, int32_t residual, const LinearPlan *plan) {
  const int32_t N = weight.record.rows;
  const size_t from = static_cast<size_t>(first) * N, n = static_cast<size_t>(M) * N;
  const DeviceArray<int32_t> codes(rows.codes.data() + static_cast<size_t>(first) * weight.padded / 4, static_cast<size_t>(M) * weight.padded / 4);
  const DeviceArray<float> act_scale(rows.act_scale.data() + first, M), apart(rows.residual.data() + from, n);
  const DeviceOutput<float> out(n, residual == 2 ? rows.residual.data() + from : nullptr);
  bitmtp_linear_args args{};
  args.codes = codes.data();
  args.act_scale = act_scale.data();
  args.weight = device.record;
  args.residual = residual == 0 ? nullptr : residual == 1 ? apart.data() : out.data();
  args.out = out.data();
  args.M = M;
  if (plan != nullptr)
    require(bitmtp::cuda::linear(args, *plan, nullptr), name.c_str());
  else if (weight.record.kind == BITMTP_TERNARY)
    require(bitmtp_cuda_ternary_linear(&args, nullptr), name.c_str());
  else
    require(bitmtp_cuda_dual_plane_linear(&args, nullptr), name.c_str());
  finish();
  bool intact;
  const std::vector<float> got = out.read(intact);
  const float *want = (residual == 0 ? rows.plain : rows.added).data() + from;
  const int64_t at = first_difference(got.data(), want, n);
  std::string what = name + numbered("M", M) + numbered("first", first) + numbered("residual", residual);
  if (plan != nullptr) what += numbered("lane_rows", plan->lane_rows) + numbered("sets", plan->sets) + numbered("units", plan->units) + numbered("ring", plan->ring);
  if (at >= 0)
    what += ": slot " + std::to_string(at / N) + " row " + std::to_string(at % N) + " is " + std::to_string(got[at]) + ", not " + std::to_string(want[at]);
  if (!intact) what += ": guard bytes written";
  report.count("Linear", at < 0 && intact, what);
}

void weight_cases(Report &report, Random &random, int32_t kind, int32_t N, int32_t K, int32_t group_size, const std::vector<int32_t> &widths) {
  const TestWeight weight(random, kind == 0 ? BITMTP_TERNARY : BITMTP_DUAL, kind == 2, N, K, group_size);
  const DeviceWeight device(weight);
  const int32_t most = *std::max_element(widths.begin(), widths.end());
  const Rows rows(random, weight, most);
  const std::string name = describe(weight);
  report.count("Linear", rows.within_bound, name + ": outside the documented bound");
  for (int32_t M : widths) {
    const int32_t residual = random.integer(0, 2), first = random.integer(0, most - M);
    run_case(report, name, weight, device, rows, first, M, residual, nullptr);
    for (int32_t lane_rows : {2, 4}) {
      for (int32_t sets : {1, 2}) {
        if (M == 1) continue;  // it has one kernel, whatever the plan
        if ((M > 8 && lane_rows == 2) || ((M <= 8 || M > 16) && sets == 2)) continue;
        const LinearPlan plan{lane_rows, sets, 1, 0, false};
        run_case(report, name, weight, device, rows, first, M, residual, &plan);
      }
    }
    if (M == 1 || M > bitmtp::cuda::kMostWindow) continue;
    const LinearPlan ring{4, 1, 1, 0, true};
    run_case(report, name, weight, device, rows, first, M, residual, &ring);
    if (kind != 0) continue;
    for (int32_t units : {1, 2, 3, 5, 6, 7, 16}) {
      const LinearPlan plan{4, 1, 1, units, false};
      run_case(report, name, weight, device, rows, first, M, residual, &plan);
    }
  }
}

// The shapes of linear_row.cuh: rows that a block's tiles do not divide, columns that its loads do not, several turns; each with every
// kind of residual, and between wider windows on the same expected bits.
void single_row_cases(Report &report, Random &random) {
  struct Shape {
    int32_t N, K;
  };
  for (int32_t kind : {0, 1, 2}) {
    for (const Shape &s : {Shape{2117, 2500}, Shape{6501, 70}, Shape{21, 2625}, Shape{13, 5121}, Shape{11, 7001}, Shape{19, 20000}}) {
      for (int32_t group_size : {0, 64, 128}) {
        const TestWeight weight(random, kind == 0 ? BITMTP_TERNARY : BITMTP_DUAL, kind == 2, s.N, s.K, group_size);
        const DeviceWeight device(weight);
        const Rows rows(random, weight, 8);
        for (int32_t M : {1, 2, 7, 8})
          for (int32_t residual : {0, 1, 2}) run_case(report, describe(weight), weight, device, rows, M == 1 ? 3 : 0, M, residual, nullptr);
      }
    }
  }
}

}  // namespace

void linear_cases(Report &report) {
  Random random = report.random("linear");
  std::vector<int32_t> widths;
  for (int32_t M = 1; M <= 20; ++M) widths.push_back(M);
  widths.insert(widths.end(), {32, 64, 128});
  const std::vector<int32_t> few = {1, 5, 9, 16, 17, 33};
  struct Shape {
    int32_t N, K;
  };
  const Shape shapes[] = {{37, 576}, {100, 1536}, {25, 2560}, {9, 6912}, {130, 130}, {1, 1}, {64, 64}, {33, 4096}, {19, 6144}, {41, 9728}};
  for (int32_t kind : {0, 1, 2}) {
    for (int32_t group_size : {0, 64, 128}) {
      for (const Shape &s : shapes) {
        if (report.quick() && s.N != 37 && s.N != 9) continue;
        weight_cases(report, random, kind, s.N, s.K, group_size, report.quick() ? few : widths);
      }
      // More rows than the grid takes at once, in steps of which some lanes of the fold have an odd number.
      if (!report.quick() || group_size == 128) weight_cases(report, random, kind, 20003, 320, group_size, few);
      if (!report.quick()) weight_cases(report, random, kind, 9001, 1344, group_size, few);
    }
  }
  // Rows and units of a block, of 16 rows, that fill the shapes of ternary_pass.cuh.
  for (int32_t group_size : {0, 64, 128}) {
    for (const Shape &s : {Shape{83, 2048}, Shape{39, 2624}}) weight_cases(report, random, 0, s.N, s.K, group_size, few);
  }
  single_row_cases(report, random);
  if (!report.quick()) weight_cases(report, random, 0, 3, 65536, 128, few);
}

}  // namespace sweep
