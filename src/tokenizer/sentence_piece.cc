#include "tokenizer/sentence_piece.h"

#include <algorithm>
#include <functional>
#include <unordered_map>

#include "base/error.h"
#include "tokenizer/utf8.h"
#include "tokenizer/vocabulary_check.h"

namespace larder {
namespace {

// The text with spaces for U+2581 and U+FFFD for every byte that is not UTF-8.
// origin: per byte of the result, its offset in the text.
std::string rewrite(std::string_view text, bool add_prefix, std::vector<std::uint32_t>& origin) {
  std::string result;
  result.reserve(text.size() + 1);
  const auto put = [&](std::string_view bytes, std::size_t from, bool one_to_one) {
    for (std::size_t k = 0; k < bytes.size(); ++k)
      origin.push_back(static_cast<std::uint32_t>(one_to_one ? from + k : from));
    result.append(bytes);
  };
  if (add_prefix) put(" ", 0, true);
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Char c = read_utf8(text, i);
    const std::string_view bytes = text.substr(i, c.length);
    if (!c.valid) {
      for (std::uint32_t k = 0; k < c.length; ++k) put("\uFFFD", i + k, false);
    } else if (bytes == kEscapedSpace) {
      put(" ", i, true);
    } else {
      put(bytes, i, true);
    }
    i += c.length;
  }
  return result;
}

}  // namespace

// One stretch of text that no merge crosses.
struct SentencePiece::Word {
  std::string_view text;  // of the whole text
  std::uint32_t begin = 0, end = 0;
  // How unused pieces came about: where they fall apart again. Of several ways, the last counts.
  std::unordered_map<TokenId, std::uint32_t> splits = {};
};

SentencePiece::SentencePiece(const Vocabulary& vocabulary, const StringPool& pieces, const StringIndex& by_text,
                             std::span<const std::uint8_t> is_special)
    : pieces_(pieces),
      by_piece_(pieces, vocabulary.tokens.size()),
      is_unused_(vocabulary.tokens.size()),
      merges_(vocabulary.merges.size()),
      has_merges_(!vocabulary.merges.empty()),
      adds_space_prefix_(vocabulary.add_space_prefix),
      prefixes_no_space_(vocabulary.prefixes_no_space) {
  rank_scores(vocabulary.scores);
  add_bytes(vocabulary);
  add_pieces(vocabulary, is_special);
  if (has_merges_) add_merges(vocabulary, by_text);
  if (has_bytes_) return;
  if (!vocabulary.unk)
    throw_invalid("tokenizer.ggml.unknown_token_id: needed where no token stands for single bytes");
  unknown_ = *vocabulary.unk;
}

void SentencePiece::rank_scores(std::span<const float> scores) {
  std::vector<float> distinct(scores.begin(), scores.end());
  std::sort(distinct.begin(), distinct.end(), std::greater<>());
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  priorities_.reserve(scores.size());
  for (const float score : scores) {
    const auto place = std::lower_bound(distinct.begin(), distinct.end(), score, std::greater<>());
    priorities_.push_back(static_cast<std::uint32_t>(place - distinct.begin()));
  }
}

void SentencePiece::add_bytes(const Vocabulary& vocabulary) {
  byte_tokens_.fill(-1);
  int num_bytes = 0;
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (!is_byte_token(vocabulary, static_cast<TokenId>(id))) continue;
    const auto byte = static_cast<std::uint8_t>(pieces_[static_cast<TokenId>(id)][0]);
    if (byte_tokens_[byte] >= 0)
      throw_invalid("tokenizer.ggml.tokens[{}]: a second token for the byte {:#04x}", id, byte);
    byte_tokens_[byte] = static_cast<TokenId>(id);
    ++num_bytes;
  }
  if (num_bytes != 0 && num_bytes != 256)
    throw_invalid("tokenizer.ggml.tokens: byte tokens for {} of the 256 bytes", num_bytes);
  has_bytes_ = num_bytes == 256;
}

void SentencePiece::add_pieces(const Vocabulary& vocabulary,
                               std::span<const std::uint8_t> is_special) {
  for (TokenId id = 0; id < pieces_.size(); ++id) {
    if (is_special[id] || is_byte_token(vocabulary, id)) continue;
    const std::string_view piece = pieces_[id];
    if (by_piece_.insert(id) >= 0) continue;
    is_unused_[id] = !has_merges_ && kind_of(vocabulary, id) == TokenKind::kUnused;
    has_unused_ |= is_unused_[id];
    max_piece_bytes_ = std::max(max_piece_bytes_, piece.size());
    char32_t previous = ' ';
    for (std::size_t i = 0; i < piece.size();) {
      const Utf8Char c = read_utf8(piece, i);
      if (c.code_point == ' ' && previous != ' ') joins_space_.insert(previous);
      previous = c.code_point;
      i += c.length;
    }
  }
}

// What converters make of scores has merges into special tokens and bytes, too, which no text may become.
void SentencePiece::add_merges(const Vocabulary& vocabulary, const StringIndex& by_text) {
  std::uint32_t rank = 0;
  std::string joined;
  const auto find = [&](std::string_view text) {
    const TokenId id = by_text.find(text);
    if (id < 0) throw_invalid("tokenizer.ggml.merges[{}]: a part of it, or what they make, is not a token", rank);
    return id;
  };
  const auto is_piece = [&](TokenId id) { return by_piece_.find(pieces_[id]) == id; };
  for (const std::string& merge : vocabulary.merges) {
    const std::size_t space = merge.find(' ');
    if (space == merge.npos || merge.find(' ', space + 1) != merge.npos)
      throw_invalid("tokenizer.ggml.merges[{}]: not two tokens with a space between", rank);
    const TokenId left = find(std::string_view(merge).substr(0, space));
    const TokenId right = find(std::string_view(merge).substr(space + 1));
    joined.assign(merge).erase(space, 1);
    const TokenId whole = find(joined);
    if (is_piece(left) && is_piece(right) && is_piece(whole) && !merges_.insert(left, right, {rank, whole}))
      throw_invalid("tokenizer.ggml.merges[{}]: the pair stands above already", rank);
    ++rank;
  }
}

bool SentencePiece::takes_prefix(std::string_view text) const {
  if (!adds_space_prefix_) return false;
  return !prefixes_no_space_ || !(text.starts_with(' ') || text.starts_with(kEscapedSpace));
}

void SentencePiece::encode(std::string_view text, bool at_start, EncodeScratch& scratch,
                           std::vector<PlacedToken>& out) const {
  const std::size_t first = out.size();
  const bool adds_prefix = at_start && takes_prefix(text);
  if (!adds_prefix && text.find(kEscapedSpace) == text.npos && is_valid_utf8(text)) {
    encode_words(text, scratch, out);
  } else {
    std::vector<std::uint32_t> origin;
    const std::string& rewritten =
        scratch.normalized.emplace_back(rewrite(text, adds_prefix, origin));
    encode_words(rewritten, scratch, out);
    for (std::size_t i = first; i < out.size(); ++i) out[i].begin = origin[out[i].begin];
  }
  if (has_bytes_) return;
  // Neighbouring unknown characters are one unknown token.
  const auto is_repeat = [this](const PlacedToken& left, const PlacedToken& right) {
    return left.token == unknown_ && right.token == unknown_;
  };
  out.erase(std::unique(out.begin() + static_cast<std::ptrdiff_t>(first), out.end(), is_repeat),
            out.end());
}

void SentencePiece::encode_words(std::string_view text, EncodeScratch& scratch,
                                 std::vector<PlacedToken>& out) const {
  Word word{text};
  const auto finish = [&](std::size_t end) {
    word.end = static_cast<std::uint32_t>(end);
    const std::string_view bytes = text.substr(word.begin, end - word.begin);
    if (!scratch.cache.replay(bytes, word.begin, out)) {
      const std::size_t first = out.size();
      encode_word(word, scratch, out);
      scratch.cache.remember(bytes, word.begin, out, first);
    }
    scratch.check_count(out.size());
    word.begin = word.end;
  };
  char32_t previous = ' ';
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Char c = read_utf8(text, i);
    if (c.code_point == ' ' && previous != ' ' && !joins_space_.contains(previous)) finish(i);
    previous = c.code_point;
    i += c.length;
  }
  if (word.begin < text.size()) finish(text.size());
}

void SentencePiece::encode_word(Word& word, EncodeScratch& scratch,
                                std::vector<PlacedToken>& out) const {
  auto& symbols = scratch.symbols;
  symbols.clear();
  word.splits.clear();
  for (std::uint32_t i = word.begin; i < word.end; i = symbols.back().end) {
    Symbol& symbol = symbols.emplace_back(Symbol{i, i + read_utf8(word.text, i).length});
    if (has_merges_) symbol.initial = by_piece_.find(word.text.substr(i, symbol.end - i));
    check_word(symbols.size(), "characters");
  }
  const auto lookup = [&](const Symbol& left, const Symbol& right) -> Merge {
    if (has_merges_) return left.id < 0 || right.id < 0 ? Merge{} : merges_.find(left.id, right.id);
    const std::size_t size = right.end - left.begin;
    if (size > max_piece_bytes_) return {};
    const TokenId id = by_piece_.find(word.text.substr(left.begin, size));
    if (id < 0) return {};
    if (is_unused_[id]) word.splits[id] = right.begin - left.begin;
    return {priorities_[id], id};
  };
  // Where pieces fall apart again depends on how the whole word was merged.
  merge_symbols(symbols, scratch.queue, lookup, has_unused_ ? word.end : kMergeChunkSize);
  for (std::uint32_t i = 0; i != Symbol::kNone; i = symbols[i].next) {
    const Symbol& symbol = symbols[i];
    if (symbol.id >= 0 && !is_unused_[symbol.id]) {
      out.push_back({symbol.id, symbol.begin});
    } else {
      emit(word, word.text.substr(symbol.begin, symbol.end - symbol.begin), symbol.begin, out);
    }
  }
}

// Recursion is as deep as a piece is long, which the vocabulary's check bounds.
void SentencePiece::emit(const Word& word, std::string_view piece, std::uint32_t begin,
                         std::vector<PlacedToken>& out) const {
  const TokenId id = by_piece_.find(piece);
  if (id < 0) return emit_unknown(piece, begin, out);
  if (is_unused_[id]) {
    if (const auto split = word.splits.find(id); split != word.splits.end()) {
      emit(word, piece.substr(0, split->second), begin, out);
      emit(word, piece.substr(split->second), begin + split->second, out);
      return;
    }
  }
  out.push_back({id, begin});
}

void SentencePiece::emit_unknown(std::string_view character, std::uint32_t begin,
                                 std::vector<PlacedToken>& out) const {
  if (!has_bytes_) {
    out.push_back({unknown_, begin});
    return;
  }
  for (std::size_t k = 0; k < character.size(); ++k)
    out.push_back({byte_tokens_[static_cast<std::uint8_t>(character[k])],
                   begin + static_cast<std::uint32_t>(k)});
}

}  // namespace larder
