// Extents of shapes as TensorRT gives them to a plugin during a build: numbers that are known, or not yet.
#pragma once

#include <deque>

#include <NvInferRuntime.h>

namespace bitmtp {
namespace conformance {

// `value` is what the extent will be; a plugin sees it only where it is known.
class Expression final : public nvinfer1::IDimensionExpr, private nvinfer1::apiv::VDimensionExpr {
 public:
  Expression(int64_t value, bool known) : value(value), known(known) { mImpl = this; }

  bool isConstant() const noexcept override { return known; }
  int64_t getConstantValue() const noexcept override { return known ? value : INT64_MIN; }
  bool isSizeTensor() const noexcept override { return false; }

  const int64_t value;
  const bool known;
};

class Expressions final : public nvinfer1::IExprBuilder, private nvinfer1::apiv::VExprBuilder {
 public:
  Expressions() { mImpl = this; }

  const Expression *make(int64_t value, bool known) {
    made_.emplace_back(value, known);
    return &made_.back();
  }

  const nvinfer1::IDimensionExpr *constant(int64_t value) noexcept override { return make(value, true); }

  const nvinfer1::IDimensionExpr *operation(nvinfer1::DimensionOperation operation, const nvinfer1::IDimensionExpr &first,
                                            const nvinfer1::IDimensionExpr &second) noexcept override {
    const Expression &a = static_cast<const Expression &>(first), &b = static_cast<const Expression &>(second);
    if (operation != nvinfer1::DimensionOperation::kCEIL_DIV) return nullptr;  // no operator of ours asks for another
    return make((a.value + b.value - 1) / b.value, a.known && b.known);
  }

  const nvinfer1::IDimensionExpr *declareSizeTensor(int32_t, const nvinfer1::IDimensionExpr &,
                                                    const nvinfer1::IDimensionExpr &) noexcept override {
    return nullptr;
  }

 private:
  std::deque<Expression> made_;
};

}  // namespace conformance
}  // namespace bitmtp
