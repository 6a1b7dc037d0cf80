#include "kernels/common_keys.h"

#include <algorithm>

namespace larder {
namespace {

constexpr int kStepBlocks = kCommonKeyStep / kBlockSize;
static_assert(kCommonKeyStep % kBlockSize == 0);

// Where its query sees all keys before it: a window does not count before it has passed one.
bool sees_all(const AttentionSequence& sequence, int layer_window) {
  const auto is_wide = [&](int window) { return window == 0 || sequence.context_len <= window; };
  return is_wide(layer_window) && is_wide(sequence.window);
}

}  // namespace

void CommonKeyFinder::reserve(int num_sequences) {
  const auto num = static_cast<std::size_t>(num_sequences);
  candidates_.reserve(num);
  next_steps_.reserve(num);
  chosen_.reserve(num);
  members_.reserve(num);
  common_.reserve(num);
}

int CommonKeyFinder::common_steps(const Candidate& a, const Candidate& b) {
  const int num_blocks = std::min(a.num_steps, b.num_steps) * kStepBlocks;
  return static_cast<int>(std::mismatch(a.blocks, a.blocks + num_blocks, b.blocks).first - a.blocks) /
         kStepBlocks;
}

// The ranges within [begin, end) by which most is saved, at the end of chosen_; how much that is.
std::int64_t CommonKeyFinder::choose(int begin, int end) {
  if (end - begin < 2) return 0;
  const auto first = next_steps_.begin();
  const Range whole{begin, end, *std::min_element(first + begin, first + end - 1)};
  const std::size_t num_before = chosen_.size();
  std::int64_t saved = 0;
  // Parts that have more in common than the whole.
  for (int part = begin; part < end;) {
    int part_end = part + 1;
    while (part_end < end && next_steps_[static_cast<std::size_t>(part_end) - 1] > whole.num_steps) ++part_end;
    saved += choose(part, part_end);
    part = part_end;
  }
  if (whole.saved_steps() < saved) return saved;
  chosen_.resize(num_before);
  if (whole.num_steps > 0) chosen_.push_back(whole);
  return whole.saved_steps();
}

void CommonKeyFinder::add(std::span<AttentionSequence> sequences, const Range& range,
                          const CommonKeyRule& rule) {
  const auto room = rule.max_states - static_cast<int>(members_.size());
  const Range taken{range.begin, std::min(range.end, range.begin + room), range.num_steps};
  if (taken.saved_steps() < rule.min_saved_steps) return;
  common_.push_back({.num_keys = taken.num_steps * kCommonKeyStep,
                     .num_sequences = taken.end - taken.begin});
  for (int i = taken.begin; i < taken.end; ++i) {
    const std::int32_t at = candidates_[static_cast<std::size_t>(i)].sequence;
    AttentionSequence& sequence = sequences[static_cast<std::size_t>(at)];
    sequence.num_common = common_.back().num_keys;
    sequence.common_state = static_cast<int>(members_.size());
    members_.push_back(at);
  }
}

std::span<const CommonKeys> CommonKeyFinder::find(std::span<AttentionSequence> sequences,
                                                  const CommonKeyRule& rule) {
  candidates_.clear();
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    AttentionSequence& sequence = sequences[i];
    sequence.num_common = 0;
    const int num_steps = sequence.context_len / kCommonKeyStep;
    if (sequence.num_tokens != 1 || num_steps == 0 || !sees_all(sequence, rule.window)) continue;
    candidates_.push_back({sequence.block_table, num_steps, static_cast<std::int32_t>(i)});
  }
  common_.clear();
  members_.clear();
  if (candidates_.size() < 2) return {};
  std::sort(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) {
    const auto end_of = [](const Candidate& c) { return c.blocks + c.num_steps * kStepBlocks; };
    const auto order = std::lexicographical_compare_three_way(a.blocks, end_of(a), b.blocks, end_of(b));
    return order != 0 ? order < 0 : a.sequence < b.sequence;
  });
  next_steps_.clear();
  for (std::size_t i = 0; i + 1 < candidates_.size(); ++i)
    next_steps_.push_back(common_steps(candidates_[i], candidates_[i + 1]));
  chosen_.clear();
  choose(0, static_cast<int>(candidates_.size()));
  for (const Range& range : chosen_) add(sequences, range, rule);
  const std::int32_t* member = members_.data();  // none is added any more
  for (CommonKeys& common : common_) {
    common.sequences = member;
    member += common.num_sequences;
  }
  return common_;
}

}  // namespace larder
