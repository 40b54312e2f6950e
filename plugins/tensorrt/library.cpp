// What TensorRT calls in a plugin library once it has loaded it.
#include <cstring>

#include <algorithm>
#include <vector>

#include "bitmtp/abi.h"
#include "bitmtp/tensorrt.h"
#include "cuda/export.h"
#include "plugin.h"

namespace bitmtp {
namespace tensorrt {

namespace {

// A function's own, so that it is there for whichever file's registrar comes first.
std::vector<nvinfer1::IPluginCreatorV3One *> &creators() {
  static std::vector<nvinfer1::IPluginCreatorV3One *> all;
  return all;
}

const int32_t programmatic_launch_before = bitmtp_cuda_set_programmatic_launch(0);

}  // namespace

void add_creator(nvinfer1::IPluginCreatorV3One *creator) {
  const auto before = [](nvinfer1::IPluginCreatorV3One *a, nvinfer1::IPluginCreatorV3One *b) {
    return std::strcmp(a->getPluginName(), b->getPluginName()) < 0;
  };
  std::vector<nvinfer1::IPluginCreatorV3One *> &all = creators();
  all.insert(std::upper_bound(all.begin(), all.end(), creator, before), creator);
}

}  // namespace tensorrt
}  // namespace bitmtp

BITMTP_API void setLoggerFinder(nvinfer1::ILoggerFinder *finder) { bitmtp::tensorrt::set_logger_finder(finder); }

BITMTP_API nvinfer1::IPluginCreatorInterface *const *getCreators(int32_t &count) {
  const std::vector<nvinfer1::IPluginCreatorV3One *> &own = bitmtp::tensorrt::creators();
  static const std::vector<nvinfer1::IPluginCreatorInterface *> all(own.begin(), own.end());
  count = static_cast<int32_t>(all.size());
  return all.data();
}

BITMTP_API int32_t bitmtp_tensorrt_abi_version(void) { return BITMTP_TENSORRT_ABI_VERSION; }
BITMTP_API int32_t bitmtp_tensorrt_headers(void) { return NV_TENSORRT_MAJOR * 10000 + NV_TENSORRT_MINOR * 100 + NV_TENSORRT_PATCH; }
BITMTP_API const char *bitmtp_tensorrt_architectures(void) { return BITMTP_ARCHITECTURES; }
