// RmsNormQuant and GatedActQuant: values against double precision, bits against the order that docs/numerics.md gives, and against the
// same row in another window.
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include "device.h"

namespace sweep {

namespace {

struct Quantised {
  std::vector<int32_t> codes;
  std::vector<float> scale;
  bool intact;
};

// Runs `launch(codes, scale)` on poisoned outputs of M rows of n columns.
Quantised run(int32_t M, int32_t n, const std::function<int32_t(int32_t *, float *)> &launch) {
  const DeviceOutput<int32_t> codes(static_cast<size_t>(M) * ((n + 63) / 64 * 16));
  const DeviceOutput<float> scale(M);
  require(launch(codes.data(), scale.data()), "launch");
  finish();
  Quantised q;
  bool first, second;
  q.codes = codes.read(first);
  q.scale = scale.read(second);
  q.intact = first && second;
  return q;
}

// Rule 3's result of the values x, within the bounds of docs/numerics.md.
std::string fault(const Quantised &q, int32_t m, const std::vector<double> &x) {
  const int32_t n = static_cast<int32_t>(x.size()), padded = (n + 63) / 64 * 64;
  double amax = 1e-10;
  for (double v : x) amax = std::max(amax, std::fabs(v));
  if (!(std::fabs(q.scale[m] - amax / 127.0) <= 1e-5 * amax / 127.0)) return "scale of row " + std::to_string(m);
  const int8_t *codes = reinterpret_cast<const int8_t *>(q.codes.data()) + static_cast<size_t>(m) * padded;
  for (int32_t i = 0; i < padded; ++i) {
    const double want = i < n ? x[i] * 127.0 / amax : 0.0;
    if (!(std::fabs(codes[i] - want) <= (i < n ? 0.5 + 2e-3 : 0.0))) return "code " + std::to_string(i) + " of row " + std::to_string(m);
  }
  return "";
}

void norm(std::vector<double> &x, const float *weight, double epsilon) {
  double sum = 0.0;
  for (double v : x) sum += v * v;
  const double factor = 1.0 / std::sqrt(sum / static_cast<double>(x.size()) + epsilon);
  for (size_t i = 0; i < x.size(); ++i) x[i] *= factor * weight[i];
}

// The rules' own arithmetic, one operation after another.
float tree(std::array<float, 32> x, bool neighbours_first) {
  for (int n = 16; n > 0; n /= 2)
    for (int i = 0; i < n; ++i) x[i] = neighbours_first ? x[2 * i] + x[2 * i + 1] : x[i] + x[i + n];
  return x[0];
}

float row_squares(const std::vector<float> &x) {
  const auto quad = [&](size_t i) {
    const auto square = [&](size_t at) { return at < x.size() ? x[at] * x[at] : 0.0f; };
    return (square(i) + square(i + 1)) + (square(i + 2) + square(i + 3));
  };
  std::array<float, 32> slots = {};
  for (size_t stretch = 0; stretch * 128 < x.size(); ++stretch) {
    std::array<float, 32> quads;
    for (size_t l = 0; l < 32; ++l) quads[l] = quad(stretch * 128 + 4 * l);
    slots[stretch % 32] = slots[stretch % 32] + tree(quads, false);
  }
  return tree(slots, true);
}

float exponential(float x) {
  x = std::min(std::max(x, -87.3f), 88.3f);
  const float n = std::nearbyintf(x * 1.44269504f), r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 0.00138141739f;
  for (float c : {0.00836892147f, 0.0416684076f, 0.166665196f, 0.49999994f, 1.0f, 1.0f}) p = p * r + c;
  return p * std::ldexp(1.0f, static_cast<int>(n));
}

// Row m of q has the bits of the row x, normed where there is a weight.
bool exact(const Quantised &q, int32_t m, std::vector<float> x, const float *weight, float epsilon) {
  float factor = 1.0f, largest = 0.0f;
  if (weight != nullptr) {
    const float mean = row_squares(x) * (1.0f / static_cast<float>(x.size())) + epsilon;
    factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(mean)));
    for (size_t i = 0; i < x.size(); ++i) x[i] = x[i] * weight[i];
  }
  for (float v : x) largest = std::max(largest, std::fabs(v));
  const float inverse = std::min(127.0f / largest, factor * (127.0f / 1e-10f)), scale = std::max(largest * factor, 1e-10f) / 127.0f;
  const int8_t *codes = reinterpret_cast<const int8_t *>(q.codes.data()) + static_cast<size_t>(m) * ((x.size() + 63) / 64 * 64);
  bool same = q.scale[m] == scale;
  for (size_t i = 0; i < x.size(); ++i) same = same && codes[i] == static_cast<int8_t>(std::nearbyintf(x[i] * inverse));
  return same;
}

// All rows at once against `expected`, then windows of every width inside them against the bits of all at once.
void check(Report &report, const char *op, const std::string &name, int32_t rows, int32_t n, const std::vector<int32_t> &widths, Random &random,
           const std::function<int32_t(int32_t first, int32_t M, int32_t *codes, float *scale)> &launch,
           const std::function<std::vector<double>(int32_t m)> &expected, const std::function<bool(const Quantised &, int32_t m)> &exactly) {
  const auto window = [&](int32_t first, int32_t M) {
    return run(M, n, [&](int32_t *codes, float *scale) { return launch(first, M, codes, scale); });
  };
  const Quantised all = window(0, rows);
  std::string wrong = all.intact ? "" : "guard bytes written";
  for (int32_t m = 0; m < rows && wrong.empty(); ++m) wrong = fault(all, m, expected(m));
  for (int32_t m = 0; m < rows && wrong.empty(); ++m)
    if (!exactly(all, m)) wrong = "bits of row " + std::to_string(m);
  report.count(op, wrong.empty(), name + ": " + wrong);
  const size_t words = (n + 63) / 64 * 16;
  for (int32_t M : widths) {
    const int32_t first = random.integer(0, rows - M);
    const Quantised some = window(first, M);
    const bool same = first_difference(some.codes.data(), all.codes.data() + first * words, M * words) < 0 &&
                      first_difference(some.scale.data(), all.scale.data() + first, M) < 0;
    report.count(op, same && some.intact, name + " M=" + std::to_string(M) + " first=" + std::to_string(first));
  }
}

}  // namespace

void rowwise_cases(Report &report) {
  const std::vector<int32_t> widths = report.quick() ? std::vector<int32_t>{1, 9} : std::vector<int32_t>{1, 2, 3, 5, 8, 9, 13, 15, 16, 17, 20, 32, 64};
  const std::vector<int32_t> columns = report.quick() ? std::vector<int32_t>{67, 576, 2560, 6912}
                                                      : std::vector<int32_t>{1, 5, 63, 64, 67, 130, 576, 1001, 1536, 2048, 2560, 4096, 5000, 6912, 8196, 11008, 20001, 32768};
  const int32_t rows = 64;
  Random random = report.random("rowwise");
  for (int32_t n : columns) {
    const float spread = random.uniform(0.05f, 30.0f);
    std::vector<float> x(static_cast<size_t>(rows) * n), gate_up(2 * x.size()), weight(n);
    for (float &v : x) v = spread * random.normal();
    for (int32_t i = 0; i < n; ++i) x[i] = 0.0f;  // a zero row
    for (float &v : gate_up) v = spread * random.normal();
    for (float &v : weight) v = random.normal();
    const DeviceArray<float> device_x(x), device_gate_up(gate_up), device_weight(weight);
    const std::string name = "K=" + std::to_string(n);
    // Windows start at any row, which is 16-byte aligned only where n allows: so they are copies.
    const auto slice = [](const std::vector<float> &host, int32_t first, int32_t M, size_t row) {
      return DeviceArray<float>(host.data() + first * row, M * row);
    };
    check(report, "RmsNormQuant", name, rows, n, widths, random,
          [&](int32_t first, int32_t M, int32_t *codes, float *scale) {
            const DeviceArray<float> hidden = slice(x, first, M, n);
            const bitmtp_rms_norm_quant_args args{hidden.data(), device_weight.data(), codes, scale, 1e-5f, M, n};
            const int32_t error = bitmtp_cuda_rms_norm_quant(&args, nullptr);
            finish();
            return error;
          },
          [&](int32_t m) {
            std::vector<double> row(x.begin() + static_cast<size_t>(m) * n, x.begin() + static_cast<size_t>(m + 1) * n);
            norm(row, weight.data(), 1e-5f);
            return row;
          },
          [&](const Quantised &q, int32_t m) {
            return exact(q, m, {x.begin() + static_cast<size_t>(m) * n, x.begin() + static_cast<size_t>(m + 1) * n}, weight.data(), 1e-5f);
          });
    for (int32_t activation : {BITMTP_SILU, BITMTP_RELU2}) {
      for (bool sub_norm : {false, true}) {
        check(report, "GatedActQuant", name + (activation == BITMTP_SILU ? " silu" : " relu2") + (sub_norm ? " sub_norm" : ""), rows, n, widths, random,
              [&](int32_t first, int32_t M, int32_t *codes, float *scale) {
                const DeviceArray<float> input = slice(gate_up, first, M, 2 * static_cast<size_t>(n));
                const bitmtp_gated_act_quant_args args{input.data(), sub_norm ? device_weight.data() : nullptr, codes, scale, 1e-6f, M, n, activation};
                const int32_t error = bitmtp_cuda_gated_act_quant(&args, nullptr);
                finish();
                return error;
              },
              [&](int32_t m) {
                std::vector<double> row(n);
                for (int32_t i = 0; i < n; ++i) {
                  const double g = gate_up[2 * static_cast<size_t>(m) * n + i], up = gate_up[(2 * static_cast<size_t>(m) + 1) * n + i];
                  const double limited = std::max(-88.3, std::min(87.3, g));  // of exp, rule 7
                  row[i] = activation == BITMTP_SILU ? g / (1.0 + std::exp(-limited)) * up : (g > 0.0 ? g * g * up : 0.0);
                }
                if (sub_norm) norm(row, weight.data(), 1e-6f);
                return row;
              },
              [&](const Quantised &q, int32_t m) {
                std::vector<float> row(n);
                for (int32_t i = 0; i < n; ++i) {
                  const float g = gate_up[2 * static_cast<size_t>(m) * n + i], up = gate_up[(2 * static_cast<size_t>(m) + 1) * n + i];
                  const float positive = std::max(g, 0.0f);
                  row[i] = activation == BITMTP_SILU ? g / (1.0f + exponential(-g)) * up : positive * positive * up;
                }
                return exact(q, m, row, sub_norm ? weight.data() : nullptr, 1e-6f);
              });
      }
    }
  }
}

}  // namespace sweep
