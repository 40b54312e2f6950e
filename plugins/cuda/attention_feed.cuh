// Brings a warp its keys and values: a ring of slots in shared memory, filled by asynchronous copies.
//
// A slot holds a score tile of keys, or a step's values in the half of the columns that the warp adds up; either is eight rows' worth
// of bytes. A warp reads its own ring alone. First come the tiles of all steps, then the values of all steps.
#pragma once

#include <cstdint>

#include "attention_layout.cuh"
#include "attention_math.cuh"
#include "bitmtp/abi.h"

namespace bitmtp {
namespace cuda {
namespace attention {

BITMTP_BOTH int32_t within(int32_t x, int32_t low, int32_t high) { return x < low ? low : x > high ? high : x; }

template <int D, bool kNested>
struct Stored {
  static constexpr int kRow = kNested ? D / 2 : 2 * D;  // bytes of a head
  static constexpr int kPlane = kKeys * kRow;           // of a slot; the refinement follows where it is read
  static constexpr int kOwnRow = (kNested ? 4 : 2) * kRow;  // of a window row that a thread block rounds for itself
  static constexpr int kRing = kNested ? 8 * kPlane : 4 * kPlane;
};

// One KV head of a window's stored rows, in device or shared memory, one row every `stride` bytes.
struct WindowRows {
  const uint8_t *rows, *refinement;  // of the key; the value lies `value` bytes further
  const uint16_t *scale;             // of the key; the value's is scale[value_scale]
  int64_t stride, value;
  int32_t scale_stride, value_scale;
};

// The part of a unit that one warp reads. `steps` is even; those past the window are zeros.
template <int D, bool kNested>
struct Feeder {
  using S = Stored<D, kNested>;

  const bitmtp_nested_kv_attention_args &a;
  const uint8_t *own;  // stored rows of a narrow window, in shared memory: keys, values, refinement of both; then scales
  uint32_t ring;     // shared address
  uint32_t scales;   // float [steps, 4, 4]: of codes of the two keys of each quarter of a warp, then of their values
  int32_t first;     // position of step 0
  int32_t history, kv4;
  int32_t kv, half, lane;
  int32_t steps, slots, slot_bytes;

  // Made where it is needed, which is seldom: its parts are not worth registers.
  __device__ __forceinline__ WindowRows window() const {
    constexpr int64_t kOwn = S::kOwnRow;
    if (a.M <= kOwnRows) return {own, own + 2 * S::kRow, reinterpret_cast<const uint16_t *>(own + a.M * kOwn), kOwn, S::kRow, 2, 1};
    const int64_t head = int64_t{kv} * S::kRow;
    return {static_cast<const uint8_t *>(a.new_rows) + head, reinterpret_cast<const uint8_t *>(a.new_refinement) + head,
            a.new_scale + kv, int64_t{2} * a.Hkv * S::kRow, int64_t{a.Hkv} * S::kRow, 2 * a.Hkv, a.Hkv};
  }
  __device__ __forceinline__ int32_t position(int32_t step) const { return first + step * kRound; }
  // Steps are read in pairs, both alike.
  __device__ __forceinline__ bool fine(int32_t step) const { return kNested && position(step | 1) + kStep > kv4; }
  __device__ __forceinline__ bool windowed(int32_t step) const { return position(step) + kStep > history; }
  __device__ __forceinline__ uint32_t slot(int32_t n) const { return ring + (n & (slots - 1)) * slot_bytes; }

  // This lane has the 16-byte pieces `piece` of rows row, row + kApart, ... of a slot: keys of its tile, or (value) halves of the step's
  // values. Calls f(row of the slot, byte of the row's head, shared address) for each.
  template <bool value, class F>
  __device__ __forceinline__ void pieces(int32_t n, const F &f) const {
    constexpr int kOfRow = S::kRow / 16 / (value ? 2 : 1), kApart = 32 / kOfRow, kRows = value ? kStep : kKeys;
    const int32_t first_row = lane / kOfRow, piece = lane % kOfRow, byte = 16 * piece + (value ? S::kRow / 2 * half : 0);
    if (kApart > kRows && first_row >= kRows) return;
    const uint32_t to = slot(n);
#pragma unroll
    for (int32_t u = 0; u < kRows; u += kApart) {
      const int32_t row = first_row + u;
      f(row, u, byte, to + (value ? staged_value<S::kRow / 2>(row, piece) : staged_key<S::kRow>(row, piece)));
    }
  }

  template <bool value>
  __device__ __forceinline__ void fetch_rows(int32_t n, int32_t step) const {
    constexpr int kOfRow = S::kRow / 16 / (value ? 2 : 1);
    const int32_t p = position(step) + (value ? 0 : kKeys * half);
    const bool both = fine(step);
    const int64_t row_bytes = int64_t{2 * S::kRow} * a.Hkv;
    const int64_t first_byte = (p + lane / kOfRow) * row_bytes + (kv + (value ? a.Hkv : 0)) * S::kRow;
    pieces<value>(n, [&](int32_t row, int32_t apart, int32_t byte, uint32_t at) {
      if (p + row >= history) return;
      const int64_t from = first_byte + apart * row_bytes + byte;
      copy_async16(at, static_cast<const uint8_t *>(a.history) + from);
      if (!kNested || !both) return;
      if (p + row >= kv4) {
        copy_async16(at + S::kPlane, reinterpret_cast<const uint8_t *>(a.history_refinement) + from);
      } else {
        store_shared16(at + S::kPlane, {0x88888888u, 0x88888888u, 0x88888888u, 0x88888888u});
      }
    });
  }
  template <bool value>
  __device__ __forceinline__ void fill_rows(int32_t n, int32_t step) const {
    const int32_t p = position(step) + (value ? 0 : kKeys * half) - history;
    const WindowRows rows = window();
    pieces<value>(n, [&](int32_t row, int32_t, int32_t byte, uint32_t at) {
      if (p + row < 0) return;
      const int64_t from = (p + row) * rows.stride + (value ? rows.value : 0) + byte;
      const bool inside = p + row < a.M;
      store_shared16(at, inside ? *reinterpret_cast<const uint4 *>(rows.rows + from) : uint4{0, 0, 0, 0});
      if (kNested) store_shared16(at + S::kPlane, inside ? *reinterpret_cast<const uint4 *>(rows.refinement + from) : uint4{0, 0, 0, 0});
    });
  }

  // Starts copies of slot n's history. Nothing of it is written in a step, so this may run before the wait.
  __device__ __forceinline__ void fetch(int32_t n) const {
    if (n < steps) {
      fetch_rows<false>(n, n);
    } else {
      fetch_rows<true>(n, n - steps);
    }
  }
  // Writes slot n's window rows, the t-th slot at position history + t as in a causal window, and zeros past the window.
  __device__ __forceinline__ void fill(int32_t n) const {
    if (n < steps) {
      if (windowed(n)) fill_rows<false>(n, n);
    } else {
      if (windowed(n - steps)) fill_rows<true>(n, n - steps);
    }
  }

  // Scales of the history, and (kWindow) of the window.
  template <bool kWindow>
  __device__ __forceinline__ void load_scales() const {
    const int32_t key = kKeys * half + key_of(lane / 4 % 4 * 2 + lane % 2), value = lane / 2 % 2;
    for (int32_t step = lane / 16; step < steps; step += 2) {
      const int32_t p = position(step) + key, row = p - history;
      if (kWindow != (row >= 0)) continue;
      uint16_t bits = 0;
      if (!kWindow) {
        bits = a.history_scale[(int64_t{p} * 2 + value) * a.Hkv + kv];
      } else if (row < a.M) {
        const WindowRows rows = window();
        bits = rows.scale[row * rows.scale_stride + value * rows.value_scale];
      }
      store_shared4(scales + 4 * (16 * step + lane % 16), __float_as_uint(mul(__half2float(__ushort_as_half(bits)), unit_of_code(step))));
    }
  }
  __device__ __forceinline__ float unit_of_code(int32_t step) const { return fine(step) ? 0.0625f : 1.0f; }  // in scales

};

}  // namespace attention
}  // namespace cuda
}  // namespace bitmtp
