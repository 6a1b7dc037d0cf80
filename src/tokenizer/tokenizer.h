// Text <-> token ids, exactly as the model was trained.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"

namespace larder {

// GGUF's tokenizer.ggml.token_type.
enum class TokenKind : std::uint8_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

// What a file says about its tokenizer; plain data, checked by Tokenizer's constructor.
struct Vocabulary {
  std::string model;          // "gpt2" (byte-level BPE) or "llama" (SentencePiece)
  std::string pre_tokenizer;  // see PreTokenizer
  std::vector<std::string> tokens;
  std::vector<float> scores;        // SentencePiece; empty otherwise, and where merges are the rule
  std::vector<TokenKind> kinds;     // empty = all normal
  std::vector<std::string> merges;  // "left right" in order of rank: BPE, or SentencePiece as tokenizer.json has it
  std::optional<TokenId> bos, eos, eot, eom, unk;
  std::vector<TokenId> ends;  // more tokens that end a turn
  bool add_bos = false;
  bool add_eos = false;
  bool add_space_prefix = true;  // SentencePiece
  // Of SentencePiece with merges, where the prefix goes otherwise than before every piece between special tokens:
  bool prefixes_start_only = false;   // it is put before the text's own beginning alone
  bool prefixes_no_space = false;     // and not where there is a space already
  // Special tokens that take the spaces and line breaks before or behind them along.
  std::vector<TokenId> strips_left, strips_right;
};

// Tokens that a text has at most, unless a caller takes more: what encoding takes grows with them, and
// one byte may be a token.
inline constexpr std::size_t kMaxTextTokens = std::size_t{1} << 20;
inline constexpr std::size_t kAnyNumber = std::numeric_limits<std::size_t>::max();

// Where a piece of the text came from. Special tokens are recognised only in trusted text, so that
// a user who types one gets its characters.
struct TextSpan {
  std::size_t begin = 0, end = 0;  // bytes
  bool trusted = false;
  std::int32_t message = -1;  // index of the chat message, -1 = the template itself or a tool
  // Of the message: index of the part of its content, or behind those, of its tool call. What is in
  // neither (role, name) counts to part 0.
  std::int32_t part = 0;
  std::int32_t tool = -1;  // index of the tool's definition; -1 = not of one
};

// Text whose tokens are known, as they were generated: text[begin, end) becomes these, whatever
// encoding it would make of it. Their bytes must be that text, see spell().
struct ExactSpan {
  std::size_t begin = 0, end = 0;  // bytes
  std::span<const TokenId> tokens;
};

struct Spelling {
  std::size_t num_tokens = 0;
  std::size_t num_bytes = 0;
};

struct Encoding {
  std::vector<TokenId> tokens;
  std::vector<std::int32_t> messages;  // per token, TextSpan::message of its first byte
  std::vector<std::uint32_t> begins;   // per token, offset of its first byte
};

// How many tokens lie in the first num_bytes of the text, the last of them wholly.
int num_tokens_within(const Encoding& encoding, std::size_t num_bytes, std::size_t text_size);

// The special tokens that a model of OpenAI's gpt-oss divides its answer with (the harmony format), and that tell its
// reader what a part of it is.
inline constexpr std::string_view kHarmonyTokens[] = {"<|start|>",     "<|channel|>", "<|message|>", "<|constrain|>",
                                                      "<|end|>", "<|call|>",    "<|return|>"};

// Immutable after construction. Thread: any, concurrently. Any bytes are accepted as text: invalid
// UTF-8 becomes byte tokens (BPE) or U+FFFD (SentencePiece). Texts of 2^31 bytes or more throw
// Error{kTooLarge}.
class Tokenizer {
 public:
  // Throws Error{kInvalidArgument} that names the field when the vocabulary is malformed.
  explicit Tokenizer(Vocabulary vocabulary);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;

  // add_special: put BOS/EOS around the text where the model asks for it.
  // parse_special: the whole text is trusted.
  // Throws Error{kPromptTooLong} for a text of more than max_tokens, here and below.
  std::vector<TokenId> encode(std::string_view text, bool add_special, bool parse_special,
                              std::size_t max_tokens = kMaxTextTokens) const;
  // Spans must be in order and cover the text. What lies between special tokens is encoded as one
  // text, whatever spans it is made of; a special token may lie across spans if all are trusted.
  // User-defined tokens that mark nothing (a run of spaces, an HTML tag) are taken in any text.
  // Time: linear in the length of the text; n log n in that of its longest word, which is bounded:
  // encode throws Error{kTooLarge} for a longer one.
  // exact: in order, apart from each other; no token is made of text on both sides of their edges.
  Encoding encode(std::string_view text, std::span<const TextSpan> spans, bool add_special,
                  std::span<const ExactSpan> exact = {},
                  std::size_t max_tokens = kMaxTextTokens) const;
  // How many of the tokens spell the beginning of the text, and how much of it; a special token
  // spells nothing.
  Spelling spell(std::span<const TokenId> tokens, std::string_view text) const;
  // An array of spans would otherwise turn into a bool.
  void encode(std::string_view text, const TextSpan* spans, bool add_special) const = delete;

  // Ids that are passed in must be in [0, vocab_size()), here and below.
  // The bytes of one token, as they appear in text ("" for control tokens, but for <tool_call>, </tool_call> and
  // kHarmonyTokens, unless show_special).
  std::string_view token_bytes(TokenId token, bool show_special) const;
  // The whole text. Invalid UTF-8 becomes U+FFFD.
  std::string decode(std::span<const TokenId> tokens, bool show_special = false) const;

  int vocab_size() const;
  std::optional<TokenId> bos() const;
  std::optional<TokenId> eos() const;
  // Every token that ends a turn: eos, eot, and those known by name (<|im_end|>, <end_of_turn>,
  // ...).
  std::span<const TokenId> end_tokens() const;
  bool is_special(TokenId token) const;
  // nullopt when no token has that text.
  std::optional<TokenId> find(std::string_view token_text) const;
  // The token's text as written in the vocabulary, for templates and for /tokenize.
  std::string_view token_text(TokenId token) const;

 private:
  friend class StreamDecoder;
  class Impl;
  std::unique_ptr<const Impl> impl_;
};

// Tokens to text as they arrive: holds back bytes until they make whole characters.
// Thread: one at a time.
class StreamDecoder {
 public:
  // continues_text: a text lies before the first token, so that its space is no prefix and stays.
  explicit StreamDecoder(const Tokenizer& tokenizer, bool show_special = false,
                         bool continues_text = false)
      : tokenizer_(tokenizer), show_special_(show_special), at_start_(!continues_text) {}
  // The text that this token completes, often all of it, possibly "".
  std::string push(TokenId token);
  // What is left at the end; half a character becomes U+FFFD.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  bool show_special_;
  bool at_start_;
  std::string pending_;
};

}  // namespace larder
