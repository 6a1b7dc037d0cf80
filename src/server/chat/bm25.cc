#include "server/chat/bm25.h"

#include <unicode/uchar.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "tokenizer/utf8.h"

namespace larder {
namespace {

constexpr double kSaturation = 1.2;   // k1
constexpr double kLengthShare = 0.75;  // b

// Written without spaces between words: what is looked for is any two signs in a row.
bool is_dense(char32_t c) {
  return (c >= 0x0E00 && c < 0x0E80) || (c >= 0x3040 && c < 0x3100) || (c >= 0x3400 && c < 0xA000) ||
         (c >= 0xF900 && c < 0xFB00) || (c >= 0x20000 && c < 0x40000);
}

class WordReader {
 public:
  std::vector<std::string> read(std::string_view text) {
    for (std::size_t at = 0; at < text.size();) {
      const Utf8Char c = read_utf8(text, at);
      add(c.code_point);
      at += c.length;
    }
    end_word();
    return std::move(words_);
  }

 private:
  void add(char32_t c) {
    if (is_dense(c)) return add_dense(c);
    if (!before_.empty()) end_word();
    const auto code_point = static_cast<std::int32_t>(c);
    if (!u_isalnum(code_point) && u_charType(code_point) != U_NON_SPACING_MARK) return end_word();
    append_utf8(static_cast<char32_t>(u_tolower(code_point)), word_);
  }
  void add_dense(char32_t c) {
    if (before_.empty()) end_word();
    std::string sign;
    append_utf8(c, sign);
    if (!before_.empty()) words_.push_back(before_ + sign);
    is_alone_ = before_.empty();
    before_ = std::move(sign);
  }
  void end_word() {
    if (!before_.empty() && is_alone_) words_.push_back(before_);
    if (!word_.empty()) words_.push_back(std::move(word_));
    word_.clear();
    before_.clear();
  }

  std::vector<std::string> words_;
  std::string word_;
  std::string before_;  // the dense sign before this place
  bool is_alone_ = false;
};

std::vector<std::string> words_of(std::string_view text) { return WordReader().read(text); }

}  // namespace

Bm25::Bm25(const std::vector<std::string>& texts) {
  for (std::size_t text = 0; text < texts.size(); ++text) {
    const std::vector<std::string> words = words_of(texts[text]);
    for (const std::string& word : words) {
      std::vector<Posting>& postings = postings_[word];
      if (postings.empty() || postings.back().text != text) postings.push_back({text, 0});
      ++postings.back().count;
    }
    lengths_.push_back(static_cast<int>(words.size()));
    mean_length_ += static_cast<double>(words.size());
  }
  if (!texts.empty()) mean_length_ = std::max(1.0, mean_length_ / static_cast<double>(texts.size()));
}

std::vector<std::size_t> Bm25::best(std::string_view question, std::size_t most) const {
  std::vector<double> scores(lengths_.size());
  const std::vector<std::string> words = words_of(question);
  for (const std::string& word : std::set<std::string>(words.begin(), words.end())) {
    const auto found = postings_.find(word);
    if (found == postings_.end()) continue;
    const auto num_texts = static_cast<double>(lengths_.size());
    const auto num_with = static_cast<double>(found->second.size());
    const double rarity = std::log(1 + (num_texts - num_with + 0.5) / (num_with + 0.5));
    for (const Posting& posting : found->second) {
      const double length = lengths_[posting.text] / mean_length_;
      const double damping = kSaturation * (1 - kLengthShare + kLengthShare * length);
      scores[posting.text] += rarity * posting.count * (kSaturation + 1) / (posting.count + damping);
    }
  }
  std::vector<std::size_t> order;
  for (std::size_t text = scores.size(); text-- > 0;) {
    if (scores[text] > 0) order.push_back(text);
  }
  std::ranges::stable_sort(order, [&](auto a, auto b) { return scores[a] > scores[b]; });
  if (order.size() > most) order.resize(most);
  return order;
}

}  // namespace larder
