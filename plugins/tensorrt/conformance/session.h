// A loaded plugin library, and the logger that it gets.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <NvInferRuntime.h>

#include "conformance/conformance.h"

namespace bitmtp {
namespace conformance {

class Log final : public nvinfer1::ILogger, public nvinfer1::ILoggerFinder {
 public:
  void log(Severity, const char *line) noexcept override { (text_ += line) += '\n'; }
  nvinfer1::ILogger *findLogger() override { return this; }

  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

}  // namespace conformance
}  // namespace bitmtp

struct conformance_session {
  void *library = nullptr;
  bitmtp::conformance::Log log;
  std::vector<nvinfer1::IPluginCreatorV3One *> creators;
  std::string fault, logged, fields;
};

struct conformance_plugin {
  std::unique_ptr<nvinfer1::IPluginV3> engine, context;  // a plan's, and an execution context's own
  nvinfer1::IPluginV3OneRuntime *runtime = nullptr;      // of the latter
  std::vector<nvinfer1::PluginTensorDesc> inputs, outputs;
};
