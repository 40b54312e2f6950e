// Rules 2, 3, 4 and 7 of docs/numerics.md, written once more as plain scalar loops for the expected results of the sweep.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace sweep {
namespace reference {

inline float lane_sum(const std::vector<float> &terms) {
  float lane[8] = {};
  for (size_t i = 0; i < terms.size(); ++i) lane[i % 8] = lane[i % 8] + terms[i];
  const float even = (lane[0] + lane[4]) + (lane[2] + lane[6]);
  const float odd = (lane[1] + lane[5]) + (lane[3] + lane[7]);
  return even + odd;
}

inline float exponential(float x) {
  static const float c[] = {0.00138141739f, 0.00836892147f, 0.0416684076f, 0.166665196f, 0.49999994f, 1.0f, 1.0f};
  if (x < -87.3f) x = -87.3f;
  if (x > 88.3f) x = 88.3f;
  const float n = std::nearbyintf(x * 1.44269504f);
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = c[0];
  for (int k = 1; k <= 6; ++k) p = p * r + c[k];
  return std::ldexp(p, static_cast<int>(n));
}

inline float softmax_weight(float x) { return x < -87.3f ? 0.0f : exponential(x); }

inline void rms_norm(float *x, int32_t n, const float *weight, float epsilon) {
  std::vector<float> squares(n);
  for (int32_t i = 0; i < n; ++i) squares[i] = x[i] * x[i];
  const float factor = 1.0f / std::sqrt(lane_sum(squares) / static_cast<float>(n) + epsilon);
  for (int32_t i = 0; i < n; ++i) x[i] = (x[i] * factor) * weight[i];
}

// round_half_even(x) in [low, high]
inline int32_t round_to(float x, int32_t low, int32_t high) {
  const float y = std::nearbyintf(x);
  return y < static_cast<float>(low) ? low : y > static_cast<float>(high) ? high : static_cast<int32_t>(y);
}

// Codes (as bytes, padded to 64) and scale of one row.
inline float quantise(const float *x, int32_t n, int8_t *codes) {
  float amax = 1e-10f;
  for (int32_t i = 0; i < n; ++i) amax = std::fmax(amax, std::fabs(x[i]));
  const float inverse = 127.0f / amax;
  for (int32_t i = 0; i < (n + 63) / 64 * 64; ++i) {
    codes[i] = static_cast<int8_t>(i < n ? round_to(x[i] * inverse, -127, 127) : 0);
  }
  return amax / 127.0f;
}

}  // namespace reference
}  // namespace sweep
