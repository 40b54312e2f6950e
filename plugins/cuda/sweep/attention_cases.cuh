#pragma once

#include "device.h"

namespace sweep {

void attention_cases(Report &report);

// Times NestedKVAttention out of the cache for every kind, width and length of history; prints bytes and bandwidth.
void attention_bench();

}  // namespace sweep
