// What one prompt found in the cache and why it did not find the rest; in every API's words.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/ledger.h"
#include "server/json_reader.h"
#include "server/report/divergence.h"

namespace larder {

// How a prompt stands to the reply that its client named for comparison.
struct RequestedComparison {
  enum class Outcome { kHit, kMiss, kNotFound, kUnavailable } outcome = Outcome::kUnavailable;
  int num_reusable = 0;  // tokens that both begin with
  int num_missed = 0;    // of the named reply's prompt, those after them
  // Of a miss: what differs first in what makes a prompt, from its beginning.
  bool key_changed = false;  // prompt_cache_key
  bool tools_changed = false;
  bool system_changed = false;
  bool effort_changed = false;  // of thinking, by the template's words
  bool was_truncated = false;
};

// misses cover the prompt but for its cached tokens, exactly.
struct CacheReport {
  std::string id;  // of the reply
  std::int64_t created_s = 0;  // Unix time of the first token
  int num_prompt = 0;
  int num_cached = 0;
  struct Source {
    std::string name;  // "pool", or a tier's
    int num_tokens = 0;
  };
  std::vector<Source> sources;  // their tokens sum to num_cached
  std::vector<MissedTokens> misses;
  std::int64_t now_ns = 0;  // of the engine's clock, for MissedTokens::evicted_ns
  // The nearest relative among recent prompts; "" = none.
  std::string relative_id;
  double relative_age_s = 0;
  int num_common = 0;
  std::optional<Divergence> divergence;  // from the relative
  std::optional<RequestedComparison> requested;
  std::vector<std::string> normalised;   // what was changed on request, see normalise.h
  int num_kept_tokens = 0;  // of answers in the history that were kept as they were generated
};

// Larder's own form: the "larder" object of replies and GET /v1/cache/requests/{id}.
Json cache_report_json(const CacheReport& report);
// OpenAI's prompt_cache_diagnostics and Anthropic's diagnostics; null where nothing was asked for.
// Anthropic has null, too, where nothing diverged.
Json openai_diagnostics(const CacheReport& report);
Json anthropic_diagnostics(const CacheReport& report);
// For the log: one line.
std::string describe_report(const CacheReport& report);

}  // namespace larder
