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

#ifdef __cplusplus
}
#endif
#endif
