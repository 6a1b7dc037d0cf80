#include "server/api/sampling_lists.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "server/json_fields.h"
#include "server/server_limits.h"

namespace larder {

void require_few_stop_bytes(const std::vector<std::string>& stop, const Fields& fields, const char* name,
                            const ServerLimits& limits) {
  std::size_t num_bytes = 0;
  for (const std::string& text : stop) num_bytes += text.size();
  if (num_bytes <= limits.max_total_stop_bytes) return;
  fields.fail(name, fmt::format("all together may have {} bytes, they have {}; send fewer or shorter ones", limits.max_total_stop_bytes, num_bytes));
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
      fields.fail("stop", fmt::format("a stop string may have {} bytes, one has {}; shorten it",
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

void read_logit_bias(const Fields& fields, const RequestRules& rules, SamplingParams& sampling) {
  const Json* map = fields.find("logit_bias");
  if (map == nullptr) return;
  if (!map->is_object()) fields.fail("logit_bias", "must be an object of token id: bias");
  if (map->size() > rules.limits.max_logit_bias)
    fields.fail("logit_bias", fmt::format("at most {} tokens, there are {}; send fewer", rules.limits.max_logit_bias, map->size()));
  sampling.logit_bias.reserve(map->size());
  for (const auto& [key, bias] : map->get_ref<const Json::object_t&>()) {
    TokenId token = -1;
    const auto parsed = std::from_chars(key.data(), key.data() + key.size(), token);
    const bool whole = parsed.ec == std::errc() && parsed.ptr == key.data() + key.size();
    const bool is_plain = whole && key == std::to_string(token);  // else one token might be there twice
    if (!is_plain || token < 0 || token >= rules.vocab_size) {
      fields.fail("logit_bias", fmt::format("\"{}\" is not a token id from 0 to {}", shorten(key),
                                            rules.vocab_size - 1));
    }
    if (!bias.is_number() || !(bias.get<double>() >= -100 && bias.get<double>() <= 100)) {
      fields.fail("logit_bias",
                  fmt::format("the bias of token {} must be a number between -100 and 100", token));
    }
    sampling.logit_bias.emplace_back(token, bias.get<float>());
  }
}

void read_stop_token_ids(const Fields& fields, const RequestRules& rules, SamplingParams& sampling) {
  const Json* value = fields.find("stop_token_ids");
  if (value == nullptr) return;
  std::vector<TokenId> ids = read_token_ids(*value, "stop_token_ids", rules.vocab_size);
  std::ranges::sort(ids);
  const auto [begin, end] = std::ranges::unique(ids);
  ids.erase(begin, end);
  if (ids.size() > rules.limits.max_stop_token_ids)
    fields.fail("stop_token_ids",
                fmt::format("at most {} tokens, there are {}; send fewer", rules.limits.max_stop_token_ids, ids.size()));
  ids.shrink_to_fit();
  sampling.stop_token_ids = std::move(ids);
}

}  // namespace larder
