// What goes with a request's size: where there is no memory for it, that request ends alone.
#include <algorithm>
#include <new>
#include <utility>

#include "engine/sampler.h"
#include "engine/scheduler.h"

namespace larder {

// Before the request runs. False: there is none.
bool Scheduler::take_memory(ActiveRequest& request) {
  if (request.is_forked) return true;
  Sequence& first = *request.choices.front();
  try {
    if (Sampler::penalizes(request.request.sampling) && !first.seen)
      first.seen.emplace(first.tokens, std::span<const TokenId>());
    if (!request.wants_prompt_logprobs() || request.num_prompt < 2 || request.prompt_logprobs != nullptr) return true;
    auto logprobs = std::make_shared<std::vector<OutputToken>>();
    logprobs->reserve(static_cast<std::size_t>(request.num_prompt - 1));
    request.prompt_logprobs = std::move(logprobs);
  } catch (const std::bad_alloc&) {
    return false;
  }
  return true;
}

// False: there is no memory for as many. Nothing has changed then.
bool Scheduler::fork_choices(ActiveRequest& request) {
  const Sequence& first = *request.choices.front();
  std::vector<std::unique_ptr<Sequence>> born;
  try {
    request.choices.reserve(static_cast<std::size_t>(request.request.n));
    born.reserve(static_cast<std::size_t>(request.request.n - 1));
    for (int index = 1; index < request.request.n; ++index) {
      auto choice = std::make_unique<Sequence>();
      choice->request = &request;
      choice->choice = index;
      choice->tokens.reserve(first.tokens.size() + num_tokens_ahead());
      choice->tokens = first.tokens;
      choice->seen = first.seen;
      choice->table = cache_.fork(first.table);
      born.push_back(std::move(choice));
    }
  } catch (const std::bad_alloc&) {
    for (const auto& choice : born) cache_.release(choice->table);
    return false;
  }
  request.is_forked = true;
  for (auto& choice : born) {
    running_.insert(std::ranges::upper_bound(running_, choice.get(), GoesBefore{}), choice.get());
    request.choices.push_back(std::move(choice));
  }
  return true;
}

// For its next token, and for guesses behind it, which are there for as long as it is drawn. False: there is none.
bool Scheduler::take_room(Sequence& sequence) {
  std::vector<TokenId>& tokens = sequence.tokens;
  const std::size_t num_wanted = tokens.size() + num_tokens_ahead();
  try {
    if (num_wanted > tokens.capacity()) tokens.reserve(std::max(num_wanted, 2 * tokens.size()));
    if (sequence.seen) sequence.seen->reserve(num_tokens_ahead());
  } catch (const std::bad_alloc&) {
    return false;
  }
  return true;
}

}  // namespace larder
