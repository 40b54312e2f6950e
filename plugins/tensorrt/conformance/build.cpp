#include "build.h"

#include <cstring>

#include "expressions.h"

namespace bitmtp {
namespace conformance {

using namespace nvinfer1;

namespace {

constexpr const char *kNodeName = "conformance";

using Descs = std::vector<PluginTensorDesc>;

int32_t count(const Descs &tensors) { return static_cast<int32_t>(tensors.size()); }

int32_t element_bytes(PluginFieldType type) {
  switch (type) {
    case PluginFieldType::kINT32: return 4;
    case PluginFieldType::kFLOAT32: return 4;
    case PluginFieldType::kCHAR: return 1;
    default: throw Fault("a field of a type that no operator of ours has");
  }
}

void expect(bool right, const std::string &step) {
  if (!right) throw Fault(step);
}

template <class Capability>
Capability &capability(IPluginV3 &plugin, PluginCapabilityType type, const char *kind) {
  IPluginCapability *found = plugin.getCapabilityInterface(type);
  expect(found != nullptr && std::strcmp(found->getInterfaceInfo().kind, kind) == 0, std::string("getCapabilityInterface: no ") + kind);
  return *static_cast<Capability *>(found);
}

std::unique_ptr<IPluginV3> create(IPluginCreatorV3One &creator, const PluginFieldCollection &fields, TensorRTPhase phase) {
  std::unique_ptr<IPluginV3> plugin(creator.createPlugin(kNodeName, &fields, phase));
  expect(plugin != nullptr, phase == TensorRTPhase::kBUILD ? "createPlugin in the build phase" : "createPlugin in the runtime phase");
  return plugin;
}

Fields serialised(IPluginV3 &plugin) {
  auto &runtime = capability<IPluginV3OneRuntime>(plugin, PluginCapabilityType::kRUNTIME, "PLUGIN_V3ONE_RUNTIME");
  return Fields(runtime.getFieldsToSerialize());
}

void check_core(IPluginV3 &plugin, IPluginCreatorV3One &creator) {
  auto &core = capability<IPluginV3OneCore>(plugin, PluginCapabilityType::kCORE, "PLUGIN_V3ONE_CORE");
  expect(std::strcmp(core.getPluginName(), creator.getPluginName()) == 0, "getPluginName: another one than the creator's");
  expect(std::strcmp(core.getPluginVersion(), "1") == 0 && std::strcmp(creator.getPluginVersion(), "1") == 0, "getPluginVersion");
  expect(*core.getPluginNamespace() == 0 && *creator.getPluginNamespace() == 0, "getPluginNamespace");
}

// ---- types --------------------------------------------------------------------------------------------------------------------

void output_types(IPluginV3OneBuild &build, const Descs &inputs, Descs &outputs) {
  std::vector<DataType> given, made(outputs.size(), DataType::kBOOL);
  for (const PluginTensorDesc &tensor : inputs) given.push_back(tensor.type);
  const auto ask = [&] { return build.getOutputDataTypes(made.data(), count(outputs), given.data(), count(inputs)); };
  expect(ask() == 0, "getOutputDataTypes");
  for (size_t i = 0; i < outputs.size(); ++i) outputs[i].type = made[i];
  for (DataType &type : given) {
    const DataType right = type;
    type = right == DataType::kINT32 ? DataType::kFLOAT : DataType::kINT32;
    expect(ask() != 0, "getOutputDataTypes takes a wrong type of an input");
    type = right;
  }
}

void check_formats(IPluginV3OneBuild &build, const Descs &inputs, const Descs &outputs) {
  std::vector<DynamicPluginTensorDesc> all;
  for (const PluginTensorDesc &tensor : inputs) all.push_back({tensor, tensor.dims, tensor.dims, tensor.dims});
  for (const PluginTensorDesc &tensor : outputs) all.push_back({tensor, tensor.dims, tensor.dims, tensor.dims});
  const auto takes = [&](size_t place) {
    return build.supportsFormatCombination(static_cast<int32_t>(place), all.data(), count(inputs), count(outputs));
  };
  for (size_t place = 0; place < all.size(); ++place) {
    PluginTensorDesc &tensor = all[place].desc;
    const std::string where = "supportsFormatCombination at " + std::to_string(place);
    expect(takes(place), where + " refuses what the operator has there");
    const DataType right = tensor.type;
    for (int32_t other = 0; other < EnumMax<DataType>(); ++other) {
      tensor.type = static_cast<DataType>(other);
      expect(takes(place) == (tensor.type == right), where + " takes data type " + std::to_string(other));
    }
    tensor.type = right;
    for (int32_t other = 0; other < EnumMax<TensorFormat>(); ++other) {
      tensor.format = static_cast<TensorFormat>(other);
      expect(takes(place) == (tensor.format == TensorFormat::kLINEAR), where + " takes format " + std::to_string(other));
    }
    tensor.format = TensorFormat::kLINEAR;
  }
}

// ---- shapes -------------------------------------------------------------------------------------------------------------------

// known: whether extents of the inputs are numbers to the plugin, or something that is not known before the engine runs.
std::vector<Dims> output_shapes(IPluginV3OneBuild &build, const Descs &inputs, int32_t outputs, bool known) {
  Expressions expressions;
  std::vector<DimsExprs> given(inputs.size()), made(outputs);
  for (size_t i = 0; i < inputs.size(); ++i) {
    given[i].nbDims = inputs[i].dims.nbDims;
    for (int32_t axis = 0; axis < given[i].nbDims; ++axis) given[i].d[axis] = expressions.make(inputs[i].dims.d[axis], known);
  }
  const auto ask = [&] { return build.getOutputShapes(given.data(), count(inputs), nullptr, 0, made.data(), outputs, expressions); };
  expect(ask() == 0, "getOutputShapes");
  std::vector<Dims> shapes(outputs);
  for (int32_t i = 0; i < outputs; ++i) {
    shapes[i].nbDims = made[i].nbDims;
    for (int32_t axis = 0; axis < made[i].nbDims; ++axis) {
      expect(made[i].d[axis] != nullptr, "getOutputShapes left an extent out");
      shapes[i].d[axis] = static_cast<const Expression *>(made[i].d[axis])->value;
    }
  }
  for (DimsExprs &shape : given) {
    --shape.nbDims;
    expect(ask() != 0, "getOutputShapes takes a wrong rank of an input");
    ++shape.nbDims;
  }
  return shapes;
}

bool same(const Dims &a, const Dims &b) {
  return a.nbDims == b.nbDims && std::memcmp(a.d, b.d, sizeof a.d[0] * static_cast<size_t>(a.nbDims)) == 0;
}

int64_t configure(IPluginV3OneBuild &build, const Descs &inputs, const Descs &outputs) {
  std::vector<DynamicPluginTensorDesc> in, out;
  for (const PluginTensorDesc &tensor : inputs) in.push_back({tensor, tensor.dims, tensor.dims, tensor.dims});
  for (const PluginTensorDesc &tensor : outputs) out.push_back({tensor, tensor.dims, tensor.dims, tensor.dims});
  const auto ask = [&] { return build.configurePlugin(in.data(), count(inputs), out.data(), count(outputs)); };
  --in[0].min.d[0];
  expect(ask() != 0, "configurePlugin takes shapes that are a range");
  ++in[0].min.d[0];
  expect(build.configurePlugin(in.data(), count(inputs) - 1, out.data(), count(outputs)) != 0, "configurePlugin takes an input too few");
  expect(ask() == 0, "configurePlugin");
  return static_cast<int64_t>(build.getWorkspaceSize(in.data(), count(inputs), out.data(), count(outputs)));
}

class ResourceContext final : public IPluginResourceContext {
 public:
  IGpuAllocator *getGpuAllocator() const noexcept override { return nullptr; }
  IErrorRecorder *getErrorRecorder() const noexcept override { return nullptr; }
};

// What a builder may do to time a plugin, on memory that nobody wrote; here there is none.
void check_timing(IPluginV3 &plugin, const Descs &inputs, const Descs &outputs) {
  auto &runtime = capability<IPluginV3OneRuntime>(plugin, PluginCapabilityType::kRUNTIME, "PLUGIN_V3ONE_RUNTIME");
  const std::vector<const void *> in(inputs.size());
  const std::vector<void *> out(outputs.size());
  expect(runtime.onShapeChange(inputs.data(), count(inputs), outputs.data(), count(outputs)) == 0, "onShapeChange in the build phase");
  expect(runtime.enqueue(inputs.data(), outputs.data(), in.data(), out.data(), nullptr, nullptr) == 0, "enqueue in the build phase");
}

}  // namespace

Fields::Fields(const PluginFieldCollection *fields) {
  expect(fields != nullptr, "getFieldsToSerialize gives nothing");
  for (int32_t i = 0; i < fields->nbFields; ++i) {
    const PluginField &field = fields->fields[i];
    const size_t bytes = static_cast<size_t>(element_bytes(field.type)) * static_cast<size_t>(field.length);
    kept_.push_back({field.name, field.type, field.length, std::string(static_cast<const char *>(field.data), bytes)});
  }
  for (const Field &field : kept_) shown_.emplace_back(field.name.c_str(), field.data.data(), field.type, field.length);
  collection_.nbFields = static_cast<int32_t>(shown_.size());
  collection_.fields = shown_.data();
}

bool Fields::operator==(const Fields &other) const {
  bool equal = kept_.size() == other.kept_.size();
  for (size_t i = 0; equal && i < kept_.size(); ++i) {
    const Field &a = kept_[i], &b = other.kept_[i];
    equal = a.name == b.name && a.type == b.type && a.length == b.length && a.data == b.data;
  }
  return equal;
}

Fields build(IPluginCreatorV3One &creator, const PluginFieldCollection &given, const Descs &inputs, Descs &outputs,
             int64_t &workspace_bytes) {
  std::unique_ptr<IPluginV3> parsed = create(creator, given, TensorRTPhase::kBUILD);
  std::unique_ptr<IPluginV3> plugin(parsed->clone());  // a network keeps a plugin of its own
  expect(plugin != nullptr, "clone");
  parsed.reset();
  check_core(*plugin, creator);
  auto &build = capability<IPluginV3OneBuild>(*plugin, PluginCapabilityType::kBUILD, "PLUGIN_V3ONE_BUILD");
  expect(build.getNbOutputs() == count(outputs), "getNbOutputs");
  output_types(build, inputs, outputs);
  const std::vector<Dims> shapes = output_shapes(build, inputs, count(outputs), true);
  const std::vector<Dims> later = output_shapes(build, inputs, count(outputs), false);
  for (size_t i = 0; i < outputs.size(); ++i) {
    expect(same(shapes[i], later[i]), "getOutputShapes says something else where extents are not known");
    outputs[i].dims = shapes[i];
    outputs[i].format = TensorFormat::kLINEAR;
  }
  check_formats(build, inputs, outputs);
  workspace_bytes = configure(build, inputs, outputs);
  check_timing(*plugin, inputs, outputs);
  std::unique_ptr<IPluginV3> copy(plugin->clone());
  expect(copy != nullptr, "clone");
  Fields fields = serialised(*plugin);
  expect(fields == serialised(*copy), "clone: its fields differ");
  expect(fields == Fields(&given), "getFieldsToSerialize: other fields than the node's");
  return fields;
}

std::unique_ptr<conformance_plugin> load(IPluginCreatorV3One &creator, const Fields &fields, const Descs &inputs, const Descs &outputs) {
  auto loaded = std::make_unique<conformance_plugin>();
  loaded->inputs = inputs;
  loaded->outputs = outputs;
  loaded->engine = create(creator, *fields.collection(), TensorRTPhase::kRUNTIME);
  expect(fields == serialised(*loaded->engine), "createPlugin in the runtime phase: its fields differ");
  ResourceContext resources;
  auto &engine = capability<IPluginV3OneRuntime>(*loaded->engine, PluginCapabilityType::kRUNTIME, "PLUGIN_V3ONE_RUNTIME");
  loaded->context.reset(engine.attachToContext(&resources));
  expect(loaded->context != nullptr && loaded->context != loaded->engine, "attachToContext");
  expect(fields == serialised(*loaded->context), "attachToContext: its fields differ");
  auto &runtime = capability<IPluginV3OneRuntime>(*loaded->context, PluginCapabilityType::kRUNTIME, "PLUGIN_V3ONE_RUNTIME");
  loaded->runtime = &runtime;
  const auto change = [&](const Descs &in, const Descs &out) {
    return runtime.onShapeChange(in.data(), count(in), out.data(), count(out));
  };
  for (size_t i = 0; i < outputs.size(); ++i) {
    Descs wrong = outputs;
    ++wrong[i].dims.d[0];
    expect(change(inputs, wrong) != 0, "onShapeChange takes a wrong shape of an output");
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    Descs wrong = inputs;
    wrong[i].dims.d[wrong[i].dims.nbDims - 1] = 0;
    expect(change(wrong, outputs) != 0, "onShapeChange takes an empty input");
  }
  expect(change(inputs, outputs) == 0, "onShapeChange");
  return loaded;
}

}  // namespace conformance
}  // namespace bitmtp
