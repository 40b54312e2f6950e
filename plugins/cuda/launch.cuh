// How every kernel of this library is started, and programmatic dependent launch: a kernel whose predecessor has let it go
// begins early, reads what nothing writes (weights), and waits before it touches anything else.
//
// Rules that keep it safe. Every kernel calls wait_for_previous() in every thread that goes on to read or write activations, and
// at least one thread of each block does so always: a grid that ended before its predecessor would break the chain for the grid
// after it. No store precedes the wait. release_next() promises nothing about memory: what the next kernel reads is there once
// its own wait returns, which is when this whole grid has ended.
//
// A step begins with TokenEmbedding, an ordinary launch that has no need to wait: nothing after it starts before what precedes the
// step (send, stage, promote, the step before) is complete. So kernels of a step may also read early what only those write: history, its length, mask, positions.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace bitmtp {
namespace cuda {

// Whether launches on the current device carry the attribute.
bool programmatic_launch();

// Multiprocessors of the current device.
int32_t multiprocessors();

// Dynamic shared memory of a block, in bytes, that leaves room for another such block on the multiprocessor.
int32_t shared_memory_of_half();

// Shared memory of a block, in bytes, at most: what it declares, and dynamic.
int32_t shared_memory_of_block();

// Whether the current device takes thread-block clusters of 8.
bool clusters();

constexpr int kUsualCarveout = 14;  // percent

struct LaunchSettings {
  bool programmatic = programmatic_launch();
  unsigned cluster = 1;  // blocks next to each other in x that form a cluster, a divisor of grid.x; 1 where clusters() is false
  int32_t shared = 0;    // bytes of dynamic shared memory
  // One division of a multiprocessor's memory for all kernels, which drains before it divides anew: an eighth of it is shared memory,
  // or as much as the block takes. Less would keep blocks apart, more would take L1 from activations. Else as the driver sees fit.
  bool usual_carveout = true;
};

template <class... Parameters, class... Arguments>
int32_t launch_as(const LaunchSettings &settings, void (*kernel)(Parameters...), dim3 grid, dim3 block, void *stream,
                  Arguments &&...arguments) {
  // What a launch sets stays with a kernel, so every launch sets it.
  const int carveout = settings.usual_carveout ? kUsualCarveout : static_cast<int>(cudaSharedmemCarveoutDefault);
  cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, carveout);
  if (status == cudaSuccess && settings.shared > 0) status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, settings.shared);
  if (status != cudaSuccess) return static_cast<int32_t>(status);
  cudaLaunchAttribute attributes[2] = {};
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = static_cast<size_t>(settings.shared);
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = attributes;
  if (settings.programmatic) {
    cudaLaunchAttribute &attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  }
  if (settings.cluster > 1) {
    cudaLaunchAttribute &attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = settings.cluster;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  }
  return static_cast<int32_t>(cudaLaunchKernelEx(&config, kernel, Parameters(std::forward<Arguments>(arguments))...));
}

template <class... Parameters, class... Arguments>
int32_t launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, void *stream, Arguments &&...arguments) {
  return launch_as({}, kernel, grid, block, stream, std::forward<Arguments>(arguments)...);
}

__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void release_next() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace cuda
}  // namespace bitmtp
