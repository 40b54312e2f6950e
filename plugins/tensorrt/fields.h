// Plugin fields: what the parser makes of a node's attributes, and what a plan keeps of a plugin.
//
// An operator shows its attributes to a visitor, in the order of bitmtp_edge/operators.py: `visit("rows", rows)`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <NvInferRuntime.h>

#include "operator.h"

namespace bitmtp {
namespace tensorrt {

// Lists fields, in what getFieldNames and getFieldsToSerialize return. With values it points into what it visited.
class FieldList {
 public:
  explicit FieldList(bool values) : values_(values) {}

  void operator()(const char *name, const int32_t &value) { add(name, &value, nvinfer1::PluginFieldType::kINT32, 1); }
  void operator()(const char *name, const float &value) { add(name, &value, nvinfer1::PluginFieldType::kFLOAT32, 1); }
  void operator()(const char *name, const Choice &value) {
    const int32_t length = static_cast<int32_t>(std::string(value.text()).size());
    add(name, value.text(), nvinfer1::PluginFieldType::kCHAR, values_ ? length : 1);
  }

  const nvinfer1::PluginFieldCollection *collection() {
    collection_.nbFields = static_cast<int32_t>(fields_.size());
    collection_.fields = fields_.data();
    return &collection_;
  }

 private:
  void add(const char *name, const void *data, nvinfer1::PluginFieldType type, int32_t length) {
    fields_.emplace_back(name, values_ ? data : nullptr, type, length);
  }

  bool values_;
  std::vector<nvinfer1::PluginField> fields_;
  nvinfer1::PluginFieldCollection collection_ = {};
};

// Takes values from fields. Fault for one that is missing, has another type, comes twice, or belongs to no attribute.
class FieldReader {
 public:
  explicit FieldReader(const nvinfer1::PluginFieldCollection *fields);

  void operator()(const char *name, int32_t &value);
  void operator()(const char *name, float &value);
  void operator()(const char *name, Choice &value);

  // After all attributes.
  void finish() const;

 private:
  const nvinfer1::PluginField &take(const char *name, nvinfer1::PluginFieldType type, const char *expected);

  const nvinfer1::PluginField *fields_;
  std::vector<bool> taken_;
};

}  // namespace tensorrt
}  // namespace bitmtp
