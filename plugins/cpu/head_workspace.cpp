#include "head_partial.h"
#include "kernels.h"

namespace bitmtp {

int64_t greedy_head_workspace(const bitmtp_greedy_head_args &args) {
  return head_blocks(args) * args.h * head_partial_words(args) * 4;
}

}  // namespace bitmtp
