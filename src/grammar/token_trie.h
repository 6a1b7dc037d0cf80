// The texts of a vocabulary's tokens, sorted into a tree of bytes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/types.h"

namespace larder {

// Nodes stand in the order of their texts, a node's descendants right behind it; so do tokens. Immutable.
// Thread: any, concurrently.
class TokenTrie {
 public:
  struct Node {
    std::uint32_t end = 0;          // the first node that is no descendant
    std::uint32_t first_token = 0;  // of those that end here or below, as a place in tokens()
    std::uint16_t depth = 0;        // bytes of its text, 1 = the root's children
    std::uint8_t byte = 0;          // the last of them
    // Every token here or below goes on from this byte with so many characters at most that may stand in a JSON
    // string as they are, the last one perhaps not whole; 0 = some do not.
    std::uint8_t num_free_characters = 0;
  };

  // bytes_of(token): its text, for as long as the trie is there; "" for what no text has.
  TokenTrie(int vocab_size, std::function<std::string_view(TokenId)> bytes_of);

  int vocab_size() const { return vocab_size_; }
  std::span<const Node> nodes() const { return nodes_; }
  // Of a node and below: [first_token, that of the node at its end).
  std::span<const TokenId> tokens() const { return tokens_; }
  std::uint32_t first_token_at(std::size_t node) const {
    return node < nodes_.size() ? nodes_[node].first_token : static_cast<std::uint32_t>(tokens_.size());
  }
  // "" for one that no node has.
  std::string_view bytes(TokenId token) const { return bytes_of_(token); }
  // The longest token that the text begins with; nullopt = none does.
  std::optional<TokenId> longest_token(std::string_view text) const;
  // A bit for each token of so many such characters at most and nothing else, the last one perhaps not whole.
  // Up to kMostShort; from there on of any number.
  static constexpr std::size_t kMostShort = 32;
  std::span<const std::uint64_t> free_tokens(std::size_t num_characters) const {
    return std::span(free_tokens_).subspan(std::min(num_characters, kMostShort + 1) * num_words_, num_words_);
  }
  std::size_t num_words() const { return num_words_; }  // of such bits
  std::uint16_t most_free_characters() const { return most_free_characters_; }  // that a token has

  std::size_t size_bytes() const;
  // What one takes while it is made, of a vocabulary as models have them: twice what it takes then.
  static std::size_t most_bytes(int vocab_size) { return static_cast<std::size_t>(vocab_size) * 64; }

 private:
  void add_nodes(std::span<const std::string_view> texts);
  void count_free_characters();
  void find_free_tokens();

  int vocab_size_;
  std::function<std::string_view(TokenId)> bytes_of_;
  std::vector<Node> nodes_;
  std::vector<TokenId> tokens_;
  std::size_t num_words_;
  std::vector<std::uint64_t> free_tokens_;  // [kMostShort + 2, num_words]
  std::uint16_t most_free_characters_ = 0;
};

}  // namespace larder
