// Byte-level byte-pair encoding: GPT-2's and its descendants' (Radford et al. 2019).
#pragma once

#include <array>
#include <span>
#include <string_view>
#include <vector>

#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/string_index.h"
#include "tokenizer/text_encoder.h"
#include "tokenizer/tokenizer.h"

namespace larder {

// The token that two neighbouring tokens become, and in which order.
class MergeTable {
 public:
  explicit MergeTable(std::size_t max_entries);
  // false: the pair stands already.
  bool insert(TokenId left, TokenId right, Merge merge);
  Merge find(TokenId left, TokenId right) const;

 private:
  struct Slot {
    TokenId left = -1, right = -1;
    Merge merge;
  };
  std::size_t slot_of(TokenId left, TokenId right) const;
  std::vector<Slot> slots_;  // a power of two, at most half used
};

// A byte that no token stands for is left out, as the reference implementations do: such
// vocabularies exist (SmolLM2's lacks some control characters and bytes that no UTF-8 text holds).
class ByteLevelBpe : public TextEncoder {
 public:
  // by_text: finds a token by its text as the vocabulary writes it. is_special: per token.
  // Throws Error{kInvalidArgument} for a malformed vocabulary.
  ByteLevelBpe(const Vocabulary& vocabulary, const StringIndex& by_text,
               std::span<const std::uint8_t> is_special);
  void encode(std::string_view text, bool at_start, EncodeScratch& scratch,
              std::vector<PlacedToken>& out) const override;

 private:
  void encode_words(std::string_view text, EncodeScratch& scratch,
                    std::vector<PlacedToken>& out) const;
  void encode_word(std::string_view word, std::uint32_t begin, EncodeScratch& scratch,
                   std::vector<PlacedToken>& out) const;
  void add_bytes(const StringIndex& by_text);
  void add_merges(const Vocabulary& vocabulary, const StringIndex& by_text,
                  std::span<const std::uint8_t> is_special);
  void add_words(const Vocabulary& vocabulary, std::span<const std::uint8_t> is_special);

  PreTokenizer pre_tokenizer_;
  const PreTokenizerKind& kind_;
  std::array<TokenId, 256> byte_tokens_;  // -1: none
  MergeTable merges_;
  // Vocabularies that take a word which is a token whole, whatever its merges: those words.
  StringPool words_;
  std::vector<TokenId> word_tokens_;
  StringIndex by_word_;
};

}  // namespace larder
