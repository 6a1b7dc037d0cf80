// Finds tokens that are matched in text as they are, before anything is encoded.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/types.h"

namespace larder {

// A trie. Immutable once all are inserted.
class AddedTokens {
 public:
  // folds_spaces: a U+2581 in a text is a space; tokens are inserted with spaces.
  explicit AddedTokens(bool folds_spaces);
  // text is not empty. The first token of a text keeps it.
  void insert(std::string_view text, TokenId token);

  struct Match {
    TokenId token = -1;
    std::size_t length = 0;  // 0: none
  };
  // The longest token at the start of text. Time: the longest token's length.
  Match match(std::string_view text) const;
  // Whether a token may begin with this byte.
  bool may_begin(char byte) const { return may_begin_[static_cast<std::uint8_t>(byte)]; }

 private:
  struct Node {
    std::uint32_t first_child = 0, sibling = 0;  // 0: none, as the root is nobody's child
    TokenId token = -1;
    char byte = 0;
  };
  std::uint32_t child_of(std::uint32_t node, char byte) const;

  std::vector<Node> nodes_;
  std::array<std::uint32_t, 256> first_{};  // the root's children
  std::array<bool, 256> may_begin_{};
  bool folds_spaces_;
};

}  // namespace larder
