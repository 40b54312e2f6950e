// Which build of the kernels this processor runs.
#pragma once

#include "team.h"

namespace bitmtp {

constexpr int kOps = 7;  // of enum bitmtp_op

using Kernel = void (*)(const void *args, const Team &team);

struct KernelSet {
  const char *name;
  Kernel kernels[kOps];  // by enum bitmtp_op
};

const KernelSet &selected_kernels();

}  // namespace bitmtp
