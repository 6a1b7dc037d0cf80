// Bytes -> the JSON reader -> the readers of every kind of request.
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "fuzz_target.h"
#include "server/api/anthropic_request.h"
#include "server/api/openai_request.h"
#include "server/api/responses_request.h"
#include "server/chat/response_items.h"
#include "server/chat/tool_prompt.h"
#include "server/json_reader.h"

namespace {

constexpr larder::JsonLimits kJsonLimits{.max_depth = 16, .max_values = 10'000};

// true: a value.
template <class Parse>
bool expect_error_or_value(Parse parse) {
  try {
    parse();
    return true;
  } catch (const larder::Error& error) {
    CHECK(error.kind() == larder::ErrorKind::kInvalidArgument);
    CHECK(std::string_view(error.what()).size() < 4096);
    return false;
  }
}

// Every mark has its part.
void render(larder::ChatRequest request, const larder::ChatTemplate& chat_template,
            const larder::TemplateAbilities& abilities) {
  CHECK(request.marks.size() <= larder::kMaxCacheMarks, request.marks.size());
  larder::adapt_chat(request, abilities);
  for (const larder::CacheMark& mark : request.marks) {
    CHECK(mark.message < static_cast<int>(request.messages.size()), mark.message);
    CHECK(mark.part >= 0, mark.part);
  }
  larder::TemplateInput input;
  input.messages = request.messages;
  chat_template.render(input);
}

// With tools as texts, and as turns of one call.
void render(const larder::ChatRequest& request) {
  static const larder::ChatTemplate chat_template("");
  static const larder::TemplateAbilities as_texts = larder::probe_template(chat_template);
  render(request, chat_template, as_texts);
  render(request, chat_template,
         {.prints_tools = true, .prints_calls = true, .prints_results = true, .wants_short_ids = true});
}

// As the router makes a chat of it; what items refer to is in no request.
void read_response(const larder::Json& body, const larder::RequestRules& rules) {
  const larder::ResponsesRequest request = larder::parse_responses_request(body, rules);
  std::vector<larder::ItemPtr> items;
  for (const larder::Json& item : request.input) {
    if (!larder::is_reference(item)) items.push_back(larder::make_item(item));
  }
  const larder::ItemChat spelled = larder::to_chat(request.instructions, items);
  CHECK(spelled.item_of.size() == spelled.messages.size(), spelled.item_of.size());
  if (spelled.messages.empty()) return;
  for (const std::size_t item : spelled.item_of) CHECK(item == 0 || item < items.size(), item);
  larder::ChatRequest chat;
  chat.options = request.options;
  larder::Json prompt = larder::Json::object();
  prompt["messages"] = spelled.messages;
  prompt["tools"] = request.tools;
  larder::read_chat_prompt(prompt, chat);
  render(chat);
}

}  // namespace

bool try_input(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  larder::Json body;
  try {
    body = larder::parse_json(text, kJsonLimits);
  } catch (const larder::Error&) {
    return false;
  }
  CHECK(larder::parse_json(larder::dump_json(body), kJsonLimits) == body);
  const larder::ServerLimits limits;
  const larder::RequestRules rules{.limits = limits, .vocab_size = 1000, .max_model_len = 256};
  const bool is_chat = expect_error_or_value([&] {
    const larder::ChatRequest request = larder::parse_chat_request(body, rules);
    CHECK(!request.messages.empty() && request.options.n >= 1 && request.options.n <= limits.max_n);
    render(request);
  });
  const bool is_messages = expect_error_or_value([&] {
    const larder::ChatRequest request = larder::parse_messages_request(body, rules);
    CHECK(!request.messages.empty() && request.options.sampling.max_tokens >= 0);
    render(request);
  });
  expect_error_or_value([&] { larder::parse_count_tokens_request(body, rules); });
  const bool is_completion = expect_error_or_value([&] {
    const larder::CompletionRequest request = larder::parse_completion_request(body, rules);
    CHECK(!request.prompts.empty() && request.options.best_of >= request.options.n);
    CHECK(static_cast<int>(request.prompts.size()) * request.options.best_of <= limits.max_choices);
  });
  const bool is_response = expect_error_or_value([&] { read_response(body, rules); });
  return is_chat || is_messages || is_completion || is_response;
}
