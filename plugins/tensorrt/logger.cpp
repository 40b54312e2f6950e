#include "logger.h"

#include <dlfcn.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>

namespace bitmtp {
namespace tensorrt {

namespace {

std::atomic<nvinfer1::ILoggerFinder *> logger_finder{nullptr};

// The major version of the TensorRT that has the code of a polymorphic object; 0 where it is no TensorRT's.
int32_t major_of(const void *object) {
  const void *table = nullptr;
  std::memcpy(&table, object, sizeof table);
  Dl_info found = {};
  if (dladdr(table, &found) == 0 || found.dli_fname == nullptr) return 0;
  void *library = dlopen(found.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return 0;
  const auto version = reinterpret_cast<int32_t (*)()>(dlsym(library, "getInferLibVersion"));
  const int32_t major = version == nullptr ? 0 : version() / 10000;
  dlclose(library);
  return major;
}

}  // namespace

// TensorRT 11 gave loggers and their finder other virtual tables, so those of another major version are not called.
void set_logger_finder(nvinfer1::ILoggerFinder *finder) noexcept {
  const int32_t major = finder == nullptr ? 0 : major_of(finder);
  logger_finder.store(major == 0 || major == NV_TENSORRT_MAJOR ? finder : nullptr);
}

void log_error(const std::string &line) noexcept {
  const char *text = line.empty() ? "bitmtp: a plugin failed" : line.c_str();
  try {
    nvinfer1::ILoggerFinder *finder = logger_finder.load();
    nvinfer1::ILogger *logger = finder == nullptr ? nullptr : finder->findLogger();
    if (logger != nullptr) {
      logger->log(nvinfer1::ILogger::Severity::kERROR, text);
      return;
    }
  } catch (...) {
  }
  std::fprintf(stderr, "%s\n", text);
}

}  // namespace tensorrt
}  // namespace bitmtp
