// Where errors go: to TensorRT's logger, or where it gave none to standard error.
#pragma once

#include <exception>
#include <string>

#include <NvInferRuntime.h>

namespace bitmtp {
namespace tensorrt {

void set_logger_finder(nvinfer1::ILoggerFinder *finder) noexcept;
void log_error(const std::string &line) noexcept;

// What TensorRT calls must not throw: `failed` is returned then, and what was thrown is logged. who: whatever has a `label()`.
template <class Who, class Result, class Body>
Result guarded(const Who &who, Result failed, Body &&body) noexcept {
  try {
    return body();
  } catch (const std::exception &error) {
    try {
      log_error(who.label() + ": " + error.what());
    } catch (...) {
      log_error({});  // no memory for the line
    }
  } catch (...) {
    log_error({});
  }
  return failed;
}

}  // namespace tensorrt
}  // namespace bitmtp
