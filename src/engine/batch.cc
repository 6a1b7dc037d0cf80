#include "engine/batch.h"

#include <algorithm>

#include "base/check.h"
#include "engine/sampler.h"

namespace larder {

int num_prompt_logits(const Sequence& sequence, int num_tokens) {
  const ActiveRequest& request = *sequence.request;
  if (!request.wants_prompt_logprobs()) return 0;
  // The row at position p is about token p + 1; that of the prompt's last token is sampled from.
  const int begin = std::max(sequence.num_computed(), request.first_prompt_row());
  const int end = std::min(sequence.num_computed() + num_tokens, request.num_prompt - 1);
  return std::max(0, end - begin);
}

void BatchRows::clear() {
  tokens_.clear();
  positions_.clear();
  sink_positions_.clear();
  has_sinks_ = false;
  for (Group& group : groups_) {
    group.slots.clear();
    group.sequences.clear();
  }
}

void BatchRows::add(const BlockTable& table, int begin, int end, const AttentionSpan& span) {
  const int num_tokens = end - begin;
  const int first_row = static_cast<int>(positions_.size());
  CHECK(num_tokens > 0 && first_row + num_tokens == this->num_tokens(), num_tokens, first_row, this->num_tokens());
  for (int position = begin; position < end; ++position) {
    positions_.push_back(position);
    // As if what lies between the sinks and the window were not there.
    const int most = span.num_sinks > 0 ? span.num_sinks + span.window - 1 : position;
    sink_positions_.push_back(std::min(position, most));
    has_sinks_ = has_sinks_ || most < position;
  }
  for (std::size_t index = 0; index < groups_.size(); ++index) {
    const std::span<const BlockId> blocks = table.blocks(static_cast<int>(index));
    for (int position = begin; position < end; ++position) {
      const BlockId block = blocks[static_cast<std::size_t>(position / kBlockSize)];
      groups_[index].slots.push_back(std::int64_t{to_index(block)} * kBlockSize +
                                     position % kBlockSize);
    }
    groups_[index].sequences.push_back({.first_row = first_row,
                                        .num_tokens = num_tokens,
                                        .context_len = end,
                                        .block_table = blocks.data(),
                                        .window = span.window,
                                        .num_sinks = span.num_sinks});
  }
}

void Batch::clear() {
  BatchRows::clear();
  entries_.clear();
  num_guesses_ = 0;
  logit_rows_.clear();
  read_logits_.clear();
  draws_.clear();
}

// The rows of an entry that want logits, and what becomes of them.
void Batch::add_logits(BatchEntry& entry) {
  const Sequence& sequence = *entry.sequence;
  const ActiveRequest& request = *sequence.request;
  const int first = sequence.num_computed();
  for (int i = 0; i < entry.num_prompt_logits; ++i) {
    const int position = std::max(first, request.first_prompt_row()) + i;
    read_logits_.push_back(static_cast<std::int32_t>(logit_rows_.size()));
    logit_rows_.push_back(entry.first_row - first + position);
  }
  if (entry.num_samples == 0) return;
  const auto row = static_cast<std::int32_t>(logit_rows_.size());
  logit_rows_.push_back(entry.first_row + entry.num_tokens - 1);
  const SamplingParams& params = request.request.sampling;
  const auto num_output = static_cast<std::size_t>(sequence.num_tokens() - request.num_prompt);
  if (!Sampler::takes_token_alone(params, num_output)) {
    read_logits_.push_back(row);
  } else if (Sampler::takes_first_of_best(params, num_output)) {
    entry.takes_best = true;
  } else {
    entry.first_draw = static_cast<int>(draws_.size());
    for (int i = 0; i < entry.num_samples; ++i)
      draws_.push_back(Sampler::draw_of(params, request.seed, sequence.choice + i, num_output, row));
  }
  // Behind guesses the host draws.
  for (int i = 1; i <= entry.num_guesses; ++i) {
    read_logits_.push_back(static_cast<std::int32_t>(logit_rows_.size()));
    logit_rows_.push_back(entry.first_row + entry.num_tokens - 1 + i);
  }
}

void Batch::add(Sequence& sequence, int num_tokens, int num_samples) {
  const int first = sequence.num_computed();
  const std::vector<DraftToken>& draft = sequence.draft.tokens;
  const int num_guesses = static_cast<int>(draft.size());
  const int end = first + num_tokens + num_guesses;
  CHECK(num_tokens > 0 && first + num_tokens <= sequence.num_tokens(), num_tokens, first, sequence.num_tokens());
  CHECK(num_guesses == 0 || (num_samples == 1 && first + num_tokens == sequence.num_tokens()), num_guesses, num_samples);
  BatchEntry entry;
  entry.sequence = &sequence;
  entry.num_tokens = num_tokens;
  entry.first_row = this->num_tokens();
  entry.first_logit = static_cast<int>(logit_rows_.size());
  entry.num_prompt_logits = num_prompt_logits(sequence, num_tokens);
  entry.num_samples = num_samples;
  entry.num_guesses = num_guesses;
  add_logits(entry);
  num_guesses_ += num_guesses;
  for (int place = first; place < first + num_tokens; ++place)
    push_token(sequence.tokens[static_cast<std::size_t>(place)]);
  for (const DraftToken& guess : draft) push_token(guess.token);
  BatchRows::add(sequence.table, first, end, sequence.request->span());
  entries_.push_back(entry);
}

}  // namespace larder
