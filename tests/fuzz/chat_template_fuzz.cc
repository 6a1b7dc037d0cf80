// A template from anywhere, on messages from anywhere: the source, then a zero byte, then JSON.
// Renders within small limits; nothing but an Error may come of it, and the spans must cover the
// text.
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "fuzz_target.h"
#include "tokenizer/jinja/chat_test_support.h"

namespace {

using Json = nlohmann::ordered_json;

larder::TemplateInput to_input(std::string_view bytes) {
  larder::TemplateInput input;
  const Json json = Json::parse(bytes, nullptr, false);
  if (json.is_object()) {
    input.messages = larder::messages_of(json.value("messages", Json::array()));
    if (json.contains("tools")) input.tools = json["tools"];
    if (json.contains("extra")) input.extra = json["extra"];
  } else if (json.is_array()) {
    input.messages = larder::messages_of(json);
  } else {
    input.messages.push_back({.json = {{"role", "user"}, {"content", std::string(bytes)}}});
  }
  input.bos_token = "<s>";
  input.now_s = 1;
  return input;
}

void check(bool is_fine) {
  if (!is_fine) std::abort();
}

bool has_known_role(const Json& message) {
  const auto role = message.find("role");
  return role != message.end() && (*role == "system" || *role == "developer" || *role == "user" ||
                                   *role == "assistant" || *role == "tool");
}

}  // namespace

bool try_input(const std::uint8_t* data, std::size_t size) {
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const std::string_view source = all.substr(0, all.find('\0'));
  larder::TemplateLimits limits;
  limits.max_steps = limits.most_steps = 20'000;
  limits.max_output_bytes = 1 << 20;
  try {
    const larder::ChatTemplate chat(std::string(source), limits);
    const larder::TemplateInput input =
        to_input(source.size() < size ? all.substr(source.size() + 1) : std::string_view("hi"));
    const larder::RenderedPrompt prompt = chat.render(input);
    check(prompt.text.size() <= limits.max_output_bytes);
    std::size_t at = 0;
    for (const larder::TextSpan& span : prompt.spans) {
      check(span.begin == at && span.end > at);
      at = span.end;
      check(span.message >= -1 && span.message < static_cast<int>(input.messages.size()));
      check(!span.trusted || span.message == -1 || has_known_role(input.messages.at(span.message).json));
    }
    check(at == prompt.text.size());
    return true;
  } catch (const larder::Error& error) {
    check(error.kind() == larder::ErrorKind::kInvalidArgument);
    return false;
  }
}
