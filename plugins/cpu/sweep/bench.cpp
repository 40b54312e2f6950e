#include "bench.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "harness.h"

namespace sweep {

namespace {

constexpr size_t kOutOfCache = size_t{160} << 20;  // bytes of weights in a plan: several times any last-level cache here

constexpr int kPasses = 8;

struct Shape {
  const char *name;
  int32_t op;
  int32_t kind;
  bool both_planes;
  int32_t rows, width, group_size;
};

constexpr Shape kShapes[] = {
    {"W4", BITMTP_DUAL_PLANE_LINEAR, BITMTP_DUAL, false, 576, 1536, 64},
    {"W8", BITMTP_DUAL_PLANE_LINEAR, BITMTP_DUAL, true, 576, 1536, 64},
    {"ternary", BITMTP_TERNARY_LINEAR, BITMTP_TERNARY, false, 576, 1536, 0},
    {"W4", BITMTP_DUAL_PLANE_LINEAR, BITMTP_DUAL, false, 2560, 6912, 128},
    {"W8", BITMTP_DUAL_PLANE_LINEAR, BITMTP_DUAL, true, 2560, 6912, 128},
    {"ternary", BITMTP_TERNARY_LINEAR, BITMTP_TERNARY, false, 2560, 6912, 0},
    {"W4 head", BITMTP_GREEDY_HEAD, BITMTP_DUAL, false, 49152, 576, 64},
    {"W8 head", BITMTP_GREEDY_HEAD, BITMTP_DUAL, true, 49152, 576, 64},
    {"int8 head", BITMTP_GREEDY_HEAD, BITMTP_INT8, false, 49152, 576, 0},
    {"fp16 head", BITMTP_GREEDY_HEAD, BITMTP_FP16, false, 49152, 576, 0},
};

size_t table_bytes(const Shape &s) {
  const size_t codes = static_cast<size_t>((s.rows + 7) / 8 * 8) * ((s.width + 63) / 64 * 64);
  switch (s.kind) {
    case BITMTP_FP16: return static_cast<size_t>(s.rows) * s.width * 2;
    case BITMTP_INT8: return codes;
    case BITMTP_TERNARY: return codes / 4;
    default: return codes / 2;
  }
}

size_t scale_count(const Shape &s) {
  const int32_t padded = (s.width + 63) / 64 * 64;
  const int32_t groups = s.group_size > 0 ? (padded + s.group_size - 1) / s.group_size : 1;
  return static_cast<size_t>((s.rows + 7) / 8 * 8) * groups;
}

// A plan of the same call on as many copies of the weight as exceed the cache.
class Bench {
 public:
  Bench(const Shape &shape, int32_t M)
      : shape_(shape), M_(M),
        codes_(static_cast<size_t>(M) * ((shape.width + 63) / 64 * 16)),
        act_scale_(M), slots_(M), out_(static_cast<size_t>(M) * shape.rows), ids_(M), probability_(M), workspace_(0) {
    for (int32_t m = 0; m < M; ++m) {
      act_scale_[m] = 0.01f;
      slots_[m] = m;
    }
    Random random(1);
    for (size_t i = 0; i < codes_.size(); ++i) codes_[i] = static_cast<int32_t>(random.bits());
    const size_t bytes = table_bytes(shape) * (shape.both_planes ? 2 : 1) + scale_count(shape) * 2;
    copies_ = std::max<size_t>(1, kOutOfCache / bytes);
    bytes_ = static_cast<double>(bytes);
    for (size_t i = 0; i < copies_; ++i) {
      tables_.emplace_back(table_bytes(shape));
      std::fill_n(tables_.back().data(), tables_.back().size(), static_cast<uint8_t>(0x11));
      refinements_.emplace_back(shape.both_planes ? table_bytes(shape) : 0);
      if (shape.both_planes) std::fill_n(refinements_.back().data(), refinements_.back().size(), static_cast<uint8_t>(0x35));
      scales_.emplace_back(scale_count(shape));
      for (size_t s = 0; s < scales_.back().size(); ++s) scales_.back()[s] = 0x1400;
    }
    bind();
  }

  void run(const char *isa, bitmtp_cpu_pool *pool) {
    bitmtp_cpu_select_isa(isa);
    std::vector<bitmtp_cpu_call> calls;
    for (size_t i = 0; i < copies_; ++i) {
      const void *args = shape_.op == BITMTP_GREEDY_HEAD ? static_cast<const void *>(&heads_[i]) : &linears_[i];
      calls.push_back({shape_.op, args});
    }
    char error[256] = "";
    bitmtp_cpu_plan *plan = bitmtp_cpu_plan_create(calls.data(), static_cast<int32_t>(calls.size()), error, sizeof error);
    if (plan == nullptr) {
      std::fprintf(stderr, "%s\n", error);
      return;
    }
    // For each copy the fastest of the passes: what another process takes away in one pass does not count.
    std::vector<int64_t> fastest(copies_, INT64_MAX), ns(copies_);
    for (int pass = 0; pass < kPasses; ++pass) {
      bitmtp_cpu_plan_profile(plan, pool, ns.data());
      for (size_t i = 0; i < copies_; ++i) fastest[i] = std::min(fastest[i], ns[i]);
    }
    double best = 0.0;
    for (int64_t t : fastest) best += static_cast<double>(t) * 1e-9 / static_cast<double>(copies_);
    bitmtp_cpu_plan_destroy(plan);
    const double operations = 2.0 * M_ * shape_.rows * shape_.width;
    std::printf("%-10s %-10s %5dx%-5d M=%-4d %9.1f us %6.1f GB/s %7.1f GOP/s\n", isa, shape_.name, shape_.rows, shape_.width, M_,
                best * 1e6, bytes_ / best * 1e-9, operations / best * 1e-9);
    std::fflush(stdout);
  }

 private:
  void bind() {
    for (size_t i = 0; i < copies_; ++i) {
      bitmtp_weight w{tables_[i].data(), nullptr, nullptr, shape_.kind, shape_.rows, shape_.width, shape_.group_size};
      if (shape_.both_planes) w.refinement = reinterpret_cast<const int32_t *>(refinements_[i].data());
      if (shape_.kind != BITMTP_FP16) w.scales = scales_[i].data();
      if (shape_.op == BITMTP_GREEDY_HEAD) {
        bitmtp_greedy_head_args head{codes_.data(), act_scale_.data(), slots_.data(), w, ids_.data(), probability_.data(),
                                     nullptr, nullptr, M_, M_, 1};
        if (i == 0) workspace_ = Array<uint8_t>(static_cast<size_t>(Sweep::workspace_bytes(BITMTP_GREEDY_HEAD, &head)));
        head.workspace = workspace_.data();
        heads_.push_back(head);
      } else {
        linears_.push_back(bitmtp_linear_args{codes_.data(), act_scale_.data(), w, nullptr, out_.data(), M_});
      }
    }
  }

  const Shape &shape_;
  int32_t M_;
  size_t copies_;
  double bytes_;
  Array<int32_t> codes_;
  Array<float> act_scale_;
  Array<int32_t> slots_;
  Array<float> out_;
  Array<int32_t> ids_;
  Array<float> probability_;
  Array<uint8_t> workspace_;
  std::vector<Array<uint8_t>> tables_, refinements_;
  std::vector<Array<uint16_t>> scales_;
  std::vector<bitmtp_linear_args> linears_;
  std::vector<bitmtp_greedy_head_args> heads_;
};

}  // namespace

void bench(int32_t threads) {
  bitmtp_cpu_pool *pool = bitmtp_cpu_pool_create(threads);
  if (pool == nullptr) return;
  std::printf("%d threads; the fastest of %d passes over %zu MiB of weights\n", bitmtp_cpu_pool_threads(pool), kPasses,
              kOutOfCache >> 20);
  std::string names = bitmtp_cpu_isas();
  for (size_t start = 0; start < names.size();) {
    const size_t end = std::min(names.find(',', start), names.size());
    const std::string isa = names.substr(start, end - start);
    start = end + 1;
    if (isa == "scalar") continue;
    for (const Shape &shape : kShapes) {
      for (int32_t M : {1, 2, 5, 8, 128}) {
        if (shape.op == BITMTP_GREEDY_HEAD && M > 8) continue;
        Bench(shape, M).run(isa.c_str(), pool);
      }
    }
  }
  bitmtp_cpu_pool_destroy(pool);
}

}  // namespace sweep
