#include "server/answer/thought_scanner.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "server/white_space.h"

namespace larder {
namespace {

// Of a text that begins with so many spaces.
std::size_t count_spaces(std::string_view text, std::size_t num_known) {
  return std::min(text.find_first_not_of(kSpace, num_known), text.size());
}

}  // namespace

ThoughtScanner::ThoughtScanner(const ToolCallRules& rules)
    : tells_apart_(rules.parts_thoughts),
      state_(!rules.parts_thoughts && !rules.are_read ? State::kInText
             : rules.begins_in_thought                ? State::kInThought
                                                      : State::kBeginning),
      text_(rules) {}

std::vector<AnswerPiece> ThoughtScanner::push(std::string_view text) {
  if (state_ == State::kInText) return text_.push(text);
  std::vector<AnswerPiece> pieces;
  held_ += text;
  if (state_ == State::kBeginning) begin(pieces);
  if (state_ == State::kInThought) scan_thought(pieces);
  if (state_ == State::kBehindThought) {
    if (tells_apart_) held_.erase(0, count_spaces(held_, 0));
    if (!held_.empty()) pass_to_text(pieces);
  }
  return pieces;
}

std::vector<AnswerPiece> ThoughtScanner::finish() {
  std::vector<AnswerPiece> pieces;
  if (state_ == State::kInThought) {
    take(tells_apart_ ? held_.find_last_not_of(kSpace) + 1 : held_.size(), pieces);  // npos + 1 = 0
    held_.clear();
  } else if (state_ == State::kBeginning) {
    pass_to_text(pieces);
  }
  std::ranges::move(text_.finish(), std::back_inserter(pieces));
  return pieces;
}

void ThoughtScanner::begin(std::vector<AnswerPiece>& pieces) {
  num_spaces_ = count_spaces(held_, num_spaces_);
  const std::string_view said = std::string_view(held_).substr(num_spaces_);
  if (said.size() < kThought.size() && kThought.starts_with(said)) return;  // it may become one
  if (!said.starts_with(kThought)) return pass_to_text(pieces);
  const std::size_t size = num_spaces_ + kThought.size();
  if (tells_apart_)
    held_.erase(0, size);
  else
    take(size, pieces);
  num_spaces_ = 0;
  state_ = State::kInThought;
}

// Up to what may be its end, or white space before that.
void ThoughtScanner::scan_thought(std::vector<AnswerPiece>& pieces) {
  const std::string_view said = held_;
  const auto end = said.find(kThoughtEnd, num_spaces_);
  const bool is_over = end != said.npos;
  const std::size_t tag = is_over ? end : said.size() - size_of_possible_tag(said, kThoughtEnd);
  if (!tells_apart_) {
    take(is_over ? tag + kThoughtEnd.size() : tag, pieces);
  } else {
    const auto last = said.substr(num_spaces_, tag - num_spaces_).find_last_not_of(kSpace);
    const std::size_t size = last == said.npos ? 0 : num_spaces_ + last + 1;
    take(size, pieces);
    num_spaces_ = tag - size;
    if (is_over) held_.erase(0, num_spaces_ + kThoughtEnd.size());
  }
  if (is_over) state_ = State::kBehindThought;
}

void ThoughtScanner::pass_to_text(std::vector<AnswerPiece>& pieces) {
  state_ = State::kInText;
  std::ranges::move(text_.push(std::exchange(held_, {})), std::back_inserter(pieces));
}

// Of what is held back.
void ThoughtScanner::take(std::size_t size, std::vector<AnswerPiece>& pieces) {
  std::string_view told = std::string_view(held_).substr(0, size);
  if (tells_apart_ && !has_thought_) told.remove_prefix(count_spaces(told, 0));
  if (!told.empty()) {
    has_thought_ = true;
    pieces.push_back({.text = std::string(told), .is_thought = tells_apart_});
  }
  held_.erase(0, size);
}

}  // namespace larder
