// The arithmetic of docs/numerics.md, once for every instruction set.
//
// Everything is written on `f8`, eight fp32 lanes, with one rounding an operation and no reductions but those spelled out here:
// the bits are the same whatever the lanes are made of. Where intrinsics appear they compute an exact conversion. The file is
// compiled once per instruction set: everything lives in that set's namespace and is inlined, so that no linker can pick one
// set's copy for another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define BITMTP_LAMBDA __attribute__((always_inline))
#define BITMTP_MEMBER inline __attribute__((always_inline))
#define BITMTP_INLINE static BITMTP_MEMBER

namespace bitmtp {
namespace BITMTP_ISA {

constexpr int32_t kLanes = 8;

// ---- vectors ----------------------------------------------------------------------------------------------------------
// `f8{}` is zeros, x[i] a lane. Comparisons give lanes of all ones or all zeros, select() chooses by them.

#if defined(__AVX2__)

typedef float f8 __attribute__((vector_size(32)));
typedef int32_t i8 __attribute__((vector_size(32)));

BITMTP_INLINE f8 broadcast(float x) { return f8{x, x, x, x, x, x, x, x}; }
BITMTP_INLINE i8 broadcast(int32_t x) { return i8{x, x, x, x, x, x, x, x}; }
BITMTP_INLINE f8 select(i8 mask, f8 a, f8 b) { return mask ? a : b; }
BITMTP_INLINE i8 select(i8 mask, i8 a, i8 b) { return mask ? a : b; }
BITMTP_INLINE f8 to_float(i8 x) { return __builtin_convertvector(x, f8); }
BITMTP_INLINE i8 as_bits(f8 x) { return reinterpret_cast<i8>(x); }
BITMTP_INLINE f8 as_float(i8 x) { return reinterpret_cast<f8>(x); }
BITMTP_INLINE f8 load8(const float *p) {
  f8 x;
  std::memcpy(&x, p, sizeof x);
  return x;
}
BITMTP_INLINE void store8(float *p, f8 x) { std::memcpy(p, &x, sizeof x); }

#else  // two registers of four: given a vector type wider than its registers, GCC keeps every value on the stack

typedef float f4 __attribute__((vector_size(16)));
typedef int32_t i4 __attribute__((vector_size(16)));

struct i8 {
  i4 low, high;
  int32_t operator[](int32_t i) const { return i < 4 ? low[i] : high[i - 4]; }
};
struct f8 {
  f4 low, high;
  float operator[](int32_t i) const { return i < 4 ? low[i] : high[i - 4]; }
};

BITMTP_INLINE f8 broadcast(float x) { return f8{f4{x, x, x, x}, f4{x, x, x, x}}; }
BITMTP_INLINE i8 broadcast(int32_t x) { return i8{i4{x, x, x, x}, i4{x, x, x, x}}; }
BITMTP_INLINE f8 operator+(f8 a, f8 b) { return f8{a.low + b.low, a.high + b.high}; }
BITMTP_INLINE f8 operator-(f8 a, f8 b) { return f8{a.low - b.low, a.high - b.high}; }
BITMTP_INLINE f8 operator*(f8 a, f8 b) { return f8{a.low * b.low, a.high * b.high}; }
BITMTP_INLINE f8 operator/(f8 a, f8 b) { return f8{a.low / b.low, a.high / b.high}; }
BITMTP_INLINE f8 operator-(f8 a) { return f8{-a.low, -a.high}; }
BITMTP_INLINE f8 &operator+=(f8 &a, f8 b) { return a = a + b; }
BITMTP_INLINE i8 operator<(f8 a, f8 b) { return i8{a.low < b.low, a.high < b.high}; }
BITMTP_INLINE i8 operator>(f8 a, f8 b) { return i8{a.low > b.low, a.high > b.high}; }
BITMTP_INLINE i8 operator==(f8 a, f8 b) { return i8{a.low == b.low, a.high == b.high}; }
BITMTP_INLINE i8 operator+(i8 a, i8 b) { return i8{a.low + b.low, a.high + b.high}; }
BITMTP_INLINE i8 operator-(i8 a, i8 b) { return i8{a.low - b.low, a.high - b.high}; }
BITMTP_INLINE i8 operator&(i8 a, i8 b) { return i8{a.low & b.low, a.high & b.high}; }
BITMTP_INLINE i8 operator|(i8 a, i8 b) { return i8{a.low | b.low, a.high | b.high}; }
BITMTP_INLINE i8 operator~(i8 a) { return i8{~a.low, ~a.high}; }
BITMTP_INLINE i8 operator<<(i8 a, int32_t n) { return i8{a.low << n, a.high << n}; }
BITMTP_INLINE i8 operator>>(i8 a, int32_t n) { return i8{a.low >> n, a.high >> n}; }
BITMTP_INLINE i8 operator>(i8 a, i8 b) { return i8{a.low > b.low, a.high > b.high}; }
BITMTP_INLINE f8 select(i8 mask, f8 a, f8 b) { return f8{mask.low ? a.low : b.low, mask.high ? a.high : b.high}; }
BITMTP_INLINE i8 select(i8 mask, i8 a, i8 b) { return i8{mask.low ? a.low : b.low, mask.high ? a.high : b.high}; }
BITMTP_INLINE f8 to_float(i8 x) { return f8{__builtin_convertvector(x.low, f4), __builtin_convertvector(x.high, f4)}; }
BITMTP_INLINE i8 as_bits(f8 x) { return i8{reinterpret_cast<i4>(x.low), reinterpret_cast<i4>(x.high)}; }
BITMTP_INLINE f8 as_float(i8 x) { return f8{reinterpret_cast<f4>(x.low), reinterpret_cast<f4>(x.high)}; }
BITMTP_INLINE f8 load8(const float *p) {
  f8 x;
  std::memcpy(&x.low, p, sizeof x.low);
  std::memcpy(&x.high, p + 4, sizeof x.high);
  return x;
}
BITMTP_INLINE void store8(float *p, f8 x) {
  std::memcpy(p, &x.low, sizeof x.low);
  std::memcpy(p + 4, &x.high, sizeof x.high);
}

#endif

// The first n < 8 values, then zeros; nothing past them is touched.
BITMTP_INLINE f8 load_part(const float *p, int32_t n) {
  float t[kLanes] = {};
  std::memcpy(t, p, static_cast<size_t>(n) * sizeof(float));
  return load8(t);
}
// Elements i .. i+7 of a row of n, zeros past its end.
BITMTP_INLINE f8 load_row(const float *row, int32_t i, int32_t n) {
  return n - i >= kLanes ? load8(row + i) : load_part(row + i, n - i);
}

BITMTP_INLINE float max_of(float a, float b) { return a > b ? a : b; }
BITMTP_INLINE f8 max_of(f8 a, f8 b) { return select(a > b, a, b); }
BITMTP_INLINE f8 clamp(f8 x, float low, float high) {
  x = select(x < broadcast(low), broadcast(low), x);
  return select(x > broadcast(high), broadcast(high), x);
}

// ---- rule 2: sums -----------------------------------------------------------------------------------------------------

BITMTP_INLINE float combine_lanes(f8 l) { return ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7])); }

// The same for eight sums at once: lane k of the result is combine_lanes(l[k]).
BITMTP_INLINE f8 combine_eight(const f8 (&l)[kLanes]) {
#if defined(__AVX2__)
  __m256 x[4];  // x[k]: what lane i and lane i+4 of l[k] and l[k+4] add up to
  for (int32_t k = 0; k < 4; ++k) {
    x[k] = _mm256_permute2f128_ps(l[k], l[k + 4], 0x20) + _mm256_permute2f128_ps(l[k], l[k + 4], 0x31);
  }
  const __m256 y = _mm256_shuffle_ps(x[0], x[1], 0x44) + _mm256_shuffle_ps(x[0], x[1], 0xEE);
  const __m256 z = _mm256_shuffle_ps(x[2], x[3], 0x44) + _mm256_shuffle_ps(x[2], x[3], 0xEE);
  return _mm256_shuffle_ps(y, z, 0x88) + _mm256_shuffle_ps(y, z, 0xDD);
#else
  f8 sums;
  f4 x[kLanes];
  for (int32_t k = 0; k < kLanes; ++k) x[k] = l[k].low + l[k].high;
  const auto four = [](f4 a, f4 b, f4 c, f4 d) BITMTP_LAMBDA {
    const f4 y = f4{a[0], a[1], b[0], b[1]} + f4{a[2], a[3], b[2], b[3]};
    const f4 z = f4{c[0], c[1], d[0], d[1]} + f4{c[2], c[3], d[2], d[3]};
    return f4{y[0], y[2], z[0], z[2]} + f4{y[1], y[3], z[1], z[3]};
  };
  sums.low = four(x[0], x[1], x[2], x[3]);
  sums.high = four(x[4], x[5], x[6], x[7]);
  return sums;
#endif
}

// A zero term leaves a lane's bits alone (a lane starts at +0 and so never is -0): padding a tail with zeros is exact.
BITMTP_INLINE float lane_sum(const float *x, int32_t n) {
  f8 acc = {};
  for (int32_t i = 0; i < n; i += kLanes) acc += load_row(x, i, n);
  return combine_lanes(acc);
}
BITMTP_INLINE float lane_sum_squares(const float *x, int32_t n) {
  f8 acc = {};
  for (int32_t i = 0; i < n; i += kLanes) {
    const f8 v = load_row(x, i, n);
    acc += v * v;
  }
  return combine_lanes(acc);
}

// ---- rounding ---------------------------------------------------------------------------------------------------------

// Half to even for |x| < 2^22: adding 1.5 * 2^23 leaves the integer in the low bits of the significand.
constexpr float kRounder = 12582912.0f;
constexpr int32_t kRounderBits = 0x4B400000;

BITMTP_INLINE f8 round_even(f8 x) { return (x + broadcast(kRounder)) - broadcast(kRounder); }
BITMTP_INLINE i8 round_even_int(f8 x) { return as_bits(x + broadcast(kRounder)) - broadcast(kRounderBits); }

// round_even_int clamped to [low, high]; a NaN gives 0, so that bad input stays defined.
BITMTP_INLINE i8 round_code(f8 x, float low, float high) {
  const i8 numbers = x == x;
  return round_even_int(clamp(x, low, high)) & numbers;
}

// ---- rule 7: exp ------------------------------------------------------------------------------------------------------

constexpr float kExpLow = -87.3f;
constexpr float kExpHigh = 88.3f;

BITMTP_INLINE f8 exp8(f8 x) {
  x = clamp(x, kExpLow, kExpHigh);  // keeps a NaN, and p below hands it on
  const f8 shifted = x * broadcast(1.44269504f) + broadcast(kRounder);
  const f8 n = shifted - broadcast(kRounder);
  const f8 r = (x - n * broadcast(0.693359375f)) + n * broadcast(2.12194440e-4f);
  f8 p = broadcast(0.00138141739f);
  p = p * r + broadcast(0.00836892147f);
  p = p * r + broadcast(0.0416684076f);
  p = p * r + broadcast(0.166665196f);
  p = p * r + broadcast(0.49999994f);
  p = p * r + broadcast(1.0f);
  p = p * r + broadcast(1.0f);
  const i8 power = (as_bits(shifted) - broadcast(kRounderBits) + broadcast(127)) << 23;
  return p * as_float(power);
}
// As a softmax weight: 0 for anything below the range.
BITMTP_INLINE f8 exp8_weight(f8 x) {
  const i8 inside = ~(x < broadcast(kExpLow));
  return as_float(as_bits(exp8(x)) & inside);
}
BITMTP_INLINE float exp1(float x) { return exp8(broadcast(x))[0]; }
BITMTP_INLINE float exp1_weight(float x) { return exp8_weight(broadcast(x))[0]; }

// ---- fp16 -------------------------------------------------------------------------------------------------------------

// Exact both ways and to nearest even, subnormals and overflow included; only a NaN's payload is the instruction set's own.
BITMTP_INLINE float half_to_float(uint16_t h) {
#if defined(__F16C__)
  return _cvtsh_ss(h);
#elif defined(__aarch64__)
  __fp16 x;
  std::memcpy(&x, &h, sizeof x);
  return static_cast<float>(x);
#else
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t body = static_cast<uint32_t>(h & 0x7FFFu) << 13;
  float y;
  if (body >= 0x0F800000u) {  // infinity, NaN
    const uint32_t bits = sign | 0x70000000u | body;
    std::memcpy(&y, &bits, sizeof y);
    return y;
  }
  // Read with fp32's exponent bias the value is 2^112 too small: a subnormal of fp16 is one of fp32 and scales exactly.
  const uint32_t bits = body;
  std::memcpy(&y, &bits, sizeof y);
  y *= 5.192296858534828e33f;  // 2^112
  uint32_t out;
  std::memcpy(&out, &y, sizeof out);
  out |= sign;
  std::memcpy(&y, &out, sizeof y);
  return y;
#endif
}

BITMTP_INLINE uint16_t float_to_half(float x) {
#if defined(__F16C__)
  return _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__aarch64__)
  const __fp16 y = static_cast<__fp16>(x);
  uint16_t h;
  std::memcpy(&h, &y, sizeof h);
  return h;
#else
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  bits &= 0x7FFFFFFFu;
  if (bits > 0x7F800000u) return static_cast<uint16_t>(sign | 0x7E00u);
  if (bits >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7C00u);  // 2^16 and up
  if (bits < 0x38800000u) {  // a subnormal: adding 0.5 makes fp32 round it at fp16's last place
    float y;
    std::memcpy(&y, &bits, sizeof y);
    y += 0.5f;
    std::memcpy(&bits, &y, sizeof bits);
    return static_cast<uint16_t>(sign | (bits - 0x3F000000u));
  }
  bits += 0xFFFu + ((bits >> 13) & 1u);  // half to even; a carry into the exponent is right, also up to infinity
  return static_cast<uint16_t>(sign | ((bits - 0x38000000u) >> 13));
#endif
}

BITMTP_INLINE f8 load_half8(const uint16_t *p) {
#if defined(__F16C__)
  __m128i h;
  std::memcpy(&h, p, sizeof h);
  return reinterpret_cast<f8>(_mm256_cvtph_ps(h));
#elif defined(__aarch64__)
  const float16x8_t h = vreinterpretq_f16_u16(vld1q_u16(p));
  return f8{vcvt_f32_f16(vget_low_f16(h)), vcvt_f32_f16(vget_high_f16(h))};
#else
  float t[kLanes];
  for (int32_t i = 0; i < kLanes; ++i) t[i] = half_to_float(p[i]);
  return load8(t);
#endif
}
BITMTP_INLINE void store_half8(uint16_t *p, f8 x) {
#if defined(__F16C__)
  const __m128i h = _mm256_cvtps_ph(reinterpret_cast<__m256>(x), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  std::memcpy(p, &h, sizeof h);
#else
  for (int32_t i = 0; i < kLanes; ++i) p[i] = float_to_half(x[i]);
#endif
}

// ---- rule 3: per-token int8 -------------------------------------------------------------------------------------------

// Largest |x| of a row, tracked as bits: their order is that of the values, and a NaN comes out on top instead of getting lost.
BITMTP_INLINE i8 amax_step(i8 most, f8 x) {
  const i8 bits = as_bits(x) & broadcast(0x7FFFFFFF);
  return select(bits > most, bits, most);
}
BITMTP_INLINE float amax_value(i8 most) {
  int32_t top = most[0];
  for (int32_t i = 1; i < kLanes; ++i) top = most[i] > top ? most[i] : top;
  float y;
  std::memcpy(&y, &top, sizeof y);
  return y;
}

// Eight codes as bytes, in order. (Little endian only, as is the layout.)
BITMTP_INLINE void store_codes8(int8_t *p, i8 codes) {
#if defined(__AVX2__)
  const __m256i v = reinterpret_cast<__m256i>(codes);
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i *>(p), _mm_packs_epi16(words, words));
#else
  for (int32_t i = 0; i < kLanes; ++i) p[i] = static_cast<int8_t>(codes[i]);
#endif
}

BITMTP_INLINE int32_t pad64(int32_t n) { return (n + 63) / 64 * 64; }

// A row's codes and scale. `at(i)` gives elements i .. i+7, zeros past K; it is called twice for each i, because computing a
// value again costs less than a row of scratch memory for each thread.
template <class At>
BITMTP_INLINE void quantise_row_of(const At &at, int32_t K, int32_t *codes, float *scale) {
  i8 most = {};
  for (int32_t i = 0; i < K; i += kLanes) most = amax_step(most, at(i));
  float amax = amax_value(most);
  amax = amax < 1e-10f ? 1e-10f : amax;
  *scale = amax / 127.0f;
  const f8 inverse = broadcast(127.0f / amax);
  int8_t *bytes = reinterpret_cast<int8_t *>(codes);
  int32_t i = 0;
  for (; i < K; i += kLanes) store_codes8(bytes + i, round_code(at(i) * inverse, -127.0f, 127.0f));
  std::memset(bytes + i, 0, static_cast<size_t>(pad64(K) - i));
}

BITMTP_INLINE void quantise_row(const float *x, int32_t K, int32_t *codes, float *scale) {
  quantise_row_of([=](int32_t i) BITMTP_LAMBDA { return load_row(x, i, K); }, K, codes, scale);
}

// Rule 4's factor: x * this * weight is the norm.
BITMTP_INLINE float rms_factor(float sum_of_squares, int32_t K, float epsilon) {
  return 1.0f / __builtin_sqrtf(sum_of_squares / static_cast<float>(K) + epsilon);
}

}  // namespace BITMTP_ISA
}  // namespace bitmtp
