// NestedKVAttention against a reference in double precision, and the promise that a row's bits do not depend on the window around
// it.
#include "attention_cases.cuh"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "attention_run.cuh"

namespace sweep {

namespace {

constexpr char kOp[] = "attention";

struct Tally {
  Report &report;
  int64_t failures = 0;
  double worst = 0.0;  // error of a hidden value over its row's largest, beyond rounding to int8

  void fail(const std::string &name, const std::string &what) {
    ++failures;
    report.count(kOp, false, name + ": " + what);
  }
};

// ---- the reference ----------------------------------------------------------------------------------------------------

int32_t nibble(const std::vector<int32_t> &plane, size_t first, int32_t i) {
  const int32_t shift = 8 * (i % 4) + (i % 8 >= 4 ? 4 : 0);
  return static_cast<int32_t>(static_cast<uint32_t>(plane[first + i / 8]) >> shift & 15u) - 8;
}

// Head kv (keys, then values) of a stored row as numbers.
std::vector<double> read_head(const AttentionSizes &s, const StoredRows &rows, int32_t row, int32_t kv, bool coarse) {
  std::vector<double> x(s.D);
  const size_t head = static_cast<size_t>(row) * 2 * s.Hkv + kv;
  for (int32_t i = 0; i < s.D; ++i) {
    if (s.kind == BITMTP_KV_FP16) {
      x[i] = half_to_float(rows.half[head * s.D + i]);
    } else {
      const size_t first = head * (s.D / 8);
      const int32_t code = 16 * nibble(rows.base, first, i) + (coarse ? 0 : nibble(rows.refinement, first, i));
      x[i] = code * static_cast<double>(half_to_float(rows.scale[head])) / 16.0;
    }
  }
  return x;
}

std::vector<double> prepared(const AttentionModel &model, const AttentionWindow &window, int32_t m, int32_t head) {
  const AttentionSizes &s = model.sizes;
  const float *in = window.qkv.data() + (static_cast<size_t>(m) * (s.H + 2 * s.Hkv) + head) * s.D;
  std::vector<double> x(in, in + s.D);
  if (s.bias) {
    for (int32_t i = 0; i < s.D; ++i) x[i] += model.bias[static_cast<size_t>(head) * s.D + i];
  }
  if (head >= s.H + s.Hkv) return x;
  if (s.qk_norm) {
    double sum = 0.0;
    for (double v : x) sum += v * v;
    const double factor = 1.0 / std::sqrt(sum / s.D + model.epsilon);
    for (int32_t i = 0; i < s.D; ++i) x[i] *= factor * (head < s.H ? model.q_norm : model.k_norm)[i];
  }
  const int32_t position = std::min(std::max(window.positions[m], 0), model.rotary_rows - 1);
  const float *table = model.rotary.data() + static_cast<size_t>(position) * s.D;
  std::vector<double> y(s.D);
  for (int32_t i = 0; i < s.D / 2; ++i) {
    const double c = table[i], sine = table[s.D / 2 + i], a = x[i], b = x[i + s.D / 2];
    y[i] = a * c - b * sine;
    y[i + s.D / 2] = b * c + a * sine;
  }
  return y;
}

// What a row stored must be: within half a step of the value, and 1e-6 of the head's largest for fp32's errors before rounding.
void check_stored(Tally &tally, const std::string &name, const AttentionModel &model, const AttentionWindow &window,
                  const StoredRows &stored) {
  const AttentionSizes &s = model.sizes;
  for (int32_t m = 0; m < window.M; ++m) {
    for (int32_t kv = 0; kv < 2 * s.Hkv; ++kv) {
      const std::vector<double> x = prepared(model, window, m, s.H + kv), got = read_head(s, stored, m, kv, false);
      double amax = 0.0;
      for (double v : x) amax = std::max(amax, std::fabs(v));
      double step = 0.0;
      if (s.kind == BITMTP_KV_NESTED) {
        const double scale = half_to_float(stored.scale[static_cast<size_t>(m) * 2 * s.Hkv + kv]);
        const double wanted = std::max(amax / 7.0, std::ldexp(1.0, -14));
        if (!(std::fabs(scale - wanted) <= wanted * (0.5 / 1024 + 1e-6) + std::ldexp(1.0, -25))) {
          return tally.fail(name, "scale of row " + std::to_string(m) + " head " + std::to_string(kv));
        }
        step = scale / 16.0;
      }
      for (int32_t i = 0; i < s.D; ++i) {
        double bound = 1e-6 * amax;
        if (s.kind == BITMTP_KV_NESTED) {
          // Where the refinement is at its end, 7/16 of a base step, or the rounded scale leaves the largest value outside: a step.
          const double above = got[i] / (16 * step) - std::floor(got[i] / (16 * step));
          bound += step * (std::fabs(above - 7.0 / 16) < 1e-3 || std::fabs(x[i]) > 7.4 * 16 * step ? 1.01 : 0.501);
        } else {
          bound += std::max(std::fabs(x[i]) * (0.5 / 1024), std::ldexp(1.0, -25));
        }
        if (!(std::fabs(got[i] - x[i]) <= bound)) {
          return tally.fail(name, "stored row " + std::to_string(m) + " head " + std::to_string(kv) + " column " + std::to_string(i) +
                                      ": " + std::to_string(got[i]) + ", expected " + std::to_string(x[i]));
        }
      }
    }
  }
}

void check_rows(Tally &tally, const std::string &name, const AttentionModel &model, const StoredRows &history,
                const AttentionWindow &window, const AttentionResult &got) {
  const AttentionSizes &s = model.sizes;
  const int32_t ratio = s.H / s.Hkv, K = s.H * s.D;
  std::vector<std::vector<double>> rows(window.M, std::vector<double>(K));
  std::vector<double> largest(window.M, 0.0);  // sum of absolute products behind a score, of each row
  std::vector<std::vector<std::vector<double>>> past(2 * s.Hkv), fresh(2 * s.Hkv);
  in_parallel(2 * s.Hkv, [&](int32_t kv) {
    for (int32_t p = 0; p < window.history; ++p) past[kv].push_back(read_head(s, history, p, kv, p < window.kv4));
    for (int32_t m = 0; m < window.M; ++m) fresh[kv].push_back(read_head(s, got.stored, m, kv, false));
  });
  in_parallel(window.M, [&](int32_t m) {
    for (int32_t h = 0; h < s.H; ++h) {
      const int32_t g = h / ratio;
      const std::vector<double> q = prepared(model, window, m, h);
      std::vector<const double *> k, v;
      for (int32_t p = 0; p < window.history; ++p) k.push_back(past[g][p].data()), v.push_back(past[s.Hkv + g][p].data());
      for (int32_t slot : window.visible[m]) k.push_back(fresh[g][slot].data()), v.push_back(fresh[s.Hkv + g][slot].data());
      std::vector<double> score(k.size());
      double top = -1e300, sum = 0.0;
      for (size_t j = 0; j < k.size(); ++j) {
        double dot = 0.0, size = 0.0;
        for (int32_t i = 0; i < s.D; ++i) dot += q[i] * k[j][i], size += std::fabs(q[i] * k[j][i]);
        score[j] = dot * model.softmax_scale;
        top = std::max(top, score[j]);
        largest[m] = std::max(largest[m], size * model.softmax_scale);
      }
      double *out = rows[m].data() + h * s.D;
      for (size_t j = 0; j < k.size(); ++j) {
        const double e = std::exp(score[j] - top);
        sum += e;
        for (int32_t i = 0; i < s.D; ++i) out[i] += e * v[j][i];
      }
      for (int32_t i = 0; i < s.D && !k.empty(); ++i) out[i] /= sum;
    }
  });
  for (int32_t m = 0; m < window.M; ++m) {
    std::vector<double> &x = rows[m];
    if (s.sub_norm) {
      double sum = 0.0;
      for (double v : x) sum += v * v;
      const double factor = 1.0 / std::sqrt(sum / K + model.epsilon);
      for (int32_t i = 0; i < K; ++i) x[i] *= factor * model.sub_norm[i];
    }
    double amax = 1e-10;
    for (double v : x) amax = std::max(amax, std::fabs(v));
    // Queries have 22 bits, and tensor cores cut every addend to the bits of the largest: a score's error is relative to its products,
    // and is its weight's.
    const double scale = got.scale[m], tolerance = 1e-5 + std::ldexp(largest[m], -21);
    tally.worst = std::max(tally.worst, std::fabs(scale * 127.0 - amax) / amax);
    if (!(std::fabs(scale * 127.0 - amax) <= tolerance * amax)) {
      return tally.fail(name, "scale of row " + std::to_string(m) + " is " + std::to_string(scale) + ", expected " +
                                  std::to_string(amax / 127.0));
    }
    for (int32_t i = 0; i < K; ++i) {
      const double error = std::fabs(got.codes[static_cast<size_t>(m) * K + i] * scale - x[i]);
      tally.worst = std::max(tally.worst, (error - 0.5 * scale) / amax);
      if (!(error <= 0.5001 * scale + tolerance * amax)) {
        return tally.fail(name, "row " + std::to_string(m) + " column " + std::to_string(i) + " is " +
                                    std::to_string(got.codes[static_cast<size_t>(m) * K + i] * scale) + ", expected " +
                                    std::to_string(x[i]) + ", scale " + std::to_string(scale));
      }
    }
  }
}

// ---- cases ------------------------------------------------------------------------------------------------------------

AttentionResult check(Tally &tally, const std::string &name, const AttentionModel &model, const StoredRows &history,
                      int32_t capacity, const AttentionWindow &window) {
  const std::string full = describe(model.sizes) + " " + name;
  std::string fault;
  const AttentionResult got = run_attention(model, history, capacity, window, fault);
  if (!fault.empty()) {
    tally.fail(full, fault);
    return got;
  }
  const int64_t before = tally.failures;
  check_stored(tally, full, model, window, got.stored);
  if (tally.failures == before) check_rows(tally, full, model, history, window, got);
  if (tally.failures == before) tally.report.count(kOp, true, full);
  return got;
}

void sizes_cases(Tally &tally, Random &random, const AttentionSizes &s, const std::vector<int32_t> &widths,
                 const std::vector<int32_t> &histories) {
  for (int32_t M : widths) {
    for (int32_t history : histories) {
      const Shape shapes[] = {Shape::causal, Shape::tree, Shape::padded};
      const Shape shape = shapes[M == 1 ? 0 : random.bits() % 3];
      const int32_t kv4s[] = {0, history / 2, history};
      const int32_t kv4 = s.kind == BITMTP_KV_FP16 ? 0 : kv4s[random.bits() % 3];
      const int32_t capacity = history + random.integer(0, 40);
      const AttentionModel model = make_model(random, s, history + M);
      check(tally,
            "M=" + std::to_string(M) + " history=" + std::to_string(history) + " kv4=" + std::to_string(kv4) +
                (shape == Shape::tree ? " tree" : shape == Shape::padded ? " padded" : ""),
            model, make_history(random, s, capacity, history, kv4), capacity, make_window(random, s, M, history, kv4, shape));
    }
  }
}

// A row that sees nothing is zeros, and leaves its neighbours alone.
void blind_case(Tally &tally, Random &random, const AttentionSizes &s, int32_t M) {
  const AttentionModel model = make_model(random, s, 64);
  AttentionWindow w = make_window(random, s, M, 0, 0, Shape::causal);
  w.visible[M / 2].clear();
  check(tally, "M=" + std::to_string(M) + " blind row", model, make_history(random, s, 8, 0, 0), 8, w);
}

// Row `row` of `got` against row 0 of `alone`.
void same_bits(Tally &tally, const std::string &name, const AttentionSizes &s, const AttentionResult &got, int32_t row,
               const AttentionResult &alone) {
  const size_t K = static_cast<size_t>(s.H) * s.D, at = static_cast<size_t>(row);
  const auto equal = [&](const auto &a, const auto &b) {
    const size_t n = b.size();
    return n == 0 || std::memcmp(a.data() + at * n, b.data(), n * sizeof(b[0])) == 0;
  };
  if (std::memcmp(got.codes.data() + at * K, alone.codes.data(), K) != 0) tally.fail(name, "codes differ from the row alone");
  if (std::memcmp(&got.scale[at], &alone.scale[0], sizeof(float)) != 0) tally.fail(name, "scale differs from the row alone");
  if (!equal(got.stored.base, alone.stored.base) || !equal(got.stored.refinement, alone.stored.refinement) ||
      !equal(got.stored.scale, alone.stored.scale) || !equal(got.stored.half, alone.stored.half)) {
    tally.fail(name, "stored row differs from the row alone");
  }
}

// The row at position p in every kind of window. What earlier positions stored is taken from windows of the operator itself.
void lossless_cases(Tally &tally, Random &random, const AttentionSizes &s, int32_t p, const std::vector<int32_t> &splits) {
  constexpr int32_t kStep = 100;
  const int32_t rows = p + 1;
  Lossless row(random, s, p);
  for (int32_t first = 0; first < rows; first += kStep) {
    const AttentionWindow w = row.alone(first, std::min(kStep, rows - first));
    std::string fault;
    const AttentionResult got = run_attention(row.model(), make_history(random, s, 1, 0, 0), 1, w, fault);
    if (!fault.empty()) return tally.fail(describe(s) + " lossless", fault);
    row.store(first, w.M, got.stored);
  }
  const std::string at = "lossless p=" + std::to_string(p);
  const AttentionResult alone = check(tally, at + " alone", row.model(), row.history(rows, p), rows, row.window(0, 0, false));
  for (int32_t before : splits) {
    if (before > p) continue;
    for (bool tree : {false, true}) {
      const int32_t after = random.integer(0, 3), capacity = tree ? rows : 2 * rows + 7;
      const AttentionWindow w = row.window(before, after, tree);
      const std::string name = at + " before=" + std::to_string(before) + " after=" + std::to_string(after) + (tree ? " tree" : "");
      const int64_t failures = tally.failures;
      const AttentionResult got = check(tally, name, row.model(), row.history(capacity, w.history), capacity, w);
      if (tally.failures == failures) same_bits(tally, describe(s) + " " + name, s, got, row.row(before, tree), alone);
    }
  }
}

}  // namespace

void attention_cases(Report &report) {
  Random random = report.random(kOp);
  const bool quick = report.quick();
  Tally tally{report};
  const auto some = [quick](std::vector<int32_t> few, std::vector<int32_t> all) { return quick ? few : all; };
  const std::vector<int32_t> widths = some({1, 3, 9}, {1, 2, 3, 5, 8, 9, 15, 16, 17, 20, 33});
  const std::vector<int32_t> histories = some({0, 130}, {0, 1, 31, 127, 128, 129, 255, 1000});
  for (int32_t kind : {BITMTP_KV_NESTED, BITMTP_KV_FP16}) {
    for (int32_t ratio : some({1, 4}, {1, 2, 3, 4, 5, 8, 12})) {
      for (int32_t D : {64, 128}) {
        const int32_t Hkv = (ratio + D / 64) % 3 + 1;
        sizes_cases(tally, random, {ratio * Hkv, Hkv, D, kind, ratio % 2 == 0, ratio % 3 != 0, ratio >= 4}, widths, histories);
      }
    }
    const AttentionSizes usual{6, 2, 64, kind, true, true, true}, wide{4, 2, 128, kind, false, true, false};
    sizes_cases(tally, random, usual, {quick ? 40 : 64}, {0, 100});
    if (!quick) sizes_cases(tally, random, wide, {128}, {0, 300});
    // Units of every width, and (128 rows over a large capacity) several slices.
    sizes_cases(tally, random, {2, 1, 128, kind, false, true, false}, {1}, some({4200}, {4200, 9000, 17000}));
    if (!quick) {
      const AttentionSizes many{32, 1, 64, kind, false, false, false};
      const AttentionModel model = make_model(random, many, 1200);
      check(tally, "slices", model, make_history(random, many, 60000, 1000, 0), 60000,
            make_window(random, many, 100, 1000, 0, Shape::causal));
    }
    for (int32_t M : {1, 5, 40}) blind_case(tally, random, usual, M);
    const std::vector<int32_t> few = {1, 20}, all = {0, 1, 2, 4, 7, 8, 15, 20, 30, 33, 62};
    for (int32_t p : some({5, 140}, {0, 5, 127, 128, 140, 260, 1000, 4100})) {
      lossless_cases(tally, random, usual, p, quick ? few : all);
      if (!quick || p > 100) lossless_cases(tally, random, wide, p, quick ? few : all);
    }
  }
  std::printf("attention: largest error beyond rounding to int8 %.2e of a row's largest value\n", tally.worst);
}

}  // namespace sweep
