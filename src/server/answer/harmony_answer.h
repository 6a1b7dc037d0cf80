// An answer in the harmony format of OpenAI's gpt-oss: messages, each for a channel or a tool.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "server/answer/tool_calls.h"

namespace larder {

// Finds the parts of <|channel|>CHANNEL<|message|>TEXT<|end|><|start|>assistant...: what the model thinks (channel
// analysis), its text (final, and commentary, by which it tells of what it is about to do), and calls, which have a
// recipient in their header: to=functions.NAME, before the channel or behind it, with a JSON object as text. A call
// that is none (no object, cut by the length, or not wanted) is text; so is an answer that has no header. Texts of
// one kind that follow each other are set apart by an empty line. Text that may become a tag or a call is held back:
// push() everything, then finish(). Source: github.com/openai/harmony, docs/format.md. Thread: one.
class HarmonyScanner {
 public:
  explicit HarmonyScanner(const ToolCallRules& rules);

  std::vector<AnswerPiece> push(std::string_view text);
  std::vector<AnswerPiece> finish();
  bool is_in_thought() const { return is_in_body_ && kind_ == Kind::kThinking; }

 private:
  enum class Kind { kText, kThinking, kCall };

  bool scan_header(std::vector<AnswerPiece>& pieces);
  bool scan_body(std::vector<AnswerPiece>& pieces);
  void begin_body(std::string_view header);
  void end_call(std::string_view body, std::vector<AnswerPiece>& pieces);
  void emit(std::string_view text, std::vector<AnswerPiece>& pieces);

  const ToolCallRules rules_;
  bool is_in_body_ = false;
  Kind kind_ = Kind::kText;  // of the body
  std::string tool_;         // that it calls
  bool has_call_ = false;
  bool has_text_ = false, has_thought_ = false;  // something of it was told
  bool is_new_ = false;                          // nothing of this body was
  std::string held_;
  std::size_t num_seen_ = 0;  // of its bytes, in which no tag begins
};

}  // namespace larder
