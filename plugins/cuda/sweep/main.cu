// bitmtp_cuda_sweep: every operator of the CUDA library on this device against plain loops, and its speed.
#include "attention_cases.cuh"
#include "device.h"

namespace {

struct Part {
  const char *name;
  void (*run)(sweep::Report &);
};
constexpr Part kParts[] = {{"rowwise", sweep::rowwise_cases}, {"embedding", sweep::embedding_cases}, {"linear", sweep::linear_cases},
                           {"head", sweep::head_cases},       {"attention", sweep::attention_cases}, {"chain", sweep::chain_cases}};

int usage() {
  std::fprintf(stderr, "usage: bitmtp_cuda_sweep [--quick] [--seed N] [--only");
  for (const Part &part : kParts) std::fprintf(stderr, "%c%s", &part == kParts ? ' ' : '|', part.name);
  std::fprintf(stderr, "] [--bench [CASE]] [--bench-attention [CASE]] [--all]\n"
                       "CASE: text in a line of the bench; only lines that have it are measured\n");
  return 2;
}

const Part *find_part(const char *name) {
  for (const Part &part : kParts)
    if (std::strcmp(part.name, name) == 0) return &part;
  return nullptr;
}

}  // namespace

int main(int argc, char **argv) {
  sweep::Options options;
  bool check = true, time = false, time_attention = false;
  const char *timed = "";  // part of the name of what is timed
  const Part *only = nullptr;
  for (int i = 1; i < argc; ++i) {
    const bool has_case = i + 1 < argc && argv[i + 1][0] != '-';
    if (std::strcmp(argv[i], "--quick") == 0)
      options.quick = true;
    else if (std::strcmp(argv[i], "--seed") == 0 && i + 1 < argc)
      options.seed = std::strtoull(argv[++i], nullptr, 10);
    else if (std::strcmp(argv[i], "--only") == 0 && i + 1 < argc && find_part(argv[i + 1]) != nullptr)
      only = find_part(argv[++i]);
    else if (std::strcmp(argv[i], "--bench") == 0)
      check = false, time = true, timed = has_case ? argv[++i] : "";
    else if (std::strcmp(argv[i], "--bench-attention") == 0)
      check = false, time_attention = true, timed = has_case ? argv[++i] : "";
    else if (std::strcmp(argv[i], "--all") == 0)
      time = time_attention = true;
    else
      return usage();
  }
  cudaDeviceProp device;
  sweep::require(cudaGetDeviceProperties(&device, 0), "device");
  std::printf("%s, sm_%d%d, %d multiprocessors, L2 %d MB; seed %llu\n", device.name, device.major, device.minor, device.multiProcessorCount,
              device.l2CacheSize >> 20, static_cast<unsigned long long>(options.seed));
  bool right = true;
  if (check) {
    sweep::Report report(options);
    for (const Part &part : kParts)
      if (only == nullptr || only == &part) part.run(report);
    right = report.print();
    std::fflush(stdout);
  }
  if (time) sweep::bench(options.quick, timed);
  if (time_attention) sweep::attention_bench(timed);
  return right ? 0 : 1;
}
