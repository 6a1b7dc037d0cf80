#include "server/chat/template_abilities.h"

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "server/answer/tool_calls.h"
#include "server/chat/render_chat.h"

namespace larder {
namespace {

constexpr std::int64_t kMaxSteps = 200'000;  // of a rendering; published templates take some thousand

// Words that no template has of its own.
constexpr const char* kSystem = "larder-probe-system";
constexpr const char* kQuestion = "larder-probe-question";
constexpr const char* kAnswer = "larder-probe-answer";
constexpr const char* kTool = "larder_probe_tool";
constexpr const char* kArguments[] = {"larder-probe-argument-1", "larder-probe-argument-2"};
constexpr const char* kResults[] = {"larder-probe-result-1", "larder-probe-result-2"};
constexpr const char* kLongIds[] = {"call_larderprobe0000000001", "call_larderprobe0000000002"};
constexpr const char* kOddIds[] = {"1", "2"};  // as some clients make them
constexpr const char* kShortIds[] = {"larder001", "larder002"};

Json tool_definitions() {
  const Json key = {{"type", "string"}, {"description", "A key."}};
  const Json parameters = {{"type", "object"}, {"properties", {{"key", key}}}, {"required", Json::array({"key"})}};
  const Json function = {{"name", kTool}, {"description", "Looks a key up."}, {"parameters", parameters}};
  return Json::array({{{"type", "function"}, {"function", function}}});
}

// A question, an answer that makes some calls, and their results.
std::vector<ChatMessage> chat_with_calls(std::size_t num_calls, const char* const* ids) {
  ChatMessage answer = message_of("assistant", nullptr);
  std::vector<ChatMessage> chat = {message_of("user", kQuestion)};
  answer.json["tool_calls"] = Json::array();
  for (std::size_t i = 0; i < num_calls; ++i) {
    const Json function = {{"name", kTool}, {"arguments", {{"key", kArguments[i]}}}};
    answer.json["tool_calls"].push_back({{"id", ids[i]}, {"type", "function"}, {"function", function}});
  }
  chat.push_back(std::move(answer));
  for (std::size_t i = 0; i < num_calls; ++i) {
    ChatMessage result = message_of("tool", kResults[i]);
    result.json["tool_call_id"] = ids[i];
    chat.push_back(std::move(result));
  }
  return chat;
}

// nullopt: it refuses them.
std::optional<std::string> render_text(const ChatTemplate& chat_template, std::vector<ChatMessage> messages,
                                       const Json& tools, bool add_generation_prompt = true) {
  TemplateInput input;
  input.messages = std::move(messages);
  input.tools = tools;
  input.add_generation_prompt = add_generation_prompt;
  input.max_steps = kMaxSteps;
  try {
    return render_chat(chat_template, std::move(input)).text;
  } catch (const Error&) {
    return std::nullopt;
  }
}

bool has(const std::optional<std::string>& text, std::initializer_list<std::string_view> parts) {
  if (!text) return false;
  for (const std::string_view part : parts)
    if (text->find(part) == text->npos) return false;
  return true;
}

// The white space of text in [begin, end); nullopt where anything else stands there.
std::optional<std::string> white_space(std::string_view text, std::size_t begin, std::size_t end) {
  constexpr std::size_t kMost = 16;
  if (begin > end || end - begin > kMost) return std::nullopt;
  const std::string_view part = text.substr(begin, end - begin);
  if (part.find_first_not_of(" \n") != part.npos) return std::nullopt;
  return std::string(part);
}

// Of calls as ToolCallScanner reads them; with two, what stands between them, too. nullopt: they are written otherwise.
std::optional<CallSpelling> spelling_of(std::string_view text, bool has_two) {
  for (const bool has_blanks : {true, false}) {
    std::string call;
    append_json(Json{{"name", kTool}, {"arguments", {{"key", kArguments[0]}}}}, has_blanks ? ", " : ",",
                has_blanks ? ": " : ":", call);
    const std::size_t begin = text.find(call), end = begin + call.size();
    if (begin == text.npos) continue;
    const std::size_t tag = text.rfind(kToolCall, begin), tag_end = text.find(kToolCallEnd, end);
    if (tag == text.npos || tag_end == text.npos) return std::nullopt;
    const auto before = white_space(text, tag + kToolCall.size(), begin), behind = white_space(text, end, tag_end);
    const auto between =
        has_two ? white_space(text, tag_end + kToolCallEnd.size(), text.find(kToolCall, tag_end)) : std::string("\n");
    if (!before || !behind || !between) return std::nullopt;
    return CallSpelling{.begin = *before, .end = *behind, .between = *between, .has_blanks = has_blanks};
  }
  return std::nullopt;
}

class Prober {
 public:
  explicit Prober(const ChatTemplate& chat_template) : template_(chat_template) {}

  TemplateAbilities probe() {
    probe_system_prompt();
    probe_answers();
    const auto with_tools = render_text(template_, {message_of("user", kQuestion)}, tools_);
    found_.prints_tools = has(with_tools, {kTool});
    const char* const* ids = kLongIds;
    auto with_call = text_of_calls(1, ids);
    if (!with_call || !text_of_calls(1, kOddIds)) {
      const auto with_short = text_of_calls(1, kShortIds);
      found_.wants_short_ids = with_short.has_value();
      if (found_.wants_short_ids) ids = kShortIds, with_call = with_short;
    }
    found_.prints_calls = has(with_call, {kArguments[0]});
    found_.prints_results = has(with_call, {kResults[0]});
    found_.writes_call_tags = has(with_tools, {kToolCall}) || has(with_call, {kToolCall});
    found_.writes_tagged_calls = has(with_call, {kToolCall, kArgumentKey});
    const auto with_calls = text_of_calls(2, ids);
    found_.takes_several_calls = has(with_calls, {kArguments[0], kArguments[1], kResults[0], kResults[1]});
    const auto& shown = found_.takes_several_calls ? with_calls : with_call;
    if (shown) found_.call_spelling = spelling_of(*shown, found_.takes_several_calls);
    return found_;
  }

 private:
  void probe_system_prompt() {
    const ChatMessage user = message_of("user", kQuestion);
    const auto text = render_text(template_, {message_of("system", kSystem), user}, nullptr);
    if (has(text, {kSystem})) return;
    found_.takes_system_prompts = !has(render_text(template_, {user}, nullptr), {kQuestion});
  }

  void probe_answers() {
    std::vector<ChatMessage> messages = {message_of("user", kQuestion)};
    const auto begun = render_text(template_, messages, nullptr);
    messages.push_back(message_of("assistant", kAnswer));
    messages.push_back(message_of("user", kQuestion));
    const auto next = render_text(template_, std::move(messages), nullptr, false);
    found_.is_harmony = has(next, {"<|channel|>", "<|message|>"});
    // What becomes of thoughts depends on the request, too, which no probe can know.
    const bool may_think = template_.source().find("think") != std::string::npos;
    found_.may_reprint_answers = may_think || !begun || !next || !next->starts_with(*begun + kAnswer);
  }

  std::optional<std::string> text_of_calls(std::size_t num_calls, const char* const* ids) const {
    return render_text(template_, chat_with_calls(num_calls, ids), tools_);
  }

  const ChatTemplate& template_;
  const Json tools_ = tool_definitions();
  TemplateAbilities found_;
};

}  // namespace

TemplateAbilities probe_template(const ChatTemplate& chat_template) { return Prober(chat_template).probe(); }

}  // namespace larder
