// The operators over an embedding table: TokenEmbedding and GreedyHead.
#include <algorithm>
#include <vector>

#include "harness.h"
#include "reference.h"
#include "weights.h"

namespace sweep {

namespace {

struct Kind {
  int32_t kind;
  bool both_planes;
};
constexpr Kind kKinds[] = {{BITMTP_FP16, false}, {BITMTP_INT8, false}, {BITMTP_TERNARY, false}, {BITMTP_DUAL, false}, {BITMTP_DUAL, true}};

void check_embedding(Sweep &sweep, Random &random, const TestWeight &weight, int32_t M, int32_t P) {
  const int32_t K = weight.record.width;
  const int32_t rows = weight.record.rows;
  Array<float> masks(static_cast<size_t>(P) * K);
  for (size_t i = 0; i < masks.size(); ++i) masks[i] = random.normal();
  Array<int32_t> ids(M);
  std::vector<float> expected(static_cast<size_t>(M) * K, 0.0f);
  for (int32_t m = 0; m < M; ++m) {
    switch (random.integer(0, 5)) {
      case 0: ids[m] = rows + random.integer(0, 1000); break;
      case 1: ids[m] = -1 - P - random.integer(0, 3); break;
      case 2: ids[m] = random.integer(0, 1) ? INT32_MIN : INT32_MAX; break;
      case 3: ids[m] = P > 0 ? -1 - random.integer(0, P - 1) : 0; break;
      default: ids[m] = random.integer(0, rows - 1);
    }
    float *row = expected.data() + static_cast<size_t>(m) * K;
    for (int32_t k = 0; k < K; ++k) {
      if (ids[m] >= 0 && ids[m] < rows)
        row[k] = weight.record.kind == BITMTP_FP16
                     ? weight.half(ids[m], k)
                     : static_cast<float>(weight.code(ids[m], k)) * weight.scale(ids[m], k / weight.group_columns);
      else if (ids[m] < 0 && ids[m] >= -P)
        row[k] = masks[static_cast<size_t>(-1 - ids[m]) * K + k];
    }
  }
  Output hidden(expected.size() * sizeof(float));
  bitmtp_token_embedding_args args{};
  args.token_ids = ids.data();
  args.mask_embeddings = P > 0 ? masks.data() : nullptr;
  args.weight = weight.record;
  args.hidden = hidden.as<float>();
  args.M = M;
  args.P = P;
  sweep.check("TokenEmbedding", describe(weight) + " M=" + std::to_string(M) + " P=" + std::to_string(P), BITMTP_TOKEN_EMBEDDING, &args,
              {{"hidden", &hidden, expected.data()}});
}

float reference_logit(const TestWeight &weight, int32_t row, const int8_t *codes) {
  if (weight.record.kind != BITMTP_FP16) return reference_dot(weight, row, codes);
  std::vector<float> terms(weight.record.width);
  for (int32_t k = 0; k < weight.record.width; ++k) terms[k] = static_cast<float>(codes[k]) * weight.half(row, k);
  return reference::lane_sum(terms);
}

// Rule 12's softmax denominator: maximum and sum over blocks of 512.
void reference_softmax(const std::vector<float> &logits, float &maximum, float &sum) {
  for (size_t first = 0; first < logits.size(); first += 512) {
    const size_t last = std::min(first + 512, logits.size());
    const float block_maximum = *std::max_element(logits.begin() + first, logits.begin() + last);
    std::vector<float> terms;
    for (size_t i = first; i < last; ++i) terms.push_back(reference::softmax_weight(logits[i] - block_maximum));
    const float block_sum = reference::lane_sum(terms);
    if (first == 0) {
      maximum = block_maximum;
      sum = block_sum;
      continue;
    }
    const float larger = std::max(maximum, block_maximum);
    sum = sum * reference::softmax_weight(maximum - larger) + block_sum * reference::softmax_weight(block_maximum - larger);
    maximum = larger;
  }
}

void check_head(Sweep &sweep, Random &random, const TestWeight &weight, int32_t M, int32_t h, int32_t top_k, bool with_logits) {
  const int32_t vocabulary = weight.record.rows;
  const Array<int32_t> codes = random_codes(random, M, weight.record.width);
  Array<float> act_scale(M);
  for (int32_t m = 0; m < M; ++m) act_scale[m] = random.uniform(0.001f, 0.1f);
  Array<int32_t> slots(h);
  for (int32_t i = 0; i < h; ++i) slots[i] = random.integer(0, M - 1);

  std::vector<float> expected_logits, expected_probability;
  std::vector<int32_t> expected_ids;
  for (int32_t i = 0; i < h; ++i) {
    const int8_t *row = reinterpret_cast<const int8_t *>(codes.data()) + static_cast<size_t>(slots[i]) * weight.padded;
    std::vector<float> logits(vocabulary);
    for (int32_t n = 0; n < vocabulary; ++n) logits[n] = reference_logit(weight, n, row) * act_scale[slots[i]];
    float maximum = 0.0f, sum = 0.0f;
    reference_softmax(logits, maximum, sum);
    std::vector<int32_t> order(vocabulary);
    for (int32_t n = 0; n < vocabulary; ++n) order[n] = n;
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
    for (int32_t k = 0; k < top_k; ++k) {
      expected_ids.push_back(order[k]);
      expected_probability.push_back(reference::softmax_weight(logits[order[k]] - maximum) / sum);
    }
    expected_logits.insert(expected_logits.end(), logits.begin(), logits.end());
  }

  Output ids(expected_ids.size() * 4), probability(expected_probability.size() * 4), logits(expected_logits.size() * 4);
  bitmtp_greedy_head_args args{};
  args.codes = codes.data();
  args.act_scale = act_scale.data();
  args.head_slots = slots.data();
  args.weight = weight.record;
  args.token_ids = ids.as<int32_t>();
  args.probability = probability.as<float>();
  args.logits = with_logits ? logits.as<float>() : nullptr;
  args.M = M;
  args.h = h;
  args.top_k = top_k;
  Output workspace(static_cast<size_t>(Sweep::workspace_bytes(BITMTP_GREEDY_HEAD, &args)));
  args.workspace = workspace.as<void>();
  std::vector<Expected> outputs = {{"token_ids", &ids, expected_ids.data()},
                                   {"probability", &probability, expected_probability.data()},
                                   {"workspace", &workspace, nullptr}};
  if (with_logits) outputs.push_back({"logits", &logits, expected_logits.data()});
  sweep.check("GreedyHead",
              describe(weight) + " M=" + std::to_string(M) + " h=" + std::to_string(h) + " top_k=" + std::to_string(top_k) +
                  (with_logits ? " with logits" : ""),
              BITMTP_GREEDY_HEAD, &args, outputs);
}

}  // namespace

void embedding_cases(Sweep &sweep) {
  Random random = sweep.random("embedding");
  const int32_t widths[] = {1, 63, 64, 65, 130, 200, 576};
  for (const Kind &kind : kKinds) {
    for (int32_t group_size : {0, 64, 128}) {
      for (int32_t M : {1, 2, 3, 5, 8, 9, 15, 16, 17, 33}) {
        const TestWeight weight(random, kind.kind, kind.both_planes, random.integer(1, 50), widths[random.integer(0, 6)], group_size);
        check_embedding(sweep, random, weight, M, random.integer(0, 1) * random.integer(1, 4));
      }
    }
  }
}

void head_cases(Sweep &sweep) {
  Random random = sweep.random("head");
  const int32_t vocabularies[] = {1, 5, 16, 511, 512, 513, 1030, 1543};
  const int32_t widths[] = {1, 3, 64, 65, 130, 192};  // of one column: few different logits, so many ties
  const int32_t ks[] = {1, 2, 5, 16};
  const int32_t repeats = sweep.quick() ? 1 : 2;
  for (const Kind &kind : kKinds) {
    for (int32_t group_size : {0, 64, 128}) {
      for (int32_t h : {1, 2, 3, 5, 8, 9, 17}) {
        for (int32_t i = 0; i < repeats; ++i) {
          const int32_t vocabulary = vocabularies[random.integer(0, 7)];
          const TestWeight weight(random, kind.kind, kind.both_planes, vocabulary, widths[random.integer(0, 5)], group_size);
          check_head(sweep, random, weight, random.integer(1, 17), h, std::min(ks[random.integer(0, 3)], vocabulary),
                     random.integer(0, 1) == 1);
        }
      }
    }
  }
  const TestWeight weight(random, BITMTP_INT8, false, 3, 131072, 64);
  check_head(sweep, random, weight, 9, 9, 2, true);
}

}  // namespace sweep
