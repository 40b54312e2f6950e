#pragma once

#include "device.h"

namespace sweep {

void attention_cases(Report &report);

// Times NestedKVAttention out of the cache for every kind, width and length of history, of which the name has `timed` in it; prints
// bytes and bandwidth.
void attention_bench(const char *timed);

}  // namespace sweep
