// Calls of tools in a generated text.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/json_reader.h"

namespace larder {

struct ToolCall {
  std::string name;
  Json arguments;  // an object
};

// A call, or else text that is not empty.
struct AnswerPiece {
  std::string text = {};
  std::optional<ToolCall> call = {};
};

// Finds <tool_call>{"name": ..., "arguments": {...}}</tool_call>, as Hermes, Qwen and others write a
// call. What is no such call stays text, tags included; white space around a call goes. A closing tag
// inside a string of the JSON closes nothing. Text that may become a call is held back: push()
// everything, then finish(). Thread: one.
class ToolCallScanner {
 public:
  // Not active: text goes through as it is. takes_many: false = calls behind the first are dropped.
  explicit ToolCallScanner(bool is_active, bool takes_many = true)
      : is_active_(is_active), takes_many_(takes_many) {}

  std::vector<AnswerPiece> push(std::string_view text);
  std::vector<AnswerPiece> finish();

 private:
  void scan(std::vector<AnswerPiece>& pieces);
  bool scan_text(std::vector<AnswerPiece>& pieces);
  bool scan_call(std::vector<AnswerPiece>& pieces);
  std::optional<std::size_t> find_end();
  void take_call(ToolCall call, std::vector<AnswerPiece>& pieces);
  void give_up_call(std::vector<AnswerPiece>& pieces);
  void emit(std::string_view text, std::vector<AnswerPiece>& pieces);

  const bool is_active_;
  const bool takes_many_;
  bool has_call_ = false;
  bool is_in_call_ = false;
  bool follows_call_ = false;
  std::string held_;
  std::size_t num_spaces_ = 0;  // that a text held back begins with: they need no second look
  std::size_t num_seen_ = 0;  // of a call's bytes, and where in its JSON they end
  bool is_in_string_ = false;
  bool is_escaped_ = false;
  std::string gap_;  // white space before the tag, for when no call follows
};

// The pieces of a whole answer.
std::vector<AnswerPiece> split_answer(std::string_view text, bool reads_tool_calls,
                                      bool takes_many_calls = true);

}  // namespace larder
