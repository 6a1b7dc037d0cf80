#include "tokenizer/text_encoder.h"

#include <algorithm>
#include <bit>

#include "base/error.h"
#include "tokenizer/string_index.h"

namespace larder {
namespace {

constexpr std::size_t kMaxEntries = 8192;
constexpr std::size_t kBytesPerEntry = 8;
constexpr std::size_t kMaxWordBytes = 64;

}  // namespace

void check_word(std::size_t num_symbols, const char* what) {
  if (num_symbols <= kMaxWordSymbols) return;
  throw Error(ErrorKind::kTooLarge,
              fmt::format("the text has a word of more than {} {}, the most that is encoded; break "
                          "it up, by spaces for instance",
                          kMaxWordSymbols, what));
}

void EncodeScratch::check_count(std::size_t num_tokens) const {
  if (num_tokens <= max_tokens) return;
  // Clients of Anthropic's API know this error by its first words.
  throw Error(ErrorKind::kPromptTooLong,
              fmt::format("prompt is too long: it has more than {} tokens, the most that a text may "
                          "have; shorten it",
                          max_tokens));
}

WordCache::WordCache(std::size_t text_size)
    : entries_(std::bit_ceil(std::min(text_size / kBytesPerEntry, kMaxEntries))) {}

std::size_t WordCache::slot_of(std::string_view word) const {
  return (hash_string(word) >> 32) & (entries_.size() - 1);
}

bool WordCache::replay(std::string_view word, std::uint32_t begin,
                       std::vector<PlacedToken>& out) const {
  if (word.size() > kMaxWordBytes) return false;
  const Entry& entry = entries_[slot_of(word)];
  if (entry.count == 0 || entry.word != word) return false;
  for (std::uint32_t i = 0; i < entry.count; ++i) {
    const PlacedToken& known = tokens_[entry.first + i];
    out.push_back({known.token, known.begin + begin});
  }
  return true;
}

void WordCache::remember(std::string_view word, std::uint32_t begin,
                         const std::vector<PlacedToken>& out, std::size_t first) {
  if (word.size() > kMaxWordBytes || first == out.size()) return;
  Entry& entry = entries_[slot_of(word)];
  entry = {word, static_cast<std::uint32_t>(tokens_.size()),
           static_cast<std::uint32_t>(out.size() - first)};
  for (std::size_t i = first; i < out.size(); ++i)
    tokens_.push_back({out[i].token, out[i].begin - begin});
}

}  // namespace larder
