// Chat messages -> the prompt text of a model, by the Jinja template in its file.
//
// The interpreter is a sandbox: no attribute of the host is reachable, and steps, depth and output
// are bounded, so that a template from anywhere can be run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace larder {

struct TemplateLimits {
  // One step is a node evaluated, an element looked at or up to 128 bytes moved: under 0.1 us. The
  // published templates take 50 to 100 a message; one of them looks over all messages behind each call.
  std::int64_t max_steps = 10'000'000;  // of any chat
  std::int64_t steps_per_message = 20'000;  // more of a long one, and one for each byte,
  std::int64_t most_steps = 50'000'000;     // up to so many: some seconds
  int max_depth = 100;                                   // of nesting: source, recursion, values
  std::size_t max_output_bytes = std::size_t{64} << 20;  // the output and all values that then live
};

struct RenderedPrompt {
  std::string text;
  // In order, covering text. Trusted: the template's own text, and messages' roles.
  std::vector<TextSpan> spans;
};

// A stretch of a message's content; it begins where the one before ends.
struct ContentPart {
  std::size_t end = 0;     // bytes of the content, which is a string
  std::int32_t tool = -1;  // it is the definition of that tool, as TextSpan::tool; -1 = not one
};

// A message of a chat, and what is known of it beside what a template prints.
struct ChatMessage {
  nlohmann::ordered_json json;          // OpenAI's shape
  int sent_as = -1;                     // which of the client's it is or begins with; -1 = its system prompt, or put in
  std::vector<ContentPart> parts = {};  // for spans to tell them apart; none = the content is one
};

struct TemplateInput {
  std::vector<ChatMessage> messages;
  nlohmann::ordered_json tools;  // null or an array
  bool add_generation_prompt = true;
  std::string bos_token, eos_token;
  nlohmann::ordered_json extra;  // chat_template_kwargs: null or an object
  std::int64_t now_s = 0;  // Unix time, for templates that print the date; 0 = the system's clock
  std::int64_t max_steps = 0;  // 0 = as TemplateLimits say
};

// Published ones have up to some 20 thousand; parsed, a template takes many times its size.
inline constexpr std::size_t kMaxTemplateBytes = std::size_t{1} << 20;

// Of models that have two templates: with_tools is for chats with tools; "" = plain is for all.
std::string join_templates(std::string_view plain, std::string_view with_tools);

// Immutable after construction. Thread: any, concurrently.
class ChatTemplate {
 public:
  // source: Jinja, up to kMaxTemplateBytes; "" = the default (ChatML). Throws
  // Error{kInvalidArgument} with line and reason.
  explicit ChatTemplate(std::string source, TemplateLimits limits = {});
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;

  // Throws Error{kInvalidArgument} when the template raises (raise_exception) or a bound is
  // reached.
  RenderedPrompt render(const TemplateInput& input) const;
  const std::string& source() const;
  bool is_default() const;  // ChatML, for want of another
  // Of what some chats will be refused for; "" = nothing is known.
  std::string warning() const;

 private:
  class Impl;
  std::unique_ptr<const Impl> impl_;
};

}  // namespace larder
