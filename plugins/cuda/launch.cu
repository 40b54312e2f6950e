#include "launch.cuh"

#include <atomic>

#include "bitmtp/abi.h"
#include "export.h"

namespace bitmtp {
namespace cuda {

namespace {

constexpr int kMostDevices = 64;

std::atomic<int32_t> wanted{1};

// What ask(device, value) finds for the current device, asked for once: launches are short, and calls of the driver are not. 0 where
// it fails.
template <class Ask>
int32_t cached(std::atomic<int32_t> (&cache)[kMostDevices], const Ask &ask) {
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess || device >= kMostDevices) return 0;
  int32_t known = cache[device].load(std::memory_order_relaxed);
  if (known == 0) {
    int value = 0;
    if (ask(device, value) != cudaSuccess) return 0;
    known = value;
    cache[device].store(known, std::memory_order_relaxed);
  }
  return known;
}

int32_t cached_attribute(std::atomic<int32_t> (&cache)[kMostDevices], cudaDeviceAttr attribute) {
  return cached(cache, [attribute](int device, int &value) { return cudaDeviceGetAttribute(&value, attribute, device); });
}

__global__ void any_kernel() {}

// The major number of the architecture that the code in use was compiled for. A device may run code for an older one than its own, which
// has none of what came later.
int32_t compiled_for() {
  static std::atomic<int32_t> major[kMostDevices];
  return cached(major, [](int, int &value) {
    cudaFuncAttributes attributes;
    const cudaError_t status = cudaFuncGetAttributes(&attributes, any_kernel);
    value = attributes.ptxVersion / 10;
    return status;
  });
}

}  // namespace

bool programmatic_launch() { return wanted.load(std::memory_order_relaxed) != 0 && compiled_for() >= 9; }

// A cluster stays within a group of multiprocessors, of which a small partition of a device may have less than one.
bool clusters() { return compiled_for() >= 9 && multiprocessors() >= 16; }

int32_t multiprocessors() {
  static std::atomic<int32_t> count[kMostDevices];
  const int32_t known = cached_attribute(count, cudaDevAttrMultiProcessorCount);
  return known > 0 ? known : 1;
}

int32_t shared_memory_of_half() {
  static std::atomic<int32_t> processor[kMostDevices];
  constexpr int32_t kKept = 1280;  // of a block, by the system and for static arrays
  const int32_t half = cached_attribute(processor, cudaDevAttrMaxSharedMemoryPerMultiprocessor) / 2, most = shared_memory_of_block();
  return (half < most ? half : most) - kKept;
}

int32_t shared_memory_of_block() {
  static std::atomic<int32_t> most[kMostDevices];
  return cached_attribute(most, cudaDevAttrMaxSharedMemoryPerBlockOptin);
}

}  // namespace cuda
}  // namespace bitmtp

BITMTP_API int32_t bitmtp_cuda_abi_version(void) { return BITMTP_ABI_VERSION; }

BITMTP_API int32_t bitmtp_cuda_set_programmatic_launch(int32_t on) {
  return bitmtp::cuda::wanted.exchange(on != 0 ? 1 : 0, std::memory_order_relaxed);
}
