#include "engine/prompt_turns.h"

#include <algorithm>

#include "base/check.h"

namespace larder {
namespace {

// A prompt lets others pass that miss so much less than it; half of the turns stay its own.
constexpr int kMuchShorter = 8;
constexpr int kShorter = 2;  // the same between its layers, where less than that fits into a step

}  // namespace

void PromptTurns::begin(int num_brief) {
  start(was_long_, num_brief);
  is_between_layers_ = false;
}

void PromptTurns::begin_between_layers(int num_brief, int num_missing) {
  start(true, std::min(num_brief, num_missing / kShorter));
  is_between_layers_ = true;
}

void PromptTurns::start(bool lets_pass, int most_to_pass) {
  lets_pass_ = lets_pass;
  is_taken_ = false;
  passed_priority_.reset();
  most_to_pass_ = most_to_pass;
  num_ += lets_pass ? 1 : 0;
}

bool PromptTurns::gives_way(int priority, int num_missing) {
  const bool is_more_urgent = passed_priority_ && priority < *passed_priority_;
  if (!lets_pass_ || is_more_urgent || may_pass(priority, num_missing)) return false;
  if (!passed_priority_) most_to_pass_ = std::max(most_to_pass_, num_missing / kMuchShorter);
  passed_priority_ = std::min(priority, passed_priority_.value_or(priority));
  return true;
}

bool PromptTurns::may_pass(int priority, int num_missing) const {
  return (!passed_priority_ || priority <= *passed_priority_) && num_missing <= most_to_pass_;
}

void PromptTurns::take(const TakenTurn& taken) {
  CHECK(!is_taken_);
  is_taken_ = true;
  if (!is_between_layers_) was_long_ = taken.is_long && !taken.passes_a_longer;
}

}  // namespace larder
