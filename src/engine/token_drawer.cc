#include "engine/token_drawer.h"

#include <optional>

namespace larder {

TokenDrawer::TokenDrawer(int vocab_size, int num_threads, std::span<const TokenId> end_tokens)
    : vocab_size_(vocab_size),
      end_tokens_(end_tokens),
      samplers_(static_cast<std::size_t>(num_threads), Sampler(vocab_size)),
      masks_(samplers_.size()) {}

OutputToken TokenDrawer::draw(const Sequence& sequence, int num_choices_on, const Logits& row, std::size_t thread) {
  const ActiveRequest& request = *sequence.request;
  const SamplingParams& params = request.request.sampling;
  SampleContext context{.params = params,
                        .seen = sequence.seen ? &*sequence.seen : nullptr,
                        .num_output = static_cast<std::size_t>(sequence.num_tokens() - request.num_prompt),
                        .end_tokens = params.ignore_eos ? std::span<const TokenId>{} : end_tokens_,
                        .seed = request.seed,
                        .choice = sequence.choice + num_choices_on};
  if (params.constraint != nullptr) {
    std::optional<GrammarState> first;  // of a choice that has not begun
    const GrammarState& state =
        sequence.constrained ? *sequence.constrained : first.emplace(params.constraint->grammar);
    context.allowed = masks_[thread].allowed(*params.constraint, state);
    if (context.allowed.empty()) return {kNoToken, 0, {}};
    context.may_end = state.is_whole();
  }
  return samplers_[thread].sample(row.values, row.maxima, context);
}

}  // namespace larder
