// RmsNormQuant and GatedActQuant against plain loops.
#include <string>
#include <vector>

#include "harness.h"
#include "reference.h"

namespace sweep {

namespace {

// What a quantised output of M rows must hold.
struct Codes {
  size_t stride;
  std::vector<int8_t> codes;
  std::vector<float> scale;

  Codes(int32_t M, int32_t K) : stride((K + 63) / 64 * 64), codes(M * stride), scale(M) {}
  void row(int32_t m, const std::vector<float> &x) {
    scale[m] = reference::quantise(x.data(), static_cast<int32_t>(x.size()), codes.data() + m * stride);
  }
};

void fill(Array<float> &x, Random &random, float spread) {
  for (size_t i = 0; i < x.size(); ++i) x[i] = spread * random.normal();
}

void norm_case(Sweep &sweep, Random &random, int32_t M, int32_t K) {
  Array<float> hidden(static_cast<size_t>(M) * K), weight(K);
  fill(hidden, random, random.uniform(0.01f, 100.0f));
  fill(weight, random, 1.0f);
  if (M > 1) std::memset(hidden.data(), 0, static_cast<size_t>(K) * sizeof(float));  // a zero row
  Codes expected(M, K);
  for (int32_t m = 0; m < M; ++m) {
    std::vector<float> x(hidden.data() + static_cast<size_t>(m) * K, hidden.data() + static_cast<size_t>(m + 1) * K);
    reference::rms_norm(x.data(), K, weight.data(), 1e-5f);
    expected.row(m, x);
  }
  Output codes(expected.codes.size()), scale(expected.scale.size() * sizeof(float));
  const bitmtp_rms_norm_quant_args args{hidden.data(), weight.data(), codes.as<int32_t>(), scale.as<float>(), 1e-5f, M, K};
  sweep.check("RmsNormQuant", "M=" + std::to_string(M) + " K=" + std::to_string(K), BITMTP_RMS_NORM_QUANT, &args,
              {{"codes", &codes, expected.codes.data()}, {"scale", &scale, expected.scale.data()}});
}

void gate_case(Sweep &sweep, Random &random, int32_t M, int32_t F, int32_t activation, bool sub_norm) {
  Array<float> gate_up(2 * static_cast<size_t>(M) * F), weight(F);
  fill(gate_up, random, random.uniform(0.1f, 40.0f));  // far enough for both ends of exp
  fill(weight, random, 1.0f);
  Codes expected(M, F);
  for (int32_t m = 0; m < M; ++m) {
    std::vector<float> y(F);
    for (int32_t i = 0; i < F; ++i) {
      const float g = gate_up[2 * static_cast<size_t>(m) * F + i], up = gate_up[(2 * static_cast<size_t>(m) + 1) * F + i];
      const float positive = g > 0.0f ? g : 0.0f;
      y[i] = activation == BITMTP_SILU ? (g / (1.0f + reference::exponential(-g))) * up : (positive * positive) * up;
    }
    if (sub_norm) reference::rms_norm(y.data(), F, weight.data(), 1e-6f);
    expected.row(m, y);
  }
  Output codes(expected.codes.size()), scale(expected.scale.size() * sizeof(float));
  const bitmtp_gated_act_quant_args args{gate_up.data(),    sub_norm ? weight.data() : nullptr,
                                         codes.as<int32_t>(), scale.as<float>(), 1e-6f, M, F, activation};
  const std::string name = "M=" + std::to_string(M) + " F=" + std::to_string(F) +
                           (activation == BITMTP_SILU ? " silu" : " relu2") + (sub_norm ? " sub_norm" : "");
  sweep.check("GatedActQuant", name, BITMTP_GATED_ACT_QUANT, &args,
              {{"codes", &codes, expected.codes.data()}, {"scale", &scale, expected.scale.data()}});
}

}  // namespace

void rowwise_cases(Sweep &sweep) {
  const std::vector<int32_t> rows = {1, 2, 3, 5, 8, 9, 15, 16, 17, 33};
  const std::vector<int32_t> widths = sweep.quick() ? std::vector<int32_t>{1, 67, 576}
                                                    : std::vector<int32_t>{1, 5, 8, 63, 64, 67, 129, 576, 1001, 2560, 6912};
  Random norms = sweep.random("RmsNormQuant"), gates = sweep.random("GatedActQuant");
  for (int32_t K : widths) {
    for (int32_t M : rows) {
      norm_case(sweep, norms, M, K);
      for (int32_t activation : {BITMTP_SILU, BITMTP_RELU2}) {
        for (bool sub_norm : {false, true}) gate_case(sweep, gates, M, K, activation, sub_norm);
      }
    }
  }
}

}  // namespace sweep
