#include "tokenizer/added_tokens.h"

#include "tokenizer/utf8.h"

namespace larder {

AddedTokens::AddedTokens(bool folds_spaces) : nodes_(1), folds_spaces_(folds_spaces) {}

std::uint32_t AddedTokens::child_of(std::uint32_t node, char byte) const {
  if (node == 0) return first_[static_cast<std::uint8_t>(byte)];
  std::uint32_t child = nodes_[node].first_child;
  while (child != 0 && nodes_[child].byte != byte) child = nodes_[child].sibling;
  return child;
}

void AddedTokens::insert(std::string_view text, TokenId token) {
  may_begin_[static_cast<std::uint8_t>(text[0])] = true;
  if (folds_spaces_ && text[0] == ' ')
    may_begin_[static_cast<std::uint8_t>(kEscapedSpace[0])] = true;
  std::uint32_t node = 0;
  for (const char byte : text) {
    std::uint32_t child = child_of(node, byte);
    if (child == 0) {
      child = static_cast<std::uint32_t>(nodes_.size());
      nodes_.push_back({0, node == 0 ? 0 : nodes_[node].first_child, -1, byte});
      (node == 0 ? first_[static_cast<std::uint8_t>(byte)] : nodes_[node].first_child) = child;
    }
    node = child;
  }
  if (nodes_[node].token < 0) nodes_[node].token = token;
}

AddedTokens::Match AddedTokens::match(std::string_view text) const {
  Match best;
  std::uint32_t node = 0;
  for (std::size_t i = 0; i < text.size();) {
    const bool is_space = folds_spaces_ && text.substr(i, 3) == kEscapedSpace;
    node = child_of(node, is_space ? ' ' : text[i]);
    if (node == 0) break;
    i += is_space ? kEscapedSpace.size() : 1;
    if (nodes_[node].token >= 0) best = {nodes_[node].token, i};
  }
  return best;
}

}  // namespace larder
