// Where GreedyHead keeps what a block of the vocabulary contributes to a row, until all blocks are done.
#pragma once

#include <cstdint>

#include "bitmtp/abi.h"

namespace bitmtp {

constexpr int32_t kVocabularyBlock = 512;  // rows, a multiple of the 8 of a tile

// A partial is 2 + 2 * top_k words: maximum, sum of exponentials, top_k logits, top_k ids.
static inline __attribute__((always_inline)) int64_t head_partial_words(const bitmtp_greedy_head_args &args) {
  return 2 + 2 * static_cast<int64_t>(args.top_k);
}
static inline __attribute__((always_inline)) int64_t head_blocks(const bitmtp_greedy_head_args &args) {
  return (args.weight.rows + kVocabularyBlock - 1) / kVocabularyBlock;
}

}  // namespace bitmtp
