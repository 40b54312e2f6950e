#include "signature.h"

#include <string>

namespace bitmtp {
namespace tensorrt {

using nvinfer1::Dims;
using nvinfer1::DimsExprs;
using nvinfer1::TensorFormat;

namespace {

constexpr int64_t kUnknown = -1;
constexpr int64_t kMostExtent = INT32_MAX;  // records hold 32 bits

const char *type_name(DataType type) {
  switch (type) {
    case DataType::kFLOAT: return "FLOAT";
    case DataType::kHALF: return "HALF";
    case DataType::kINT32: return "INT32";
    case DataType::kINT8: return "INT8";
    case DataType::kINT64: return "INT64";
    case DataType::kUINT8: return "UINT8";
    default: return "another type";
  }
}

std::string shape_text(const Dims &shape) {
  std::string text = "[";
  for (int32_t i = 0; i < shape.nbDims; ++i) text += (i > 0 ? ", " : "") + std::to_string(shape.d[i]);
  return text + "]";
}

Dims known_extents(const DimsExprs &shape) {
  Dims known = {};
  known.nbDims = shape.nbDims;
  for (int32_t i = 0; i < shape.nbDims; ++i) known.d[i] = shape.d[i]->isConstant() ? shape.d[i]->getConstantValue() : kUnknown;
  return known;
}

}  // namespace

Signature::Signature(const Ports &ports, int32_t input_ports, int32_t output_ports)
    : inputs_(present(ports.inputs, input_ports, "input_ports")), outputs_(present(ports.outputs, output_ports, "output_ports")) {
  for (int32_t &place : place_of_) place = -1;
  for (size_t i = 0; i < inputs_.size(); ++i) place_of_[inputs_[i].number] = static_cast<int32_t>(i);
}

std::vector<Signature::Tensor> Signature::present(const std::vector<Port> &ports, int32_t mask, const char *field) {
  std::vector<Tensor> found;
  for (size_t i = 0; i < ports.size(); ++i) {
    const bool there = mask >> i & 1;
    const Presence presence = ports[i].presence;
    if (there && presence == Presence::kNever) {
      throw Fault(format("%s is %d, which has %s, a port that these attributes exclude", field, mask, ports[i].name));
    }
    if (!there && presence == Presence::kAlways) throw Fault(format("%s is %d, which lacks %s", field, mask, ports[i].name));
    if (there) found.push_back({static_cast<int32_t>(i), ports[i]});
  }
  if (mask < 0 || mask >> ports.size() != 0) throw Fault(format("%s is %d, of %d ports", field, mask, static_cast<int>(ports.size())));
  return found;
}

bool Signature::takes(int32_t place, const nvinfer1::PluginTensorDesc &tensor) const {
  return place >= 0 && place < inputs() + outputs() && tensor.type == at(place).port.type && tensor.format == TensorFormat::kLINEAR;
}

void Signature::check_counts(int32_t in, int32_t out) const {
  if (in != inputs() || out != outputs()) {
    throw Fault(format("%d inputs and %d outputs, where input_ports and output_ports say %d and %d", in, out, inputs(), outputs()));
  }
}

void Signature::check_type(int32_t input, DataType type) const {
  const Port &port = inputs_[input].port;
  if (type != port.type) throw Fault(format("%s is %s, expected %s", port.name, type_name(type), type_name(port.type)));
}

int64_t Signature::value(const Extent &extent, const Dims *inputs) const {
  if (extent.input < 0) return extent.number;
  const int64_t of = inputs[place_of_[extent.input]].d[extent.axis];
  return of == kUnknown ? kUnknown : (of + extent.per - 1) / extent.per;
}

void Signature::check_shape(const Tensor &tensor, const Dims &shape, const Dims *inputs) const {
  const std::vector<Extent> &rule = tensor.port.shape;
  Dims expected = {};
  expected.nbDims = static_cast<int32_t>(rule.size());
  bool fits = shape.nbDims == expected.nbDims;
  for (int32_t i = 0; i < expected.nbDims; ++i) {
    expected.d[i] = value(rule[i], inputs);
    if (!fits || shape.d[i] == kUnknown) continue;
    fits = (expected.d[i] == kUnknown || shape.d[i] == expected.d[i]) && shape.d[i] >= 1 && shape.d[i] <= kMostExtent;
  }
  if (!fits) throw Fault(format("%s is %s, expected %s", tensor.port.name, shape_text(shape).c_str(), shape_text(expected).c_str()));
}

void Signature::check_shapes(const Dims *inputs, const Dims *outputs) const {
  // Ranks first: shapes name extents of other inputs.
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const Port &port = inputs_[i].port;
    if (inputs[i].nbDims != static_cast<int32_t>(port.shape.size())) {
      throw Fault(format("%s is %s, expected %d extents", port.name, shape_text(inputs[i]).c_str(), static_cast<int>(port.shape.size())));
    }
  }
  for (size_t i = 0; i < inputs_.size(); ++i) check_shape(inputs_[i], inputs[i], inputs);
  for (size_t i = 0; i < outputs_.size() && outputs != nullptr; ++i) check_shape(outputs_[i], outputs[i], inputs);
}

void Signature::output_shapes(const DimsExprs *inputs, DimsExprs *outputs, nvinfer1::IExprBuilder &builder) const {
  Dims known[kMostPorts];
  for (size_t i = 0; i < inputs_.size(); ++i) known[i] = known_extents(inputs[i]);
  check_shapes(known, nullptr);
  for (size_t i = 0; i < outputs_.size(); ++i) {
    const std::vector<Extent> &rule = outputs_[i].port.shape;
    outputs[i].nbDims = static_cast<int32_t>(rule.size());
    for (size_t axis = 0; axis < rule.size(); ++axis) {
      const Extent &extent = rule[axis];
      if (extent.input < 0) {
        outputs[i].d[axis] = builder.constant(extent.number);
        continue;
      }
      const nvinfer1::IDimensionExpr *of = inputs[place_of_[extent.input]].d[extent.axis];
      outputs[i].d[axis] =
          extent.per == 1 ? of : builder.operation(nvinfer1::DimensionOperation::kCEIL_DIV, *of, *builder.constant(extent.per));
    }
  }
}

Call Signature::call(const Dims *inputs) const {
  Call call;
  for (size_t i = 0; i < inputs_.size(); ++i) call.extents[inputs_[i].number] = inputs[i];
  return call;
}

void Signature::set_addresses(const void *const *inputs, void *const *outputs, void *workspace, Call &call) const {
  for (size_t i = 0; i < inputs_.size(); ++i) call.inputs[inputs_[i].number] = inputs[i];
  for (size_t i = 0; i < outputs_.size(); ++i) call.outputs[outputs_[i].number] = outputs[i];
  call.workspace = workspace;
}

}  // namespace tensorrt
}  // namespace bitmtp
