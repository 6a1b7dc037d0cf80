// Requests to the engine of this process, waited for.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "cli/runtime.h"
#include "engine/request.h"
#include "server/chat/served_model.h"

namespace larder {

struct Completion {
  std::string text;
  SharedTokens prompt_logprobs;  // if asked for
  FinishReason finish = FinishReason::kNone;
  RequestUsage usage;
  RequestTimes times;

  double prefill_seconds() const {
    return static_cast<double>(times.first_token_ns - times.scheduled_ns) * 1e-9;
  }
  double first_token_seconds() const {
    return static_cast<double>(times.first_token_ns - times.arrived_ns) * 1e-9;
  }
  double decode_seconds() const {
    return static_cast<double>(times.last_token_ns - times.first_token_ns) * 1e-9;
  }
  // Tokens after the first, per second. A stop token is not output, but took a step.
  double decode_rate() const {
    const int num_steps = usage.num_output_tokens - (finish == FinishReason::kStop ? 0 : 1);
    return num_steps > 0 && decode_seconds() > 0 ? num_steps / decode_seconds() : 0;
  }
};

// A request (n = 1) that has been submitted; nobody need wait for it.
class PendingCompletion {
 public:
  // Throws what Engine::submit throws.
  PendingCompletion(Runtime& runtime, std::vector<TokenId> prompt, const SamplingParams& sampling,
                    const std::string& salt);

  // Once. on_text, if any, gets whole characters as they come, and ends the request early by
  // returning false. continues_text: see StreamDecoder.
  Completion wait(const std::function<bool(std::string_view)>& on_text = {},
                  bool continues_text = false);

 private:
  class Updates;

  Runtime& runtime_;
  std::shared_ptr<Updates> updates_;  // the engine's, too
  std::uint64_t id_ = 0;
};

// Runs one to its end.
Completion complete(Runtime& runtime, std::vector<TokenId> prompt, const SamplingParams& sampling,
                    const std::function<bool(std::string_view)>& on_text = {},
                    const std::string& salt = {}, bool continues_text = false);

// Conversations with the model of this process, by its chat template, which is probed once.
class LocalChat {
 public:
  explicit LocalChat(Runtime& runtime);

  // What comes after these messages, printed as it comes: its text, which is the completion's, and on standard
  // error what the model thinks. Throws as complete(), and what encoding throws.
  Completion answer(const std::vector<ChatMessage>& messages, const SamplingParams& sampling);

 private:
  Runtime& runtime_;
  const ServedModel model_;
};

// Prints as it comes; for complete().
bool print_text(std::string_view text);

}  // namespace larder
