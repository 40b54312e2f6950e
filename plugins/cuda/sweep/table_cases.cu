// TokenEmbedding, to the bit, and GreedyHead: logits to the bit, ids equal, probabilities within their bound.
#include <algorithm>

#include "packed.h"

namespace sweep {

namespace {

struct TableKind {
  int32_t kind;
  bool both_planes;
};
constexpr TableKind kKinds[] = {{BITMTP_FP16, false}, {BITMTP_INT8, false}, {BITMTP_TERNARY, false}, {BITMTP_DUAL, false}, {BITMTP_DUAL, true}};

void check_embedding(Report &report, Random &random, const TestWeight &weight, int32_t M, int32_t P) {
  const DeviceWeight device(weight);
  const int32_t K = weight.record.width, rows = weight.record.rows;
  std::vector<float> masks(static_cast<size_t>(P) * K);
  for (float &v : masks) v = random.normal();
  std::vector<int32_t> ids(M);
  std::vector<float> want(static_cast<size_t>(M) * K, 0.0f);
  for (int32_t m = 0; m < M; ++m) {
    switch (random.integer(0, 6)) {
      case 0: ids[m] = rows + random.integer(0, 1000); break;
      case 1: ids[m] = -1 - P - random.integer(0, 3); break;
      case 2: ids[m] = random.integer(0, 1) ? INT32_MIN : INT32_MAX; break;
      case 3: ids[m] = P > 0 ? -1 - random.integer(0, P - 1) : 0; break;
      default: ids[m] = random.integer(0, rows - 1);
    }
    for (int32_t k = 0; k < K; ++k) {
      float &out = want[static_cast<size_t>(m) * K + k];
      if (ids[m] >= 0 && ids[m] < rows)
        out = weight.record.kind == BITMTP_FP16 ? weight.half(ids[m], k)
                                                : static_cast<float>(weight.code(ids[m], k)) * weight.scale(ids[m], k / weight.group_columns);
      else if (ids[m] < 0 && ids[m] >= -P)
        out = masks[static_cast<size_t>(-1 - ids[m]) * K + k];
    }
  }
  const DeviceArray<int32_t> device_ids(ids);
  const DeviceArray<float> device_masks(masks);
  const DeviceOutput<float> hidden(want.size());
  bitmtp_token_embedding_args args{};
  args.token_ids = device_ids.data();
  args.mask_embeddings = P > 0 ? device_masks.data() : nullptr;
  args.weight = device.record;
  args.hidden = hidden.data();
  args.M = M;
  args.P = P;
  require(bitmtp_cuda_token_embedding(&args, nullptr), "TokenEmbedding");
  finish();
  bool intact;
  const std::vector<float> got = hidden.read(intact);
  const int64_t at = first_difference(got.data(), want.data(), want.size());
  report.count("TokenEmbedding", at < 0 && intact, describe(weight) + numbered("M", M) + numbered("first difference", at));
}

// The order of head_half.cu.
float half_dot(const TestWeight &weight, int32_t row, const int8_t *codes) {
  float lanes[32] = {};
  for (int32_t k = 0; k < weight.record.width; ++k) {
    float &lane = lanes[k / 8 % 32];
    lane = std::fmaf(static_cast<float>(codes[k]), weight.half(row, k), lane);
  }
  for (int32_t step = 16; step > 0; step /= 2) {
    float next[32];
    for (int32_t l = 0; l < 32; ++l) next[l] = lanes[l] + lanes[l ^ step];
    std::copy(next, next + 32, lanes);
  }
  return lanes[0];
}

void check_head(Report &report, Random &random, const TestWeight &weight, const DeviceWeight &device, int32_t M, int32_t h, int32_t top_k, bool with_logits) {
  const int32_t V = weight.record.rows;
  const Array<int32_t> codes = random_codes(random, M, weight.record.width);
  std::vector<float> act_scale(M);
  for (float &s : act_scale) s = random.uniform(0.0001f, 0.01f);
  std::vector<int32_t> slots(h);
  for (int32_t &s : slots) s = random.integer(0, M - 1);

  const DeviceArray<int32_t> device_codes(codes), device_slots(slots);
  const DeviceArray<float> device_scale(act_scale);
  const DeviceOutput<int32_t> ids(static_cast<size_t>(h) * top_k);
  const DeviceOutput<float> probability(static_cast<size_t>(h) * top_k), logits(static_cast<size_t>(h) * V);
  bitmtp_greedy_head_args args{};
  args.codes = device_codes.data();
  args.act_scale = device_scale.data();
  args.head_slots = device_slots.data();
  args.weight = device.record;
  args.token_ids = ids.data();
  args.probability = probability.data();
  args.logits = with_logits ? logits.data() : nullptr;
  args.M = M;
  args.h = h;
  args.top_k = top_k;
  const DeviceOutput<uint8_t> workspace(static_cast<size_t>(bitmtp_cuda_greedy_head_workspace_bytes(&args)));
  args.workspace = workspace.data();
  require(bitmtp_cuda_greedy_head(&args, nullptr), "GreedyHead");
  finish();
  bool intact[4];
  const std::vector<int32_t> got_ids = ids.read(intact[0]);
  const std::vector<float> got_probability = probability.read(intact[1]), got_logits = logits.read(intact[2]);
  workspace.read(intact[3]);
  std::string wrong = intact[0] && intact[1] && intact[2] && intact[3] ? "" : "guard bytes written";
  std::vector<std::string> faults(h);
  in_parallel(h, [&](int32_t i) {
    const int8_t *row = reinterpret_cast<const int8_t *>(codes.data()) + static_cast<size_t>(slots[i]) * weight.padded;
    std::vector<float> want(V);
    for (int32_t n = 0; n < V; ++n) {
      double exact, bound;
      want[n] = (weight.record.kind == BITMTP_FP16 ? half_dot(weight, n, row) : folded_dot(weight, n, row, exact, bound)) * act_scale[slots[i]];
    }
    if (with_logits) {
      const int64_t at = first_difference(got_logits.data() + static_cast<size_t>(i) * V, want.data(), V);
      if (at >= 0) faults[i] = "logit " + std::to_string(at) + " of output " + std::to_string(i);
    }
    std::vector<int32_t> order(V);
    for (int32_t n = 0; n < V; ++n) order[n] = n;
    std::partial_sort(order.begin(), order.begin() + top_k, order.end(),
                      [&](int32_t a, int32_t b) { return want[a] > want[b] || (want[a] == want[b] && a < b); });
    double sum = 0.0;
    for (float l : want) sum += std::exp(static_cast<double>(l) - want[order[0]]);
    for (int32_t k = 0; k < top_k && faults[i].empty(); ++k) {
      const double p = std::exp(static_cast<double>(want[order[k]]) - want[order[0]]) / sum;
      if (got_ids[i * top_k + k] != order[k])
        faults[i] = "output " + std::to_string(i) + " place " + std::to_string(k) + " is token " + std::to_string(got_ids[i * top_k + k]) + ", not " + std::to_string(order[k]);
      else if (!(std::fabs(got_probability[i * top_k + k] - p) <= 1e-4 * p + 1e-37))
        faults[i] = "probability of output " + std::to_string(i) + " is " + std::to_string(got_probability[i * top_k + k]) + ", not " + std::to_string(p);
    }
  });
  for (int32_t i = 0; i < h && wrong.empty(); ++i) wrong = faults[i];
  report.count("GreedyHead", wrong.empty(),
               describe(weight) + numbered("M", M) + numbered("h", h) + numbered("top_k", top_k) + (with_logits ? " logits: " : ": ") + wrong);
}

}  // namespace

void embedding_cases(Report &report) {
  Random random = report.random("embedding");
  const int32_t widths[] = {1, 63, 64, 65, 130, 200, 576, 2560};
  for (const TableKind &kind : kKinds) {
    for (int32_t group_size : {0, 64, 128}) {
      for (int32_t M : {1, 2, 7, 9, 17, 33}) {
        const TestWeight weight(random, kind.kind, kind.both_planes, random.integer(1, 50), widths[random.integer(0, 7)], group_size);
        check_embedding(report, random, weight, M, random.integer(0, 1) * random.integer(1, 4));
      }
    }
  }
}

void head_cases(Report &report) {
  Random random = report.random("head");
  const int32_t vocabularies[] = {1, 5, 31, 32, 33, 513, 1030, 9001};  // 9001: more rows than the grid takes at once
  const int32_t widths[] = {1, 3, 64, 65, 130, 192, 576};  // of one column: few different logits, so many ties
  const int32_t ks[] = {1, 2, 5, 16};
  for (const TableKind &kind : kKinds) {
    for (int32_t group_size : {0, 64, 128}) {
      if (kind.kind == BITMTP_FP16 && group_size != 0) continue;
      for (int32_t vocabulary : vocabularies) {
        if (report.quick() && vocabulary != 33 && vocabulary != 9001) continue;
        const TestWeight weight(random, kind.kind, kind.both_planes, vocabulary, widths[random.integer(0, 6)], group_size);
        const DeviceWeight device(weight);
        for (int32_t h : {1, 2, 3, 5, 8, 9, 15, 17, 33}) {
          if (vocabulary > 2000 && h > 17) continue;
          check_head(report, random, weight, device, random.integer(1, 40), h, std::min(ks[random.integer(0, 3)], vocabulary), random.integer(0, 1) == 1);
        }
      }
    }
  }
  // So many blocks of rows that a team takes several, whose rows several stages of its ring make up; and rows that no team has room for.
  struct TernaryHead {
    int32_t vocabulary, width, group_size;
  };
  for (const TernaryHead &c : {TernaryHead{70001, 64, 128}, TernaryHead{17400, 576, 64}, TernaryHead{17300, 1100, 0}, TernaryHead{17200, 1088, 128},
                               TernaryHead{300, 2560, 0}, TernaryHead{290, 2048, 128}, TernaryHead{270, 4160, 64}, TernaryHead{70, 40000, 128}}) {
    const TestWeight many(random, BITMTP_TERNARY, false, c.vocabulary, c.width, c.group_size);
    const DeviceWeight device_many(many);
    for (int32_t h : {2, 8, 9, 17}) check_head(report, random, many, device_many, 20, h, 1, false);
  }
  if (report.quick()) return;
  const TestWeight weight(random, BITMTP_INT8, false, 301, 2560, 0);
  const DeviceWeight device(weight);
  check_head(report, random, weight, device, 128, 128, 3, true);
  const TestWeight half(random, BITMTP_FP16, false, 301, 2561, 0);
  const DeviceWeight device_half(half);
  check_head(report, random, half, device_half, 9, 9, 2, true);
}

}  // namespace sweep
