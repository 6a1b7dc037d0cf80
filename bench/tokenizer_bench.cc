// How fast text becomes tokens, and that ten times the text takes ten times as long.
//   tokenizer_bench MODEL.gguf...
// Times are of the processor, not of the clock: other processes disturb them less.
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "model/gguf.h"
#include "model/vocabulary.h"
#include "tokenizer/tokenizer.h"

namespace {

using larder::TokenId;

double seconds_since(std::clock_t start) {
  return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

// Words of a language-like length and variety from a fixed linear congruential sequence.
std::string make_prose(std::size_t size) {
  constexpr std::string_view kSyllables[] = {"the", "ra", "tion", "in",  "er", "mo", "de",  "ing",
                                             "con", "ta", "ly",   "pre", "s",  "al", "ver", "ment"};
  std::string text;
  std::uint32_t state = 1;
  const auto next = [&](std::uint32_t limit) {
    state = state * 1664525 + 1013904223;
    return (state >> 16) % limit;
  };
  while (text.size() < size) {
    // Few words are frequent and many are rare, as in language.
    std::uint32_t word = next(1 << (3 + next(11)));
    for (std::uint32_t k = 0; k == 0 || (word > 0 && k < 4); ++k, word /= 16)
      text += kSyllables[word % 16];
    text += next(12) == 0 ? ". " : " ";
  }
  text.resize(size);
  return text;
}

std::string without_spaces(std::string text) {
  for (std::size_t i = 0; i < text.size(); ++i)
    if (text[i] == ' ' || text[i] == '.') text[i] = static_cast<char>('a' + i * 7 % 26);
  return text;
}

double best_seconds(const larder::Tokenizer& tokenizer, const std::string& text) {
  double best = 1e9;
  for (int run = 0; run < 5; ++run) {
    const auto start = std::clock();
    tokenizer.encode(text, false, false);
    best = std::min(best, seconds_since(start));
  }
  return best;
}

void measure(const larder::Tokenizer& tokenizer, const char* name, const std::string& text) {
  const double small = best_seconds(tokenizer, text.substr(0, text.size() / 10));
  const double large = best_seconds(tokenizer, text);
  const auto tokens = tokenizer.encode(text, false, false);
  const auto start = std::clock();
  tokenizer.decode(tokens);
  const double megabytes = static_cast<double>(text.size()) / 1e6;
  std::printf("  %-10s 100 KB %7.2f ms, 1 MB %7.2f ms (x%.1f), %6.1f MB/s, decode %6.1f MB/s\n",
              name, small * 1e3, large * 1e3, large / small, megabytes / large,
              megabytes / seconds_since(start));
}

}  // namespace

int main(int argc, char** argv) {
  constexpr std::size_t kSize = 1'000'000;
  for (int i = 1; i < argc; ++i) {
    const larder::MappedFile file(argv[i]);
    const larder::GgufFile gguf(file.bytes());
    const auto start = std::clock();
    const larder::Tokenizer tokenizer(larder::read_vocabulary(gguf));
    std::printf("%s\n  %d tokens, loaded in %.0f ms\n", argv[i], tokenizer.vocab_size(),
                seconds_since(start) * 1e3);
    measure(tokenizer, "prose", make_prose(kSize));
    measure(tokenizer, "no spaces", without_spaces(make_prose(kSize)));
    measure(tokenizer, "one letter", std::string(kSize, 'a'));
    measure(tokenizer, "spaces", std::string(kSize, ' '));
    measure(tokenizer, "newlines", std::string(kSize, '\n'));
    measure(tokenizer, "digits", std::string(kSize, '7'));
    std::string emoji;
    while (emoji.size() < kSize) emoji += "😀";
    measure(tokenizer, "emoji", emoji);
  }
}
