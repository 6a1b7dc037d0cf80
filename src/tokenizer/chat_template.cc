#include "tokenizer/chat_template.h"

#include <optional>
#include <string_view>

#include "base/error.h"
#include "tokenizer/jinja_interpreter.h"
#include "tokenizer/jinja_json.h"
#include "tokenizer/jinja_parser.h"

namespace larder {
namespace {

using Json = nlohmann::ordered_json;

// For files without a template: ChatML, taking content as text or as a list of parts.
constexpr std::string_view kDefaultTemplate =
    "{%- for message in messages -%}\n"
    "{{ '<|im_start|>' + message['role'] + '\\n' }}\n"
    "{%- if message['content'] is string -%}\n"
    "{{ message['content'] }}\n"
    "{%- else -%}\n"
    "{%- for part in message['content'] or [] if part['type'] == 'text' -%}\n"
    "{{ part['text'] }}\n"
    "{%- endfor -%}\n"
    "{%- endif -%}\n"
    "{{ '<|im_end|>\\n' }}\n"
    "{%- endfor -%}\n"
    "{%- if add_generation_prompt -%}\n"
    "{{ '<|im_start|>assistant\\n' }}\n"
    "{%- endif -%}\n";

[[noreturn]] void rethrow(const jinja::Failure& failure, int line) {
  throw_invalid("chat template, line {}: {}", failure.line > 0 ? failure.line : line,
                failure.message);
}

// Templates read reasoning under either of two names, whatever the client called it. nullptr: none.
const Json* find_reasoning(const Json& message) {
  for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
    const auto found = message.find(name);
    if (found != message.end() && !found->is_null()) return &*found;
  }
  return nullptr;
}

jinja::Value convert_message(jinja::Runtime& runtime, const Json& message, jinja::Origin origin) {
  const Json* reasoning = find_reasoning(message);
  if (reasoning == nullptr) return jinja::from_json(runtime, message, origin);
  Json named = Json::object();
  named["thinking"] = *reasoning;
  for (const auto& [key, value] : message.items()) named[key] = value;
  named["reasoning_content"] = *reasoning;
  return jinja::from_json(runtime, named, origin);
}

jinja::Value convert_messages(jinja::Runtime& runtime, const Json& messages) {
  if (!messages.is_array()) {
    throw Error(ErrorKind::kInvalidArgument, "messages must be an array", "messages");
  }
  jinja::ListBuilder list(runtime);
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (!messages[i].is_object()) {
      throw Error(ErrorKind::kInvalidArgument, "each message must be an object", "messages");
    }
    list.push(convert_message(runtime, messages[i], static_cast<jinja::Origin>(i)));
  }
  return list.finish(jinja::ListKind::kList, jinja::Origin::kOutside);
}

void define_input(jinja::Interpreter& interpreter, const TemplateInput& input) {
  for (const auto& [name, value] : jinja::make_globals(interpreter))
    interpreter.define(name, value);
  interpreter.define("documents", jinja::Value::none());
  interpreter.define("bos_token", interpreter.text(input.bos_token));
  interpreter.define("eos_token", interpreter.text(input.eos_token));
  if (input.extra.is_object()) {
    for (const auto& [name, value] : input.extra.items()) {
      interpreter.define(name, jinja::from_json(interpreter, value, jinja::Origin::kOutside));
    }
  }
  // Last: no extra argument may stand in for what the request itself says.
  interpreter.define("messages", convert_messages(interpreter, input.messages));
  interpreter.define("tools", jinja::from_json(interpreter, input.tools, jinja::Origin::kOutside));
  interpreter.define("add_generation_prompt", jinja::Value::boolean(input.add_generation_prompt));
}

RenderedPrompt finish(const jinja::Text& text) {
  RenderedPrompt prompt;
  prompt.text = text.bytes();
  text.for_each_run(0, text.size(), [&](std::size_t begin, std::size_t end, jinja::Origin origin) {
    const bool is_trusted = origin == jinja::Origin::kTrusted;
    prompt.spans.push_back(
        {begin, end, is_trusted, is_trusted ? -1 : static_cast<std::int32_t>(origin)});
  });
  return prompt;
}

}  // namespace

class ChatTemplate::Impl {
 public:
  Impl(std::string source, TemplateLimits limits)
      : source_(source.empty() ? std::string(kDefaultTemplate) : std::move(source)),
        limits_(limits) {
    try {
      body_ = jinja::parse_template(source_, limits_.max_depth);
    } catch (const jinja::Failure& failure) {
      rethrow(failure, 1);
    }
  }

  RenderedPrompt render(const TemplateInput& input) const {
    jinja::Interpreter interpreter(limits_.max_steps, limits_.max_output_bytes, limits_.max_depth);
    interpreter.now_s = input.now_s;
    try {
      define_input(interpreter, input);
      return finish(interpreter.run(body_));
    } catch (const jinja::Failure& failure) {
      rethrow(failure, interpreter.line());
    }
  }

  const std::string& source() const { return source_; }

 private:
  std::string source_;
  TemplateLimits limits_;
  jinja::Block body_;
};

ChatTemplate::ChatTemplate(std::string source, TemplateLimits limits)
    : impl_(std::make_unique<const Impl>(std::move(source), limits)) {}
ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;

RenderedPrompt ChatTemplate::render(const TemplateInput& input) const {
  return impl_->render(input);
}
const std::string& ChatTemplate::source() const { return impl_->source(); }

}  // namespace larder
