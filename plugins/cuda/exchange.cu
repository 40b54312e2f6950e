// What a step takes from the host and gives back: copies between page-locked memory and the device's.
#include "bitmtp/abi.h"
#include "export.h"
#include "launch.cuh"

namespace bitmtp {
namespace cuda {

namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostByKernel = 64 * 1024;  // a copy engine is faster with more

// Volatile: what the host has written since the last step is not to come from a cache.
__global__ void __launch_bounds__(kThreads) exchange_kernel(const volatile uint32_t *from, volatile uint32_t *to, int32_t words) {
  release_next();
  wait_for_previous();
  for (int32_t i = blockIdx.x * kThreads + threadIdx.x; i < words; i += gridDim.x * kThreads) to[i] = from[i];
}

int32_t exchange(const void *from, void *to, int64_t bytes, void *stream) {
  if (bytes < 0 || bytes % 4 != 0) return cudaErrorInvalidValue;
  if (bytes == 0) return cudaSuccess;
  if (bytes > kMostByKernel) return cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, static_cast<cudaStream_t>(stream));
  const int32_t words = static_cast<int32_t>(bytes / 4);
  const unsigned blocks = static_cast<unsigned>((words + kThreads - 1) / kThreads);
  return launch(exchange_kernel, dim3(blocks), dim3(kThreads), stream, static_cast<const volatile uint32_t *>(from), static_cast<volatile uint32_t *>(to), words);
}

// Where the device finds page-locked memory.
int32_t on_device(const void *host, void **found) { return cudaHostGetDevicePointer(found, const_cast<void *>(host), 0); }

}  // namespace

}  // namespace cuda
}  // namespace bitmtp

BITMTP_API int32_t bitmtp_cuda_send(const void *host, void *device, int64_t bytes, void *stream) {
  void *from = nullptr;
  const int32_t error = bitmtp::cuda::on_device(host, &from);
  return error != 0 ? error : bitmtp::cuda::exchange(from, device, bytes, stream);
}

BITMTP_API int32_t bitmtp_cuda_fetch(const void *device, void *host, int64_t bytes, void *stream) {
  void *to = nullptr;
  const int32_t error = bitmtp::cuda::on_device(host, &to);
  return error != 0 ? error : bitmtp::cuda::exchange(device, to, bytes, stream);
}
