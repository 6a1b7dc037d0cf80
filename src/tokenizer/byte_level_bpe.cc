#include "tokenizer/byte_level_bpe.h"

#include <bit>
#include <optional>
#include <string>

#include "base/error.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/nfc.h"

namespace larder {
MergeTable::MergeTable(std::size_t max_entries) : slots_(std::bit_ceil(2 * max_entries + 2)) {}

std::size_t MergeTable::slot_of(TokenId left, TokenId right) const {
  const std::size_t mask = slots_.size() - 1;
  const auto pair =
      std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
  for (std::size_t slot = pair * 0x9E3779B97F4A7C15ull >> 32 & mask;; slot = (slot + 1) & mask) {
    const Slot& candidate = slots_[slot];
    if (candidate.left < 0 || (candidate.left == left && candidate.right == right)) return slot;
  }
}

bool MergeTable::insert(TokenId left, TokenId right, Merge merge) {
  Slot& slot = slots_[slot_of(left, right)];
  if (slot.left >= 0) return false;
  slot = {left, right, merge};
  return true;
}

Merge MergeTable::find(TokenId left, TokenId right) const {
  return slots_[slot_of(left, right)].merge;
}

ByteLevelBpe::ByteLevelBpe(const Vocabulary& vocabulary, const StringIndex& by_text,
                           std::span<const std::uint8_t> is_special)
    : pre_tokenizer_(vocabulary.pre_tokenizer),
      kind_(pre_tokenizer(vocabulary.pre_tokenizer)),
      merges_(vocabulary.merges.size()),
      by_word_(words_, kind_.takes_whole_words ? vocabulary.tokens.size() : 0) {
  add_bytes(by_text);
  add_merges(vocabulary, by_text, is_special);
  if (kind_.takes_whole_words) add_words(vocabulary, is_special);
}

void ByteLevelBpe::add_bytes(const StringIndex& by_text) {
  const auto alphabet = byte_level_alphabet();
  for (int byte = 0; byte < 256; ++byte) {
    std::string text;
    append_utf8(alphabet[byte], text);
    byte_tokens_[byte] = by_text.find(text);
    const bool is_printable = (byte >= 0x20 && byte <= 0x7E) || byte == '\n';
    if (is_printable && byte_tokens_[byte] < 0)
      throw_invalid("tokenizer.ggml.tokens: no token for the byte {:#04x}", byte);
  }
}

void ByteLevelBpe::add_merges(const Vocabulary& vocabulary, const StringIndex& by_text,
                              std::span<const std::uint8_t> is_special) {
  std::uint32_t rank = 0;
  std::string joined;
  const auto find = [&](std::string_view text, const char* what) {
    const TokenId id = by_text.find(text);
    if (id < 0) throw_invalid("tokenizer.ggml.merges[{}]: {} is not a token", rank, what);
    if (is_special[id])
      throw_invalid("tokenizer.ggml.merges[{}]: {} is a special token", rank, what);
    return id;
  };
  for (const std::string& merge : vocabulary.merges) {
    const std::size_t space = merge.find(' ');
    if (space == 0 || space == merge.npos || space + 1 == merge.size() ||
        merge.find(' ', space + 1) != merge.npos)
      throw_invalid("tokenizer.ggml.merges[{}]: not two tokens with a space between", rank);
    const TokenId left = find(std::string_view(merge).substr(0, space), "the left one");
    const TokenId right = find(std::string_view(merge).substr(space + 1), "the right one");
    joined.assign(merge).erase(space, 1);
    if (!merges_.insert(left, right, {rank, find(joined, "what they make")}))
      throw_invalid("tokenizer.ggml.merges[{}]: the pair stands above already", rank);
    ++rank;
  }
}

void ByteLevelBpe::add_words(const Vocabulary& vocabulary,
                             std::span<const std::uint8_t> is_special) {
  std::string bytes;
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const bool is_normal = vocabulary.kinds.empty() || vocabulary.kinds[id] == TokenKind::kNormal;
    bytes.clear();
    if (!is_normal || is_special[id] || !append_byte_level(vocabulary.tokens[id], bytes)) continue;
    words_.append(bytes);
    word_tokens_.push_back(static_cast<TokenId>(id));
  }
  for (TokenId word = 0; word < words_.size(); ++word) by_word_.insert(word);
}

void ByteLevelBpe::encode(std::string_view text, bool /*at_start*/, EncodeScratch& scratch,
                          std::vector<PlacedToken>& out) const {
  std::optional<NormalizedText> normalized;
  if (kind_.normalizes) normalized = to_nfc(text);
  if (!normalized) return encode_words(text, scratch, out);
  const std::size_t first = out.size();
  encode_words(scratch.normalized.emplace_back(std::move(normalized->text)), scratch, out);
  for (std::size_t i = first; i < out.size(); ++i) out[i].begin = normalized->origin[out[i].begin];
}

void ByteLevelBpe::encode_words(std::string_view text, EncodeScratch& scratch,
                                std::vector<PlacedToken>& out) const {
  pre_tokenizer_.for_each_word(text, [&](std::size_t word_begin, std::size_t end) {
    const auto begin = static_cast<std::uint32_t>(word_begin);
    const std::string_view word = text.substr(begin, end - begin);
    if (!scratch.cache.replay(word, begin, out)) {
      const std::size_t first = out.size();
      encode_word(word, begin, scratch, out);
      scratch.cache.remember(word, begin, out, first);
    }
    scratch.check_count(out.size());
  });
}

void ByteLevelBpe::encode_word(std::string_view word, std::uint32_t begin, EncodeScratch& scratch,
                               std::vector<PlacedToken>& out) const {
  if (!word_tokens_.empty()) {
    if (const TokenId known = by_word_.find(word); known >= 0) {
      out.push_back({word_tokens_[known], begin});
      return;
    }
  }
  check_word(word.size(), "bytes");
  scratch.symbols.clear();
  scratch.symbols.reserve(word.size());
  for (std::size_t i = 0; i < word.size(); ++i) {
    const TokenId id = byte_tokens_[static_cast<std::uint8_t>(word[i])];
    const std::uint32_t at = begin + static_cast<std::uint32_t>(i);
    if (id >= 0) scratch.symbols.push_back({at, at + 1, id});
  }
  if (scratch.symbols.empty()) return;
  merge_symbols(scratch.symbols, scratch.queue, [this](const Symbol& left, const Symbol& right) {
    return merges_.find(left.id, right.id);
  });
  for (std::uint32_t i = 0; i != Symbol::kNone; i = scratch.symbols[i].next)
    out.push_back({scratch.symbols[i].id, scratch.symbols[i].begin});
}

}  // namespace larder
