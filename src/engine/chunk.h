// A part of one prompt on its way through the layers.
#pragma once

#include <cstdint>

#include "engine/batch.h"
#include "engine/sequence.h"

namespace larder {

// Layered prefill (Lee et al. 2025): a prompt's chunk passes some layers a step, as many as the time
// allows, beside those who decode, or so that others may come between. However short the steps, its
// keys and values, and the weights, are read once for all its tokens. Thread: engine only.
struct Chunk {
  explicit Chunk(int num_groups) : batch(num_groups) {}

  bool empty() const { return sequence == nullptr; }
  void begin(Sequence& of, int num_tokens, int num_samples) {
    sequence = &of;
    batch.clear();
    batch.add(of, num_tokens, num_samples);
    num_layers = 0;
    spent_ns = 0;
    rests = false;
    yields = true;
  }

  Sequence* sequence = nullptr;  // whose blocks nobody else touches until the chunk has ended
  Batch batch;                   // one entry
  int num_layers = 0;            // that it has passed
  bool rests = false;            // in this step, for shorter prompts
  bool yields = true;            // in this step, to whoever arrives: one that has just rested does not
  std::int64_t room_ns = 0;      // for more of them in this step
  std::int64_t spent_ns = 0;     // on all so far
};

}  // namespace larder
