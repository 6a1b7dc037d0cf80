#include "trace.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace larder {

Trace read_trace(std::istream& input) {
  Trace trace;
  trace.name = "trace";
  std::string line;
  for (int number = 1; std::getline(input, line); ++number) {
    if (line.empty()) continue;
    try {
      auto blocks = nlohmann::json::parse(line).at("hash_ids").get<std::vector<std::int32_t>>();
      if (!blocks.empty()) trace.requests.push_back(std::move(blocks));
    } catch (const nlohmann::json::exception& error) {
      throw Error(ErrorKind::kInvalidArgument,
                  fmt::format("line {}: {}", number, error.what()));
    }
  }
  return trace;
}

Trace keep_sessions(const Trace& trace, double share) {
  Trace kept{trace.name + "-part", {}};
  for (const auto& request : trace.requests) {
    const auto id = static_cast<std::uint32_t>(request.size() > 1 ? request[1] : request[0]);
    if ((id * 2654435761U) < share * 4294967296.0) kept.requests.push_back(request);
  }
  return kept;
}

Trace from_fraction(const Trace& trace, double begin) {
  const auto first =
      static_cast<std::ptrdiff_t>(begin * static_cast<double>(trace.requests.size()));
  return {trace.name + "-end", {trace.requests.begin() + first, trace.requests.end()}};
}

Trace mix(const Trace& left, const Trace& right) {
  Trace mixed{left.name + "+" + right.name, {}};
  const std::size_t length = std::max(left.requests.size(), right.requests.size());
  for (std::size_t i = 0; i < length; ++i) {
    if (i < left.requests.size()) mixed.requests.push_back(left.requests[i]);
    if (i >= right.requests.size()) continue;
    mixed.requests.push_back(right.requests[i]);
    for (std::int32_t& block : mixed.requests.back()) block += 1 << 30;
  }
  return mixed;
}

}  // namespace larder
