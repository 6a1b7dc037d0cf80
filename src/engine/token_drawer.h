// A sequence's next token, of a row of logits.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "engine/sampler.h"
#include "engine/sequence.h"
#include "grammar/token_masks.h"
#include "model/forward/transformer.h"

namespace larder {

// Each thread of a pool draws with a sampler and masks of its own; what is drawn depends on none of them. Thread: the
// engine's and those that it forks, each with its own number.
class TokenDrawer {
 public:
  // end_tokens: the model's; they must outlive it.
  TokenDrawer(int vocab_size, int num_threads, std::span<const TokenId> end_tokens);

  // Behind the sequence's tokens, as they are, for the choice that many behind its own. kNoToken: it is not known which
  // may follow.
  OutputToken draw(const Sequence& sequence, int num_choices_on, const Logits& row, std::size_t thread);
  // A token that is given, and the num_best best.
  OutputToken score(TokenId token, int num_best, const Logits& row, std::size_t thread) {
    return samplers_[thread].score(row.values, row.maxima, token, num_best);
  }
  int vocab_size() const { return vocab_size_; }
  int num_threads() const { return static_cast<int>(samplers_.size()); }

 private:
  const int vocab_size_;
  const std::span<const TokenId> end_tokens_;
  std::vector<Sampler> samplers_;
  std::vector<TokenMasks> masks_;
};

}  // namespace larder
