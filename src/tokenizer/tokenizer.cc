#include "tokenizer/tokenizer.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/byte_level_bpe.h"
#include "tokenizer/char_classes.h"
#include "tokenizer/sentence_piece.h"
#include "tokenizer/utf8.h"
#include "tokenizer/vocabulary_check.h"

namespace larder {
namespace {

// Real vocabularies have less than 1 MiB; a byte takes a node of 16 in AddedTokens.
constexpr std::size_t kMaxAddedBytes = std::size_t{16} << 20;

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string result;
  std::size_t begin = 0;
  for (std::size_t at; (at = text.find(from, begin)) != text.npos; begin = at + from.size())
    result.append(text, begin, at - begin).append(to);
  return result.append(text, begin);
}

// Stretches of trusted text, across spans.
std::vector<std::pair<std::size_t, std::size_t>> trusted_stretches(
    std::span<const TextSpan> spans) {
  std::vector<std::pair<std::size_t, std::size_t>> stretches;
  for (const TextSpan& span : spans) {
    if (!span.trusted || span.begin == span.end) continue;
    if (!stretches.empty() && stretches.back().second == span.begin)
      stretches.back().second = span.end;
    else
      stretches.emplace_back(span.begin, span.end);
  }
  return stretches;
}

std::size_t end_of_spaces(std::string_view text, std::size_t begin) {
  static const CharClasses classes;
  while (begin < text.size()) {
    const ClassifiedChar c = classes.at(text, begin);
    if (!(c.classes & kSpace)) break;
    begin += c.length;
  }
  return begin;
}

// Of those that end at end, none before least.
std::size_t begin_of_spaces(std::string_view text, std::size_t least, std::size_t end) {
  while (end > least) {
    std::size_t begin = end - 1;
    while (begin > least && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
    if (end_of_spaces(text.substr(0, end), begin) != end) break;
    end = begin;
  }
  return end;
}

void check_spans(std::string_view text, std::span<const TextSpan> spans) {
  std::size_t end = 0;
  for (const TextSpan& span : spans) {
    CHECK(span.begin == end && span.end >= end, span.begin, span.end, end);
    end = span.end;
  }
  CHECK(end == text.size(), end, text.size());
}

}  // namespace

class Tokenizer::Impl {
 public:
  explicit Impl(Vocabulary vocabulary);

  std::vector<PlacedToken> encode(std::string_view text, std::span<const TextSpan> spans,
                                  std::span<const ExactSpan> exact, std::size_t max_tokens) const;
  // Moves whole characters from pending to out; with at_end all of it, incomplete ones as U+FFFD.
  void move_characters(std::string& pending, bool at_end, std::string& out) const;

  std::string_view bytes_of(TokenId token, bool show_special) const {
    CHECK(token >= 0 && token < texts.size(), token);
    return is_hidden[token] && !show_special ? std::string_view() : bytes[token];
  }

  StringPool texts;  // as written in the vocabulary
  StringPool bytes;  // as they appear in text
  StringIndex by_text;
  std::vector<std::uint8_t> is_special;
  std::vector<std::uint8_t> is_hidden;  // special tokens but for those that tell what a part of an answer is
  std::vector<std::uint8_t> strips_left, strips_right;  // empty: none does
  std::vector<TokenId> end_tokens;
  std::optional<TokenId> bos, eos;
  bool add_bos, add_eos;
  bool is_sentence_piece;
  bool strips_space;  // decode drops the space that encode put before the text
  // SentencePiece as the `tokenizers` library has it: user-defined tokens are found in the text as it is, and what lies
  // between two of them is a text of its own.
  bool has_own_texts;
  bool prefixes_start_only;

 private:
  void add_texts(const Vocabulary& vocabulary);
  void add_bytes(const Vocabulary& vocabulary);
  void add_added_tokens(const Vocabulary& vocabulary);

  AddedTokens markers_;       // special tokens, for trusted text
  AddedTokens user_defined_;  // for any text
  std::unique_ptr<TextEncoder> encoder_;
};

Tokenizer::Impl::Impl(Vocabulary vocabulary)
    : by_text(texts, vocabulary.tokens.size()),
      bos(vocabulary.bos),
      eos(vocabulary.eos),
      add_bos(vocabulary.add_bos && bos),
      add_eos(vocabulary.add_eos && eos),
      is_sentence_piece(vocabulary.model == "llama"),
      strips_space(is_sentence_piece && vocabulary.add_space_prefix),
      has_own_texts(is_sentence_piece && !vocabulary.merges.empty()),
      prefixes_start_only(vocabulary.prefixes_start_only),
      markers_(false),
      user_defined_(is_sentence_piece && !has_own_texts) {
  check_vocabulary(vocabulary);
  is_special = find_special_tokens(vocabulary);
  end_tokens = find_end_tokens(vocabulary, is_special);
  const auto mark = [&](const std::vector<TokenId>& ids, std::vector<std::uint8_t>& marks) {
    if (!ids.empty()) marks.resize(vocabulary.tokens.size());
    for (const TokenId id : ids) marks[id] = 1;
  };
  mark(vocabulary.strips_left, strips_left);
  mark(vocabulary.strips_right, strips_right);
  add_texts(vocabulary);
  add_bytes(vocabulary);
  add_added_tokens(vocabulary);
  if (is_sentence_piece)
    encoder_ = std::make_unique<SentencePiece>(vocabulary, bytes, by_text, is_special);
  else
    encoder_ = std::make_unique<ByteLevelBpe>(vocabulary, by_text, is_special);
}

void Tokenizer::Impl::add_texts(const Vocabulary& vocabulary) {
  for (const std::string& text : vocabulary.tokens) texts.append(text);
  for (TokenId id = 0; id < texts.size(); ++id)
    if (const TokenId twin = by_text.insert(id); twin >= 0)
      throw_invalid("tokenizer.ggml.tokens[{}]: the same text as token {}", id, twin);
  is_hidden = is_special;
  const auto show = [&](std::string_view text) {
    if (const TokenId id = by_text.find(text); id >= 0) is_hidden[id] = 0;
  };
  for (const std::string_view tag : {"<tool_call>", "</tool_call>", "<think>", "</think>", "<arg_key>", "</arg_key>",
                                     "<arg_value>", "</arg_value>"})
    show(tag);
  if (speaks_harmony(vocabulary, is_special))
    for (const std::string_view tag : kHarmonyTokens) show(tag);
}

void Tokenizer::Impl::add_bytes(const Vocabulary& vocabulary) {
  std::string text;
  for (TokenId id = 0; id < texts.size(); ++id) {
    const bool is_literal = is_special[id] || kind_of(vocabulary, id) == TokenKind::kUserDefined;
    text.clear();
    if (is_byte_token(vocabulary, id)) {
      text.push_back(static_cast<char>(*parse_byte_token(texts[id])));
    } else if (is_sentence_piece) {
      text = is_special[id] ? texts[id] : replace_all(texts[id], kEscapedSpace, " ");
    } else if (is_literal || !append_byte_level(texts[id], text)) {
      text = texts[id];
    }
    bytes.append(text);
  }
}

void Tokenizer::Impl::add_added_tokens(const Vocabulary& vocabulary) {
  std::size_t num_bytes = 0;
  for (TokenId id = 0; id < texts.size(); ++id) {
    const bool is_added = is_special[id] || kind_of(vocabulary, id) == TokenKind::kUserDefined;
    num_bytes += is_added ? texts[id].size() : 0;
  }
  if (num_bytes > kMaxAddedBytes)
    throw_invalid(
        "tokenizer.ggml.token_type: the special and the user-defined tokens have {} bytes together, "
        "{} at most are taken",
        num_bytes, kMaxAddedBytes);
  for (TokenId id = 0; id < texts.size(); ++id) {
    if (is_special[id])
      markers_.insert(texts[id], id);
    else if (kind_of(vocabulary, id) == TokenKind::kUserDefined)
      user_defined_.insert(has_own_texts ? texts[id] : bytes[id], id);
  }
}

std::vector<PlacedToken> Tokenizer::Impl::encode(std::string_view text,
                                                 std::span<const TextSpan> spans,
                                                 std::span<const ExactSpan> exact,
                                                 std::size_t max_tokens) const {
  const auto stretches = trusted_stretches(spans);
  auto stretch = stretches.begin();
  std::vector<PlacedToken> tokens;
  EncodeScratch scratch(text.size(), max_tokens);
  std::size_t begin = 0;  // of what is not encoded yet
  bool at_start = true;
  const auto encode_until = [&](std::size_t end) {
    const std::size_t first = tokens.size();
    encoder_->encode(text.substr(begin, end - begin), at_start, scratch, tokens);
    for (std::size_t i = first; i < tokens.size(); ++i)
      tokens[i].begin += static_cast<std::uint32_t>(begin);
  };
  for (std::size_t at = 0; at < text.size();) {
    if (!exact.empty() && exact.front().begin == at) {
      if (begin < at) encode_until(at);
      for (const TokenId token : exact.front().tokens) {
        tokens.push_back({token, static_cast<std::uint32_t>(at)});
        at += bytes[token].size();
      }
      scratch.check_count(tokens.size());
      begin = at;
      at_start = false;
      exact = exact.subspan(1);
      continue;
    }
    const std::string_view rest =
        text.substr(at, (exact.empty() ? text.size() : exact.front().begin) - at);
    AddedTokens::Match match;
    if (user_defined_.may_begin(text[at])) match = user_defined_.match(rest);
    if (markers_.may_begin(text[at])) {
      while (stretch != stretches.end() && stretch->second <= at) ++stretch;
      if (stretch != stretches.end() && stretch->first <= at) {
        const auto marker = markers_.match(rest.substr(0, stretch->second - at));
        if (marker.length >= match.length) match = marker;
      }
    }
    if (match.length == 0) {
      ++at;
      continue;
    }
    const bool is_marker = is_special[match.token] != 0;
    // A user-defined token is part of the text: the prefix of a text that begins with one goes
    // before.
    const bool strips = !strips_left.empty() && strips_left[match.token];
    const std::size_t end = strips ? begin_of_spaces(text, begin, at) : at;
    if (begin < end || (at_start && !is_marker && !has_own_texts)) encode_until(end);
    at_start = has_own_texts ? !prefixes_start_only : is_marker;
    tokens.push_back({match.token, static_cast<std::uint32_t>(at)});
    scratch.check_count(tokens.size());
    at += match.length;
    if (!strips_right.empty() && strips_right[match.token])
      at = end_of_spaces(text.substr(0, exact.empty() ? text.size() : exact.front().begin), at);
    begin = at;
  }
  if (begin < text.size()) encode_until(text.size());
  return tokens;
}

void Tokenizer::Impl::move_characters(std::string& pending, bool at_end, std::string& out) const {
  std::size_t i = 0;
  while (i < pending.size()) {
    const Utf8Char c = read_utf8(pending, i);
    if (c.truncated && !at_end) break;
    if (c.valid) {
      out.append(pending, i, c.length);
    } else {
      // Byte tokens that make no character are replaced one by one, as SentencePiece does.
      for (std::uint32_t k = 0; k < (is_sentence_piece ? c.length : 1); ++k)
        append_utf8(kReplacementCharacter, out);
    }
    i += c.length;
  }
  pending.erase(0, i);
}

Tokenizer::Tokenizer(Vocabulary vocabulary)
    : impl_(std::make_unique<const Impl>(std::move(vocabulary))) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;

std::vector<TokenId> Tokenizer::encode(std::string_view text, bool add_special,
                                       bool parse_special, std::size_t max_tokens) const {
  const TextSpan whole{0, text.size(), parse_special, -1};
  return encode(text, {&whole, 1}, add_special, {}, max_tokens).tokens;
}

Spelling Tokenizer::spell(std::span<const TokenId> tokens, std::string_view text) const {
  Spelling result;
  for (const TokenId token : tokens) {
    const std::string_view bytes = impl_->bytes_of(token, true);
    if (is_special(token) || !text.substr(result.num_bytes).starts_with(bytes)) break;
    result.num_bytes += bytes.size();
    ++result.num_tokens;
  }
  return result;
}

Encoding Tokenizer::encode(std::string_view text, std::span<const TextSpan> spans,
                           bool add_special, std::span<const ExactSpan> exact,
                           std::size_t max_tokens) const {
  check_spans(text, spans);
  std::size_t last_end = 0;
  for (const ExactSpan& span : exact) {
    CHECK(last_end <= span.begin && span.begin < span.end && span.end <= text.size(), span.begin);
    const Spelling spelling = spell(span.tokens, text.substr(span.begin));
    CHECK(spelling.num_tokens == span.tokens.size() && span.begin + spelling.num_bytes == span.end,
          span.begin, span.end, spelling.num_bytes);
    last_end = span.end;
  }
  if (text.size() > std::numeric_limits<std::int32_t>::max())
    throw Error(ErrorKind::kTooLarge, "a text of 2 GiB or more cannot be encoded");
  const std::vector<PlacedToken> placed = impl_->encode(text, spans, exact, max_tokens);
  Encoding encoding;
  encoding.tokens.reserve(placed.size() + 2);
  encoding.messages.reserve(placed.size() + 2);
  encoding.begins.reserve(placed.size() + 2);
  const auto put = [&](TokenId token, std::int32_t message, std::size_t begin) {
    encoding.tokens.push_back(token);
    encoding.messages.push_back(message);
    encoding.begins.push_back(static_cast<std::uint32_t>(begin));
  };
  if (add_special && impl_->add_bos) put(*impl_->bos, -1, 0);
  auto span = spans.begin();
  for (const PlacedToken& token : placed) {
    while (span->end <= token.begin) ++span;
    put(token.token, span->message, token.begin);
  }
  if (add_special && impl_->add_eos) put(*impl_->eos, -1, text.size());
  return encoding;
}

int num_tokens_within(const Encoding& encoding, std::size_t num_bytes, std::size_t text_size) {
  const auto& begins = encoding.begins;
  const auto next = std::ranges::lower_bound(begins, num_bytes);
  const auto num_begun = static_cast<int>(next - begins.begin());
  // The last one ends where the next begins.
  const std::size_t end = next == begins.end() ? text_size : *next;
  return end <= num_bytes ? num_begun : std::max(num_begun - 1, 0);
}

std::string_view Tokenizer::token_bytes(TokenId token, bool show_special) const {
  return impl_->bytes_of(token, show_special);
}

std::string Tokenizer::decode(std::span<const TokenId> tokens, bool show_special) const {
  StreamDecoder decoder(*this, show_special);
  std::string text;
  for (const TokenId token : tokens) text += decoder.push(token);
  return text += decoder.finish();
}

int Tokenizer::vocab_size() const { return impl_->texts.size(); }
std::optional<TokenId> Tokenizer::bos() const { return impl_->bos; }
std::optional<TokenId> Tokenizer::eos() const { return impl_->eos; }
std::span<const TokenId> Tokenizer::end_tokens() const { return impl_->end_tokens; }

bool Tokenizer::is_special(TokenId token) const {
  CHECK(token >= 0 && token < vocab_size(), token);
  return impl_->is_special[token] != 0;
}

std::optional<TokenId> Tokenizer::find(std::string_view token_text) const {
  const TokenId id = impl_->by_text.find(token_text);
  return id < 0 ? std::nullopt : std::optional(id);
}

std::string_view Tokenizer::token_text(TokenId token) const {
  CHECK(token >= 0 && token < vocab_size(), token);
  return impl_->texts[token];
}

std::string StreamDecoder::push(TokenId token) {
  std::string_view bytes = tokenizer_.impl_->bytes_of(token, show_special_);
  if (at_start_ && !bytes.empty()) {
    at_start_ = false;
    if (tokenizer_.impl_->strips_space && bytes[0] == ' ') bytes.remove_prefix(1);
  }
  pending_ += bytes;
  std::string text;
  tokenizer_.impl_->move_characters(pending_, false, text);
  return text;
}

std::string StreamDecoder::finish() {
  std::string text;
  tokenizer_.impl_->move_characters(pending_, true, text);
  return text;
}

}  // namespace larder
