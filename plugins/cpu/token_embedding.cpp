// TokenEmbedding: rule 6 of docs/numerics.md.
#include "arith.h"
#include "kernels.h"
#include "weight.h"

namespace bitmtp {
namespace BITMTP_ISA {

namespace {

constexpr int32_t kTask = 64;  // columns of a row that a thread takes at once: never more than one scale group

// The unsigned code of a column, in a plane of `bits` bits a code.
BITMTP_INLINE int32_t code_at(const int32_t *plane, int64_t first_word, int32_t lane, int32_t column, int32_t bits) {
  const int32_t columns = 32 / bits;
  const uint32_t word = static_cast<uint32_t>(plane[(first_word + column / columns) * 8 + lane]);
  const int32_t in = column % columns;
  return static_cast<int32_t>(word >> (8 * (in % 4) + bits * (in / 4)) & ((1u << bits) - 1));
}

BITMTP_INLINE void read_packed(const bitmtp_weight &w, int32_t row, int32_t first, int32_t last, float *out) {
  const int64_t tile = row / 8;
  const int32_t lane = row % 8;
  const int32_t bits = w.kind == BITMTP_TERNARY ? 2 : w.kind == BITMTP_DUAL ? 4 : 8;
  const int64_t first_word = tile * (padded(w.width) * bits / 32);
  const int32_t *plane = static_cast<const int32_t *>(w.table);
  float scale = half_to_float(w.scales[(tile * groups_of(w) + first / group_columns(w)) * 8 + lane]);
  if (w.refinement != nullptr) {
    scale *= 0.0625f;
    for (int32_t i = first; i < last; ++i) {
      const int32_t q = code_at(plane, first_word, lane, i, 4) - 8;
      const int32_t r = code_at(w.refinement, first_word, lane, i, 4) - 8;
      out[i] = static_cast<float>(16 * q + r) * scale;
    }
    return;
  }
  const int32_t zero_point = w.kind == BITMTP_TERNARY ? 1 : w.kind == BITMTP_DUAL ? 8 : 128;
  for (int32_t i = first; i < last; ++i)
    out[i] = static_cast<float>(code_at(plane, first_word, lane, i, bits) - zero_point) * scale;
}

BITMTP_INLINE void read_row(const bitmtp_token_embedding_args &args, int32_t id, int32_t first, int32_t last, float *out) {
  const int32_t K = args.weight.width;
  if (id >= 0 && id < args.weight.rows) {
    if (args.weight.kind != BITMTP_FP16) return read_packed(args.weight, id, first, last, out);
    const uint16_t *row = static_cast<const uint16_t *>(args.weight.table) + static_cast<int64_t>(id) * K;
    for (int32_t i = first; i < last; ++i) out[i] = half_to_float(row[i]);
  } else if (id < 0 && -1 - id < args.P) {
    const float *row = args.mask_embeddings + static_cast<int64_t>(-1 - id) * K;
    std::memcpy(out + first, row + first, static_cast<size_t>(last - first) * sizeof(float));
  } else {
    std::memset(out + first, 0, static_cast<size_t>(last - first) * sizeof(float));
  }
}

}  // namespace

void token_embedding(const bitmtp_token_embedding_args &args, const Team &team) {
  const int32_t K = args.weight.width;
  const int32_t tasks = (K + kTask - 1) / kTask;
  int64_t begin, end;
  team.range(static_cast<int64_t>(args.M) * tasks, begin, end);
  for (int64_t t = begin; t < end; ++t) {
    const int64_t m = t / tasks;
    const int32_t first = static_cast<int32_t>(t % tasks) * kTask;
    const int32_t last = K - first < kTask ? K : first + kTask;
    read_row(args, args.token_ids[m], first, last, args.hidden + m * K);
  }
}

}  // namespace BITMTP_ISA
}  // namespace bitmtp
