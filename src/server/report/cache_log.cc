#include "server/report/cache_log.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "base/clock.h"
#include "server/unix_time.h"

namespace larder {
namespace {

constexpr int kTellingTokens = 64;  // lost for a reason that can be helped: worth a line of the log

bool could_be_helped(MissReason reason) {
  return reason != MissReason::kNeverSeen && reason != MissReason::kTooShort &&
         reason != MissReason::kBypassed;
}

// Equal tokens are no hit where the cache had given them up. Whole blocks are found, and the last token
// is always computed.
void hold_against(int num_cached, RequestedComparison& requested) {
  using Outcome = RequestedComparison::Outcome;
  if (requested.outcome != Outcome::kHit) return;
  if (num_cached + 1 + kBlockSize < requested.num_reusable) requested.outcome = Outcome::kUnavailable;
}

}  // namespace

CacheLog::CacheLog(const Tokenizer& tokenizer, ServerMetrics& metrics,
                   std::vector<std::string> tier_names, CacheLogLimits limits)
    : tokenizer_(tokenizer),
      metrics_(metrics),
      tier_names_(std::move(tier_names)),
      limits_(limits),
      ledger_(limits.max_ledger_bytes) {}

OpenPrompt CacheLog::open(PromptOrigin origin, std::span<const TokenId> prompt,
                          const std::optional<std::string>& comparison_id) {
  OpenPrompt open;
  open.tenant = origin.tenant;
  open.id = origin.id;
  if (comparison_id) compare_as_requested(*comparison_id, origin, prompt, open);
  open.comparison = ledger_.compare(origin, prompt, steady_now_ns());
  open.divergence = find_divergence(open.comparison, origin, prompt, tokenizer_);
  if (open.divergence) open.comparison.diverged_end = open.divergence->end;
  open.comparison.forget_text();
  return open;
}

// From a prompt's beginning: tools, system prompt, effort, messages. What comes first counts.
void CacheLog::compare_as_requested(const std::string& id, const PromptOrigin& origin,
                                    std::span<const TokenId> prompt, OpenPrompt& open) {
  using Outcome = RequestedComparison::Outcome;
  RequestedComparison& requested = open.requested.emplace();
  std::optional<Comparison> found = ledger_.compare_with(id, origin, prompt);
  if (!found) {
    requested.outcome = Outcome::kNotFound;
    return;
  }
  const RememberedPrompt& relative = *found->relative;
  requested.num_reusable = found->num_common;
  requested.num_missed = std::max(0, relative.num_prompt - found->num_common);
  requested.key_changed = relative.origin.conversation != origin.conversation;
  // Only the prompt counts: what was generated may come back in other words.
  const bool is_whole = found->num_common >= relative.num_prompt;
  requested.outcome = is_whole ? Outcome::kHit : Outcome::kMiss;
  if (is_whole) return;
  requested.tools_changed = relative.origin.tools != origin.tools;
  const std::optional<Divergence> divergence = find_divergence(*found, origin, prompt, tokenizer_);
  requested.system_changed = relative.origin.system != origin.system;
  requested.effort_changed = is_of_other_effort(origin, relative, found->num_common);
  requested.was_truncated =
      is_compacted_since(origin, relative.origin) ||
      (divergence && divergence->kind == DivergenceKind::kTruncatedHistory);
}

CacheReport CacheLog::explain(const OpenPrompt& prompt, const RequestUpdate& update) {
  CacheReport report;
  report.id = prompt.id;
  report.num_prompt = update.usage.num_prompt_tokens;
  report.num_cached = update.usage.num_cached_tokens;
  int num_from_pool = report.num_cached;
  const std::vector<int>& loaded = update.cache.num_loaded_by_tier;
  for (std::size_t tier = 0; tier < loaded.size() && tier < tier_names_.size(); ++tier) {
    const int num_tokens = std::min(loaded[tier], num_from_pool);
    report.sources.push_back({tier_names_[tier], num_tokens});
    num_from_pool -= num_tokens;
  }
  report.sources.insert(report.sources.begin(), {"pool", num_from_pool});
  report.misses =
      larder::explain(prompt.comparison, update.cache, report.num_prompt, report.num_cached);
  report.now_ns = steady_now_ns();
  report.created_s = unix_time_s();
  if (prompt.comparison.relative) {
    const RememberedPrompt& relative = *prompt.comparison.relative;
    report.relative_id = relative.origin.id;
    report.relative_age_s = static_cast<double>(report.now_ns - relative.arrived_ns) * 1e-9;
    report.num_common = prompt.comparison.num_common;
  }
  if (prompt.comparison.lost_end(report.num_cached) > 0) report.divergence = prompt.divergence;
  report.requested = prompt.requested;
  if (report.requested) hold_against(report.num_cached, *report.requested);
  report.normalised = prompt.normalised;
  report.num_kept_tokens = prompt.num_kept_tokens;
  int num_lost = 0;
  for (const MissedTokens& miss : report.misses) {
    metrics_.count_missed(miss_reason_name(miss.reason), miss.end - miss.begin);
    if (could_be_helped(miss.reason)) num_lost += miss.end - miss.begin;
  }
  if (report.divergence) metrics_.count_divergence(divergence_name(report.divergence->kind));
  const bool is_told = num_lost >= kTellingTokens || !report.normalised.empty();
  spdlog::log(is_told ? spdlog::level::info : spdlog::level::debug, "{}",
              describe_report(report));
  ledger_.complete(prompt.comparison.entry, {});
  keep(prompt.tenant, report);
  return report;
}

void CacheLog::complete(const OpenPrompt& prompt, std::span<const TokenId> generated) {
  ledger_.complete(prompt.comparison.entry, generated);
}

void CacheLog::close(const OpenPrompt& prompt) { ledger_.forget(prompt.comparison.entry); }

void CacheLog::keep(std::uint64_t tenant, const CacheReport& report) {
  std::string json = dump_json(cache_report_json(report));
  const std::lock_guard lock(mutex_);
  reports_.push_back({tenant, report.id, std::move(json)});
  report_bytes_ += reports_.back().size_bytes();
  places_[report.id] = num_dropped_ + reports_.size() - 1;
  if (reports_.size() <= limits_.max_reports) return;
  const auto oldest = places_.find(reports_.front().id);
  if (oldest != places_.end() && oldest->second == num_dropped_) places_.erase(oldest);
  report_bytes_ -= reports_.front().size_bytes();
  reports_.pop_front();
  ++num_dropped_;
}

std::size_t CacheLog::size_bytes() const {
  const std::lock_guard lock(mutex_);
  return ledger_.size_bytes() + report_bytes_;
}

std::optional<Json> CacheLog::find(const std::string& id, std::uint64_t tenant) const {
  const std::lock_guard lock(mutex_);
  const auto found = places_.find(id);
  if (found == places_.end()) return std::nullopt;
  const Kept& kept = reports_[static_cast<std::size_t>(found->second - num_dropped_)];
  if (kept.tenant != tenant) return std::nullopt;
  return parse_json(kept.report, {});
}

Json CacheLog::list(std::uint64_t tenant, std::size_t num_most) const {
  std::vector<std::string> texts;  // read once nobody waits for the lock
  {
    const std::lock_guard lock(mutex_);
    for (auto kept = reports_.rbegin(); kept != reports_.rend() && texts.size() < num_most; ++kept) {
      if (kept->tenant == tenant) texts.push_back(kept->report);
    }
  }
  Json list = Json::array();
  for (const std::string& text : texts) list.push_back(parse_json(text, {}));
  return list;
}

}  // namespace larder
