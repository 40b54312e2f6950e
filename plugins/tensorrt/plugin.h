// The adapter between TensorRT and an operator: the only one. A description `Op` of an operator is a copyable type that can be made of
// nothing, with
//
//   static constexpr const char *kName;                  the op_type of its nodes
//   template <class Visit> void fields(Visit &&visit);   shows its attributes: fields.h
//   void check() const;                                  Fault where their values are none of the operator's
//   Ports ports() const;                                 its inputs and outputs under these attributes: operator.h
//   int64_t workspace_bytes(const Call &call) const;     of a call whose tensors have no addresses yet
//   int32_t launch(const Call &call, cudaStream_t stream) const;   enqueues; 0 or a cudaError_t
//
// and a file of operators/ has one, with a `Registrar<Op>`.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string>

#include <NvInferRuntime.h>

#include "fields.h"
#include "logger.h"
#include "operator.h"
#include "signature.h"

namespace bitmtp {
namespace tensorrt {

constexpr const char *kVersion = "1";
constexpr const char *kNamespace = "";

// All creators of this library get into one list, before main() or dlopen() goes on.
void add_creator(nvinfer1::IPluginCreatorV3One *creator);

struct Label {
  const char *op;
  const char *node;

  std::string label() const { return std::string("bitmtp ") + op + " '" + node + "'"; }
};

// What a node says: the operator's attributes, and which of its ports are there.
template <class Op>
struct NodeFields {
  Op op;
  int32_t input_ports = 0;
  int32_t output_ports = 0;

  template <class Visit>
  void visit(Visit &&visitor) {
    op.fields(visitor);
    visitor("input_ports", input_ports);
    visitor("output_ports", output_ports);
  }
};

template <class Op>
class Plugin final : public nvinfer1::IPluginV3,
                     public nvinfer1::IPluginV3OneCore,
                     public nvinfer1::IPluginV3OneBuild,
                     public nvinfer1::IPluginV3OneRuntime {
 public:
  using Tensors = const nvinfer1::DynamicPluginTensorDesc *;
  using FixedTensors = const nvinfer1::PluginTensorDesc *;

  // name: of the node. Fault where the fields contradict each other.
  Plugin(std::string name, const NodeFields<Op> &node, nvinfer1::TensorRTPhase phase)
      : name_(std::move(name)),
        node_(node),
        phase_(phase),
        signature_(checked(node_.op).ports(), node_.input_ports, node_.output_ports),
        list_(true) {
    node_.visit(list_);
  }
  Plugin(const Plugin &other) : Plugin(other.name_, other.node_, other.phase_) {}

  std::string label() const { return Label{Op::kName, name_.c_str()}.label(); }

  // ---- IPluginV3 ----------------------------------------------------------------------------------------------------------------

  nvinfer1::IPluginCapability *getCapabilityInterface(nvinfer1::PluginCapabilityType type) noexcept override {
    switch (type) {
      case nvinfer1::PluginCapabilityType::kCORE: return static_cast<nvinfer1::IPluginV3OneCore *>(this);
      case nvinfer1::PluginCapabilityType::kBUILD: return static_cast<nvinfer1::IPluginV3OneBuild *>(this);
      case nvinfer1::PluginCapabilityType::kRUNTIME: return static_cast<nvinfer1::IPluginV3OneRuntime *>(this);
    }
    return nullptr;
  }

  nvinfer1::IPluginV3 *clone() noexcept override {
    return guarded(*this, static_cast<Plugin *>(nullptr), [&] { return new Plugin(*this); });
  }

  // ---- IPluginV3OneCore ---------------------------------------------------------------------------------------------------------

  const char *getPluginName() const noexcept override { return Op::kName; }
  const char *getPluginVersion() const noexcept override { return kVersion; }
  const char *getPluginNamespace() const noexcept override { return kNamespace; }

  // ---- IPluginV3OneBuild --------------------------------------------------------------------------------------------------------

  int32_t getNbOutputs() const noexcept override { return signature_.outputs(); }

  int32_t getOutputDataTypes(DataType *outputs, int32_t output_count, const DataType *inputs, int32_t input_count) const noexcept override {
    return guarded(*this, kFailed, [&] {
      signature_.check_counts(input_count, output_count);
      for (int32_t i = 0; i < input_count; ++i) signature_.check_type(i, inputs[i]);
      for (int32_t i = 0; i < output_count; ++i) outputs[i] = signature_.output_type(i);
      return kDone;
    });
  }

  int32_t getOutputShapes(const nvinfer1::DimsExprs *inputs, int32_t input_count, const nvinfer1::DimsExprs *, int32_t shape_inputs,
                          nvinfer1::DimsExprs *outputs, int32_t output_count, nvinfer1::IExprBuilder &builder) noexcept override {
    return guarded(*this, kFailed, [&] {
      signature_.check_counts(input_count + shape_inputs, output_count);
      if (shape_inputs != 0) throw Fault("has shape inputs, expected none");
      signature_.output_shapes(inputs, outputs, builder);
      return kDone;
    });
  }

  bool supportsFormatCombination(int32_t place, Tensors tensors, int32_t, int32_t) noexcept override {
    return signature_.takes(place, tensors[place].desc);
  }

  // Shapes are fixed: the workspace of the largest ones need not do for smaller ones.
  int32_t configurePlugin(Tensors inputs, int32_t input_count, Tensors outputs, int32_t output_count) noexcept override {
    return guarded(*this, kFailed, [&] {
      signature_.check_counts(input_count, output_count);
      nvinfer1::Dims in[kMostPorts], out[kMostPorts];
      for (int32_t i = 0; i < input_count; ++i) in[i] = fixed(inputs[i]);
      for (int32_t i = 0; i < output_count; ++i) out[i] = fixed(outputs[i]);
      signature_.check_shapes(in, out);
      return kDone;
    });
  }

  size_t getWorkspaceSize(Tensors inputs, int32_t input_count, Tensors, int32_t output_count) const noexcept override {
    return guarded(*this, size_t{0}, [&] {
      signature_.check_counts(input_count, output_count);
      nvinfer1::Dims in[kMostPorts];
      for (int32_t i = 0; i < input_count; ++i) in[i] = inputs[i].max;
      return static_cast<size_t>(node_.op.workspace_bytes(signature_.call(in)));
    });
  }

  // ---- IPluginV3OneRuntime ------------------------------------------------------------------------------------------------------

  nvinfer1::IPluginV3 *attachToContext(nvinfer1::IPluginResourceContext *) noexcept override { return clone(); }

  int32_t onShapeChange(FixedTensors inputs, int32_t input_count, FixedTensors outputs, int32_t output_count) noexcept override {
    return guarded(*this, kFailed, [&] {
      signature_.check_counts(input_count, output_count);
      nvinfer1::Dims in[kMostPorts], out[kMostPorts];
      for (int32_t i = 0; i < input_count; ++i) in[i] = inputs[i].dims;
      for (int32_t i = 0; i < output_count; ++i) out[i] = outputs[i].dims;
      signature_.check_shapes(in, out);
      return kDone;
    });
  }

  // Of shapes that onShapeChange took. A builder may time plugins on memory that nobody wrote, and kernels read where their inputs say;
  // it has no choice to make, so nothing is launched for it.
  int32_t enqueue(FixedTensors inputs, FixedTensors, const void *const *from, void *const *to, void *workspace,
                  cudaStream_t stream) noexcept override {
    if (phase_ == nvinfer1::TensorRTPhase::kBUILD) return kDone;
    return guarded(*this, kFailed, [&] {
      nvinfer1::Dims in[kMostPorts];
      for (int32_t i = 0; i < signature_.inputs(); ++i) in[i] = inputs[i].dims;
      Call call = signature_.call(in);
      if (workspace == nullptr && node_.op.workspace_bytes(call) > 0) throw Fault("has no workspace");
      signature_.set_addresses(from, to, workspace, call);
      const int32_t error = node_.op.launch(call, stream);
      if (error == 0) return kDone;
      throw Fault(format("CUDA error %d at its launch (%s)", error, cudaGetErrorString(static_cast<cudaError_t>(error))));
    });
  }

  const nvinfer1::PluginFieldCollection *getFieldsToSerialize() noexcept override { return list_.collection(); }

 private:
  static constexpr int32_t kDone = 0, kFailed = -1;

  static const Op &checked(const Op &op) {
    op.check();
    return op;
  }

  static nvinfer1::Dims fixed(const nvinfer1::DynamicPluginTensorDesc &tensor) {
    for (int32_t i = 0; i < tensor.max.nbDims; ++i) {
      if (tensor.min.d[i] != tensor.max.d[i]) throw Fault("shapes are a range, expected fixed ones");
    }
    return tensor.max;
  }

  std::string name_;
  NodeFields<Op> node_;
  nvinfer1::TensorRTPhase phase_;
  Signature signature_;
  FieldList list_;
};

template <class Op>
class Creator final : public nvinfer1::IPluginCreatorV3One {
 public:
  Creator() : names_(false) {
    NodeFields<Op> node;
    node.visit(names_);
  }

  nvinfer1::IPluginV3 *createPlugin(const char *name, const nvinfer1::PluginFieldCollection *fields,
                                    nvinfer1::TensorRTPhase phase) noexcept override {
    const Label asked{Op::kName, name == nullptr ? "" : name};
    return guarded(asked, static_cast<Plugin<Op> *>(nullptr), [&] {
      FieldReader reader(fields);
      NodeFields<Op> node;
      node.visit(reader);
      reader.finish();
      return new Plugin<Op>(asked.node, node, phase);
    });
  }

  const nvinfer1::PluginFieldCollection *getFieldNames() noexcept override { return names_.collection(); }
  const char *getPluginName() const noexcept override { return Op::kName; }
  const char *getPluginVersion() const noexcept override { return kVersion; }
  const char *getPluginNamespace() const noexcept override { return kNamespace; }

 private:
  FieldList names_;
};

template <class Op>
class Registrar {
 public:
  Registrar() { add_creator(&creator_); }

 private:
  Creator<Op> creator_;
};

}  // namespace tensorrt
}  // namespace bitmtp
