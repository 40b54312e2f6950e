// Every kernel, once for each instruction set. The same source is compiled several times, each time with other compiler flags
// and another BITMTP_ISA, into a namespace of that name.
//
// A kernel file must not define or instantiate anything outside that namespace: the linker keeps one copy of an inline function,
// and it might be the one compiled for a processor that this machine is not.
#pragma once

#include <cstdint>

#include "bitmtp/abi.h"
#include "team.h"

#define BITMTP_DECLARE_KERNELS(isa)                                                      \
  namespace bitmtp::isa {                                                                \
  void token_embedding(const bitmtp_token_embedding_args &args, const Team &team);       \
  void rms_norm_quant(const bitmtp_rms_norm_quant_args &args, const Team &team);         \
  void linear(const bitmtp_linear_args &args, const Team &team);                         \
  void nested_kv_attention(const bitmtp_nested_kv_attention_args &args, const Team &team); \
  void gated_act_quant(const bitmtp_gated_act_quant_args &args, const Team &team);       \
  void greedy_head(const bitmtp_greedy_head_args &args, const Team &team);               \
  }

BITMTP_DECLARE_KERNELS(scalar)
#if defined(__x86_64__)
BITMTP_DECLARE_KERNELS(avx2)
BITMTP_DECLARE_KERNELS(avxvnni)
BITMTP_DECLARE_KERNELS(avx512vnni)
#elif defined(__aarch64__)
BITMTP_DECLARE_KERNELS(neon)
BITMTP_DECLARE_KERNELS(dotprod)
#endif

namespace bitmtp {

// Bytes of workspace; pointers in the record are not looked at.
int64_t nested_kv_attention_workspace(const bitmtp_nested_kv_attention_args &args, int32_t threads);
int64_t greedy_head_workspace(const bitmtp_greedy_head_args &args);

}  // namespace bitmtp
