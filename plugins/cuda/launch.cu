#include "launch.cuh"

#include <atomic>

#include "bitmtp/abi.h"
#include "export.h"

namespace bitmtp {
namespace cuda {

namespace {

constexpr int kMostDevices = 64;

std::atomic<int32_t> wanted{1};

// A device attribute, asked for once: launches are short, and the driver call is not.
int32_t cached_attribute(std::atomic<int32_t> (&cache)[kMostDevices], cudaDeviceAttr attribute) {
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess || device >= kMostDevices) return 0;
  int32_t known = cache[device].load(std::memory_order_relaxed);
  if (known == 0) {
    int value = 0;
    if (cudaDeviceGetAttribute(&value, attribute, device) != cudaSuccess) return 0;
    known = value;
    cache[device].store(known, std::memory_order_relaxed);
  }
  return known;
}

// Its major number.
int32_t compute_capability() {
  static std::atomic<int32_t> major[kMostDevices];
  return cached_attribute(major, cudaDevAttrComputeCapabilityMajor);
}

}  // namespace

bool programmatic_launch() { return wanted.load(std::memory_order_relaxed) != 0 && compute_capability() >= 9; }

// A cluster stays within a group of multiprocessors, of which a small partition of a device may have less than one.
bool clusters() { return compute_capability() >= 9 && multiprocessors() >= 16; }

int32_t multiprocessors() {
  static std::atomic<int32_t> count[kMostDevices];
  const int32_t known = cached_attribute(count, cudaDevAttrMultiProcessorCount);
  return known > 0 ? known : 1;
}

int32_t shared_memory_of_half() {
  static std::atomic<int32_t> processor[kMostDevices], block[kMostDevices];
  constexpr int32_t kKept = 1280;  // of a block, by the system and for static arrays
  const int32_t half = cached_attribute(processor, cudaDevAttrMaxSharedMemoryPerMultiprocessor) / 2;
  const int32_t most = cached_attribute(block, cudaDevAttrMaxSharedMemoryPerBlockOptin);
  return (half < most ? half : most) - kKept;
}

}  // namespace cuda
}  // namespace bitmtp

BITMTP_API int32_t bitmtp_cuda_abi_version(void) { return BITMTP_ABI_VERSION; }

BITMTP_API int32_t bitmtp_cuda_set_programmatic_launch(int32_t on) {
  return bitmtp::cuda::wanted.exchange(on != 0 ? 1 : 0, std::memory_order_relaxed);
}
