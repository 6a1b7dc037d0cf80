#include "grammar/token_trie.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "base/check.h"

namespace larder {
namespace {

// Where in a character of UTF-8 a text is (Unicode 15, table 3-7).
constexpr std::uint8_t kStart = 0, kOneMore = 1, kTwoMore = 2, kThreeMore = 3, kAfterE0 = 4, kAfterEd = 5, kAfterF0 = 6,
                       kAfterF4 = 7, kNumStates = 8, kNoState = kNumStates;

// Of a character that a JSON string has as it is.
std::uint8_t next_state(std::uint8_t state, std::uint8_t byte) {
  const auto within = [byte](std::uint8_t first, std::uint8_t last) { return byte >= first && byte <= last; };
  switch (state) {
    case kStart:
      if (within(0x20, 0x7F)) return byte == '"' || byte == '\\' ? kNoState : kStart;
      if (within(0xC2, 0xDF)) return kOneMore;
      if (byte == 0xE0) return kAfterE0;
      if (byte == 0xED) return kAfterEd;
      if (within(0xE1, 0xEF)) return kTwoMore;
      if (byte == 0xF0) return kAfterF0;
      if (within(0xF1, 0xF3)) return kThreeMore;
      return byte == 0xF4 ? kAfterF4 : kNoState;
    case kOneMore:
      return within(0x80, 0xBF) ? kStart : kNoState;
    case kTwoMore:
      return within(0x80, 0xBF) ? kOneMore : kNoState;
    case kThreeMore:
      return within(0x80, 0xBF) ? kTwoMore : kNoState;
    case kAfterE0:
      return within(0xA0, 0xBF) ? kOneMore : kNoState;
    case kAfterEd:
      return within(0x80, 0x9F) ? kOneMore : kNoState;
    case kAfterF0:
      return within(0x90, 0xBF) ? kTwoMore : kNoState;
    default:
      return within(0x80, 0x8F) ? kTwoMore : kNoState;
  }
}

}  // namespace

TokenTrie::TokenTrie(int vocab_size, std::function<std::string_view(TokenId)> bytes_of)
    : vocab_size_(vocab_size),
      bytes_of_(std::move(bytes_of)),
      num_words_((static_cast<std::size_t>(vocab_size) + 63) / 64),
      free_tokens_((kMostShort + 2) * num_words_) {
  std::vector<std::pair<std::string_view, TokenId>> texts;
  for (TokenId token = 0; token < vocab_size; ++token) {
    const std::string_view text = bytes_of_(token);
    const bool is_short = text.size() <= std::numeric_limits<std::uint16_t>::max();  // depth's
    if (!text.empty() && is_short) texts.emplace_back(text, token);
  }
  std::ranges::sort(texts);
  tokens_.reserve(texts.size());
  std::vector<std::string_view> sorted;
  sorted.reserve(texts.size());
  for (const auto& [text, token] : texts) {
    tokens_.push_back(token);
    sorted.push_back(text);
  }
  add_nodes(sorted);
  count_free_characters();
  find_free_tokens();
}

void TokenTrie::add_nodes(std::span<const std::string_view> texts) {
  std::vector<std::uint32_t> path;  // nodes of the last text, by depth
  std::string_view last;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const std::string_view text = texts[i];
    const auto shared = static_cast<std::size_t>(std::ranges::mismatch(last, text).in1 - last.begin());
    while (path.size() > shared) {
      nodes_[path.back()].end = static_cast<std::uint32_t>(nodes_.size());
      path.pop_back();
    }
    while (path.size() < text.size()) {
      path.push_back(static_cast<std::uint32_t>(nodes_.size()));
      nodes_.push_back({.first_token = static_cast<std::uint32_t>(i),
                        .depth = static_cast<std::uint16_t>(path.size()),
                        .byte = static_cast<std::uint8_t>(text[path.size() - 1])});
    }
    last = text;
  }
  for (const std::uint32_t node : path) nodes_[node].end = static_cast<std::uint32_t>(nodes_.size());
  nodes_.shrink_to_fit();
}

// From the last node to the first, each after all below it: for each state before its byte, the most characters
// of a token from there on.
void TokenTrie::count_free_characters() {
  constexpr std::uint8_t kNotFree = 0;
  std::vector<std::array<std::uint8_t, kNumStates>> most(nodes_.size());  // 1 = none that ends
  for (std::size_t i = nodes_.size(); i-- > 0;) {
    Node& node = nodes_[i];
    for (std::uint8_t state = 0; state < kNumStates; ++state) {
      const std::uint8_t next = next_state(state, node.byte);
      if (next == kNoState) continue;  // kNotFree
      std::uint8_t longest = 1;
      bool are_free = true;
      for (std::size_t child = i + 1; child < node.end; child = nodes_[child].end) {
        const std::uint8_t below = most[child][next];
        are_free &= below != kNotFree;
        longest = std::max(longest, below);
      }
      // A character counts where it begins.
      const int count = longest + (state == kStart ? 1 : 0);
      if (are_free && count < std::numeric_limits<std::uint8_t>::max())
        most[i][state] = static_cast<std::uint8_t>(count);
    }
    const std::uint8_t from_start = most[i][kStart];
    node.num_free_characters = from_start == kNotFree ? 0 : static_cast<std::uint8_t>(from_start - 1);
  }
}

void TokenTrie::find_free_tokens() {
  for (const TokenId token : tokens_) {
    std::uint8_t state = kStart;
    int num_characters = 0;
    for (const char byte : bytes(token)) {
      num_characters += state == kStart ? 1 : 0;
      state = next_state(state, static_cast<std::uint8_t>(byte));
      if (state == kNoState) break;
    }
    if (state == kNoState) continue;
    most_free_characters_ = std::max(most_free_characters_, static_cast<std::uint16_t>(num_characters));
    const auto place = static_cast<std::size_t>(token);
    const std::size_t row = std::min(static_cast<std::size_t>(num_characters), kMostShort + 1);
    free_tokens_[row * num_words_ + place / 64] |= std::uint64_t{1} << (place % 64);
  }
  // Shorter ones are among those of more characters.
  for (std::size_t i = num_words_; i < free_tokens_.size(); ++i) free_tokens_[i] |= free_tokens_[i - num_words_];
}

std::optional<TokenId> TokenTrie::longest_token(std::string_view text) const {
  std::optional<TokenId> longest;
  std::size_t end = nodes_.size();  // of the nodes below the last one
  std::size_t node = 0;
  for (const char byte : text) {
    while (node < end && nodes_[node].byte != static_cast<std::uint8_t>(byte)) node = nodes_[node].end;
    if (node >= end) break;
    // Those of the node alone stand before those below.
    const std::uint32_t first = nodes_[node].first_token;
    end = nodes_[node].end;
    if (first_token_at(++node) > first) longest = tokens_[first];
  }
  return longest;
}

std::size_t TokenTrie::size_bytes() const {
  return nodes_.capacity() * sizeof(Node) + tokens_.capacity() * sizeof(TokenId) +
         free_tokens_.capacity() * sizeof(std::uint64_t);
}

}  // namespace larder
