#include "harness.h"

namespace sweep {

// Written from the format's definition, not shared with the kernels.
float half_to_float(uint16_t half) {
  const int exponent = half >> 10 & 31;
  const int fraction = half & 1023;
  double value;
  if (exponent == 31)
    value = fraction == 0 ? __builtin_inf() : __builtin_nan("");
  else if (exponent == 0)
    value = fraction * 0x1p-24;
  else
    value = __builtin_ldexp(1024 + fraction, exponent - 25);
  return static_cast<float>(half & 0x8000 ? -value : value);
}

uint16_t float_to_half(float value) {
  const uint16_t sign = __builtin_signbit(value) ? 0x8000 : 0;
  const double magnitude = __builtin_fabs(static_cast<double>(value));
  if (magnitude != magnitude) return sign | 0x7E00;
  if (magnitude >= 65520.0) return sign | 0x7C00;
  int exponent = 0;
  __builtin_frexp(magnitude, &exponent);
  if (exponent < -13) exponent = -13;  // subnormals share the smallest exponent
  const int ulp = exponent - 11;
  const double scaled = __builtin_ldexp(magnitude, -ulp);  // below 2048, exact
  int rounded = static_cast<int>(scaled);
  const double rest = scaled - rounded;
  if (rest > 0.5 || (rest == 0.5 && (rounded & 1))) ++rounded;
  // The carry of a rounded-up fraction runs into the exponent field, as it should.
  const int bits = rounded < 1024 ? rounded : ((exponent + 13) << 10) + rounded;
  return sign | static_cast<uint16_t>(bits);
}

}  // namespace sweep
