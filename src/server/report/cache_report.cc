#include "server/report/cache_report.h"

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <iterator>

namespace larder {
namespace {

double rounded(double value) { return static_cast<double>(static_cast<std::int64_t>(value * 1e3)) / 1e3; }

// What a client or an operator can do about it: one sentence; "" where nothing can be done, or where it is the divergence's.
const char* advice_for(const MissedTokens& miss) {
  switch (miss.reason) {
    case MissReason::kEvicted:
      if (miss.was_cleared) return "It was forgotten by /reset_prefix_cache: send that to measure only.";
      return "Give the cache more room (--kv-size, a smaller --kv-type, --kv-disk), or pin what comes back.";
    case MissReason::kExpired:
      return "Ask for a longer ttl, or come back sooner.";
    case MissReason::kOtherSalt:
      return "Send one cache_salt for what may be shared.";
    case MissReason::kOtherModel:
      return "Keep one model, KV type and --activations per tier, or accept a cold start.";
    case MissReason::kWindowSlid:
      return "Give the cache more room: sliding layers keep only what the last tokens see.";
    case MissReason::kTierFailed:
      return "Look at the tier: larder doctor, and its counters in /metrics.";
    case MissReason::kBypassed:
      // Logprobs are of the prompt from its beginning, a window shares what it has in sight there.
      return miss.begin == 0 ? "Ask for logprobs of the prompt only where they are used."
                             : "Take a larger attention window, or none where the context holds the prompt: beyond it nothing is shared.";
    case MissReason::kNeverSeen:
    case MissReason::kDiverged:
    case MissReason::kTooShort:
      break;
  }
  return "";
}

Json miss_json(const MissedTokens& miss, std::int64_t now_ns) {
  Json json = {{"reason", miss_reason_name(miss.reason)},
               {"begin", miss.begin},
               {"tokens", miss.end - miss.begin}};
  if (const char* advice = advice_for(miss); *advice != '\0') json["advice"] = advice;
  if (miss.evicted_ns == 0) return json;
  json["evicted_seconds_ago"] = rounded(static_cast<double>(now_ns - miss.evicted_ns) * 1e-9);
  if (miss.was_cleared) {
    json["cleared"] = true;
  } else {
    json["pool_in_use"] = rounded(miss.pool_in_use);
  }
  return json;
}

Json divergence_json(const Divergence& divergence) {
  Json json = {{"class", divergence_name(divergence.kind)}, {"token", divergence.token}};
  if (divergence.message >= 0) json["message"] = divergence.message;
  if (!divergence.role.empty()) json["segment"] = divergence.role;
  json["shared_text"] = divergence.shared_text;
  json["old_text"] = divergence.old_text;
  json["new_text"] = divergence.new_text;
  json["advice"] = divergence_advice(divergence.kind);
  return json;
}

}  // namespace

Json cache_report_json(const CacheReport& report) {
  Json json = {{"id", report.id},
               {"object", "cache.report"},
               {"created", report.created_s},
               {"prompt_tokens", report.num_prompt},
               {"cached_tokens", report.num_cached},
               {"computed_tokens", report.num_prompt - report.num_cached}};
  Json sources = Json::object();
  for (const CacheReport::Source& source : report.sources) sources[source.name] = source.num_tokens;
  json["cached_by_source"] = std::move(sources);
  Json misses = Json::array();
  for (const MissedTokens& miss : report.misses) misses.push_back(miss_json(miss, report.now_ns));
  json["misses"] = std::move(misses);
  json["nearest"] = nullptr;
  if (!report.relative_id.empty()) {
    json["nearest"] = {{"id", report.relative_id},
                       {"seconds_ago", rounded(report.relative_age_s)},
                       {"shared_tokens", report.num_common}};
  }
  json["divergence"] = report.divergence ? divergence_json(*report.divergence) : Json();
  if (!report.normalised.empty()) json["normalised"] = report.normalised;
  if (report.num_kept_tokens > 0) json["history_tokens_kept"] = report.num_kept_tokens;
  return json;
}

Json openai_diagnostics(const CacheReport& report) {
  using Outcome = RequestedComparison::Outcome;
  if (!report.requested) return nullptr;
  const RequestedComparison& requested = *report.requested;
  switch (requested.outcome) {
    case Outcome::kHit:
      return {{"type", "cache_hit"}};
    case Outcome::kNotFound:
      return {{"type", "comparison_response_not_found"}};
    case Outcome::kUnavailable:
      return {{"type", "unavailable"}};
    case Outcome::kMiss:
      break;
  }
  const char* reason = "input_changed";
  if (requested.was_truncated) reason = "context_compacted";
  if (requested.effort_changed && !requested.system_changed) reason = "reasoning_effort_changed";
  if (requested.tools_changed) reason = "tools_changed";
  if (requested.key_changed) reason = "prompt_cache_key_changed";
  return {{"type", "cache_miss"},
          {"reason", reason},
          {"cache_missed_tokens", requested.num_missed},
          {"comparison_reusable_tokens", requested.num_reusable}};
}

Json anthropic_diagnostics(const CacheReport& report) {
  using Outcome = RequestedComparison::Outcome;
  if (!report.requested) return nullptr;
  const RequestedComparison& requested = *report.requested;
  const auto reason = [](Json value) { return Json{{"cache_miss_reason", std::move(value)}}; };
  switch (requested.outcome) {
    case Outcome::kHit:
      return nullptr;
    case Outcome::kNotFound:
      return reason({{"type", "previous_message_not_found"}});
    case Outcome::kUnavailable:
      return reason({{"type", "unavailable"}});
    case Outcome::kMiss:
      break;
  }
  // Its words for what changed know no thinking.
  const bool is_effort = requested.effort_changed && !requested.system_changed && !requested.tools_changed;
  if (is_effort) return reason({{"type", "unavailable"}});
  const char* type = "messages_changed";
  if (requested.system_changed) type = "system_changed";
  if (requested.tools_changed) type = "tools_changed";
  return reason({{"type", type}, {"cache_missed_input_tokens", requested.num_missed}});
}

std::string describe_report(const CacheReport& report) {
  std::string line =
      fmt::format("cache {}: {} of {} tokens", report.id, report.num_cached, report.num_prompt);
  std::array<int, kNumMissReasons> sums{};
  for (const MissedTokens& miss : report.misses)
    sums[static_cast<std::size_t>(miss.reason)] += miss.end - miss.begin;
  for (int reason = 0; reason < kNumMissReasons; ++reason) {
    const int sum = sums[static_cast<std::size_t>(reason)];
    if (sum == 0) continue;
    fmt::format_to(std::back_inserter(line), ", {} {}", sum,
                   miss_reason_name(static_cast<MissReason>(reason)));
  }
  for (const std::string& name : report.normalised) line += ", normalised " + name;
  if (!report.divergence) return line;
  // Never the texts themselves: logs are read by others than their writers.
  const Divergence& found = *report.divergence;
  line += fmt::format("; {} at token {}", divergence_name(found.kind), found.token);
  if (!found.role.empty()) line += " of " + found.role;
  if (found.message >= 0) line += fmt::format(", message {}", found.message);
  return line + " against " + report.relative_id;
}

}  // namespace larder
