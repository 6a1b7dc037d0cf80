#include "engine/text_stream.h"

#include <algorithm>
#include <utility>

namespace larder {

StopFinder::StopFinder(std::vector<std::string> stops) {
  for (std::string& stop : stops) {
    if (stop.empty()) continue;
    Pattern& pattern = patterns_.emplace_back();
    pattern.text = std::move(stop);
    pattern.fallback.resize(pattern.text.size(), 0);
    std::size_t border = 0;
    for (std::size_t i = 1; i < pattern.text.size(); ++i) {
      while (border > 0 && pattern.text[i] != pattern.text[border]) {
        border = pattern.fallback[border - 1];
      }
      if (pattern.text[i] == pattern.text[border]) ++border;
      pattern.fallback[i] = border;
    }
  }
}

const std::string& StopFinder::stop() const {
  static const std::string kNothing;
  return found() ? patterns_[static_cast<std::size_t>(found_)].text : kNothing;
}

std::string StopFinder::push(std::string_view text, bool may_stop) {
  if (found()) return {};
  if (patterns_.empty()) return std::string(text);
  for (const char next : text) {
    held_ += next;
    advance(next, may_stop);
    if (found()) {
      held_.resize(held_.size() - stop().size());
      return std::exchange(held_, {});
    }
  }
  std::size_t num_held = 0;
  for (const Pattern& pattern : patterns_) num_held = std::max(num_held, pattern.num_matched);
  std::string shown = held_.substr(0, held_.size() - num_held);
  held_.erase(0, shown.size());
  return shown;
}

void StopFinder::advance(char next, bool may_stop) {
  for (std::size_t index = 0; index < patterns_.size(); ++index) {
    Pattern& pattern = patterns_[index];
    std::size_t& num_matched = pattern.num_matched;
    while (num_matched > 0 && pattern.text[num_matched] != next) {
      num_matched = pattern.fallback[num_matched - 1];
    }
    if (pattern.text[num_matched] == next) ++num_matched;
    if (num_matched < pattern.text.size()) continue;
    const bool is_longest = !found() || pattern.text.size() > stop().size();
    if (may_stop && is_longest) found_ = static_cast<int>(index);
    num_matched = pattern.fallback[num_matched - 1];
  }
}

std::string StopFinder::finish() { return std::exchange(held_, {}); }

std::string TextStream::push(TokenId token) {
  if (stopped()) return {};
  ++num_tokens_;
  return find(decoder_.push(token));
}

std::string TextStream::find(std::string_view text) {
  std::string shown = finder_.push(text, num_tokens_ > min_tokens_);
  if (stopped() && include_stop_) shown += finder_.stop();
  return shown;
}

std::string TextStream::finish() {
  if (stopped()) return {};
  std::string shown = find(decoder_.finish());
  if (!stopped()) shown += finder_.finish();
  return shown;
}

}  // namespace larder
