/* The C ABI of libbitmtp_tensorrt.so beside what TensorRT itself calls in it (setLoggerFinder, getCreators).
 *
 * It also exports the functions of "the CUDA library" in abi.h, so that one wrapper serves both. Programmatic dependent launch is off
 * from the start: between our nodes TensorRT puts copies of its own. The mirror in Python is bitmtp_edge/engines/tensorrt_library.py.
 */
#ifndef BITMTP_TENSORRT_H
#define BITMTP_TENSORRT_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BITMTP_TENSORRT_ABI_VERSION 1

int32_t bitmtp_tensorrt_abi_version(void);

/* The TensorRT whose headers it was compiled with: 10000 * major + 100 * minor + patch. */
int32_t bitmtp_tensorrt_headers(void);

/* The GPUs that it has kernels for, as CMake writes them, separated by commas: "87-real". */
const char *bitmtp_tensorrt_architectures(void);

/* ---- CUDA graphs ---------------------------------------------------------------------------------------------------------- */

/* What is enqueued on `stream` (a cudaStream_t, not the default one) between begin and end, by this thread, does not run: it becomes a
 * graph. Everything else that this process does with the GPU meanwhile goes on. Each returns 0 or a cudaError_t. */
typedef struct bitmtp_graph bitmtp_graph;

int32_t bitmtp_graph_begin(void *stream);
/* Also ends a capture that failed; *graph is NULL then. A NULL `graph` drops what was captured. */
int32_t bitmtp_graph_end(void *stream, bitmtp_graph **graph);
/* Enqueues the graph. Any number of times; its memory must be there. */
int32_t bitmtp_graph_launch(const bitmtp_graph *graph, void *stream);
/* Nodes of the graph: kernels, copies and fills. */
int64_t bitmtp_graph_nodes(const bitmtp_graph *graph);
/* Not while it runs. NULL does nothing. */
void bitmtp_graph_destroy(bitmtp_graph *graph);

#ifdef __cplusplus
}
#endif
#endif
