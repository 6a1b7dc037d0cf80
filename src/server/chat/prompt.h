// A checked request -> the token ids that the engine gets.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"
#include "engine/ledger.h"
#include "server/chat/client_request.h"
#include "server/chat/served_model.h"
#include "tokenizer/tokenizer.h"

namespace larder {

// A completion's prompt, as echo shows it.
struct EchoedPrompt {
  std::string text;
  std::vector<std::uint32_t> offsets;  // in characters, where each token begins
};

struct PreparedPrompt {
  std::vector<TokenId> tokens;
  std::shared_ptr<const std::vector<TokenId>> prediction = nullptr;  // Request::prediction
  int max_tokens = 0;  // what the request asks for, cut to what max_model_len leaves
  std::vector<PromptPin> pins;  // its breakpoints
  bool continues_text = false;  // the answer goes on in the text that the prompt ends with
  bool ends_in_thought = false;  // the answer begins behind <think>
  int num_kept_turns = 0;   // answers encoded as they were generated
  int num_kept_tokens = 0;  // theirs
  std::vector<std::string> normalised;  // what normalise() did to the request
  PromptOrigin origin;      // what the prompt itself tells: parts, roles, tools
  std::optional<EchoedPrompt> echo;  // where the request asks for it
};

// Of a request's field: raw text is the whole prompt, so that its writer may use special tokens. Throws
// Error{kTooLarge, kPromptTooLong} with the field for a text that is beyond the tokenizer's limits.
Encoding encode_raw(std::string_view text, bool add_special_tokens, const std::string& field,
                    const ServedModel& model);

// Renders the template and encodes; only the template's own text can make special tokens.
// Both throw Error with the field as param: kInvalidArgument for an empty prompt, kPromptTooLong for
// one that leaves no room for a token (the message has both numbers). Thread: any; takes as long as the text is
// long.
PreparedPrompt prepare_chat(const ChatRequest& request, const ServedModel& model);
std::vector<PreparedPrompt> prepare_completion(const CompletionRequest& request,
                                               const ServedModel& model);

// Whether there is text or a call in the message that an answer could go on with.
bool can_be_continued(const Json& message);

// Has what is thought told apart from the text of the answer to that prompt.
void part_thoughts(ToolCallRules& rules, const PreparedPrompt& prompt);

// The chat prompt's tokens, without a look at their number. max_tokens stays 0.
PreparedPrompt encode_chat(const ChatRequest& request, const ServedModel& model);

// The tokens of a chat that is only counted: as prepare_chat() has them, also beyond the model's length.
std::vector<TokenId> tokens_of_any_number(ChatRequest request, const ServedModel& model);

}  // namespace larder
