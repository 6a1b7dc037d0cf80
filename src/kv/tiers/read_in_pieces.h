// Long reads of a tier.
#pragma once

#include <algorithm>
#include <cstddef>

#include "kv/tier.h"

namespace larder {

// read_piece(first, count), TierAnswer, for pieces of at most so many blocks, until one of them is short.
template <class ReadPiece>
TierAnswer read_in_pieces(const TierRead& read, std::size_t most_blocks, const ReadPiece& read_piece) {
  TierAnswer answer;
  for (std::size_t first = 0; first < read.blocks.size(); first += most_blocks) {
    const std::size_t count = std::min(most_blocks, read.blocks.size() - first);
    const TierAnswer of_piece = read_piece(first, count);
    answer.num_found += of_piece.num_found;
    answer.is_faulty = of_piece.is_faulty;
    if (of_piece.num_found < static_cast<int>(count)) break;
  }
  return answer;
}

}  // namespace larder
