// TensorRT's order of calls.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "session.h"

namespace bitmtp {
namespace conformance {

// A step that went wrong, in one line.
class Fault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A plugin's fields as a plan keeps them.
class Fields {
 public:
  explicit Fields(const nvinfer1::PluginFieldCollection *fields);

  const nvinfer1::PluginFieldCollection *collection() const { return &collection_; }
  bool operator==(const Fields &other) const;

 private:
  struct Field {
    std::string name;
    nvinfer1::PluginFieldType type;
    int32_t length;
    std::string data;
  };
  std::vector<Field> kept_;
  std::vector<nvinfer1::PluginField> shown_;
  nvinfer1::PluginFieldCollection collection_ = {};
};

// All of a build: what is serialised in the end. Fills `outputs` and `workspace_bytes`.
Fields build(nvinfer1::IPluginCreatorV3One &creator, const nvinfer1::PluginFieldCollection &fields,
             const std::vector<nvinfer1::PluginTensorDesc> &inputs, std::vector<nvinfer1::PluginTensorDesc> &outputs,
             int64_t &workspace_bytes);

// A plugin that may be enqueued.
std::unique_ptr<conformance_plugin> load(nvinfer1::IPluginCreatorV3One &creator, const Fields &fields,
                                         const std::vector<nvinfer1::PluginTensorDesc> &inputs,
                                         const std::vector<nvinfer1::PluginTensorDesc> &outputs);

}  // namespace conformance
}  // namespace bitmtp
