// GreedyHead: rule 12 of docs/numerics.md. The logits of a block of the vocabulary live on a thread's stack only, unless they
// are asked for.
#include "head_partial.h"
#include "kernels.h"
#include "tile_dot.h"

namespace bitmtp {
namespace BITMTP_ISA {

namespace {

constexpr float kMinusInfinity = -__builtin_inff();

// The best logits seen so far. Candidates come in ascending id, so that one which only equals a kept one has lost.
struct Best {
  float *values;
  int32_t *ids;
  int32_t room;
  int32_t count;

  __attribute__((always_inline)) void offer(float value, int32_t id) {
    if (count == room && !(value > values[count - 1])) return;
    int32_t i = count < room ? count++ : count - 1;
    for (; i > 0 && value > values[i - 1]; --i) {
      values[i] = values[i - 1];
      ids[i] = ids[i - 1];
    }
    values[i] = value;
    ids[i] = id;
  }
};

// A block's contribution to one row, in the workspace.
struct Partial {
  float *maximum;
  float *sum;
  float *values;
  int32_t *ids;
};

BITMTP_INLINE Partial partial_at(const bitmtp_greedy_head_args &args, int64_t block, int64_t row) {
  float *p = static_cast<float *>(args.workspace) + (row * head_blocks(args) + block) * head_partial_words(args);
  return {p, p + 1, p + 2, reinterpret_cast<int32_t *>(p + 2 + args.top_k)};
}

BITMTP_INLINE int32_t block_rows(const bitmtp_greedy_head_args &args, int64_t block) {
  const int64_t left = args.weight.rows - block * kVocabularyBlock;
  return left < kVocabularyBlock ? static_cast<int32_t>(left) : kVocabularyBlock;
}

// `logits` holds -infinity past the block's end, up to a multiple of 8: its exponential adds 0 to a lane, which changes nothing.
void reduce_block(const bitmtp_greedy_head_args &args, int64_t block, int64_t row, const float *logits) {
  const int32_t n = block_rows(args, block);
  const Partial partial = partial_at(args, block, row);
  f8 most = load8(logits);
  for (int32_t i = 8; i < n; i += 8) most = max_of(load8(logits + i), most);
  float maximum = most[0];
  for (int32_t l = 1; l < 8; ++l) maximum = max_of(most[l], maximum);
  f8 sum = {};
  for (int32_t i = 0; i < n; i += 8) sum += exp8_weight(load8(logits + i) - broadcast(maximum));
  *partial.maximum = maximum;
  *partial.sum = combine_lanes(sum);
  Best best{partial.values, partial.ids, args.top_k, 0};
  const int32_t id = static_cast<int32_t>(block) * kVocabularyBlock;
  for (int32_t i = 0; i < n; ++i) best.offer(logits[i], id + i);
  for (int32_t i = best.count; i < args.top_k; ++i) partial.ids[i] = -1;
  if (args.logits != nullptr)
    std::memcpy(args.logits + row * args.weight.rows + id, logits, static_cast<size_t>(n) * sizeof(float));
}

void fold_blocks(const bitmtp_greedy_head_args &args, int64_t row) {
  float values[16] = {};
  const int32_t top_k = args.top_k;
  int32_t *ids = args.token_ids + row * top_k;
  Best best{values, ids, top_k, 0};
  const Partial first = partial_at(args, 0, row);
  float maximum = *first.maximum;
  float sum = *first.sum;
  const int64_t blocks = head_blocks(args);
  for (int64_t block = 0; block < blocks; ++block) {
    const Partial partial = partial_at(args, block, row);
    for (int32_t i = 0; i < top_k && partial.ids[i] >= 0; ++i) best.offer(partial.values[i], partial.ids[i]);
    if (block == 0) continue;
    const float larger = max_of(*partial.maximum, maximum);
    sum = sum * exp1_weight(maximum - larger) + *partial.sum * exp1_weight(*partial.maximum - larger);
    maximum = larger;
  }
  for (int32_t i = best.count; i < top_k; ++i) ids[i] = -1;  // a vocabulary of fewer rows than top_k
  for (int32_t i = 0; i < top_k; ++i) args.probability[row * top_k + i] = exp1_weight(values[i] - maximum) / sum;
}

// ---- packed tables ------------------------------------------------------------------------------------------------------

template <class Plane>
void packed_blocks(const bitmtp_greedy_head_args &args, int64_t first, int64_t last) {
  const bitmtp_weight &w = args.weight;
  const int32_t groups = groups_of(w);
  const int64_t row_words = padded(w.width) / 4;
  int32_t sums[kSums];
  float logits[kBlock][kVocabularyBlock];
  const int32_t most = rows_of_a_pass(w);
  for (int32_t start = 0; start < args.h; start += most) {
    const int32_t rows = args.h - start < most ? args.h - start : most;
    for (int32_t i = 0; i < rows; ++i)
      sum_codes(args.codes + args.head_slots[start + i] * row_words, w, Plane::kZeroPoint, sums + static_cast<int64_t>(i) * groups);
    const int32_t parts = (rows + kBlock - 1) / kBlock;
    for (int64_t block = first; block < last; ++block) {
      const int32_t n = block_rows(args, block);
      for (int32_t p = 0; p < parts; ++p) {
        const int32_t from = static_cast<int32_t>(static_cast<int64_t>(rows) * p / parts);
        const int32_t to = static_cast<int32_t>(static_cast<int64_t>(rows) * (p + 1) / parts);
        ActivationRow activations[kBlock];
        for (int32_t i = from; i < to; ++i)
          activations[i - from] = {args.codes + args.head_slots[start + i] * row_words, sums + static_cast<int64_t>(i) * groups};
        for (int32_t at = 0; at < n; at += 8) {
          f8 acc[kBlock];
          dot_tile_block<Plane>(w, (block * kVocabularyBlock + at) / 8, activations, to - from, acc);
          for (int32_t i = from; i < to; ++i) {
            const f8 y = acc[i - from] * broadcast(args.act_scale[args.head_slots[start + i]]);
            store8(logits[i - from] + at, y);
          }
        }
        for (int32_t i = from; i < to; ++i) {
          for (int32_t l = n; l % 8 != 0; ++l) logits[i - from][l] = kMinusInfinity;
          reduce_block(args, block, start + i, logits[i - from]);
        }
      }
    }
  }
}

// ---- fp16 tables --------------------------------------------------------------------------------------------------------

constexpr int32_t kTableRows = 4;  // rows at once: independent chains of additions, and one conversion of the codes for all

BITMTP_INLINE f8 codes_to_float(const int8_t *codes) {
#if defined(__AVX2__)
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(codes));
  return reinterpret_cast<f8>(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)));
#else
  float x[kLanes];
  for (int32_t l = 0; l < kLanes; ++l) x[l] = static_cast<float>(codes[l]);
  return load8(x);
#endif
}

template <int kRows>
static __attribute__((noinline)) void dot_half(const uint16_t *const *table, int32_t K, const int8_t *const *codes,
                                               float (*out)[kTableRows]) {
  f8 acc[kRows][kTableRows] = {};
  int32_t i = 0;
  for (; i + 8 <= K; i += 8) {
    f8 w[kTableRows];
    if (i % 32 == 0) {  // a line of the rows that come next
#pragma GCC unroll 4
      for (int r = 0; r < kTableRows; ++r) __builtin_prefetch(table[r] + i + static_cast<int64_t>(kTableRows) * K);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kTableRows; ++r) w[r] = load_half8(table[r] + i);
#pragma GCC unroll 2
    for (int m = 0; m < kRows; ++m) {
      const f8 x = codes_to_float(codes[m] + i);
#pragma GCC unroll 4
      for (int r = 0; r < kTableRows; ++r) acc[m][r] += x * w[r];
    }
  }
  if (i < K) {
#pragma GCC unroll 4
    for (int r = 0; r < kTableRows; ++r) {
      uint16_t tail[kLanes] = {};
      std::memcpy(tail, table[r] + i, static_cast<size_t>(K - i) * sizeof(uint16_t));
      const f8 w = load_half8(tail);
#pragma GCC unroll 2
      for (int m = 0; m < kRows; ++m) acc[m][r] += codes_to_float(codes[m] + i) * w;
    }
  }
#pragma GCC unroll 2
  for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 4
    for (int r = 0; r < kTableRows; ++r) out[m][r] = combine_lanes(acc[m][r]);
}

void half_blocks(const bitmtp_greedy_head_args &args, int64_t first, int64_t last) {
  const bitmtp_weight &w = args.weight;
  const int64_t row_bytes = padded(w.width);
  const int8_t *all_codes = reinterpret_cast<const int8_t *>(args.codes);
  const uint16_t *table = static_cast<const uint16_t *>(w.table);
  float logits[kBlock][kVocabularyBlock];
  for (int64_t block = first; block < last; ++block) {
    const int32_t n = block_rows(args, block);
    for (int32_t from = 0; from < args.h; from += kBlock) {
      const int32_t rows = args.h - from < kBlock ? args.h - from : kBlock;
      for (int32_t at = 0; at < n; at += kTableRows) {
        const uint16_t *lines[kTableRows];
        for (int32_t r = 0; r < kTableRows; ++r) {
          const int32_t in = at + r < n ? at + r : n - 1;  // past the end: any row, its result is overwritten below
          lines[r] = table + (block * kVocabularyBlock + in) * w.width;
        }
        for (int32_t i = 0; i < rows; i += 2) {
          const int32_t slots[2] = {args.head_slots[from + i], args.head_slots[from + (i + 1 < rows ? i + 1 : i)]};
          const int8_t *codes[2] = {all_codes + slots[0] * row_bytes, all_codes + slots[1] * row_bytes};
          float dots[2][kTableRows];
          if (i + 1 < rows)
            dot_half<2>(lines, w.width, codes, dots);
          else
            dot_half<1>(lines, w.width, codes, dots);
          for (int32_t m = 0; m < 2 && i + m < rows; ++m)
            for (int32_t r = 0; r < kTableRows; ++r) logits[i + m][at + r] = dots[m][r] * args.act_scale[slots[m]];
        }
      }
      for (int32_t i = 0; i < rows; ++i) {
        for (int32_t l = n; l % 8 != 0; ++l) logits[i][l] = kMinusInfinity;
        reduce_block(args, block, from + i, logits[i]);
      }
    }
  }
}

}  // namespace

void greedy_head(const bitmtp_greedy_head_args &args, const Team &team) {
  int64_t first, last;
  team.range(head_blocks(args), first, last);
  switch (args.weight.kind) {
    case BITMTP_FP16: half_blocks(args, first, last); break;
    case BITMTP_INT8: packed_blocks<Int8Codes>(args, first, last); break;
    case BITMTP_TERNARY: packed_blocks<TernaryCodes>(args, first, last); break;
    default:
      if (args.weight.refinement != nullptr)
        packed_blocks<ComposedCodes>(args, first, last);
      else
        packed_blocks<BaseCodes>(args, first, last);
  }
  team.barrier();
  team.range(args.h, first, last);
  for (int64_t row = first; row < last; ++row) fold_blocks(args, row);
}

}  // namespace BITMTP_ISA
}  // namespace bitmtp
