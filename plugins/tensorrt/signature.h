// Which ports of an operator a node has, and whether tensors fit them.
#pragma once

#include <cstdint>
#include <vector>

#include <NvInferRuntime.h>

#include "operator.h"

namespace bitmtp {
namespace tensorrt {

// Places below are those of the node's own tensors: inputs 0 .. , outputs 0 .. .
class Signature {
 public:
  // Bit i of a mask: port i is there. Fault where the masks are not ones of these ports.
  Signature(const Ports &ports, int32_t input_ports, int32_t output_ports);

  int32_t inputs() const { return static_cast<int32_t>(inputs_.size()); }
  int32_t outputs() const { return static_cast<int32_t>(outputs_.size()); }
  DataType output_type(int32_t place) const { return outputs_[place].port.type; }

  // Of inputs, then outputs.
  bool takes(int32_t place, const nvinfer1::PluginTensorDesc &tensor) const;

  // Faults for tensors of another number, type or shape. An extent of -1 is one that is not known yet.
  void check_counts(int32_t inputs, int32_t outputs) const;
  void check_type(int32_t input, DataType type) const;
  void check_shapes(const nvinfer1::Dims *inputs, const nvinfer1::Dims *outputs) const;

  void output_shapes(const nvinfer1::DimsExprs *inputs, nvinfer1::DimsExprs *outputs, nvinfer1::IExprBuilder &builder) const;

  Call call(const nvinfer1::Dims *inputs) const;
  void set_addresses(const void *const *inputs, void *const *outputs, void *workspace, Call &call) const;

 private:
  struct Tensor {
    int32_t number;  // of the port
    Port port;
  };

  static std::vector<Tensor> present(const std::vector<Port> &ports, int32_t mask, const char *field);
  const Tensor &at(int32_t place) const { return place < inputs() ? inputs_[place] : outputs_[place - inputs()]; }
  int64_t value(const Extent &extent, const nvinfer1::Dims *inputs) const;
  void check_shape(const Tensor &tensor, const nvinfer1::Dims &shape, const nvinfer1::Dims *inputs) const;

  std::vector<Tensor> inputs_, outputs_;
  int32_t place_of_[kMostPorts] = {};  // of an input port, -1 where it is absent
};

}  // namespace tensorrt
}  // namespace bitmtp
