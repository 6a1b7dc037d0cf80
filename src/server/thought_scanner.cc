#include "server/thought_scanner.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "server/white_space.h"

namespace larder {
namespace {

std::string_view without_leading_space(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size()));
  return text;
}

std::string_view without_trailing_space(std::string_view text) {
  return text.substr(0, text.find_last_not_of(kSpace) + 1);  // npos + 1 = 0
}

// What stands behind it is no thought's.
ToolCallRules behind_thought(ToolCallRules rules) {
  rules.begins_in_thought = false;
  return rules;
}

}  // namespace

ThoughtScanner::ThoughtScanner(const ToolCallRules& rules)
    : state_(rules.begins_in_thought ? State::kInThought : State::kBeginning), text_(behind_thought(rules)) {}

std::vector<AnswerPiece> ThoughtScanner::push(std::string_view text) {
  if (state_ == State::kInText) return text_.push(text);
  std::vector<AnswerPiece> pieces;
  held_ += text;
  if (state_ == State::kBeginning) begin(pieces);
  if (state_ == State::kInThought) scan_thought(pieces);
  if (state_ == State::kBehindThought && !without_leading_space(held_).empty()) {
    held_.erase(0, held_.size() - without_leading_space(held_).size());
    pass_to_text(pieces);
  }
  return pieces;
}

std::vector<AnswerPiece> ThoughtScanner::finish() {
  std::vector<AnswerPiece> pieces;
  if (state_ == State::kInThought) {
    emit(without_trailing_space(held_), pieces);
    held_.clear();
  } else if (state_ == State::kBeginning) {
    pass_to_text(pieces);
  }
  std::ranges::move(text_.finish(), std::back_inserter(pieces));
  return pieces;
}

void ThoughtScanner::begin(std::vector<AnswerPiece>& pieces) {
  const std::string_view said = without_leading_space(held_);
  if (said.size() < kThought.size() && kThought.starts_with(said)) return;  // it may become one
  if (!said.starts_with(kThought)) return pass_to_text(pieces);
  held_.erase(0, held_.size() - said.size() + kThought.size());
  state_ = State::kInThought;
}

// Up to what may be its end, or white space before that.
void ThoughtScanner::scan_thought(std::vector<AnswerPiece>& pieces) {
  const std::string_view said = held_;
  const auto end = said.find(kThoughtEnd);
  const bool is_over = end != said.npos;
  const std::string_view thought =
      without_trailing_space(said.substr(0, is_over ? end : said.size() - size_of_possible_tag(said, kThoughtEnd)));
  emit(thought, pieces);
  held_.erase(0, is_over ? end + kThoughtEnd.size() : thought.size());
  if (is_over) state_ = State::kBehindThought;
}

void ThoughtScanner::pass_to_text(std::vector<AnswerPiece>& pieces) {
  state_ = State::kInText;
  std::ranges::move(text_.push(std::exchange(held_, {})), std::back_inserter(pieces));
}

void ThoughtScanner::emit(std::string_view thought, std::vector<AnswerPiece>& pieces) {
  if (!has_thought_) thought = without_leading_space(thought);
  if (thought.empty()) return;
  has_thought_ = true;
  pieces.push_back({.text = std::string(thought), .is_thought = true});
}

}  // namespace larder
