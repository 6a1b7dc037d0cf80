#include "engine/request_check.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "base/error.h"
#include "kernels/kernels.h"
#include "kv/cache/kv_cache.h"

namespace larder {
namespace {

void require(bool condition, const char* field, std::string message) {
  if (!condition) throw Error(ErrorKind::kInvalidArgument, std::move(message), field);
}

void require_range(const char* field, float value, float least, float most) {
  require(value >= least && value <= most, field,
          fmt::format("{} must be between {} and {}, not {}", field, least, most, value));
}

void require_token(const char* field, TokenId token, const RequestLimits& limits) {
  require(
      token >= 0 && token < limits.vocab_size, field,
      fmt::format("{}: token {} is not in the vocabulary of {}", field, token, limits.vocab_size));
}

void check_sampling(SamplingParams& params, const RequestLimits& limits) {
  require(std::isfinite(params.temperature) && params.temperature >= 0, "temperature",
          "temperature must be a finite number of at least 0");
  require(params.top_p > 0, "top_p", "top_p must be above 0");
  require_range("top_p", params.top_p, 0, 1);
  require_range("min_p", params.min_p, 0, 1);
  require(params.top_k >= 0, "top_k", "top_k must be at least 0 (0 = all)");
  require(std::isfinite(params.repetition_penalty) && params.repetition_penalty > 0,
          "repetition_penalty", "repetition_penalty must be a finite number above 0");
  require_range("frequency_penalty", params.frequency_penalty, -2, 2);
  require_range("presence_penalty", params.presence_penalty, -2, 2);
  require(params.min_tokens >= 0, "min_tokens", "min_tokens must be at least 0");
  require(params.max_tokens >= 0, "max_tokens", "max_tokens must be at least 0");
  require(params.min_tokens <= params.max_tokens, "min_tokens",
          fmt::format("min_tokens is {}, and there are {} tokens at most; send less, or raise max_tokens (16 where "
                      "a completion does not say)",
                      params.min_tokens, params.max_tokens));
  for (const auto& [token, bias] : params.logit_bias) {
    require_token("logit_bias", token, limits);
    require(std::isfinite(bias), "logit_bias", "logit_bias must be finite");
  }
  for (const TokenId token : params.stop_token_ids) {
    require_token("stop_token_ids", token, limits);
  }
  require(params.constraint == nullptr || (params.min_tokens == 0 && !params.ignore_eos),
          params.min_tokens > 0 ? "min_tokens" : "ignore_eos",
          fmt::format("{} says when the output may end, and so does its format; leave one of them out",
                      params.min_tokens > 0 ? "min_tokens" : "ignore_eos"));
  params.num_logprobs = std::clamp(params.num_logprobs, -1, limits.vocab_size);
  params.num_prompt_logprobs = std::clamp(params.num_prompt_logprobs, -1, limits.vocab_size);
}

void check_pins(const Request& request) {
  require(request.pins.size() <= static_cast<std::size_t>(kMaxPins), "pins",
          fmt::format("a request has at most {} pins, not {}", kMaxPins, request.pins.size()));
  int num_tokens = 0;
  for (const PromptPin& pin : request.pins) {
    const bool fits = pin.num_tokens > num_tokens &&
                      pin.num_tokens <= static_cast<int>(request.prompt.size()) && pin.ttl_s >= 0;
    require(fits, "pins",
            fmt::format("a pin of {} tokens for {} s does not fit a prompt of {} after one of {}",
                        pin.num_tokens, pin.ttl_s, request.prompt.size(), num_tokens));
    num_tokens = pin.num_tokens;
  }
}

}  // namespace

void check_span(const AttentionSpan& span, const RequestLimits& limits, const SpanNames& names) {
  const auto [window, num_sinks] = span;
  if (window == 0 && num_sinks == 0) return;
  require(window > 0, names.sinks, fmt::format("{} needs {}", names.sinks, names.window));
  require(window % kBlockSize == 0, names.window,
          fmt::format("{} must be a multiple of {}, not {}", names.window, kBlockSize, window));
  require(num_sinks >= 0 && num_sinks % kBlockSize == 0 && num_sinks <= kKeySplit &&
              num_sinks <= window,
          names.sinks,
          fmt::format("{} must be a multiple of {}, at most {} and at most the window, not {}",
                      names.sinks, kBlockSize, kKeySplit, num_sinks));
  const std::int64_t num_needed =
      KvCache::num_endless_tokens({window, num_sinks}, limits.max_batch_tokens);
  require(num_needed <= limits.max_model_len, names.window,
          fmt::format("{} {} with {} sinks takes the room of {} tokens (two windows, the sinks, a "
                      "step's {} and a block), more than the {} of the longest request; use a smaller window, or have "
                      "the server take fewer --batch-tokens or a larger -c, and --kv-size if that is short",
                      names.window, window, num_sinks, num_needed, limits.max_batch_tokens, limits.max_model_len));
}

void check_request(Request& request, const RequestLimits& limits) {
  require(!request.prompt.empty(), "prompt", "prompt is empty: at least one token is needed");
  check_span({request.attention_window, request.attention_sinks}, limits);
  const int max_len = request.attention_window > 0 ? kMaxEndlessTokens : limits.max_model_len;
  const auto most = static_cast<std::size_t>(max_len);
  require(request.prompt.size() < most, "prompt",
          fmt::format("prompt has {} tokens; at most {} fit, as the model's length is {} with one "
                      "token of output",
                      request.prompt.size(), most - 1, most));
  for (const TokenId token : request.prompt) require_token("prompt", token, limits);
  if (request.prediction != nullptr)
    for (const TokenId token : *request.prediction) require_token("prediction", token, limits);
  require(request.n >= 1 && request.n <= limits.max_choices, "n",
          fmt::format("n and best_of must be between 1 and {} (--max-sequences, and one fewer than --batch-tokens), "
                      "not {}",
                      limits.max_choices, request.n));
  check_sampling(request.sampling, limits);
  check_pins(request);
  const int room = max_len - static_cast<int>(request.prompt.size());
  request.sampling.max_tokens = std::min(request.sampling.max_tokens, room);
}

}  // namespace larder
