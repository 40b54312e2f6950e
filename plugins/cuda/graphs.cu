// Capture of a stream's work in CUDA graphs.
#include <cuda_runtime_api.h>

#include <new>

#include "bitmtp/abi.h"
#include "export.h"

struct bitmtp_graph {
  cudaGraphExec_t executable;
  int64_t nodes;
};

namespace {

// The graph itself is not needed once it is instantiated.
cudaError_t instantiate(cudaGraph_t captured, bitmtp_graph &made) {
  size_t nodes = 0;
  const cudaError_t error = cudaGraphGetNodes(captured, nullptr, &nodes);
  if (error != cudaSuccess) return error;
  made.nodes = static_cast<int64_t>(nodes);
  return cudaGraphInstantiate(&made.executable, captured, 0);
}

}  // namespace

BITMTP_API int32_t bitmtp_graph_begin(void *stream) {
  return cudaStreamBeginCapture(static_cast<cudaStream_t>(stream), cudaStreamCaptureModeThreadLocal);
}

BITMTP_API int32_t bitmtp_graph_end(void *stream, bitmtp_graph **graph) {
  if (graph != nullptr) *graph = nullptr;
  cudaGraph_t captured = nullptr;
  cudaError_t error = cudaStreamEndCapture(static_cast<cudaStream_t>(stream), &captured);
  if (error != cudaSuccess || captured == nullptr) {
    (void)cudaGetLastError();  // else the next call of somebody else would report it
    return error != cudaSuccess ? error : cudaErrorStreamCaptureInvalidated;
  }
  if (graph != nullptr) {
    bitmtp_graph *made = new (std::nothrow) bitmtp_graph{};
    error = made == nullptr ? cudaErrorMemoryAllocation : instantiate(captured, *made);
    if (error == cudaSuccess) {
      *graph = made;
    } else {
      delete made;
    }
  }
  (void)cudaGraphDestroy(captured);
  return error;
}

BITMTP_API int32_t bitmtp_graph_launch(const bitmtp_graph *graph, void *stream) {
  return cudaGraphLaunch(graph->executable, static_cast<cudaStream_t>(stream));
}

BITMTP_API int64_t bitmtp_graph_nodes(const bitmtp_graph *graph) { return graph->nodes; }

BITMTP_API void bitmtp_graph_destroy(bitmtp_graph *graph) {
  if (graph == nullptr) return;
  (void)cudaGraphExecDestroy(graph->executable);
  delete graph;
}
