// How a request, or the server for those that do not say, bounds long conversations.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace larder {

enum class HistoryStrategy {
  kNone,           // what does not fit is an error
  kRollingWindow,  // the oldest turns go
  kRetrieval,      // likewise; those of them that are about the question are quoted before it
  kSummary,        // likewise; the model sums them up, and the sum joins the system prompt
};

struct HistoryOptions {
  HistoryStrategy strategy = HistoryStrategy::kNone;
  int max_tokens = 0;  // of the prompt; 0 = three quarters of what the model takes
  bool drops_all = false;  // before the last turn, however little it is: of a conversation that is to be compacted
};

inline constexpr std::string_view kHistoryStrategies =
    "none, rolling_window, retrieval or summary";

std::string_view to_string(HistoryStrategy strategy);
// nullopt: there is none of that name.
std::optional<HistoryStrategy> parse_history_strategy(std::string_view name);
// "rolling_window" or "rolling_window:4096". Throws Error{kInvalidArgument}.
HistoryOptions parse_history_options(const std::string& text);

}  // namespace larder
