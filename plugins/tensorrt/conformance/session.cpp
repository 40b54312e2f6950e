#include "session.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstring>

#include "build.h"
#include "cuda/export.h"

using nvinfer1::PluginTensorDesc;

namespace {

PluginTensorDesc described(const conformance_tensor &tensor) {
  PluginTensorDesc made = {};
  made.type = static_cast<nvinfer1::DataType>(tensor.type);
  made.format = nvinfer1::TensorFormat::kLINEAR;
  made.dims.nbDims = tensor.rank;
  for (int32_t i = 0; i < tensor.rank; ++i) made.dims.d[i] = tensor.extents[i];
  return made;
}

conformance_tensor shown(const PluginTensorDesc &tensor) {
  conformance_tensor made = {};
  made.type = static_cast<int32_t>(tensor.type);
  made.rank = tensor.dims.nbDims;
  for (int32_t i = 0; i < made.rank; ++i) made.extents[i] = tensor.dims.d[i];
  return made;
}

nvinfer1::IPluginCreatorV3One *creator_of(const conformance_session &session, const char *op) {
  for (nvinfer1::IPluginCreatorV3One *creator : session.creators) {
    if (std::strcmp(creator->getPluginName(), op) == 0) return creator;
  }
  throw bitmtp::conformance::Fault(std::string("no creator of ") + op);
}

}  // namespace

BITMTP_API conformance_session *conformance_open(const char *path, char *error, int32_t error_bytes) {
  const auto refuse = [&](const char *line) {
    std::snprintf(error, static_cast<size_t>(error_bytes), "%s", line);
    return nullptr;
  };
  void *library = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) return refuse(dlerror());
  const auto set_finder = reinterpret_cast<void (*)(nvinfer1::ILoggerFinder *)>(dlsym(library, "setLoggerFinder"));
  const auto get_creators =
      reinterpret_cast<nvinfer1::IPluginCreatorInterface *const *(*)(int32_t &)>(dlsym(library, "getCreators"));
  if (set_finder == nullptr || get_creators == nullptr) return refuse("setLoggerFinder or getCreators is missing");
  auto *session = new conformance_session;
  session->library = library;
  set_finder(&session->log);
  int32_t count = 0;
  nvinfer1::IPluginCreatorInterface *const *creators = get_creators(count);
  for (int32_t i = 0; i < count; ++i) {
    if (std::strcmp(creators[i]->getInterfaceInfo().kind, "PLUGIN CREATOR_V3ONE") != 0) return refuse("a creator of another kind");
    session->creators.push_back(static_cast<nvinfer1::IPluginCreatorV3One *>(creators[i]));
  }
  return session;
}

// The library stays: CUDA's runtime inside it cannot be unloaded in safety.
BITMTP_API void conformance_close(conformance_session *session) {
  reinterpret_cast<void (*)(nvinfer1::ILoggerFinder *)>(dlsym(session->library, "setLoggerFinder"))(nullptr);
  delete session;
}

BITMTP_API int32_t conformance_creators(const conformance_session *session) { return static_cast<int32_t>(session->creators.size()); }

BITMTP_API const char *conformance_creator_name(const conformance_session *session, int32_t index) {
  return session->creators[index]->getPluginName();
}

BITMTP_API const char *conformance_creator_fields(conformance_session *session, int32_t index) {
  const nvinfer1::PluginFieldCollection *fields = session->creators[index]->getFieldNames();
  session->fields.clear();
  for (int32_t i = 0; i < fields->nbFields; ++i) {
    const nvinfer1::PluginField &field = fields->fields[i];
    session->fields += (i > 0 ? "," : "") + std::string(field.name) + ":" + std::to_string(static_cast<int>(field.type));
  }
  return session->fields.c_str();
}

BITMTP_API const char *conformance_log(conformance_session *session) {
  session->logged = session->log.take();
  return session->logged.c_str();
}

BITMTP_API conformance_plugin *conformance_take_through(conformance_session *session, const char *op, const conformance_field *fields,
                                                        int32_t field_count, const conformance_tensor *inputs, int32_t input_count,
                                                        conformance_tensor *outputs, int32_t output_count, int64_t *workspace_bytes) {
  try {
    nvinfer1::IPluginCreatorV3One &creator = *creator_of(*session, op);
    std::vector<nvinfer1::PluginField> given;
    for (int32_t i = 0; i < field_count; ++i) {
      const conformance_field &field = fields[i];
      given.emplace_back(field.name, field.data, static_cast<nvinfer1::PluginFieldType>(field.type), field.length);
    }
    const nvinfer1::PluginFieldCollection collection = {field_count, given.data()};
    std::vector<PluginTensorDesc> in, out(static_cast<size_t>(output_count));
    for (int32_t i = 0; i < input_count; ++i) in.push_back(described(inputs[i]));
    const bitmtp::conformance::Fields kept = bitmtp::conformance::build(creator, collection, in, out, *workspace_bytes);
    for (int32_t i = 0; i < output_count; ++i) outputs[i] = shown(out[i]);
    return bitmtp::conformance::load(creator, kept, in, out).release();
  } catch (const std::exception &fault) {
    session->fault = fault.what();
    return nullptr;
  }
}

BITMTP_API const char *conformance_fault(const conformance_session *session) { return session->fault.c_str(); }

BITMTP_API int32_t conformance_enqueue(conformance_plugin *plugin, const void *const *inputs, void *const *outputs, void *workspace,
                                       void *stream) {
  return plugin->runtime->enqueue(plugin->inputs.data(), plugin->outputs.data(), inputs, outputs, workspace,
                                  static_cast<cudaStream_t>(stream));
}

BITMTP_API void conformance_release(conformance_plugin *plugin) { delete plugin; }
