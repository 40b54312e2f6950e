// What describes an operator to the adapter in plugin.h: its ports, their shapes, its attributes, and the tensors of one call.
//
// A port has the place that it has in bitmtp_edge/operators.py. A node names only the ports that are there, so that its n-th tensor is
// not the n-th port where an optional one before it is absent: its fields `input_ports` and `output_ports` say which are there.
#pragma once

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

#include <NvInferRuntime.h>

namespace bitmtp {
namespace tensorrt {

using nvinfer1::DataType;

constexpr int32_t kMostPorts = 16;

// What is wrong with a node, in one line.
class Fault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

__attribute__((format(printf, 1, 2))) inline std::string format(const char *text, ...) {
  char line[512];
  va_list arguments;
  va_start(arguments, text);
  std::vsnprintf(line, sizeof line, text, arguments);
  va_end(arguments);
  return line;
}

// ---- shapes -----------------------------------------------------------------------------------------------------------------

// One extent: a number, or that of an input, divided by `per` and rounded up.
struct Extent {
  int64_t number = 0;
  int32_t input = -1;
  int32_t axis = 0;
  int32_t per = 1;

  constexpr Extent(int64_t number) : number(number) {}
  constexpr Extent(int32_t input, int32_t axis, int32_t per) : input(input), axis(axis), per(per) {}
};

// Of an input. An input's own extent may have any size.
constexpr Extent extent_of(int32_t input, int32_t axis = 0, int32_t per = 1) { return {input, axis, per}; }

// M, the slots of the window: the first extent of every operator's first input.
constexpr Extent kSlots = extent_of(0);

enum class Presence { kAlways, kOptional, kNever };

struct Port {
  const char *name;
  DataType type;
  std::vector<Extent> shape;
  Presence presence = Presence::kAlways;
};

// Some follow from the attributes: an fp16 table has no scales, and another type than packed ones.
struct Ports {
  std::vector<Port> inputs, outputs;
};

constexpr int64_t pad64(int64_t n) { return (n + 63) / 64 * 64; }

// Activation codes and their scales, as two ports: of a row of `width` columns.
inline Port codes_port(int64_t width) { return {"codes", DataType::kINT32, {kSlots, pad64(width) / 4}}; }
inline Port scale_port(const char *name) { return {name, DataType::kFLOAT, {kSlots}}; }

// ---- attributes ---------------------------------------------------------------------------------------------------------------

struct Word {
  const char *text;
  int32_t value;
};

// A string attribute, one of a few words.
class Choice {
 public:
  template <size_t count>
  explicit constexpr Choice(const Word (&words)[count]) : words_(words), count_(count), chosen_(words) {}

  const char *text() const { return chosen_->text; }
  int32_t value() const { return chosen_->value; }

  bool choose(const std::string &text) {
    for (size_t i = 0; i < count_; ++i) {
      if (text == words_[i].text) {
        chosen_ = words_ + i;
        return true;
      }
    }
    return false;
  }

  std::string words() const {
    std::string all;
    for (size_t i = 0; i < count_; ++i) all += (i > 0 ? ", " : "") + std::string(words_[i].text);
    return all;
  }

 private:
  const Word *words_;
  size_t count_;
  const Word *chosen_;
};

inline void check_epsilon(float epsilon) {
  if (!(epsilon >= 0)) throw Fault(format("epsilon is %g, expected at least 0", epsilon));
}

// ---- a call -------------------------------------------------------------------------------------------------------------------

// The tensors of one call by port. Addresses are null for ports that are absent, and all are while the workspace is being asked for.
class Call {
 public:
  template <class T>
  const T *in(int32_t port) const {
    return static_cast<const T *>(inputs[port]);
  }
  template <class T>
  T *out(int32_t port) const {
    return static_cast<T *>(outputs[port]);
  }
  bool has(int32_t input) const { return extents[input].nbDims > 0; }
  int32_t extent(int32_t input, int32_t axis = 0) const { return static_cast<int32_t>(extents[input].d[axis]); }
  int32_t slots() const { return extent(0); }

  const void *inputs[kMostPorts] = {};
  void *outputs[kMostPorts] = {};
  nvinfer1::Dims extents[kMostPorts] = {};  // of the inputs
  void *workspace = nullptr;
};

}  // namespace tensorrt
}  // namespace bitmtp
