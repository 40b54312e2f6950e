// The heart of NestedKVAttention on a GPU: a tile of eight query vectors over one block of 32 positions, by one warp.
//
// Dots run on the tensor cores with fp32's accuracy: a query, and later a softmax weight, is split in two fp16 numbers that fill the
// two halves of an instruction's sixteen rows, while codes are exact in fp16. The same instructions run for one query vector and
// for eight, for any window and for a block of any age, so a row's bits cannot depend on those.
#pragma once

#include <cstdint>

#include "attention_layout.cuh"
#include "attention_math.cuh"
#include "kv_rows.cuh"

namespace bitmtp {
namespace cuda {
namespace attention {

// ---- where keys and values are ----------------------------------------------------------------------------------------

enum Plane { kKey, kValue, kKeyRefinement, kValueRefinement };

// One KV head of a block as staged in shared memory: keys and values, rows permuted by staged(); then, nested, a pair of scales for
// each key, one of which is this head's, and the same for the values; then, where it is read, the refinement of both.
template <int D, bool kNested>
struct Stage {
  static constexpr int kRow = kNested ? D / 2 : 2 * D;  // bytes
  static constexpr int kPlane = kKeys * kRow;
  static constexpr int kScales = 2 * kPlane;
  static constexpr int kCoarse = kScales + (kNested ? 2 * kKeys * 4 : 0);  // bytes without refinement, and of fp16
  static constexpr int kFine = kCoarse + 2 * kPlane;

  static __device__ __forceinline__ constexpr int plane(Plane p) {
    return p < kKeyRefinement ? p * kPlane : kCoarse + (p - kKeyRefinement) * kPlane;
  }
};

// One KV head of a window's stored rows, in device or shared memory, one row every `stride` bytes.
struct WindowRows {
  const uint8_t *rows, *refinement;  // of the key; the value lies `value` bytes further
  const uint16_t *scale;             // of the key; the value's is scale[value_scale]
  int64_t stride, value;
  int32_t scale_stride, value_scale;
};

// Where a block's key comes from: its place in the stage, nowhere, or a window slot.
constexpr int32_t kStaged = -1, kNowhere = -2;

// Reads a block from its stage, or (kGather) for one row of a tree: history from the stage, the window slot by slot.
template <int D, bool kNested, bool kGather>
struct BlockReader {
  using S = Stage<D, kNested>;
  uint32_t stage;                     // shared address
  int32_t key_shift, value_shift;     // which half of a scale pair is this head's
  const WindowRows &window;           // kGather
  int32_t source_of_lane = kStaged;  // kGather: of key `lane`

  __device__ __forceinline__ int32_t source(int32_t key) const {
    return kGather ? __shfl_sync(kAllLanes, source_of_lane, key) : kStaged;
  }

  // Words of a key from byte `at` of its row.
  template <int n>
  __device__ __forceinline__ void load(uint32_t (&x)[n], Plane plane, int32_t key, int32_t from, int32_t at) const {
    if (!kGather || from == kStaged) {
      const uint32_t address = stage + S::plane(plane) + staged<S::kRow>(key, at >> 4) + (at & 15);
      if constexpr (n == 4) {
        const uint4 v = load_shared16(address);
        x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
      } else if constexpr (n == 2) {
        const uint2 v = load_shared8(address);
        x[0] = v.x, x[1] = v.y;
      } else {
        x[0] = load_shared4(address);
      }
      return;
    }
    const bool fine = plane >= kKeyRefinement, value = plane == kValue || plane == kValueRefinement;
    const int64_t offset = from * window.stride + (value ? window.value : 0) + at;
#pragma unroll
    for (int32_t w = 0; w < n; ++w) {
      x[w] = from >= 0 ? reinterpret_cast<const uint32_t *>((fine ? window.refinement : window.rows) + offset)[w] : 0u;
    }
  }

  // The scale of key `lane`, or of its value.
  __device__ __forceinline__ float scale(bool value, int32_t lane) const {
    uint32_t half;
    if (!kGather || source_of_lane == kStaged) {
      half = load_shared4(stage + S::kScales + (value ? kKeys * 4 : 0) + 4 * lane) >> (value ? value_shift : key_shift);
    } else {
      half = source_of_lane >= 0 ? window.scale[source_of_lane * window.scale_stride + (value ? window.value_scale : 0)] : 0u;
    }
    return __half2float(__ushort_as_half(static_cast<uint16_t>(half)));
  }
};

// ---- one block --------------------------------------------------------------------------------------------------------

// What a thread knows of the query vector lane/4 of its tile: columns 2*(lane%4) and the next of each accumulator tile.
template <int D>
struct Partial {
  float acc[D / 8][2];
  float m, l;

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int32_t i = 0; i < D / 8; ++i) acc[i][0] = acc[i][1] = 0.0f;
    m = minus_infinity(), l = 0.0f;
  }
};

// Dots of the tile with the block's keys: d[i][0] and d[i][1] (high parts), d[i][2] and d[i][3] (low parts) are those of query
// vector lane/4 with the keys key_of(i, 2*(lane%4)) and key_of(i, 2*(lane%4) + 1).
template <int D, bool kNested, bool kFine, bool kGather>
__device__ __forceinline__ void dot_block(const BlockReader<D, kNested, kGather> &reader, uint32_t fragments, int32_t lane,
                                          float (&d)[4][4]) {
  const int32_t n = lane / 4, thread = lane % 4;
  const auto fragment = [&](int32_t step) { return load_shared16(fragments + (step * 32 + lane) * 16); };
  if constexpr (kNested) {
    constexpr int kWords = D / 32;
    uint32_t base[4][kWords], refinement[4][kWords];
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      const int32_t key = key_of(i, n), from = reader.source(key);
      reader.load(base[i], kKey, key, from, 4 * kWords * thread);
      if (kFine) reader.load(refinement[i], kKeyRefinement, key, from, 4 * kWords * thread);
    }
#pragma unroll
    for (int32_t w = 0; w < kWords; ++w) {
      const uint4 low = fragment(2 * w), high = fragment(2 * w + 1);
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        if (kFine) {
          const uint32_t x = composed_low(base[i][w], refinement[i][w]), y = composed_high(base[i][w], refinement[i][w]);
          mma(d[i], low, low_bytes(x), low_bytes(x >> 8));
          mma(d[i], high, low_bytes(y), low_bytes(y >> 8));
        } else {
          const uint32_t x = base[i][w], y = x >> 8;
          mma(d[i], low, low_nibbles(x), low_nibbles(y));
          mma(d[i], high, high_nibbles(x), high_nibbles(y));
        }
      }
    }
  } else {
    int32_t from[4];
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) from[i] = reader.source(key_of(i, n));
#pragma unroll
    for (int32_t j = 0; j < D / 32; ++j) {
      const uint4 low = fragment(2 * j), high = fragment(2 * j + 1);
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        uint32_t x[4];
        reader.load(x, kKey, key_of(i, n), from[i], 16 * (4 * j + thread));
        mma(d[i], low, x[0], x[1]);
        mma(d[i], high, x[2], x[3]);
      }
    }
  }
}

// acc += (weights . values)*b. Weights are fragments of the keys of score tiles 0, 1 and 2, 3.
template <int D, bool kNested, bool kFine, bool kGather>
__device__ __forceinline__ void weigh_block(const BlockReader<D, kNested, kGather> &reader, const uint4 (&weights)[2], float b,
                                            int32_t lane, Partial<D> &state) {
  const int32_t n = lane / 4, thread = lane % 4;
  const auto fold = [&](int32_t tile, const uint32_t (&v)[4]) {
    float o[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    mma(o, weights[0], v[0], v[1]);
    mma(o, weights[1], v[2], v[3]);
    state.acc[tile][0] = fma_(add(o[0], o[2]), b, state.acc[tile][0]);
    state.acc[tile][1] = fma_(add(o[1], o[3]), b, state.acc[tile][1]);
  };
  if constexpr (kNested) {
    constexpr int kWords = D / 64;
    uint32_t base[4][2][kWords], refinement[4][2][kWords];
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
#pragma unroll
      for (int32_t k = 0; k < 2; ++k) {
        const int32_t key = key_of(i, 2 * thread + k), from = reader.source(key);
        reader.load(base[i][k], kValue, key, from, 4 * kWords * n);
        if (kFine) reader.load(refinement[i][k], kValueRefinement, key, from, 4 * kWords * n);
      }
    }
#pragma unroll
    for (int32_t w = 0; w < kWords; ++w) {
      uint32_t low[4][2], high[4][2];
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
#pragma unroll
        for (int32_t k = 0; k < 2; ++k) {
          low[i][k] = kFine ? composed_low(base[i][k][w], refinement[i][k][w]) : base[i][k][w];
          high[i][k] = kFine ? composed_high(base[i][k][w], refinement[i][k][w]) : base[i][k][w];
        }
      }
#pragma unroll
      for (int32_t c = 0; c < 4; ++c) {
        const uint32_t bytes = 0x4400u + 0x1111u * c;  // byte c of the two keys to bytes 0 and 2
        uint32_t x[4], y[4];
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {
          const uint32_t l = __byte_perm(low[i][0], low[i][1], bytes);
          const uint32_t h = kFine ? __byte_perm(high[i][0], high[i][1], bytes) : l;
          x[i] = kFine ? low_bytes(l) : low_nibbles(l);
          y[i] = kFine ? low_bytes(h) : high_nibbles(h);
        }
        fold(8 * w + c, x);
        fold(8 * w + 4 + c, y);
      }
    }
  } else {
    int32_t from[4][2];
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
#pragma unroll
      for (int32_t k = 0; k < 2; ++k) from[i][k] = reader.source(key_of(i, 2 * thread + k));
    }
#pragma unroll
    for (int32_t j = 0; j < D / 64; ++j) {
      uint32_t v[4][2][4];
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
#pragma unroll
        for (int32_t k = 0; k < 2; ++k) reader.load(v[i][k], kValue, key_of(i, 2 * thread + k), from[i][k], 16 * (n + 8 * j));
      }
#pragma unroll
      for (int32_t w = 0; w < 4; ++w) {
        uint32_t x[4], y[4];
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {
          x[i] = __byte_perm(v[i][0][w], v[i][1][w], 0x5410);
          y[i] = __byte_perm(v[i][0][w], v[i][1][w], 0x7632);
        }
        fold(8 * j + 2 * w, x);
        fold(8 * j + 2 * w + 1, y);
      }
    }
  }
}

// Folds the block into `state`. This thread's query vector sees the first `seen` keys. kFine: codes of both planes.
template <int D, bool kNested, bool kFine, bool kGather>
__device__ __forceinline__ void attend_block(const BlockReader<D, kNested, kGather> &reader, uint32_t fragments, float factor,
                                             int32_t seen, int32_t lane, Partial<D> &state) {
  const int32_t thread = lane % 4;
  constexpr float kUnit = kFine ? 0.0625f : 1.0f;  // of a code, in scales
  float d[4][4] = {};
  dot_block<D, kNested, kFine, kGather>(reader, fragments, lane, d);

  float key_scale = 1.0f, value_scale = 1.0f;  // of key `lane`
  if (kNested) {
    key_scale = mul(reader.scale(false, lane), kUnit);
    value_scale = mul(reader.scale(true, lane), kUnit);
  }
  float e[4][2];
  float m = minus_infinity();
#pragma unroll
  for (int32_t i = 0; i < 4; ++i) {
#pragma unroll
    for (int32_t k = 0; k < 2; ++k) {
      const int32_t key = key_of(i, 2 * thread + k);
      float dot = add(d[i][k], d[i][k + 2]);
      if (kNested) dot = mul(dot, __shfl_sync(kAllLanes, key_scale, key));
      e[i][k] = key < seen ? mul(dot, factor) : minus_infinity();
      m = fmaxf(m, e[i][k]);
    }
  }
  m = lanes_max<4>(m);
  const float top = reference_of(m);
  float sums[4];
#pragma unroll
  for (int32_t i = 0; i < 4; ++i) {
    e[i][0] = power2(sub(e[i][0], top));
    e[i][1] = power2(sub(e[i][1], top));
    sums[i] = add(e[i][0], e[i][1]);
  }
  const float l = lanes_sum<4>(add(add(sums[0], sums[1]), add(sums[2], sums[3])));

  Shift shift = {0x1p13f, 0x1p-13f};  // the largest weight is 1, but for the values' scales
  if (kNested) {
    float largest_weight = 0.0f;
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
#pragma unroll
      for (int32_t k = 0; k < 2; ++k) {
        const int32_t key = key_of(i, 2 * thread + k);
        const float weight = mul(e[i][k], __shfl_sync(kAllLanes, value_scale, key));
        e[i][k] = key < seen ? weight : 0.0f;
        largest_weight = fmaxf(largest_weight, e[i][k]);
      }
    }
    shift = shift_of(lanes_max<4>(largest_weight));
  }
  uint4 weights[2];
#pragma unroll
  for (int32_t i = 0; i < 2; ++i) {
    split(mul(e[2 * i][0], shift.up), mul(e[2 * i][1], shift.up), weights[i].x, weights[i].y);
    split(mul(e[2 * i + 1][0], shift.up), mul(e[2 * i + 1][1], shift.up), weights[i].z, weights[i].w);
  }

  const float both = fmaxf(state.m, m), reference = reference_of(both);
  const float a = power2(sub(state.m, reference)), b = power2(sub(m, reference));
  // Times 1, or zeros times anything, leaves the bits alone: where that is so for all eight vectors, it can be left out.
  if (__any_sync(kAllLanes, a != 1.0f && state.m != minus_infinity())) {
#pragma unroll
    for (int32_t i = 0; i < D / 8; ++i) {
      state.acc[i][0] = mul(state.acc[i][0], a);
      state.acc[i][1] = mul(state.acc[i][1], a);
    }
  }
  state.m = both;
  state.l = fma_(l, b, mul(state.l, a));
  weigh_block<D, kNested, kFine, kGather>(reader, weights, mul(b, shift.down), lane, state);
}

}  // namespace attention
}  // namespace cuda
}  // namespace bitmtp
