// How many prompt tokens a step takes while other sequences decode, so that their tokens keep
// coming: chunked prefill (Agrawal et al. 2024) with the chunk's size found by measuring.
#pragma once

#include <array>
#include <cstdint>

namespace larder {

// Learns how long steps take that only decode, by number of sequences, and what a prompt's token
// adds, which grows with its depth. What it says decides speed, never results. Thread: engine only.
class StepPace {
 public:
  // With no more prompts than decoding sequences, a step with prompt tokens shall last at most
  // most_slowdown times one without; 0 = any time. With more prompts, what it lasts beyond grows in
  // proportion: whoever waits for a first token counts as much as whoever waits for the next. Nor
  // do steps hold to it behind so long a context that there would be no room for two tokens.
  explicit StepPace(double most_slowdown) : most_slowdown_(most_slowdown) {}

  // Prompt tokens for a step in which num_decodes > 0 sequences decode and num_prompts have not got
  // so far, at most `most`. 0 where a step without them has to be measured first.
  int num_prefill_tokens(int num_decodes, int num_prompts, int most) const;

  // A step has ended that decoded for num_decodes sequences and computed num_prefill tokens.
  void observe(int num_decodes, int num_prefill, std::int64_t duration_ns);

 private:
  static constexpr int kSizes = 16;     // of batches, in powers of two
  static constexpr int kStaleAfter = 128;  // steps with prompt tokens since one without

  static std::size_t size_of(int num_decodes);

  const double most_slowdown_;
  std::array<double, kSizes> decode_ns_ = {};  // 0 = not known
  double prefill_ns_ = 0;                      // of a token
  int num_mixed_ = 0;                          // steps since one that only decoded
};

}  // namespace larder
