#include "attention_layout.h"
#include "kernels.h"

namespace bitmtp {

int64_t nested_kv_attention_workspace(const bitmtp_nested_kv_attention_args &args, int32_t threads) {
  const AttentionLayout layout = attention_layout(args);
  return (layout.threads + layout.thread_floats * threads) * static_cast<int64_t>(sizeof(float));
}

}  // namespace bitmtp
