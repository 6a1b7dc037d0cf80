#include "tokenizer/vocabulary_check.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "tokenizer/utf8.h"

namespace larder {
namespace {

// Tokens that end a turn or a text, in the families that have more than one such.
constexpr std::string_view kEndNames[] = {
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|observation|>",
    "<end_of_turn>",
    "<|end|>",
    "<|eot|>",
    "<|end_of_text|>",
    "<|end_of_turn|>",
    "<|return|>",
    "<|call|>",
    "<|endofturn|>",
    "<|endofresponse|>",
    "<end_of_utterance>",
    "<|END_OF_TURN_TOKEN|>",
    "<eos>",
};

bool is_end_name(std::string_view text) {
  return std::find(std::begin(kEndNames), std::end(kEndNames), text) != std::end(kEndNames);
}

// Files exist that call such tokens user-defined, which would let any user write them. DeepSeek's bars
// are U+FF5C.
bool is_marker_name(std::string_view text) {
  constexpr std::pair<std::string_view, std::string_view> kMarkers[] = {
      {"<|", "|>"}, {"<\uFF5C", "\uFF5C>"}, {"<start_of_", ">"}, {"<end_of_", ">"}};
  return text == "[@BOS@]" || std::ranges::any_of(kMarkers, [&](const auto& marker) {
           const auto& [begin, end] = marker;
           return text.size() > begin.size() + end.size() && text.starts_with(begin) &&
                  text.ends_with(end);
         });
}

bool is_boundary(const Vocabulary& vocabulary, TokenId id) {
  return id == vocabulary.bos || id == vocabulary.eos || id == vocabulary.eot || id == vocabulary.eom;
}

void check_tokens(const Vocabulary& vocabulary) {
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const std::string& text = vocabulary.tokens[id];
    if (text.empty()) throw_invalid("tokenizer.ggml.tokens[{}]: empty", id);
    if (text.size() > kMaxTokenBytes)
      throw_invalid("tokenizer.ggml.tokens[{}]: {} bytes, {} at most", id, text.size(),
                    kMaxTokenBytes);
    if (!is_valid_utf8(text)) throw_invalid("tokenizer.ggml.tokens[{}]: not UTF-8", id);
    const TokenKind kind = kind_of(vocabulary, static_cast<TokenId>(id));
    if (kind < TokenKind::kNormal || kind > TokenKind::kByte)
      throw_invalid("tokenizer.ggml.token_type[{}]: {} is unknown", id, static_cast<int>(kind));
    if (kind == TokenKind::kByte && !parse_byte_token(text))
      throw_invalid("tokenizer.ggml.tokens[{}]: a byte token is written as <0x0A> is", id);
  }
}

void check_ids(const Vocabulary& vocabulary) {
  const struct {
    const char* name;
    std::optional<TokenId> id;
  } fields[] = {{"bos", vocabulary.bos},
                {"eos", vocabulary.eos},
                {"eot", vocabulary.eot},
                {"eom", vocabulary.eom},
                {"unknown", vocabulary.unk}};
  for (const auto& [name, id] : fields) {
    if (id && (*id < 0 || static_cast<std::size_t>(*id) >= vocabulary.tokens.size()))
      throw_invalid("tokenizer.ggml.{}_token_id: {} is not one of the {} tokens", name, *id,
                    vocabulary.tokens.size());
  }
}

}  // namespace

void check_vocabulary(const Vocabulary& vocabulary) {
  if (vocabulary.model != "gpt2" && vocabulary.model != "llama")
    throw_invalid("tokenizer.ggml.model: unknown; gpt2 and llama are supported");
  const std::size_t size = vocabulary.tokens.size();
  if (size == 0 || size > std::size_t{std::numeric_limits<TokenId>::max()})
    throw_invalid("tokenizer.ggml.tokens: {} tokens", size);
  if (!vocabulary.kinds.empty() && vocabulary.kinds.size() != size)
    throw_invalid("tokenizer.ggml.token_type: {} values for {} tokens", vocabulary.kinds.size(),
                  size);
  const bool has_scores = vocabulary.model == "llama" && vocabulary.merges.empty();
  if (has_scores && vocabulary.scores.size() != size)
    throw_invalid("tokenizer.ggml.scores: {} values for {} tokens", vocabulary.scores.size(), size);
  for (const TokenId id : vocabulary.ends)
    if (id < 0 || static_cast<std::size_t>(id) >= size)
      throw_invalid("eos_token_id: {} is not one of the {} tokens", id, size);
  for (const auto& [name, ids] :
       {std::pair("strips_left", &vocabulary.strips_left), std::pair("strips_right", &vocabulary.strips_right)})
    for (const TokenId id : *ids)
      if (id < 0 || static_cast<std::size_t>(id) >= size)
        throw_invalid("larder.tokenizer.{}: {} is not one of the {} tokens", name, id, size);
  for (std::size_t i = 0; i < vocabulary.scores.size(); ++i)
    if (!std::isfinite(vocabulary.scores[i]))
      throw_invalid("tokenizer.ggml.scores[{}]: not a finite number", i);
  check_tokens(vocabulary);
  check_ids(vocabulary);
}

TokenKind kind_of(const Vocabulary& vocabulary, TokenId id) {
  return vocabulary.kinds.empty() ? TokenKind::kNormal : vocabulary.kinds[id];
}

std::optional<std::uint8_t> parse_byte_token(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return std::nullopt;
  int value = 0;
  for (const char c : text.substr(3, 2)) {
    const std::size_t digit = std::string_view("0123456789ABCDEF").find(c);
    if (digit == std::string_view::npos) return std::nullopt;
    value = value * 16 + static_cast<int>(digit);
  }
  return static_cast<std::uint8_t>(value);
}

bool is_byte_token(const Vocabulary& vocabulary, TokenId id) {
  if (vocabulary.model != "llama") return false;
  // A file without kinds can only mean them by name.
  if (vocabulary.kinds.empty()) return parse_byte_token(vocabulary.tokens[id]).has_value();
  return vocabulary.kinds[id] == TokenKind::kByte;
}

std::vector<std::uint8_t> find_special_tokens(const Vocabulary& vocabulary) {
  std::vector<std::uint8_t> is_special(vocabulary.tokens.size());
  for (std::size_t i = 0; i < is_special.size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    const TokenKind kind = kind_of(vocabulary, id);
    const std::string_view text = vocabulary.tokens[i];
    const bool may_be_marker = kind == TokenKind::kUserDefined || vocabulary.kinds.empty();
    is_special[i] = kind == TokenKind::kControl || kind == TokenKind::kUnknown ||
                    (may_be_marker && (is_boundary(vocabulary, id) || is_marker_name(text))) ||
                    (kind == TokenKind::kNormal && is_end_name(text));
  }
  return is_special;
}

bool speaks_harmony(const Vocabulary& vocabulary, const std::vector<std::uint8_t>& is_special) {
  return std::ranges::all_of(kHarmonyTokens, [&](std::string_view text) {
    const auto found = std::ranges::find(vocabulary.tokens, text);
    return found != vocabulary.tokens.end() && is_special[static_cast<std::size_t>(found - vocabulary.tokens.begin())] != 0;
  });
}

std::vector<TokenId> find_end_tokens(const Vocabulary& vocabulary,
                                     const std::vector<std::uint8_t>& is_special) {
  std::vector<TokenId> ends;
  // A turn has several messages there, each of which ends so.
  const std::string_view end_of_part = speaks_harmony(vocabulary, is_special) ? "<|end|>" : "";
  for (std::size_t i = 0; i < is_special.size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    const bool is_named = is_special[i] && is_end_name(vocabulary.tokens[i]) && vocabulary.tokens[i] != end_of_part;
    const bool is_listed = std::ranges::find(vocabulary.ends, id) != vocabulary.ends.end();
    const bool is_bound = id == vocabulary.eos || id == vocabulary.eot || id == vocabulary.eom;
    if (is_named || is_listed || is_bound) ends.push_back(id);
  }
  return ends;
}

}  // namespace larder
