#include "dispatch.h"

#include <atomic>
#include <cstring>
#include <string>
#include <vector>

#include "export.h"
#include "kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace bitmtp {

namespace {

template <class Args, void (*kernel)(const Args &, const Team &)>
void call(const void *args, const Team &team) {
  kernel(*static_cast<const Args *>(args), team);
}

#define BITMTP_KERNEL_SET(isa)                                                                   \
  KernelSet {                                                                                    \
    #isa, {                                                                                      \
      call<bitmtp_token_embedding_args, isa::token_embedding>,                                   \
          call<bitmtp_rms_norm_quant_args, isa::rms_norm_quant>,                                 \
          call<bitmtp_linear_args, isa::linear>, call<bitmtp_linear_args, isa::linear>,          \
          call<bitmtp_nested_kv_attention_args, isa::nested_kv_attention>,                       \
          call<bitmtp_gated_act_quant_args, isa::gated_act_quant>,                               \
          call<bitmtp_greedy_head_args, isa::greedy_head>                                        \
    }                                                                                            \
  }

#if defined(__x86_64__)
// Asked of cpuid itself: not every compiler's __builtin_cpu_supports knows the name.
bool has_avx_vnni() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1) && __builtin_cpu_supports("avx2");
}
#endif

// Best first.
std::vector<KernelSet> supported() {
  std::vector<KernelSet> sets;
#if defined(__x86_64__)
  __builtin_cpu_init();
#ifdef BITMTP_HAVE_AVX512VNNI
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni"))
    sets.push_back(BITMTP_KERNEL_SET(avx512vnni));
#endif
#ifdef BITMTP_HAVE_AVXVNNI
  if (has_avx_vnni()) sets.push_back(BITMTP_KERNEL_SET(avxvnni));
#endif
#ifdef BITMTP_HAVE_AVX2
  // Every processor with AVX2 has F16C.
  if (__builtin_cpu_supports("avx2")) sets.push_back(BITMTP_KERNEL_SET(avx2));
#endif
#elif defined(__aarch64__)
#ifdef BITMTP_HAVE_DOTPROD
  constexpr unsigned long kHwcapAsimdDp = 1UL << 20;
  if (getauxval(AT_HWCAP) & kHwcapAsimdDp) sets.push_back(BITMTP_KERNEL_SET(dotprod));
#endif
#ifdef BITMTP_HAVE_NEON
  sets.push_back(BITMTP_KERNEL_SET(neon));
#endif
#endif
  sets.push_back(BITMTP_KERNEL_SET(scalar));
  return sets;
}

const std::vector<KernelSet> &kernel_sets() {
  static const std::vector<KernelSet> sets = supported();
  return sets;
}

std::atomic<const KernelSet *> selection{nullptr};  // null: the best

}  // namespace

const KernelSet &selected_kernels() {
  const KernelSet *set = selection.load(std::memory_order_acquire);
  return set != nullptr ? *set : kernel_sets().front();
}

}  // namespace bitmtp

BITMTP_API const char *bitmtp_cpu_isas(void) {
  static const std::string names = [] {
    std::string joined;
    for (const bitmtp::KernelSet &set : bitmtp::kernel_sets()) {
      if (!joined.empty()) joined += ',';
      joined += set.name;
    }
    return joined;
  }();
  return names.c_str();
}

BITMTP_API int32_t bitmtp_cpu_select_isa(const char *name) {
  if (name == nullptr) {
    bitmtp::selection.store(nullptr, std::memory_order_release);
    return 0;
  }
  for (const bitmtp::KernelSet &set : bitmtp::kernel_sets()) {
    if (std::strcmp(set.name, name) != 0) continue;
    bitmtp::selection.store(&set, std::memory_order_release);
    return 0;
  }
  return -1;
}

BITMTP_API const char *bitmtp_cpu_isa(void) { return bitmtp::selected_kernels().name; }
