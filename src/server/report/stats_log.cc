#include "server/report/stats_log.h"

#include <fmt/format.h>

namespace larder {
namespace {

double percent(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

}  // namespace

std::optional<std::string> StatsLog::line(const EngineStats& stats, double seconds) {
  const auto num_prompt = static_cast<double>(stats.num_prompt_tokens - num_prompt_tokens_);
  const auto num_generated =
      static_cast<double>(stats.num_generated_tokens - num_generated_tokens_);
  num_prompt_tokens_ = stats.num_prompt_tokens;
  num_generated_tokens_ = stats.num_generated_tokens;
  const int num_waiting = stats.num_waiting + stats.num_loading;
  const bool busy = num_prompt + num_generated > 0 || stats.num_running + num_waiting > 0;
  const bool worth_a_line = busy || was_busy_;  // one line of zeros ends a busy time
  was_busy_ = busy;
  if (!worth_a_line || seconds <= 0) return std::nullopt;
  std::string text = fmt::format(
      "Engine 000: Avg prompt throughput: {:.1f} tokens/s, Avg generation throughput: {:.1f} "
      "tokens/s, "
      "Running: {} reqs, Waiting: {} reqs, ",
      num_prompt / seconds, num_generated / seconds, stats.num_running, num_waiting);
  if (stats.num_preemptions > 0) text += fmt::format("Preemptions: {}, ", stats.num_preemptions);
  text += fmt::format("KV cache usage: {:.1f}%, Prefix cache hit rate: {:.1f}%",
                      percent(stats.kv.num_held, stats.kv.num_blocks),
                      percent(static_cast<double>(stats.num_prefix_hits),
                              static_cast<double>(stats.num_prefix_queries)));
  return text;
}

}  // namespace larder
