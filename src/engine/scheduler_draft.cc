// Guesses beside those who decode.
#include "base/check.h"
#include "engine/scheduler.h"

namespace larder {

// Where a step only decodes, and nobody waits for anything else: rows beside prompts cost what theirs do.
void Scheduler::draft_some() {
  drafter_.begin_step();
  const bool decodes_only = chunk_.empty() && !planned_.empty() && std::ssize(planned_) == num_decodes_;
  if (config_.max_draft_tokens == 0 || !decodes_only || prompts_ahead().num > 0) return;
  std::vector<Sequence*>& sequences = decode_order_;
  sequences.clear();
  for (const Planned& planned : planned_) {
    if (!planned.sequence->request->is_forked || planned.num_samples != 1) return;
    sequences.push_back(planned.sequence);
  }
  const int num_rows = std::min(config_.max_batch_tokens, config_.max_logit_rows);
  drafter_.draft(sequences, {.num_tokens = num_rows - num_decodes_, .num_per_draft = config_.max_draft_tokens},
                 end_tokens_);
  stats_.drafts = drafter_.stats();
  // Nobody gives up a block for a guess.
  for (Sequence* sequence : sequences) {
    const auto num_guesses = static_cast<int>(sequence->draft.tokens.size());
    if (num_guesses > 0 && !cache_.extend(sequence->table, sequence->num_tokens() + num_guesses))
      sequence->draft.tokens.clear();
  }
}

}  // namespace larder
