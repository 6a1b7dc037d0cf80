// Text without special tokens to tokens: what the two kinds of vocabulary do differently.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"
#include "tokenizer/symbol_merger.h"

namespace larder {

struct PlacedToken {
  TokenId token = -1;
  std::uint32_t begin = 0;  // offset in the text that was to be encoded
};

// Remembers how words were encoded earlier in the same text. One entry per slot, overwritten
// freely: bounded memory, and no input can make it slow.
class WordCache {
 public:
  // text_size: of the whole text, which decides how many slots are worth their clearing.
  explicit WordCache(std::size_t text_size);
  // Appends the word's tokens to out if they are known.
  bool replay(std::string_view word, std::uint32_t begin, std::vector<PlacedToken>& out) const;
  // out[first..] are the tokens of this word, which must live as long as the cache.
  void remember(std::string_view word, std::uint32_t begin, const std::vector<PlacedToken>& out,
                std::size_t first);

 private:
  struct Entry {
    std::string_view word;
    std::uint32_t first = 0, count = 0;  // in tokens_
  };
  std::size_t slot_of(std::string_view word) const;

  std::vector<Entry> entries_;  // a power of two
  std::vector<PlacedToken> tokens_;
};

// A word is merged as a whole, of bytes or characters that take 32 bytes of memory each; a text of
// one word would take as much memory as no plan has room for.
inline constexpr std::size_t kMaxWordSymbols = std::size_t{1} << 20;

// what: the symbols. Throws Error{kTooLarge} when a word has too many.
void check_word(std::size_t num_symbols, const char* what);

// What one call of Tokenizer::encode reuses from word to word.
struct EncodeScratch {
  EncodeScratch(std::size_t text_size, std::size_t most_tokens)
      : cache(text_size), max_tokens(most_tokens) {}
  // num_tokens: so far, at least. Throws Error{kPromptTooLong} when they are too many.
  void check_count(std::size_t num_tokens) const;

  WordCache cache;
  const std::size_t max_tokens;
  std::vector<Symbol> symbols;
  std::vector<std::uint64_t> queue;
  std::deque<std::string> normalized;  // texts that the cache's words point into
};

// Immutable after construction. Thread: any, concurrently.
class TextEncoder {
 public:
  virtual ~TextEncoder() = default;
  // Appends the tokens of text, in order of begin. text.size() < 2^31; text outlives scratch.
  // at_start: no text lies before it, or a special token does. text may be empty only then.
  // Throws Error{kTooLarge}, see check_word(), and soon after scratch.max_tokens are passed
  // Error{kPromptTooLong}.
  virtual void encode(std::string_view text, bool at_start, EncodeScratch& scratch,
                      std::vector<PlacedToken>& out) const = 0;
};

}  // namespace larder
