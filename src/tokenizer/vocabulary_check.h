// What holds of a vocabulary before anything is built from it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace larder {

// No token is longer: bounds what matching a token, or splitting one again, can cost.
inline constexpr std::size_t kMaxTokenBytes = 4096;

// Throws Error{kInvalidArgument} that names the field: an unknown model, lists of different
// lengths, ids out of range, tokens that are empty, too long or not UTF-8, scores that are not
// finite, byte tokens that name no byte. Duplicates and merges are found where they are indexed.
void check_vocabulary(const Vocabulary& vocabulary);

TokenKind kind_of(const Vocabulary& vocabulary, TokenId id);

// A SentencePiece token such as <0x0A>, which stands for one byte.
bool is_byte_token(const Vocabulary& vocabulary, TokenId id);
// Its byte; nullopt if the text does not name one.
std::optional<std::uint8_t> parse_byte_token(std::string_view text);

// Per token, whether it means something other than its text and so may be written by trusted text
// only: control and unknown tokens, BOS, EOS and EOT, and those that mark a turn by their name.
std::vector<std::uint8_t> find_special_tokens(const Vocabulary& vocabulary);

// Whether it has all of kHarmonyTokens.
bool speaks_harmony(const Vocabulary& vocabulary, const std::vector<std::uint8_t>& is_special);

// EOS, EOT, and special tokens known by name to end a turn; ascending, without repeats.
std::vector<TokenId> find_end_tokens(const Vocabulary& vocabulary,
                                     const std::vector<std::uint8_t>& is_special);

}  // namespace larder
