// NestedKVAttention against the reference, and the promise that a row's bits do not depend on the window around it.
#include <string>
#include <vector>

#include "attention_inputs.h"
#include "harness.h"

namespace sweep {

namespace {

// Runs a window on every instruction set; the reference gives the expected bits, but for a row `pinned` >= 0 those of
// `baseline` (row 0) are demanded: that is what the row gave in another window.
AttentionResult check(Sweep &sweep, const std::string &name, const AttentionModel &model, const StoredRows &history,
                      int32_t capacity, const AttentionWindow &w, int32_t pinned = -1,
                      const AttentionResult *baseline = nullptr) {
  const AttentionSizes &s = model.sizes;
  const AttentionResult expected = reference_attention(model, history, w);
  AttentionResult demanded = expected;
  if (pinned >= 0) {
    demanded.stored.copy_row(s, pinned, baseline->stored, 0);
    const size_t row = expected.codes.size() / static_cast<size_t>(w.M);
    for (size_t i = 0; i < row; ++i) demanded.codes[static_cast<size_t>(pinned) * row + i] = baseline->codes[i];
    demanded.scale[pinned] = baseline->scale[0];
  }
  const bool nested = s.kind == BITMTP_KV_NESTED;
  const std::vector<int32_t> mask = pack_mask(w);
  // Exact copies on their own allocations, so that a sanitizer sees a read past the end.
  const auto exact = [](const auto &v) {
    Array<typename std::decay_t<decltype(v)>::value_type> a(v.size());
    for (size_t i = 0; i < v.size(); ++i) a[i] = v[i];
    return a;
  };
  const auto qkv = exact(w.qkv), rotary = exact(model.rotary), bias = exact(model.bias), q_norm = exact(model.q_norm),
             k_norm = exact(model.k_norm), sub_norm = exact(model.sub_norm);
  const auto base = exact(history.base), refinement = exact(history.refinement);
  const auto scales = exact(history.scale), half = exact(history.half);
  Output codes(demanded.codes.size()), scale(demanded.scale.size() * sizeof(float));
  Output new_rows(nested ? demanded.stored.base.size() * 4 : demanded.stored.half.size() * 2);
  Output new_refinement(demanded.stored.refinement.size() * 4), new_scale(demanded.stored.scale.size() * 2);
  bitmtp_nested_kv_attention_args args = {};
  args.qkv = qkv.data();
  args.positions = w.positions.data();
  args.mask = mask.data();
  args.history_length = &w.history;
  args.kv4_length = w.kv4 == 0 ? nullptr : &w.kv4;
  args.rotary = rotary.data();
  args.history = nested ? static_cast<const void *>(base.data()) : half.data();
  args.history_refinement = nested ? refinement.data() : nullptr;
  args.history_scale = nested ? scales.data() : nullptr;
  args.qkv_bias = s.bias ? bias.data() : nullptr;
  args.q_norm = s.qk_norm ? q_norm.data() : nullptr;
  args.k_norm = s.qk_norm ? k_norm.data() : nullptr;
  args.sub_norm = s.sub_norm ? sub_norm.data() : nullptr;
  args.codes = codes.as<int32_t>();
  args.scale = scale.as<float>();
  args.new_rows = new_rows.as<void>();
  args.new_refinement = nested ? new_refinement.as<int32_t>() : nullptr;
  args.new_scale = nested ? new_scale.as<uint16_t>() : nullptr;
  args.softmax_scale = model.softmax_scale;
  args.epsilon = model.epsilon;
  args.M = w.M, args.H = s.H, args.Hkv = s.Hkv, args.D = s.D;
  args.capacity = capacity, args.rotary_rows = model.rotary_rows, args.kv_kind = s.kind;
  Output workspace(static_cast<size_t>(Sweep::workspace_bytes(BITMTP_NESTED_KV_ATTENTION, &args)));
  args.workspace = workspace.as<void>();
  std::vector<Expected> outputs = {{"codes", &codes, demanded.codes.data()}, {"scale", &scale, demanded.scale.data()}};
  if (!nested) outputs.push_back({"new_rows", &new_rows, demanded.stored.half.data()});
  if (nested) {
    outputs.push_back({"new_rows", &new_rows, demanded.stored.base.data()});
    outputs.push_back({"new_refinement", &new_refinement, demanded.stored.refinement.data()});
    outputs.push_back({"new_scale", &new_scale, demanded.stored.scale.data()});
  }
  outputs.push_back({"workspace", &workspace, nullptr});
  sweep.check("NestedKVAttention", describe(s) + " " + name, BITMTP_NESTED_KV_ATTENTION, &args, outputs);
  return expected;
}

void sizes_cases(Sweep &sweep, Random &random, const AttentionSizes &s, const std::vector<int32_t> &widths,
                 const std::vector<int32_t> &histories) {
  for (int32_t M : widths) {
    for (int32_t history : histories) {
      const int32_t kv4 = s.kind == BITMTP_KV_FP16 ? 0 : std::vector<int32_t>{0, history / 2, history}[random.bits() % 3];
      const Shape shape = std::vector<Shape>{Shape::causal, Shape::tree, Shape::padded}[random.bits() % 3];
      const int32_t capacity = history + random.integer(0, 40) + 1;
      const AttentionModel model = make_model(random, s, history + M);
      check(sweep,
            "M=" + std::to_string(M) + " history=" + std::to_string(history) + " kv4=" + std::to_string(kv4) +
                (shape == Shape::tree ? " tree" : shape == Shape::padded ? " padded" : ""),
            model, make_history(random, s, capacity, history, kv4), capacity, make_window(random, s, M, history, kv4, shape));
    }
  }
}

// A row that sees nothing is zeros, and leaves its neighbours alone.
void blind_case(Sweep &sweep, Random &random, const AttentionSizes &s, int32_t M) {
  const AttentionModel model = make_model(random, s, 64);
  AttentionWindow w = make_window(random, s, M, 0, 0, Shape::causal);
  w.visible[M / 2].clear();
  check(sweep, "M=" + std::to_string(M) + " blind row", model, make_history(random, s, 8, 0, 0), 8, w);
}

// The row at position p in every kind of window. What earlier positions stored is the reference's.
void lossless_cases(Sweep &sweep, Random &random, const AttentionSizes &s, int32_t p, const std::vector<int32_t> &splits) {
  const int32_t rows = p + 1;
  Lossless row(random, s, p);
  StoredRows none;
  none.resize(s, 1);
  row.store(0, rows, reference_attention(row.model(), none, row.alone(0, rows)).stored);
  const std::string at = "lossless p=" + std::to_string(p);
  const AttentionResult alone = check(sweep, at + " alone", row.model(), row.history(rows, p), rows, row.window(0, 0, false));
  for (int32_t before : splits) {
    if (before > p) continue;
    for (bool tree : {false, true}) {
      const int32_t after = random.integer(0, 3), capacity = tree ? rows : 2 * rows + 7;
      const AttentionWindow w = row.window(before, after, tree);
      check(sweep, at + " before=" + std::to_string(before) + " after=" + std::to_string(after) + (tree ? " tree" : ""), row.model(),
            row.history(capacity, w.history), capacity, w, row.row(before, tree), &alone);
    }
  }
}

}  // namespace

void attention_cases(Sweep &sweep) {
  Random random = sweep.random("NestedKVAttention");
  const std::vector<int32_t> widths = {1, 2, 3, 5, 8, 9, 15, 16, 17, 33};
  const std::vector<int32_t> histories = {0, 1, 127, 128, 129, 255, 256, 300};
  const bool quick = sweep.quick();
  for (int32_t kind : {BITMTP_KV_NESTED, BITMTP_KV_FP16}) {
    for (int32_t ratio = 1; ratio <= 5; ++ratio) {
      const int32_t Hkv = ratio % 2 + 1, D = ratio % 2 == 0 ? 128 : 64;
      const AttentionSizes s{ratio * Hkv, Hkv, D, kind, ratio % 2 == 0, ratio % 3 == 0, ratio >= 4};
      if (quick) {
        sizes_cases(sweep, random, s, {1, 5, 9, 33}, {0, 130});
      } else {
        sizes_cases(sweep, random, s, widths, histories);
      }
    }
    // Head sizes that are no multiple of the vector code's steps, and more query heads than a task takes rows for.
    for (int32_t D : {8, 24, 40, 80, 96, 256}) sizes_cases(sweep, random, {3, 1, D, kind, true, true, true}, {2, 35}, {0, 131});
    sizes_cases(sweep, random, {48, 1, 16, kind, false, false, false}, {1, 34}, {0, 131});
    const AttentionSizes usual{6, 2, 64, kind, true, true, true};
    sizes_cases(sweep, random, usual, {64, 128}, {0, 100});
    // more than a wave of chunks
    sizes_cases(sweep, random, usual, quick ? std::vector<int32_t>{1} : std::vector<int32_t>{1, 3}, {8400});
    for (int32_t M : {1, 5, 40}) blind_case(sweep, random, usual, M);
    const std::vector<int32_t> few = {1, 20}, many = {0, 1, 2, 4, 7, 8, 15, 20, 33, 129, 140};
    for (int32_t p : {0, 5, 127, 128, 140, 260}) lossless_cases(sweep, random, usual, p, quick ? few : many);
  }
}

}  // namespace sweep
