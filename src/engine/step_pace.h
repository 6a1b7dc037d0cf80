// How much of prompts a step computes while other sequences decode, so that their tokens keep
// coming: chunked prefill (Agrawal et al. 2024) and layered prefill (Lee et al. 2025) with sizes
// found by measuring.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace larder {

// Moves an average by the weight of what was observed, of which no more than twice the average counts: one slow step is
// the machine's, not the model's. 0 = nothing has been observed yet.
void move_average(double& value, double observed, double weight);

// What a step has room for beside those who decode.
struct PromptRoom {
  int num_tokens = 0;        // of prompts, computed together with them
  int num_chunk_tokens = 0;  // of a prompt that has more: a chunk with steps of its own; 0 = none
  std::int64_t chunk_ns = 0;  // for a chunk's layers in this step
  int num_brief = 0;          // a prompt that misses more lets shorter ones pass
};

// Who waits for a first token while others decode.
struct PromptsAhead {
  int num = 0;
  int num_tokens = 0;  // of a single one: that the cache had not, whether computed since or not
};

// Learns how long steps take that only decode, by number of sequences, and what a prompt's token
// adds, which grows with its depth. What it says decides speed, never results. Thread: engine only.
class StepPace {
 public:
  // With no more prompts than decoding sequences, a step with prompt tokens shall last at most
  // most_slowdown times one without; 0 = any time. With more prompts, what it lasts beyond grows in
  // proportion: whoever waits for a first token counts as much as whoever waits for the next. With
  // several prompts, or one that is done after a few such steps, it may last patience_ns in any case:
  // a reader takes longer over a token, and the sooner the prompts are done, the sooner all decode in
  // one batch.
  StepPace(double most_slowdown, int num_layer_kinds, std::int64_t patience_ns = 0)
      : most_slowdown_(most_slowdown),
        patience_ns_(static_cast<double>(patience_ns)),
        layer_ns_(static_cast<std::size_t>(num_layer_kinds)) {}

  // For a step in which num_decodes > 0 sequences decode and those prompts have not got so far: at
  // most `most` tokens, or most_chunk in a chunk. Nothing where a step without has to be measured
  // first.
  PromptRoom room(int num_decodes, const PromptsAhead& prompts, int most, int most_chunk) const;

  // For a step in which nobody decodes: at most `most` tokens, fewer where these would take long, since
  // whoever comes meanwhile waits for its end; all of them where any time is allowed. A prompt for which
  // even a fraction of that is too little takes a chunk of at most most_chunk, between whose layers others may come.
  PromptRoom room_alone(const PromptsAhead& prompts, int most, int most_chunk) const;

  // A step has ended that decoded for num_decodes sequences and, with them, computed num_prefill
  // tokens. Without the time that a chunk took.
  void observe(int num_decodes, int num_prefill, std::int64_t duration_ns);
  // A chunk's layer, and the whole chunk. kind: layers of one kind take alike.
  void observe_layer(int kind, int num_tokens, std::int64_t duration_ns);
  void observe_chunk(int num_tokens, std::int64_t duration_ns);
  // What a layer of that kind is expected to take; 0 = not known.
  double layer_ns(int kind, int num_tokens) const;

 private:
  static constexpr int kSizes = 16;     // of batches, in powers of two
  static constexpr int kStaleAfter = 128;  // steps with prompt tokens since one without

  static std::size_t size_of(int num_decodes);
  bool has_patience_for(const PromptsAhead& prompts) const;

  const double most_slowdown_;
  const double patience_ns_;
  std::array<double, kSizes> decode_ns_ = {};  // 0 = not known
  double prefill_ns_ = 0;                      // of a token
  double alone_ns_ = 0;                        // of a token where nobody decodes
  std::vector<double> layer_ns_;               // of a token, by kind of layer
  int num_mixed_ = 0;                          // steps since one that only decoded
};

}  // namespace larder
