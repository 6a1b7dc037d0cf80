// Bytes -> the JSON reader -> the readers of both kinds of request.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "base/error.h"
#include "server/json_reader.h"
#include "server/openai_request.h"

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
  });
  expect_error_or_value([&] {
    const larder::CompletionRequest request = larder::parse_completion_request(body, rules);
    CHECK(!request.prompts.empty() && request.options.best_of >= request.options.n);
    CHECK(static_cast<int>(request.prompts.size()) * request.options.best_of <= limits.max_choices);
  });
  return 0;
}
