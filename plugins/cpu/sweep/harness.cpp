#include "harness.h"

#include <cstdio>

namespace sweep {

namespace {

constexpr int32_t kThreads[] = {1, 2, 3};

uint64_t hash(const char *text) {
  uint64_t h = 1469598103934665603u;
  for (; *text != 0; ++text) h = (h ^ static_cast<uint8_t>(*text)) * 1099511628211u;
  return h;
}

std::string join(const std::vector<std::string> &names) {
  std::string joined;
  for (const std::string &name : names) joined += (joined.empty() ? "" : " ") + name;
  return joined;
}

}  // namespace

void Output::reset() {
  if (initial_.empty())
    std::memset(memory_.data(), 0xFF, bytes_);
  else
    std::memcpy(memory_.data(), initial_.data(), bytes_);
  std::memset(memory_.data() + bytes_, 0xA5, kGuard);
}

bool Output::guard_intact() const {
  for (size_t i = 0; i < kGuard; ++i)
    if (memory_[bytes_ + i] != 0xA5) return false;
  return true;
}

Sweep::Sweep(const Options &options) : options_(options) {
  const std::string names = bitmtp_cpu_isas();
  for (size_t start = 0; start < names.size();) {
    const size_t comma = names.find(',', start);
    const size_t end = comma == std::string::npos ? names.size() : comma;
    isas_.push_back(names.substr(start, end - start));
    start = end + 1;
  }
  for (int32_t threads : kThreads) {
    pools_.push_back(bitmtp_cpu_pool_create(threads));
    if (pools_.back() == nullptr) {
      std::fprintf(stderr, "cannot make %d threads\n", threads);
      std::exit(1);
    }
  }
  std::printf("instruction sets: %s; seed %llu\n", join(isas_).c_str(), static_cast<unsigned long long>(options_.seed));
}

Sweep::~Sweep() {
  for (bitmtp_cpu_pool *pool : pools_) bitmtp_cpu_pool_destroy(pool);
}

Random Sweep::random(const char *op) const { return Random(options_.seed * 0x9E3779B97F4A7C15u ^ hash(op)); }

Sweep::Count &Sweep::count(const char *op) {
  for (Count &c : counts_)
    if (c.op == op) return c;
  counts_.push_back(Count{op, 0, 0});
  return counts_.back();
}

int64_t Sweep::workspace_bytes(int32_t code, const void *args) {
  int64_t most = 0;
  for (int32_t threads : kThreads) {
    const int64_t bytes = bitmtp_cpu_workspace_bytes(code, args, threads);
    if (bytes > most) most = bytes;
  }
  return most;
}

void Sweep::check(const char *op, const std::string &name, int32_t code, const void *args,
                  const std::vector<Expected> &outputs) {
  Count &counted = count(op);
  ++counted.cases;
  bool equal = true;
  for (const std::string &isa : isas_) {
    bitmtp_cpu_select_isa(isa.c_str());
    const bitmtp_cpu_call call{code, args};
    char error[256] = "";
    bitmtp_cpu_plan *plan = bitmtp_cpu_plan_create(&call, 1, error, sizeof(error));
    if (plan == nullptr) {
      std::printf("%s %s: %s\n", op, name.c_str(), error);
      equal = false;
      break;
    }
    for (size_t p = 0; p < pools_.size(); ++p) {
      for (const Expected &e : outputs) e.output->reset();
      bitmtp_cpu_plan_run(plan, pools_[p]);
      for (const Expected &e : outputs) {
        if (!e.output->guard_intact()) {
          std::printf("%s %s: %s, %d threads: bytes after %s were written\n", op, name.c_str(), isa.c_str(), kThreads[p], e.name);
          equal = false;
        }
        if (e.expected == nullptr || std::memcmp(e.output->data(), e.expected, e.output->bytes()) == 0) continue;
        size_t word = 0;
        const uint8_t *got = e.output->data();
        const uint8_t *want = static_cast<const uint8_t *>(e.expected);
        while (std::memcmp(got + 2 * word, want + 2 * word, 2) == 0) ++word;
        std::printf("%s %s: %s, %d threads: %s differs, first at byte %zu of %zu\n", op, name.c_str(), isa.c_str(), kThreads[p],
                    e.name, 2 * word, e.output->bytes());
        equal = false;
      }
    }
    bitmtp_cpu_plan_destroy(plan);
  }
  bitmtp_cpu_select_isa(nullptr);
  if (!equal) ++counted.failures;
}

bool Sweep::report() const {
  bool all = true;
  for (const Count &c : counts_) {
    if (c.failures == 0)
      std::printf("%s: %lld cases, %zu isas, equal\n", c.op.c_str(), static_cast<long long>(c.cases), isas_.size());
    else
      std::printf("%s: %lld of %lld cases differ\n", c.op.c_str(), static_cast<long long>(c.failures),
                  static_cast<long long>(c.cases));
    all = all && c.failures == 0;
  }
  return all;
}

}  // namespace sweep
