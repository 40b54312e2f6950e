#include "fields.h"

#include <cstring>

namespace bitmtp {
namespace tensorrt {

using nvinfer1::PluginField;
using nvinfer1::PluginFieldType;

FieldReader::FieldReader(const nvinfer1::PluginFieldCollection *fields)
    : fields_(fields == nullptr ? nullptr : fields->fields),
      taken_(fields == nullptr || fields->fields == nullptr ? 0 : static_cast<size_t>(fields->nbFields)) {}

const PluginField &FieldReader::take(const char *name, PluginFieldType type, const char *expected) {
  const PluginField *found = nullptr;
  for (size_t i = 0; i < taken_.size(); ++i) {
    if (fields_[i].name == nullptr || std::strcmp(fields_[i].name, name) != 0) continue;
    if (found != nullptr) throw Fault(format("field %s is there twice", name));
    found = fields_ + i;
    taken_[i] = true;
  }
  if (found == nullptr) throw Fault(format("field %s is missing, expected %s", name, expected));
  const bool one = type == PluginFieldType::kCHAR ? found->length > 0 : found->length == 1;
  if (found->type != type || !one || found->data == nullptr) {
    throw Fault(format("field %s has type %d and length %d, expected %s", name, static_cast<int>(found->type), found->length, expected));
  }
  return *found;
}

void FieldReader::operator()(const char *name, int32_t &value) {
  std::memcpy(&value, take(name, PluginFieldType::kINT32, "one INT32").data, sizeof value);
}

void FieldReader::operator()(const char *name, float &value) {
  std::memcpy(&value, take(name, PluginFieldType::kFLOAT32, "one FLOAT32").data, sizeof value);
}

void FieldReader::operator()(const char *name, Choice &value) {
  const PluginField &field = take(name, PluginFieldType::kCHAR, "CHAR");
  std::string text(static_cast<const char *>(field.data), static_cast<size_t>(field.length));
  if (text.back() == '\0') text.pop_back();  // some parsers count the terminator
  if (!value.choose(text)) throw Fault(format("field %s is '%s', expected one of %s", name, text.c_str(), value.words().c_str()));
}

void FieldReader::finish() const {
  for (size_t i = 0; i < taken_.size(); ++i) {
    if (!taken_[i]) throw Fault(format("field %s is not known", fields_[i].name == nullptr ? "without a name" : fields_[i].name));
  }
}

}  // namespace tensorrt
}  // namespace bitmtp
