// A plan: the operators of one step with their pointers bound, run without returning to the caller in between.
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <system_error>
#include <vector>

#include "bitmtp/abi.h"
#include "dispatch.h"
#include "export.h"
#include "kernels.h"
#include "thread_pool.h"
#include "validate.h"

namespace {

const char *const kOpNames[bitmtp::kOps] = {"TokenEmbedding",     "RmsNormQuant",  "TernaryLinear", "DualPlaneLinear",
                                            "NestedKVAttention", "GatedActQuant", "GreedyHead"};

struct Step {
  bitmtp::Kernel kernel;
  std::unique_ptr<unsigned char[]> args;
};

std::string describe(int32_t index, const bitmtp_cpu_call &call, const std::string &fault) {
  const std::string where = "call " + std::to_string(index);
  if (call.op < 0 || call.op >= bitmtp::kOps) return where + ": " + fault;
  return where + ", " + kOpNames[call.op] + ": " + fault;
}

void tell(char *error, int32_t error_bytes, const std::string &text) {
  if (error != nullptr && error_bytes > 0) std::snprintf(error, static_cast<size_t>(error_bytes), "%s", text.c_str());
}

}  // namespace

struct bitmtp_cpu_pool {
  bitmtp::ThreadPool threads;
};

struct bitmtp_cpu_plan {
  std::vector<Step> steps;
};

namespace {

struct Run {
  const std::vector<Step> &steps;
  int64_t *ns;  // null: no times wanted
};

void run_steps(void *context, const bitmtp::Team &team) {
  const Run &run = *static_cast<const Run *>(context);
  const bool timed = run.ns != nullptr && team.index == 0;
  auto before = std::chrono::steady_clock::now();
  for (size_t i = 0; i < run.steps.size(); ++i) {
    run.steps[i].kernel(run.steps[i].args.get(), team);
    team.barrier();
    if (!timed) continue;
    const auto now = std::chrono::steady_clock::now();
    run.ns[i] = std::chrono::duration_cast<std::chrono::nanoseconds>(now - before).count();
    before = now;
  }
}

}  // namespace

BITMTP_API int32_t bitmtp_cpu_abi_version(void) { return BITMTP_ABI_VERSION; }

BITMTP_API bitmtp_cpu_pool *bitmtp_cpu_pool_create(int32_t threads) {
  try {
    return new bitmtp_cpu_pool{bitmtp::ThreadPool(threads)};
  } catch (const std::system_error &) {
    return nullptr;
  } catch (const std::bad_alloc &) {
    return nullptr;
  }
}

BITMTP_API int32_t bitmtp_cpu_pool_threads(const bitmtp_cpu_pool *pool) { return pool->threads.threads(); }

BITMTP_API void bitmtp_cpu_pool_destroy(bitmtp_cpu_pool *pool) { delete pool; }

BITMTP_API int64_t bitmtp_cpu_workspace_bytes(int32_t op, const void *args, int32_t threads) {
  switch (op) {
    case BITMTP_NESTED_KV_ATTENTION:
      return bitmtp::nested_kv_attention_workspace(*static_cast<const bitmtp_nested_kv_attention_args *>(args), threads);
    case BITMTP_GREEDY_HEAD:
      return bitmtp::greedy_head_workspace(*static_cast<const bitmtp_greedy_head_args *>(args));
    default:
      return 0;
  }
}

BITMTP_API bitmtp_cpu_plan *bitmtp_cpu_plan_create(const bitmtp_cpu_call *calls, int32_t count, char *error,
                                                   int32_t error_bytes) {
  try {
    if (count < 0 || (count > 0 && calls == nullptr)) {
      tell(error, error_bytes, "calls is NULL or count is negative");
      return nullptr;
    }
    const bitmtp::KernelSet &set = bitmtp::selected_kernels();
    auto plan = std::make_unique<bitmtp_cpu_plan>();
    plan->steps.reserve(static_cast<size_t>(count));
    for (int32_t i = 0; i < count; ++i) {
      const std::string fault = bitmtp::fault(calls[i].op, calls[i].args);
      if (!fault.empty()) {
        tell(error, error_bytes, describe(i, calls[i], fault));
        return nullptr;
      }
      const size_t bytes = bitmtp::record_bytes(calls[i].op);
      Step step{set.kernels[calls[i].op], std::make_unique<unsigned char[]>(bytes)};
      std::memcpy(step.args.get(), calls[i].args, bytes);
      plan->steps.push_back(std::move(step));
    }
    return plan.release();
  } catch (const std::bad_alloc &) {
    tell(error, error_bytes, "out of memory");
    return nullptr;
  }
}

BITMTP_API void bitmtp_cpu_plan_run(const bitmtp_cpu_plan *plan, bitmtp_cpu_pool *pool) {
  Run run{plan->steps, nullptr};
  pool->threads.run(run_steps, &run);
}

BITMTP_API void bitmtp_cpu_plan_profile(const bitmtp_cpu_plan *plan, bitmtp_cpu_pool *pool, int64_t *ns) {
  Run run{plan->steps, ns};
  pool->threads.run(run_steps, &run);
}

BITMTP_API void bitmtp_cpu_plan_destroy(bitmtp_cpu_plan *plan) { delete plan; }

BITMTP_API void bitmtp_cpu_promote(const bitmtp_kv_plane *planes, int32_t count, int64_t capacity, const int32_t *rows, int32_t n,
                                   int64_t at) {
  for (int32_t p = 0; p < count; ++p) {
    char *base = static_cast<char *>(planes[p].base);
    const int64_t bytes = planes[p].row_bytes;
    for (int32_t i = 0; i < n; ++i)
      std::memcpy(base + (at + i) * bytes, base + (capacity + rows[i]) * bytes, static_cast<size_t>(bytes));
  }
}
