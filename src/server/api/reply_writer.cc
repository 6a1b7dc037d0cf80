#include "server/api/reply_writer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

namespace larder {
namespace {

// Sums over the choices of a request; what belongs to the prompt counts once per prompt.
struct Totals {
  std::int64_t num_prompt_tokens = 0;
  std::int64_t num_cached_tokens = 0;
  std::int64_t num_written_tokens = 0;
  std::int64_t num_output_tokens = 0;
  std::int64_t num_thought_tokens = 0;
  std::int64_t num_draft_tokens = 0;
  std::int64_t num_accepted_tokens = 0;
  std::int64_t num_predicted_accepted = 0;
  std::int64_t num_predicted_rejected = 0;

  explicit Totals(std::span<const Choice> choices) {
    std::set<int> prompts;
    for (const Choice& choice : choices) {
      num_output_tokens += choice.num_generated();
      num_thought_tokens += choice.num_thought_tokens;
      num_draft_tokens += choice.usage.num_draft_tokens;
      num_accepted_tokens += choice.usage.num_accepted_tokens;
      num_predicted_accepted += choice.usage.num_predicted_accepted;
      num_predicted_rejected += choice.usage.num_predicted_rejected;
      if (!prompts.insert(choice.prompt).second) continue;
      num_prompt_tokens += choice.usage.num_prompt_tokens;
      num_cached_tokens += choice.usage.num_cached_tokens;
      num_written_tokens += choice.usage.num_written_tokens();
    }
  }
};

// A time and its rates, under llama.cpp's names.
void add_phase(Json& timings, const char* prefix, std::int64_t num_tokens, double ms) {
  const auto key = [&](const char* suffix) { return std::string(prefix) + suffix; };
  timings[key("_n")] = num_tokens;
  timings[key("_ms")] = ms;
  timings[key("_per_token_ms")] = num_tokens > 0 ? ms / static_cast<double>(num_tokens) : 0.0;
  timings[key("_per_second")] = ms > 0 ? static_cast<double>(num_tokens) * 1e3 / ms : 0.0;
}

}  // namespace

double finite_logprob(float logprob) {
  return std::isfinite(logprob) ? static_cast<double>(logprob) : -9999.0;
}

Json usage_json(std::span<const Choice> choices) {
  const Totals totals(choices);
  Json usage = {{"prompt_tokens", totals.num_prompt_tokens},
                {"completion_tokens", totals.num_output_tokens},
                {"total_tokens", totals.num_prompt_tokens + totals.num_output_tokens},
                {"prompt_tokens_details",
                 {{"cached_tokens", totals.num_cached_tokens},
                  {"cache_write_tokens", totals.num_written_tokens}}}};
  if (totals.num_thought_tokens > 0) usage["completion_tokens_details"]["reasoning_tokens"] = totals.num_thought_tokens;
  if (totals.num_predicted_accepted + totals.num_predicted_rejected > 0) {
    Json& details = usage["completion_tokens_details"];
    details["accepted_prediction_tokens"] = totals.num_predicted_accepted;
    details["rejected_prediction_tokens"] = totals.num_predicted_rejected;
  }
  return usage;
}

Json timings_json(std::span<const Choice> choices) {
  std::int64_t begin = std::numeric_limits<std::int64_t>::max(), first = begin, last = 0;
  for (const Choice& choice : choices) {
    if (choice.times.scheduled_ns != 0) begin = std::min(begin, choice.times.scheduled_ns);
    if (choice.times.first_token_ns != 0) first = std::min(first, choice.times.first_token_ns);
    last = std::max(last, choice.times.end_ns());
  }
  first = std::min(first, last);  // where nothing was generated
  const auto ms = [](std::int64_t from, std::int64_t to) {
    return to > from ? static_cast<double>(to - from) * 1e-6 : 0.0;
  };
  const Totals totals(choices);
  Json timings;
  timings["cache_n"] = totals.num_cached_tokens;
  add_phase(timings, "prompt", totals.num_prompt_tokens - totals.num_cached_tokens,
            ms(begin, first));
  add_phase(timings, "predicted", totals.num_output_tokens, ms(first, last));
  if (totals.num_draft_tokens > 0) {
    timings["draft_n"] = totals.num_draft_tokens;
    timings["draft_n_accepted"] = totals.num_accepted_tokens;
  }
  return timings;
}

ReplyWriter::ReplyWriter(std::string id, std::string model_name)
    : id_(std::move(id)), model_name_(std::move(model_name)) {}

const std::vector<TokenId>& ReplyWriter::prompt_tokens(const Choice& choice) const {
  return prompts_.at(static_cast<std::size_t>(choice.prompt));
}

}  // namespace larder
