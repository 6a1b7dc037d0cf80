#include "server/report/cache_losses.h"

#include <algorithm>
#include <compare>

#include "base/error.h"

namespace larder {
namespace {

bool is_new(const std::string& reason) { return reason == "never_seen" || reason == "too_short"; }

std::int64_t count_of(const Json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) return 0;
  if (!found->is_number()) throw_invalid("this is no cache report: \"{}\" is no number", name);
  return found->get<std::int64_t>();
}

struct Cause {
  std::string reason;
  std::string advice;
  auto operator<=>(const Cause&) const = default;
};

std::map<Cause, std::int64_t> sum_misses(const Json& report) {
  std::map<Cause, std::int64_t> sums;
  const auto misses = report.find("misses");
  if (misses == report.end() || misses->is_null()) return sums;
  if (!misses->is_array()) throw_invalid("this is no cache report: \"misses\" is no array");
  for (const Json& miss : *misses) sums[{std::string(find_text(miss, "reason")), std::string(find_text(miss, "advice"))}] += count_of(miss, "tokens");
  return sums;
}

}  // namespace

void CacheLosses::add(const Json& report) {
  if (find_text(report, "object") != "cache.report")
    throw_invalid("this is no cache report: it lacks \"object\": \"cache.report\"");
  // Read whole before any of it counts.
  const std::int64_t num_prompt = count_of(report, "prompt_tokens");
  const std::int64_t num_cached = count_of(report, "cached_tokens");
  const std::map<Cause, std::int64_t> sums = sum_misses(report);
  ++num_requests_;
  num_prompt_tokens_ += num_prompt;
  num_cached_tokens_ += num_cached;
  const auto divergence = report.find("divergence");
  const bool has_diverged = divergence != report.end() && divergence->is_object();
  for (const auto& [cause, num_tokens] : sums) {
    const std::string& reason = cause.reason;
    if (is_new(reason)) {
      num_new_tokens_ += num_tokens;
      continue;
    }
    const bool is_divergence = reason == "diverged" && has_diverged;
    const std::string why = is_divergence ? std::string(find_text(*divergence, "class")) : reason;
    const std::string segment = is_divergence ? std::string(find_text(*divergence, "segment")) : "";
    const std::string advice = is_divergence ? std::string(find_text(*divergence, "advice")) : cause.advice;
    CacheLoss& loss = losses_[why + '\n' + segment + '\n' + advice];
    if (loss.num_requests == 0) {
      loss.why = why;
      loss.segment = segment;
      loss.advice = advice;
      if (is_divergence) {
        loss.old_text = find_text(*divergence, "old_text");
        loss.new_text = find_text(*divergence, "new_text");
      }
    }
    loss.num_tokens += num_tokens;
    ++loss.num_requests;
  }
}

std::vector<CacheLoss> CacheLosses::sorted() const {
  std::vector<CacheLoss> sorted;
  for (const auto& [key, loss] : losses_) sorted.push_back(loss);
  std::ranges::stable_sort(sorted, std::greater<>{}, &CacheLoss::num_tokens);
  return sorted;
}

}  // namespace larder
