#include "engine/text_stream.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace larder {

StopStrings::StopStrings(std::vector<std::string> stops) {
  for (std::string& stop : stops) {
    if (stop.empty()) continue;
    CHECK(stop.size() <= kMaxBytes, stop.size());
    Pattern& pattern = patterns_.emplace_back();
    pattern.text = std::move(stop);
    pattern.fallback.resize(pattern.text.size(), 0);
    std::uint16_t border = 0;
    for (std::size_t i = 1; i < pattern.text.size(); ++i) {
      while (border > 0 && pattern.text[i] != pattern.text[border]) {
        border = pattern.fallback[border - std::size_t{1}];
      }
      if (pattern.text[i] == pattern.text[border]) ++border;
      pattern.fallback[i] = border;
    }
  }
}

StopFinder::StopFinder(std::shared_ptr<const StopStrings> stops) : stops_(std::move(stops)) {
  if (stops_ != nullptr) num_matched_.resize(stops_->patterns().size(), 0);
}

const std::string& StopFinder::stop() const {
  static const std::string kNothing;
  return found() ? stops_->patterns()[static_cast<std::size_t>(found_)].text : kNothing;
}

std::string StopFinder::push(std::string_view text, bool may_stop) {
  if (found()) return {};
  if (num_matched_.empty()) return std::string(text);
  for (const char next : text) {
    held_ += next;
    advance(next, may_stop);
    if (found()) {
      held_.resize(held_.size() - stop().size());
      return std::exchange(held_, {});
    }
  }
  const std::size_t num_held = *std::ranges::max_element(num_matched_);
  std::string shown = held_.substr(0, held_.size() - num_held);
  held_.erase(0, shown.size());
  return shown;
}

void StopFinder::advance(char next, bool may_stop) {
  for (std::size_t index = 0; index < num_matched_.size(); ++index) {
    const StopStrings::Pattern& pattern = stops_->patterns()[index];
    std::uint16_t& num_matched = num_matched_[index];
    const auto fall_back = [&] { num_matched = pattern.fallback[num_matched - std::size_t{1}]; };
    while (num_matched > 0 && pattern.text[num_matched] != next) fall_back();
    if (pattern.text[num_matched] == next) ++num_matched;
    if (num_matched < pattern.text.size()) continue;
    const bool is_longest = !found() || pattern.text.size() > stop().size();
    if (may_stop && is_longest) found_ = static_cast<int>(index);
    fall_back();
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
