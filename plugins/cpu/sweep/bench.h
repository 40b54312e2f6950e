#pragma once

#include <cstdint>

namespace sweep {

// Times the linear operators and the head on every instruction set, out of the cache. threads <= 0: all processors.
void bench(int32_t threads);

}  // namespace sweep
