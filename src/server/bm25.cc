#include "server/bm25.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace larder {
namespace {

constexpr double kSaturation = 1.2;   // k1
constexpr double kLengthShare = 0.75;  // b

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  std::string word;
  const auto end_word = [&] {
    if (!word.empty()) words.push_back(std::move(word));
    word.clear();
  };
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool is_upper = c >= 'A' && c <= 'Z';
    const bool is_word = is_upper || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || byte >= 128;
    if (is_word) {
      word += is_upper ? static_cast<char>(c + 32) : c;
    } else {
      end_word();
    }
  }
  end_word();
  return words;
}

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
