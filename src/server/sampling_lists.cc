#include "server/sampling_lists.h"

#include <fmt/format.h>

#include "server/json_fields.h"

namespace larder {

void require_few_stop_bytes(const std::vector<std::string>& stop, const Fields& fields, const char* name,
                            const ServerLimits& limits) {
  std::size_t num_bytes = 0;
  for (const std::string& text : stop) num_bytes += text.size();
  if (num_bytes <= limits.max_total_stop_bytes) return;
  fields.fail(name, fmt::format("all together may have {} bytes, they have {}", limits.max_total_stop_bytes, num_bytes));
}

std::vector<std::string> read_stop(const Fields& fields, const ServerLimits& limits) {
  const Json* value = fields.find("stop");
  if (value == nullptr) return {};
  std::vector<std::string> stop;
  const auto add = [&](const Json& item) {
    if (!item.is_string()) {
      fields.fail("stop", fmt::format("must hold strings, there is {}", describe_type(item)));
    }
    const auto& text = item.get_ref<const std::string&>();
    if (text.size() > limits.max_stop_bytes) {
      fields.fail("stop", fmt::format("a stop string may have {} bytes, one has {}",
                                      limits.max_stop_bytes, text.size()));
    }
    if (!text.empty()) stop.push_back(text);  // lm-evaluation-harness sends [""] for none
  };
  if (!value->is_array()) {
    add(*value);
    return stop;
  }
  if (value->size() > static_cast<std::size_t>(limits.max_stop_strings)) {
    fields.fail("stop", fmt::format("at most {} stop strings, there are {}",
                                    limits.max_stop_strings, value->size()));
  }
  for (const Json& item : *value) add(item);
  require_few_stop_bytes(stop, fields, "stop", limits);
  return stop;
}

}  // namespace larder
