// The integer half of a linear operator on one instruction set: eight packed words beside each other, one of each row of a tile,
// their codes, and the exact dot products with activation codes.
//
// Every set has the same names:
//   Word                     eight packed words; load_word, shift_right, mask_bytes
//   Small                    four unsigned codes of at most 15 a row, for one activation word
//   Bytes                    the same with codes up to 255; composed() joins the s-th nibbles of a base and a refinement word
//   kByteBias                what Bytes have subtracted from an unsigned code, where the processor only multiplies signed bytes
//   Quad                     four successive activation words; load_quad
//   Dot<Small>, Dot<Bytes>   add() multiplies with word i of a quad; settle() must come after every 8 of them at the latest
//                            (after 16 where the codes are ternary)
//
// Sums wrap modulo 2^32 everywhere, so that even codes no exporter writes give the same number on every set.
#pragma once

#include "arith.h"

namespace bitmtp {
namespace BITMTP_ISA {

template <class Codes>
struct Dot;

#if defined(__AVX2__)

typedef __m256i Word;

BITMTP_INLINE Word load_word(const int32_t *p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)); }
BITMTP_INLINE Word shift_right(Word w, int n) { return _mm256_srli_epi32(w, n); }
BITMTP_INLINE Word mask_bytes(Word w, int m) { return _mm256_and_si256(w, _mm256_set1_epi8(static_cast<char>(m))); }

// Left in memory: a load that broadcasts a word to all lanes is no slower than a plain one.
struct Quad {
  const int32_t *words;
};
BITMTP_INLINE Quad load_quad(const int32_t *p) { return {p}; }

constexpr int32_t kByteBias = 0;

struct Small {
  Word v;
};
BITMTP_INLINE Small small(Word w) { return {w}; }

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)

struct Bytes {
  Word v;
};
BITMTP_INLINE Bytes whole(Word w) { return {w}; }
BITMTP_INLINE Bytes composed(Word q, Word r, int s) {
  if (s == 0) {
    q = _mm256_slli_epi32(q, 4);
    return {_mm256_or_si256(mask_bytes(q, 0xF0), mask_bytes(r, 0x0F))};
  }
  return {_mm256_or_si256(mask_bytes(q, 0xF0), mask_bytes(shift_right(r, 4), 0x0F))};
}

template <class Codes>
struct Dot {
  Word sum = _mm256_setzero_si256();

  __attribute__((always_inline)) void add(Codes codes, Quad x, int i) {
#if defined(__AVX512VNNI__)
    sum = _mm256_dpbusd_epi32(sum, codes.v, _mm256_set1_epi32(x.words[i]));
#else
    sum = _mm256_dpbusd_avx_epi32(sum, codes.v, _mm256_set1_epi32(x.words[i]));
#endif
  }
  __attribute__((always_inline)) void settle() {}
  __attribute__((always_inline)) i8 total() const { return reinterpret_cast<i8>(sum); }
};

#else  // AVX2 alone

// vpmaddubsw saturates at int16, so bytes stay split into nibbles: 2 * 15 * 128 * 8 additions fit.
struct Bytes {
  Word high, low;
};
BITMTP_INLINE Bytes whole(Word w) { return {mask_bytes(shift_right(w, 4), 0x0F), mask_bytes(w, 0x0F)}; }
BITMTP_INLINE Bytes composed(Word q, Word r, int s) {
  return {mask_bytes(shift_right(q, 4 * s), 0x0F), mask_bytes(shift_right(r, 4 * s), 0x0F)};
}

template <>
struct Dot<Small> {
  Word sum = _mm256_setzero_si256();
  Word part = _mm256_setzero_si256();  // int16

  __attribute__((always_inline)) void add(Small codes, Quad x, int i) {
    part = _mm256_add_epi16(part, _mm256_maddubs_epi16(codes.v, _mm256_set1_epi32(x.words[i])));
  }
  __attribute__((always_inline)) void settle() {
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(part, _mm256_set1_epi16(1)));
    part = _mm256_setzero_si256();
  }
  __attribute__((always_inline)) i8 total() const { return reinterpret_cast<i8>(sum); }
};

template <>
struct Dot<Bytes> {
  Word sum = _mm256_setzero_si256();
  Word high = _mm256_setzero_si256();  // int16
  Word low = _mm256_setzero_si256();   // int16

  __attribute__((always_inline)) void add(Bytes codes, Quad x, int i) {
    const Word a = _mm256_set1_epi32(x.words[i]);
    high = _mm256_add_epi16(high, _mm256_maddubs_epi16(codes.high, a));
    low = _mm256_add_epi16(low, _mm256_maddubs_epi16(codes.low, a));
  }
  __attribute__((always_inline)) void settle() {
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(high, _mm256_set1_epi16(16)));
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(low, _mm256_set1_epi16(1)));
    high = low = _mm256_setzero_si256();
  }
  __attribute__((always_inline)) i8 total() const { return reinterpret_cast<i8>(sum); }
};

#endif

#elif defined(BITMTP_NEON_DOT)

struct Word {
  uint8x16_t a, b;  // rows 0-3, rows 4-7
};

BITMTP_INLINE Word load_word(const int32_t *p) {
  const uint8_t *bytes = reinterpret_cast<const uint8_t *>(p);
  return {vld1q_u8(bytes), vld1q_u8(bytes + 16)};
}
// Of every byte: bits that come from the byte above are gone anyway once the codes are masked.
BITMTP_INLINE Word shift_right(Word w, int n) { return {w.a >> n, w.b >> n}; }
BITMTP_INLINE Word mask_bytes(Word w, int m) {
  const uint8x16_t mask = vdupq_n_u8(static_cast<uint8_t>(m));
  return {vandq_u8(w.a, mask), vandq_u8(w.b, mask)};
}
BITMTP_INLINE Word flip_top_bits(Word w) {
  const uint8x16_t top = vdupq_n_u8(0x80);
  return {veorq_u8(w.a, top), veorq_u8(w.b, top)};
}

typedef int8x16_t Quad;
BITMTP_INLINE Quad load_quad(const int32_t *p) { return vreinterpretq_s8_s32(vld1q_s32(p)); }

constexpr int32_t kByteBias = 128;

struct Small {
  Word v;
};
struct Bytes {
  Word v;
};
BITMTP_INLINE Small small(Word w) { return {w}; }
BITMTP_INLINE Bytes whole(Word w) { return {flip_top_bits(w)}; }
BITMTP_INLINE Bytes composed(Word q, Word r, int s) {
  if (s == 0) return whole({vsliq_n_u8(r.a, q.a, 4), vsliq_n_u8(r.b, q.b, 4)});
  return whole({vsriq_n_u8(q.a, r.a, 4), vsriq_n_u8(q.b, r.b, 4)});
}

BITMTP_INLINE i8 join(int32x4_t a, int32x4_t b) { return i8{reinterpret_cast<i4>(a), reinterpret_cast<i4>(b)}; }

#if defined(__ARM_FEATURE_DOTPROD)

template <class Codes>
struct Dot {
  int32x4_t a = vdupq_n_s32(0);
  int32x4_t b = vdupq_n_s32(0);

  __attribute__((always_inline)) void add(Codes codes, Quad x, int i) {
    // The lane is part of the instruction: callers unroll, so that one case remains.
    switch (i) {
      case 0: return add_lane<0>(codes, x);
      case 1: return add_lane<1>(codes, x);
      case 2: return add_lane<2>(codes, x);
      default: return add_lane<3>(codes, x);
    }
  }
  template <int kLane>
  __attribute__((always_inline)) void add_lane(Codes codes, Quad x) {
    a = vdotq_laneq_s32(a, vreinterpretq_s8_u8(codes.v.a), x, kLane);
    b = vdotq_laneq_s32(b, vreinterpretq_s8_u8(codes.v.b), x, kLane);
  }
  __attribute__((always_inline)) void settle() {}
  __attribute__((always_inline)) i8 total() const { return join(a, b); }
};

#else

// Two sums a row: those of columns 0 and 1 of every word, and of columns 2 and 3.
template <class Codes>
struct Dot {
  int32x4_t sum[4] = {vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0)};

  __attribute__((always_inline)) void add(Codes codes, Quad x, int i) {
    const int8x8_t word = vreinterpret_s8_s32(vdup_n_s32(vreinterpretq_s32_s8(x)[i]));
    const int8x16_t a = vreinterpretq_s8_u8(codes.v.a);
    const int8x16_t b = vreinterpretq_s8_u8(codes.v.b);
    sum[0] = vpadalq_s16(sum[0], vmull_s8(vget_low_s8(a), word));
    sum[1] = vpadalq_s16(sum[1], vmull_s8(vget_high_s8(a), word));
    sum[2] = vpadalq_s16(sum[2], vmull_s8(vget_low_s8(b), word));
    sum[3] = vpadalq_s16(sum[3], vmull_s8(vget_high_s8(b), word));
  }
  __attribute__((always_inline)) void settle() {}
  __attribute__((always_inline)) i8 total() const { return join(vpaddq_s32(sum[0], sum[1]), vpaddq_s32(sum[2], sum[3])); }
};

#endif

#else  // portable

typedef uint32_t u4 __attribute__((vector_size(16)));

struct Word {
  u4 a, b;  // rows 0-3, rows 4-7
};

BITMTP_INLINE Word load_word(const int32_t *p) {
  Word w;
  std::memcpy(&w.a, p, sizeof w.a);
  std::memcpy(&w.b, p + 4, sizeof w.b);
  return w;
}
BITMTP_INLINE Word shift_right(Word w, int n) { return {w.a >> n, w.b >> n}; }
BITMTP_INLINE Word mask_bytes(Word w, int m) {
  const uint32_t mask = static_cast<uint32_t>(m) * 0x01010101u;
  return {w.a & mask, w.b & mask};
}

struct Quad {
  const int32_t *words;
};
BITMTP_INLINE Quad load_quad(const int32_t *p) { return {p}; }

constexpr int32_t kByteBias = 0;

struct Small {
  Word v;
};
struct Bytes {
  Word v;
};
BITMTP_INLINE Small small(Word w) { return {w}; }
BITMTP_INLINE Bytes whole(Word w) { return {w}; }
BITMTP_INLINE Bytes composed(Word q, Word r, int s) {
  q = mask_bytes(shift_right(q, 4 * s), 0x0F);
  r = mask_bytes(shift_right(r, 4 * s), 0x0F);
  return {Word{q.a << 4 | r.a, q.b << 4 | r.b}};
}

template <class Codes>
struct Dot {
  u4 a = {};
  u4 b = {};

  __attribute__((always_inline)) void add(Codes codes, Quad x, int i) {
    const uint32_t word = static_cast<uint32_t>(x.words[i]);
    for (int shift = 0; shift < 32; shift += 8) {
      const uint32_t activation = static_cast<uint32_t>(static_cast<int8_t>(word >> shift));
      a += (codes.v.a >> shift & 0xFFu) * activation;
      b += (codes.v.b >> shift & 0xFFu) * activation;
    }
  }
  __attribute__((always_inline)) void settle() {}
  __attribute__((always_inline)) i8 total() const { return i8{reinterpret_cast<i4>(a), reinterpret_cast<i4>(b)}; }
};

#endif

}  // namespace BITMTP_ISA
}  // namespace bitmtp
