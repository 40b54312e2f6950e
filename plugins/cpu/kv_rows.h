// Stored KV rows (rule 10 of docs/numerics.md): how a head's vector is rounded to its stored form, and read back as floats.
#pragma once

#include <cstdint>

#include "arith.h"

namespace bitmtp {
namespace BITMTP_ISA {

constexpr int32_t kNibbleZero = 8;
constexpr int32_t kComposedZero = 16 * kNibbleZero + kNibbleZero;  // of 16q + r as stored

// A head's words of both planes as float codes 16q + r. No refinement: r = 0. `words` = D/8.
BITMTP_INLINE void read_nested(const int32_t *base, const int32_t *refinement, int32_t words, float *codes) {
  int32_t w = 0;
#if defined(__AVX2__)
  const __m128i low = _mm_set1_epi8(0x0F), high = _mm_set1_epi8(static_cast<char>(0xF0));
  const __m128i zero = _mm_set1_epi8(static_cast<char>(kComposedZero));
  for (; w + 4 <= words; w += 4) {
    const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i *>(base + w));
    const __m128i r = refinement ? _mm_loadu_si128(reinterpret_cast<const __m128i *>(refinement + w)) : _mm_set1_epi8(0x88 - 256);
    const __m128i even = _mm_or_si128(_mm_and_si128(_mm_slli_epi16(b, 4), high), _mm_and_si128(r, low));
    const __m128i odd = _mm_or_si128(_mm_and_si128(b, high), _mm_and_si128(_mm_srli_epi16(r, 4), low));
    // Bytes of `even` are columns 0-3 of each word, of `odd` columns 4-7.
    const __m128i first = _mm_sub_epi8(_mm_unpacklo_epi32(even, odd), zero);
    const __m128i last = _mm_sub_epi8(_mm_unpackhi_epi32(even, odd), zero);
    float *out = codes + 8 * w;
    _mm256_storeu_ps(out, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(first)));
    _mm256_storeu_ps(out + 8, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(first, 8))));
    _mm256_storeu_ps(out + 16, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(last)));
    _mm256_storeu_ps(out + 24, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(last, 8))));
  }
#elif defined(__aarch64__)
  const uint8x16_t low = vdupq_n_u8(0x0F), high = vdupq_n_u8(0xF0), zero = vdupq_n_u8(kComposedZero);
  for (; w + 4 <= words; w += 4) {
    const uint8x16_t b = vld1q_u8(reinterpret_cast<const uint8_t *>(base + w));
    const uint8x16_t r = refinement ? vld1q_u8(reinterpret_cast<const uint8_t *>(refinement + w)) : vdupq_n_u8(0x88);
    const uint32x4_t even = vreinterpretq_u32_u8(vorrq_u8(vshlq_n_u8(b, 4), vandq_u8(r, low)));
    const uint32x4_t odd = vreinterpretq_u32_u8(vorrq_u8(vandq_u8(b, high), vshrq_n_u8(r, 4)));
    // Bytes of `even` are columns 0-3 of each word, of `odd` columns 4-7.
    const uint8x16_t halves[2] = {vreinterpretq_u8_u32(vzip1q_u32(even, odd)), vreinterpretq_u8_u32(vzip2q_u32(even, odd))};
    for (int32_t h = 0; h < 2; ++h) {
      const int8x16_t c = vreinterpretq_s8_u8(vsubq_u8(halves[h], zero));
      const int16x8_t c0 = vmovl_s8(vget_low_s8(c)), c1 = vmovl_s8(vget_high_s8(c));
      float *out = codes + 8 * w + 16 * h;
      vst1q_f32(out, vcvtq_f32_s32(vmovl_s16(vget_low_s16(c0))));
      vst1q_f32(out + 4, vcvtq_f32_s32(vmovl_s16(vget_high_s16(c0))));
      vst1q_f32(out + 8, vcvtq_f32_s32(vmovl_s16(vget_low_s16(c1))));
      vst1q_f32(out + 12, vcvtq_f32_s32(vmovl_s16(vget_high_s16(c1))));
    }
  }
#endif
  for (; w < words; ++w) {
    const uint32_t b = static_cast<uint32_t>(base[w]);
    const uint32_t r = refinement ? static_cast<uint32_t>(refinement[w]) : 0x88888888u;
    for (int32_t i = 0; i < 8; ++i) {
      const int32_t shift = 8 * (i % 4) + 4 * (i / 4);
      codes[8 * w + i] = static_cast<float>(static_cast<int32_t>((b >> shift & 15u) << 4 | (r >> shift & 15u)) - kComposedZero);
    }
  }
}

// Eight unsigned nibbles, lanes 0-3 in the low and 4-7 in the high halves of a word's bytes.
BITMTP_INLINE int32_t pack_nibbles(i8 codes) {
  uint32_t word = 0;
  for (int32_t b = 0; b < 4; ++b) {
    word |= static_cast<uint32_t>(codes[b] | codes[b + 4] << 4) << (8 * b);
  }
  return static_cast<int32_t>(word);
}

// Rounds x[D] to a nested entry. Gives its scale, and its value as float codes 16q + r (value = code * scale / 16).
BITMTP_INLINE uint16_t write_nested(const float *x, int32_t D, int32_t *base, int32_t *refinement, float *codes) {
  i8 most = {};
  for (int32_t i = 0; i < D; i += kLanes) most = amax_step(most, load8(x + i));
  const float seventh = amax_value(most) / 7.0f;
  const uint16_t stored = float_to_half(seventh < 0x1p-14f ? 0x1p-14f : seventh);
  const float s = half_to_float(stored);
  const float inverse = 1.0f / s;
  const i8 zero = broadcast(kNibbleZero);
  for (int32_t i = 0; i < D; i += kLanes) {
    const f8 v = load8(x + i);
    const i8 q = round_code(v * broadcast(inverse), -7.0f, 7.0f);
    const i8 r = round_code((v - to_float(q) * broadcast(s)) * broadcast(16.0f * inverse), -8.0f, 7.0f);
    base[i / 8] = pack_nibbles(q + zero);
    refinement[i / 8] = pack_nibbles(r + zero);
    store8(codes + i, to_float((q << 4) + r));
  }
  return stored;
}

BITMTP_INLINE void read_half(const uint16_t *stored, int32_t D, float *values) {
  for (int32_t i = 0; i < D; i += kLanes) store8(values + i, load_half8(stored + i));
}

// Rounds x[D] to fp16, and gives the values stored.
BITMTP_INLINE void write_half(const float *x, int32_t D, uint16_t *stored, float *values) {
  for (int32_t i = 0; i < D; i += kLanes) store_half8(stored + i, load8(x + i));
  read_half(stored, D, values);
}

}  // namespace BITMTP_ISA
}  // namespace bitmtp
