/* The C ABI of libbitmtp_tensorrt_conformance.so: a stand-in for TensorRT that takes plugins through TensorRT's own order of calls.
 *
 * For tests alone. The mirror in Python is tests/tensorrt/conformance.py. */
#ifndef BITMTP_TENSORRT_CONFORMANCE_H
#define BITMTP_TENSORRT_CONFORMANCE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct conformance_session conformance_session; /* a loaded plugin library */
typedef struct conformance_plugin conformance_plugin;   /* a plugin in an execution context */

typedef struct conformance_tensor {
  int32_t type; /* nvinfer1::DataType */
  int32_t rank;
  int64_t extents[8];
} conformance_tensor;

typedef struct conformance_field {
  const char *name;
  const void *data;
  int32_t type; /* nvinfer1::PluginFieldType */
  int32_t length;
} conformance_field;

/* NULL where the library does not load or is none for TensorRT; `error` has one line then. */
conformance_session *conformance_open(const char *library, char *error, int32_t error_bytes);
void conformance_close(conformance_session *session);

/* Creators in the library's order. Fields: "name:type,name:type". */
int32_t conformance_creators(const conformance_session *session);
const char *conformance_creator_name(const conformance_session *session, int32_t index);
const char *conformance_creator_fields(conformance_session *session, int32_t index);

/* What the library logged since the last call of this function, a line each. */
const char *conformance_log(conformance_session *session);

/* A plugin made of `fields` in the build phase, taken through the build, serialised, made again in the runtime phase and attached to a
 * context with these shapes. NULL where a step of that goes wrong: conformance_fault() says which. Types and shapes of the outputs come
 * from the plugin. */
conformance_plugin *conformance_take_through(conformance_session *session, const char *op, const conformance_field *fields,
                                             int32_t field_count, const conformance_tensor *inputs, int32_t input_count,
                                             conformance_tensor *outputs, int32_t output_count, int64_t *workspace_bytes);
const char *conformance_fault(const conformance_session *session);

int32_t conformance_enqueue(conformance_plugin *plugin, const void *const *inputs, void *const *outputs, void *workspace, void *stream);
void conformance_release(conformance_plugin *plugin);

#ifdef __cplusplus
}
#endif
#endif
