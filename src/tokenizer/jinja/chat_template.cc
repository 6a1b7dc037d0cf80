#include "tokenizer/jinja/chat_template.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "tokenizer/jinja/jinja_interpreter.h"
#include "tokenizer/jinja/jinja_json.h"
#include "tokenizer/jinja/jinja_lexer.h"
#include "tokenizer/jinja/jinja_parser.h"

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

// What an origin stands for, beside TextSpan's bytes.
struct Source {
  std::int32_t message = -1;
  std::int32_t part = 0;
  std::int32_t tool = -1;
  bool is_trusted = false;
};

// Templates make special tokens of them: '<|' + message['role'] + '|>'.
bool is_role(const Json& value) {
  constexpr std::array<std::string_view, 5> kRoles = {"system", "developer", "user", "assistant",
                                                      "tool"};
  return value.is_string() &&
         std::ranges::find(kRoles, value.get_ref<const std::string&>()) != kRoles.end();
}

// The request as a template's values, each of which knows its source.
class InputConverter {
 public:
  explicit InputConverter(jinja::Runtime& runtime) : runtime_(runtime) {}

  jinja::Value messages(const TemplateInput& input) {
    jinja::ListBuilder list(runtime_);
    for (const ChatMessage& message : input.messages) {
      if (!message.json.is_object()) {
        throw Error(ErrorKind::kInvalidArgument, "each message must be an object", "messages");
      }
      list.push(convert_message(message));
      ++message_;
    }
    return list.finish(jinja::ListKind::kList, jinja::Origin::kOutside);
  }

  jinja::Value tools(const Json& tools) {
    if (!tools.is_array()) return jinja::from_json(runtime_, tools, jinja::Origin::kOutside);
    jinja::ListBuilder list(runtime_);
    for (std::size_t i = 0; i < tools.size(); ++i) {
      const jinja::Origin origin = add({.tool = static_cast<std::int32_t>(i)});
      list.push(jinja::from_json(runtime_, tools[i], origin));
    }
    return list.finish(jinja::ListKind::kList, jinja::Origin::kOutside);
  }

  // By origin.
  const std::vector<Source>& sources() const { return sources_; }

 private:
  jinja::Origin add(const Source& source) {
    sources_.push_back(source);
    return static_cast<jinja::Origin>(sources_.size() - 1);
  }

  jinja::Value convert_message(const ChatMessage& message) {
    const std::vector<ContentPart>& parts = message.parts;
    const Json* reasoning = find_reasoning(message.json);
    const jinja::Origin origin = add({.message = message_});
    jinja::Dict dict;
    const auto set = [&](const std::string& key, jinja::Value value) {
      dict.set(runtime_.budget(),
               jinja::Value(std::make_shared<const jinja::Text>(key, origin)), std::move(value));
    };
    if (reasoning != nullptr) set("thinking", jinja::from_json(runtime_, *reasoning, origin));
    for (const auto& [key, value] : message.json.items()) {
      if (key == "content" && value.is_string() && !parts.empty()) {
        set(key, convert_content(value.get_ref<const std::string&>(), parts, origin));
      } else if (key == "tool_calls" && value.is_array()) {
        set(key, convert_calls(value, std::max<std::size_t>(parts.size(), 1)));
      } else if (key == "role" && is_role(value)) {
        set(key, jinja::from_json(runtime_, value, add({.message = message_, .is_trusted = true})));
      } else {
        set(key, jinja::from_json(runtime_, value, origin));
      }
    }
    if (reasoning != nullptr) {
      set("reasoning_content", jinja::from_json(runtime_, *reasoning, origin));
    }
    return runtime_.dict(std::move(dict), origin);
  }

  jinja::Value convert_content(const std::string& content, const std::vector<ContentPart>& parts,
                               jinja::Origin origin) {
    std::vector<jinja::Run> runs;
    std::size_t begin = 0;
    for (std::size_t i = 0; i < parts.size() && begin < content.size(); ++i) {
      const bool is_last = i + 1 == parts.size();
      const std::size_t end = is_last ? content.size() : std::min(parts[i].end, content.size());
      if (end <= begin) continue;
      const bool is_plain = i == 0 && parts[i].tool < 0;
      const auto part = static_cast<std::int32_t>(i);
      const Source source = parts[i].tool < 0 ? Source{message_, part, -1, false}
                                              : Source{-1, 0, parts[i].tool, false};
      runs.push_back({end, is_plain ? origin : add(source)});
      begin = end;
    }
    if (runs.empty()) return jinja::Value(std::make_shared<const jinja::Text>(content, origin));
    return jinja::Value(std::make_shared<const jinja::Text>(content, std::move(runs)));
  }

  jinja::Value convert_calls(const Json& calls, std::size_t first_part) {
    jinja::ListBuilder list(runtime_);
    for (std::size_t i = 0; i < calls.size(); ++i) {
      const auto part = static_cast<std::int32_t>(first_part + i);
      list.push(jinja::from_json(runtime_, calls[i], add({.message = message_, .part = part})));
    }
    const auto last = static_cast<jinja::Origin>(sources_.size() - 1);
    return list.finish(jinja::ListKind::kList, last);
  }

  jinja::Runtime& runtime_;
  std::vector<Source> sources_;
  std::int32_t message_ = 0;  // that is being converted
};

std::vector<Source> define_input(jinja::Interpreter& interpreter, const TemplateInput& input) {
  for (const auto& [name, value] : jinja::make_globals(interpreter))
    interpreter.define(name, value);
  interpreter.define("documents", jinja::Value::none());
  interpreter.define("bos_token", interpreter.text(input.bos_token));
  interpreter.define("eos_token", interpreter.text(input.eos_token));
  if (input.extra.is_object()) {
    for (const auto& [name, value] : input.extra.items()) {
      if (name.size() > jinja::kMaxNameBytes) continue;  // no template can name it
      interpreter.define(name, jinja::from_json(interpreter, value, jinja::Origin::kOutside));
    }
  }
  // Last: no extra argument may stand in for what the request itself says.
  InputConverter converter(interpreter);
  interpreter.define("messages", converter.messages(input));
  interpreter.define("tools", converter.tools(input.tools));
  interpreter.define("add_generation_prompt", jinja::Value::boolean(input.add_generation_prompt));
  return converter.sources();
}

// What a conversation's length adds to TemplateLimits::max_steps.
std::int64_t steps_for_length(const TemplateInput& input, const TemplateLimits& limits) {
  std::int64_t steps = std::ssize(input.messages) * limits.steps_per_message;
  for (const ChatMessage& message : input.messages) {
    const auto content = message.json.find("content");
    if (content != message.json.end() && content->is_string()) steps += std::ssize(content->get_ref<const std::string&>());
  }
  return std::min(steps, std::max<std::int64_t>(limits.most_steps - limits.max_steps, 0));
}

RenderedPrompt finish(const jinja::Text& text, const std::vector<Source>& sources) {
  RenderedPrompt prompt;
  prompt.text = text.bytes();
  text.for_each_run(0, text.size(), [&](std::size_t begin, std::size_t end, jinja::Origin origin) {
    const auto index = static_cast<std::int32_t>(origin);
    const Source source = index < 0 ? Source{} : sources.at(static_cast<std::size_t>(index));
    prompt.spans.push_back({.begin = begin,
                            .end = end,
                            .trusted = origin == jinja::Origin::kTrusted || source.is_trusted,
                            .message = source.message,
                            .part = source.part,
                            .tool = source.tool});
  });
  return prompt;
}

}  // namespace

class ChatTemplate::Impl {
 public:
  Impl(std::string source, TemplateLimits limits)
      : source_(source.empty() ? std::string(kDefaultTemplate) : std::move(source)),
        limits_(limits) {
    if (source_.size() > kMaxTemplateBytes) {
      throw_invalid("chat template: it has {} bytes, {} at most are taken; give a shorter one",
                    source_.size(), kMaxTemplateBytes);
    }
    try {
      parsed_ = jinja::parse_template(source_, limits_.max_depth);
    } catch (const jinja::Failure& failure) {
      rethrow(failure, 1);
    }
  }

  RenderedPrompt render(const TemplateInput& input) const {
    const std::int64_t more_steps = input.max_steps > 0 ? 0 : steps_for_length(input, limits_);
    const std::int64_t max_steps = (input.max_steps > 0 ? input.max_steps : limits_.max_steps) + more_steps;
    jinja::Interpreter interpreter(max_steps, limits_.max_output_bytes, limits_.max_depth);
    interpreter.now_s = input.now_s;
    try {
      const std::vector<Source> sources = define_input(interpreter, input);
      return finish(interpreter.run(parsed_.body), sources);
    } catch (const jinja::Failure& failure) {
      // Where most of the steps were for its length, that is the likelier reason.
      if (failure.is_out_of_steps && more_steps >= limits_.max_steps) {
        // Clients of Anthropic's API know this error by its first words.
        throw Error(ErrorKind::kPromptTooLong,
                    fmt::format("prompt is too long: its {} messages take the chat template more steps than are allowed; "
                                "leave some out",
                                input.messages.size()));
      }
      rethrow(failure, interpreter.line());
    }
  }

  const std::string& source() const { return source_; }
  bool is_default() const { return source_ == kDefaultTemplate; }
  const std::vector<std::string>& unknown_names() const { return parsed_.unknown_names; }

 private:
  std::string source_;
  TemplateLimits limits_;
  jinja::ParsedTemplate parsed_;
};

// The empty texts keep the tags between from taking the templates' own spaces and line ends, of which a template's last
// one goes in any case.
std::string join_templates(std::string_view plain, std::string_view with_tools) {
  if (with_tools.empty()) return std::string(plain);
  const auto quoted = [](std::string_view source) {
    if (source.ends_with('\n')) source.remove_suffix(1);
    return fmt::format("{{{{ '' }}}}{}{{{{ '' }}}}", source);
  };
  return "{% if tools %}" + quoted(with_tools) + "{% else %}" + quoted(plain) + "{% endif %}";
}

ChatTemplate::ChatTemplate(std::string source, TemplateLimits limits)
    : impl_(std::make_unique<const Impl>(std::move(source), limits)) {}
ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;

RenderedPrompt ChatTemplate::render(const TemplateInput& input) const {
  return impl_->render(input);
}
const std::string& ChatTemplate::source() const { return impl_->source(); }
bool ChatTemplate::is_default() const { return impl_->is_default(); }
std::string ChatTemplate::warning() const {
  std::string names;
  for (const std::string& name : impl_->unknown_names()) names += (names.empty() ? "" : ", ") + name;
  if (names.empty()) return names;
  return fmt::format("it uses {}, which Larder does not know; chats that come to that are refused",
                     names);
}

}  // namespace larder
