#include "engine/draft_model.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <mutex>

#include "base/check.h"
#include "engine/scheduler.h"

namespace larder {
namespace {

constexpr int kMostAhead = 16;  // tokens of a draft, behind a sequence's own

}  // namespace

DraftModel::DraftModel(const DraftModelParts& parts, TokenDrawer& drawer, const Clock& clock)
    : model_(parts.model),
      cache_(parts.layout, parts.storage, clock, cache_config(parts.storage.num_blocks())),
      runner_(parts.model, parts.storage),
      pool_(parts.model.pool()),
      drawer_(drawer),
      rows_(parts.layout.num_groups()) {
  const TransformerLimits& limits = model_.limits();
  CHECK(limits.max_batch_tokens >= kMaxBatchTokens && limits.max_logit_rows >= kMaxLogitRows, limits.max_batch_tokens,
        limits.max_logit_rows);
  if (model_.config().vocab_size < drawer.vocab_size())
    padded_.assign(static_cast<std::size_t>(pool_.num_threads()),
                   std::vector<float>(static_cast<std::size_t>(drawer.vocab_size()), -std::numeric_limits<float>::infinity()));
}

std::int64_t DraftModel::size_bytes(int num_threads, int vocab_size, int target_vocab_size) {
  if (vocab_size >= target_vocab_size) return 0;
  return std::int64_t{num_threads} * target_vocab_size * static_cast<std::int64_t>(sizeof(float));
}

// What it sees at once.
bool DraftModel::fits(const Sequence& sequence) const {
  const AttentionSpan span = sequence.request->span();
  const int num_seen = span.window > 0 ? span.window + span.num_sinks : sequence.num_tokens();
  return num_seen + kMostAhead <= model_.limits().max_context_len;
}

// The tokens ahead that the sequence has got meanwhile are computed; its last one is computed again, for what follows.
void DraftModel::keep_what_came_true(Sequence& sequence) {
  DraftContext& context = sequence.draft.context;
  if (context.ahead.empty()) return;
  const int begin = context.table.num_computed();
  int end = begin;
  for (const TokenId token : context.ahead) {
    if (end >= sequence.num_tokens() - 1 || sequence.tokens[static_cast<std::size_t>(end)] != token) break;
    ++end;
  }
  if (end > begin) cache_.publish(context.table, sequence.tokens, end);
  context.ahead.clear();
}

void DraftModel::settle(Sequence& sequence) {
  DraftContext& context = sequence.draft.context;
  if (context.is_refused) return;
  if (fits(sequence)) return keep_what_came_true(sequence);
  release(sequence);
  context.is_refused = true;
}

int DraftModel::num_missing(const Sequence& sequence) const {
  const DraftContext& context = sequence.draft.context;
  return context.is_refused ? -1 : sequence.num_tokens() - context.table.num_computed();
}

// What of it is known already.
void DraftModel::begin(Sequence& sequence) {
  const ActiveRequest& request = *sequence.request;
  if (sequence.draft.context.table.empty())
    (void)cache_.match(sequence.draft.context.table, sequence.tokens, request.request.salt, sequence.num_tokens() - 1,
                       request.span());
}

void DraftModel::compute(Sequence& sequence, int num_tokens) {
  DraftContext& context = sequence.draft.context;
  begin(sequence);
  const int end = std::min({sequence.num_tokens() - 1, context.table.num_computed() + num_tokens, context.table.num_computed() + kMaxBatchTokens});
  if (end <= context.table.num_computed()) return;
  rows_.clear();
  if (!add(sequence, end)) return;
  runner_.forward(rows_, {});
  note_computed(sequence, end);
}

// Rows for the sequence's tokens and those of its draft, up to that place. False: there is no room, or a token is unknown;
// the sequence is refused.
bool DraftModel::add(Sequence& sequence, int end) {
  DraftContext& context = sequence.draft.context;
  const int begin = context.table.num_computed() + static_cast<int>(context.ahead.size());
  const auto is_known = [&](TokenId token) { return token < model_.config().vocab_size; };
  const std::span<const TokenId> own = std::span<const TokenId>(sequence.tokens).first(
      static_cast<std::size_t>(std::min(end, sequence.num_tokens())));
  const bool knows_all =
      begin >= std::ssize(own) || std::ranges::all_of(own.subspan(static_cast<std::size_t>(begin)), is_known);
  if (!knows_all || !cache_.extend(context.table, end)) {
    release(sequence);
    context.is_refused = true;
    return false;
  }
  for (int place = begin; place < end; ++place)
    rows_.push_token(place < sequence.num_tokens()
                         ? sequence.tokens[static_cast<std::size_t>(place)]
                         : sequence.draft.tokens[static_cast<std::size_t>(place - sequence.num_tokens())].token);
  rows_.add(context.table, begin, end, sequence.request->span());
  return true;
}

void DraftModel::note_computed(Sequence& sequence, int end) {
  DraftContext& context = sequence.draft.context;
  const int num_own = std::min(end, sequence.num_tokens());
  if (num_own > context.table.num_computed()) cache_.publish(context.table, sequence.tokens, num_own);
  for (int place = sequence.num_tokens() + static_cast<int>(context.ahead.size()); place < end; ++place)
    context.ahead.push_back(sequence.draft.tokens[static_cast<std::size_t>(place - sequence.num_tokens())].token);
}

void DraftModel::guess(std::span<Sequence* const> sequences, std::span<ModelGuess> guesses) {
  CHECK(std::ssize(sequences) <= kMostSequences && guesses.size() == sequences.size(), sequences.size(), guesses.size());
  rows_.clear();
  logit_rows_.clear();
  std::ranges::fill(guesses, ModelGuess{});
  for (Sequence* sequence : sequences) {
    const int end = sequence->num_tokens() + static_cast<int>(sequence->draft.tokens.size());
    if (sequence->draft.context.is_refused) continue;
    begin(*sequence);
    if (add(*sequence, end)) logit_rows_.push_back(rows_.num_tokens() - 1);
  }
  if (logit_rows_.empty()) return;
  const Logits logits = runner_.forward(rows_, logit_rows_);
  std::vector<std::size_t> drawing;  // those that have a row, in order
  for (std::size_t i = 0; i < sequences.size(); ++i)
    if (!sequences[i]->draft.context.is_refused) drawing.push_back(i);
  std::mutex failure_mutex;
  std::exception_ptr failure;  // of a thread that has no memory
  pool_.parallel_for(static_cast<int>(drawing.size()), [&](int task, int thread) {
    const std::size_t i = drawing[static_cast<std::size_t>(task)];
    try {
      guesses[i] = drawn(*sequences[i], logits.row(task, model_.config().vocab_size), static_cast<std::size_t>(thread));
    } catch (const std::exception&) {
      const std::lock_guard lock(failure_mutex);
      failure = std::current_exception();
    }
  });
  if (failure) std::rethrow_exception(failure);
  for (const std::size_t i : drawing)
    note_computed(*sequences[i], sequences[i]->num_tokens() + static_cast<int>(sequences[i]->draft.tokens.size()));
}

// As if the sequence had its draft already, which nobody else sees.
ModelGuess DraftModel::drawn(Sequence& sequence, const Logits& row, std::size_t thread) {
  const bool is_constrained = sequence.request->request.sampling.constraint != nullptr;
  const std::size_t num_tokens = sequence.tokens.size();
  const std::optional<GrammarState> constrained = sequence.constrained;
  bool goes_on = true;
  for (const DraftToken& guessed : sequence.draft.tokens) {
    if (is_constrained)
      goes_on = goes_on && Scheduler::follow_constraint(sequence, guessed.token) && !sequence.constrained->is_over();
    sequence.push(guessed.token);
  }
  ModelGuess guess;
  if (goes_on) {
    const Logits own = in_targets_vocabulary(row, thread);
    if (const TokenId token = drawer_.draw(sequence, 0, own, thread).token; token != kNoToken) {
      guess.token = token;
      guess.probability = std::exp(double{drawer_.score(token, 0, own, thread).logprob});
    }
  }
  sequence.drop_behind(num_tokens);
  sequence.constrained = constrained;
  return guess;
}

Logits DraftModel::in_targets_vocabulary(const Logits& row, std::size_t thread) {
  const auto size = static_cast<std::size_t>(drawer_.vocab_size());
  if (row.values.size() == size) return row;
  if (row.values.size() > size) return {row.values.first(size), {}};
  std::ranges::copy(row.values, padded_[thread].begin());
  return {padded_[thread], {}};
}

void DraftModel::release(Sequence& sequence) {
  DraftContext& context = sequence.draft.context;
  cache_.release(context.table);
  context.ahead.clear();
  context.is_refused = false;
}

}  // namespace larder
