// bitmtp_kernel_sweep: runs every operator on every instruction set of this machine against plain loops, and demands equal bits.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "bench.h"
#include "harness.h"

namespace {

int usage() {
  std::fprintf(stderr, "usage: bitmtp_kernel_sweep [--seed N] [--quick] | --bench [THREADS]\n");
  return 2;
}

}  // namespace

int main(int argc, char **argv) {
  sweep::Options options;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--quick") == 0) {
      options.quick = true;
    } else if (std::strcmp(argv[i], "--seed") == 0 && i + 1 < argc) {
      options.seed = std::strtoull(argv[++i], nullptr, 10);
    } else if (std::strcmp(argv[i], "--bench") == 0) {
      sweep::bench(i + 1 < argc ? std::atoi(argv[i + 1]) : 0);
      return 0;
    } else {
      return usage();
    }
  }
  sweep::Sweep sweep(options);
  sweep::linear_cases(sweep);
  sweep::embedding_cases(sweep);
  sweep::head_cases(sweep);
  sweep::rowwise_cases(sweep);
  sweep::attention_cases(sweep);
  return sweep.report() ? 0 : 1;
}
