// Which sequences of a batch have their first keys in the same blocks, so that attention reads those
// once for all of them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kernels.h"

namespace larder {

// What decides whether it pays.
struct CommonKeyRule {
  int window = 0;     // the layer's, AttentionArgs::window
  int max_states = 0;  // sequences, at most
  // Steps of kCommonKeyStep keys that are read once less, at least.
  std::int64_t min_saved_steps = 0;
};

// Thread: one at a time. Takes memory for more sequences than any batch had, or than were reserved for.
class CommonKeyFinder {
 public:
  void reserve(int num_sequences);

  // Sets num_common and common_state of the sequences. Of one that has several prefixes in common with others, the one
  // by which most is saved counts. The result is valid until the next call.
  std::span<const CommonKeys> find(std::span<AttentionSequence> sequences, const CommonKeyRule& rule);

 private:
  // One that may have keys in common, with as many steps of its keys as may be.
  struct Candidate {
    const BlockId* blocks = nullptr;
    int num_steps = 0;
    std::int32_t sequence = 0;
  };
  // Candidates [begin, end), which have so many steps in common.
  struct Range {
    int begin = 0;
    int end = 0;
    int num_steps = 0;

    std::int64_t saved_steps() const { return std::int64_t{num_steps} * (end - begin - 1); }
  };

  static int common_steps(const Candidate& a, const Candidate& b);
  std::int64_t choose(int begin, int end);
  void add(std::span<AttentionSequence> sequences, const Range& range, const CommonKeyRule& rule);

  std::vector<Candidate> candidates_;  // in the order of their blocks
  std::vector<int> next_steps_;        // of each, those that it has in common with the one behind it
  std::vector<Range> chosen_;
  std::vector<std::int32_t> members_;
  std::vector<CommonKeys> common_;
};

}  // namespace larder
