// A model that guesses, as the Drafter sees it.
#pragma once

#include <span>

#include "engine/sequence.h"

namespace larder {

struct ModelGuess {
  TokenId token = -1;      // -1 = none
  double probability = 0;  // that the model gives it
};

// What it has computed of each sequence, in Sequence::draft, grows as it is asked, and is given back by release().
// Nothing fails: where there is no room for a sequence, it guesses nothing for it. Thread: engine only.
class GuessingModel {
 public:
  virtual ~GuessingModel() = default;

  // The sequence has what came of its draft, and perhaps more: of what was computed for guesses, what came true is kept,
  // and a sequence that has grown too long is given up. Once in a step, before what follows.
  virtual void settle(Sequence& sequence) = 0;
  // Tokens of the sequence that it has to compute before it can guess what comes next, at least 1; -1 = it cannot: the
  // sequence is too long for it, or there is no room.
  virtual int num_missing(const Sequence& sequence) const = 0;
  // Computes at most num_tokens of those, or finds them in its cache; leaves one at least for guess().
  virtual void compute(Sequence& sequence, int num_tokens) = 0;
  // The token behind each sequence and its draft. Each misses at most kMostMissing beside its draft; guesses:
  // [sequences.size()], at most kMostSequences.
  virtual void guess(std::span<Sequence* const> sequences, std::span<ModelGuess> guesses) = 0;
  virtual void release(Sequence& sequence) = 0;

  static constexpr int kMostMissing = 8;
  static constexpr int kMostSequences = 32;
};

}  // namespace larder
