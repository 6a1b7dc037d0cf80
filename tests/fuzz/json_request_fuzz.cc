// Bytes -> the JSON reader -> the readers of every kind of request.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "base/error.h"
#include "server/anthropic_request.h"
#include "server/json_reader.h"
#include "server/openai_request.h"
#include "server/tool_calls.h"
#include "server/tool_prompt.h"

namespace {

constexpr larder::JsonLimits kJsonLimits{.max_depth = 16, .max_values = 10'000};

template <class Parse>
void expect_error_or_value(Parse parse) {
  try {
    parse();
  } catch (const larder::Error& error) {
    CHECK(error.kind() == larder::ErrorKind::kInvalidArgument);
    CHECK(std::string_view(error.what()).size() < 4096);
  }
}

// With tools as text; every mark has its part.
void render(larder::ChatRequest request) {
  static const larder::ChatTemplate chat_template("");
  CHECK(request.marks.size() <= larder::kMaxCacheMarks, request.marks.size());
  larder::adapt_chat(request, chat_template);
  for (const larder::CacheMark& mark : request.marks) {
    CHECK(mark.message < static_cast<int>(request.messages.size()), mark.message);
    CHECK(mark.part >= 0, mark.part);
  }
  larder::TemplateInput input;
  input.messages = request.messages;
  input.parts = request.parts;
  chat_template.render(input);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  larder::Json body;
  try {
    body = larder::parse_json(text, kJsonLimits);
  } catch (const larder::Error&) {
    return 0;
  }
  CHECK(larder::parse_json(larder::dump_json(body), kJsonLimits) == body);
  const larder::ServerLimits limits;
  const larder::RequestRules rules{.limits = limits, .vocab_size = 1000, .max_model_len = 256};
  expect_error_or_value([&] {
    const larder::ChatRequest request = larder::parse_chat_request(body, rules);
    CHECK(!request.messages.empty() && request.options.n >= 1 && request.options.n <= limits.max_n);
    render(request);
  });
  expect_error_or_value([&] {
    const larder::ChatRequest request = larder::parse_messages_request(body, rules);
    CHECK(!request.messages.empty() && request.options.sampling.max_tokens >= 0);
    render(request);
  });
  expect_error_or_value([&] { larder::parse_count_tokens_request(body, rules); });
  larder::split_answer(text, true);
  expect_error_or_value([&] {
    const larder::CompletionRequest request = larder::parse_completion_request(body, rules);
    CHECK(!request.prompts.empty() && request.options.best_of >= request.options.n);
    CHECK(static_cast<int>(request.prompts.size()) * request.options.best_of <= limits.max_choices);
  });
  return 0;
}
