#include "server/chat/history_options.h"

#include <fmt/format.h>

#include <charconv>

#include "base/error.h"

namespace larder {

std::string_view to_string(HistoryStrategy strategy) {
  switch (strategy) {
    case HistoryStrategy::kNone:
      return "none";
    case HistoryStrategy::kRollingWindow:
      return "rolling_window";
    case HistoryStrategy::kRetrieval:
      return "retrieval";
    case HistoryStrategy::kSummary:
      return "summary";
  }
  return "";
}

std::optional<HistoryStrategy> parse_history_strategy(std::string_view name) {
  for (const auto strategy :
       {HistoryStrategy::kNone, HistoryStrategy::kRollingWindow, HistoryStrategy::kRetrieval,
        HistoryStrategy::kSummary}) {
    if (name == to_string(strategy)) return strategy;
  }
  return std::nullopt;
}

HistoryOptions parse_history_options(const std::string& text) {
  const auto colon = text.find(':');
  const auto strategy = parse_history_strategy(std::string_view(text).substr(0, colon));
  HistoryOptions options;
  bool is_right = strategy.has_value();
  if (is_right) options.strategy = *strategy;
  if (is_right && colon != std::string::npos) {
    const char* end = text.data() + text.size();
    const auto parsed = std::from_chars(text.data() + colon + 1, end, options.max_tokens);
    is_right = parsed.ec == std::errc() && parsed.ptr == end && options.max_tokens > 0;
  }
  if (!is_right) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("--history {}: there are {}, with a number of tokens if you like: "
                            "rolling_window:4096",
                            text, kHistoryStrategies));
  }
  return options;
}

}  // namespace larder
