// SentencePiece's byte-pair encoding (Kudo & Richardson 2018): any two neighbours whose text
// together is a piece may be joined, the best score first. Where the vocabulary has merges, these are the rule
// instead, as the `tokenizers` library has it: pairs that its converters took from the scores.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "tokenizer/byte_level_bpe.h"
#include "tokenizer/string_index.h"
#include "tokenizer/text_encoder.h"
#include "tokenizer/tokenizer.h"

namespace larder {

// Pieces are held and compared with spaces where the vocabulary writes U+2581, so that most text
// needs no rewriting; a U+2581 in a text is a space, as in the reference. Characters that are no
// piece become the tokens of their bytes, or the unknown token in vocabularies without these.
class SentencePiece : public TextEncoder {
 public:
  // pieces: per token, its text with spaces; it must outlive this. by_text: finds a token by its text as the
  // vocabulary writes it. is_special: per token. Throws Error{kInvalidArgument} for a malformed vocabulary.
  SentencePiece(const Vocabulary& vocabulary, const StringPool& pieces, const StringIndex& by_text,
                std::span<const std::uint8_t> is_special);
  void encode(std::string_view text, bool at_start, EncodeScratch& scratch,
              std::vector<PlacedToken>& out) const override;

 private:
  struct Word;
  void add_bytes(const Vocabulary& vocabulary);
  void add_pieces(const Vocabulary& vocabulary, std::span<const std::uint8_t> is_special);
  void rank_scores(std::span<const float> scores);
  void add_merges(const Vocabulary& vocabulary, const StringIndex& by_text);
  bool takes_prefix(std::string_view text) const;
  void encode_words(std::string_view text, EncodeScratch& scratch,
                    std::vector<PlacedToken>& out) const;
  void encode_word(Word& word, EncodeScratch& scratch, std::vector<PlacedToken>& out) const;
  void emit(const Word& word, std::string_view piece, std::uint32_t begin,
            std::vector<PlacedToken>& out) const;
  void emit_unknown(std::string_view character, std::uint32_t begin,
                    std::vector<PlacedToken>& out) const;

  const StringPool& pieces_;
  StringIndex by_piece_;
  std::size_t max_piece_bytes_ = 0;
  std::vector<std::uint32_t> priorities_;  // per token; equal scores, equal priority
  std::vector<bool> is_unused_;            // pieces that joining may pass through but not end in
  bool has_unused_ = false;
  std::unordered_set<char32_t> joins_space_;  // characters that some piece has before a space
  bool has_bytes_ = false;
  std::array<TokenId, 256> byte_tokens_{};
  TokenId unknown_ = -1;
  MergeTable merges_;
  const bool has_merges_;
  const bool adds_space_prefix_;
  const bool prefixes_no_space_;
};

}  // namespace larder
