// Calls of tools in a generated text.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/answer/custom_tool.h"
#include "server/answer/tagged_call.h"
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
  bool is_thought = false;  // text that a reader is shown apart from the answer, if at all
};

inline constexpr std::string_view kToolCall = "<tool_call>";
inline constexpr std::string_view kToolCallEnd = "</tool_call>";
inline constexpr std::string_view kThought = "<think>";
inline constexpr std::string_view kThoughtEnd = "</think>";

// What a call is written with where a chat template prints it again: only then its tokens are found once it is history.
struct CallSpelling {
  std::string begin = {};    // white space behind <tool_call>,
  std::string end = {};      // before </tool_call>
  std::string between = {};  // and between two calls
  bool has_blanks = true;    // one behind each colon and comma, else none; and no other white space
};

struct ToolCallRules {
  bool are_read = false;          // <tool_call> in the text is a call; else all of it goes through as it is
  bool takes_many = true;         // false = calls behind the first are dropped
  bool begins_in_thought = false; // the prompt ends with <think>
  bool parts_thoughts = false;    // see ThoughtScanner
  bool is_harmony = false;        // see HarmonyScanner: thoughts are told apart, calls if they are read
  bool begins_in_text = false;    // harmony: the prompt ends in a message that the answer goes on with
  std::optional<CallSpelling> spelling = {};  // of what is bound to be a call; nullopt = any
  std::shared_ptr<const CustomNames> custom = {};  // of tools whose calls clients are shown as such; null = there are none
  std::shared_ptr<const ArgumentTypes> tagged = {};  // calls may be written in tags, see TaggedCallReader; null = they are not
};

// Whether it is a call of a custom tool.
inline bool is_custom(const ToolCallRules& rules, const ToolCall& call) {
  return rules.custom != nullptr && rules.custom->contains(call.name);
}

// The bytes of a beginning of the tag, not all of it, that ends the text.
std::size_t size_of_possible_tag(std::string_view text, std::string_view tag);

// Finds <tool_call>{"name": ..., "arguments": {...}}</tool_call>, as Hermes, Qwen and others write a
// call; several may stand in one tag, and the closing one may be missing. Or the same tag with the call in tags, which
// needs its closing one: where it was cut none of it is called, nor anything within it. What is no such call stays text,
// tags included; white space around a call goes. Text that may become a call is held back: push() everything, then
// finish(). Thread: one.
class ToolCallScanner {
 public:
  explicit ToolCallScanner(const ToolCallRules& rules) : rules_(rules) {}

  std::vector<AnswerPiece> push(std::string_view text);
  std::vector<AnswerPiece> finish();

 private:
  enum class State { kInText, kBeforeCall, kInCall, kInTaggedCall, kBehindCall };

  void scan(std::vector<AnswerPiece>& pieces);
  bool scan_on(std::vector<AnswerPiece>& pieces);
  bool scan_text(std::vector<AnswerPiece>& pieces);
  bool scan_before_call(std::vector<AnswerPiece>& pieces);
  bool scan_call(std::vector<AnswerPiece>& pieces);
  bool scan_tagged_call(std::vector<AnswerPiece>& pieces);
  bool scan_behind_call(std::vector<AnswerPiece>& pieces);
  void tell_call(std::vector<AnswerPiece>& pieces);
  void begin_call();
  void end_call(std::vector<AnswerPiece>& pieces);
  void take_call(ToolCall call, std::size_t size);
  std::size_t pass_spaces();
  void pass(std::size_t size, std::vector<AnswerPiece>& pieces);
  std::string_view rest() const { return std::string_view(held_).substr(num_passed_); }
  void give_up_call(std::size_t size, std::vector<AnswerPiece>& pieces);
  void emit(std::string_view text, std::vector<AnswerPiece>& pieces);

  const ToolCallRules rules_;
  bool has_call_ = false;
  std::optional<ToolCall> found_;  // and not told yet
  bool follows_call_ = false;
  State state_ = State::kInText;
  std::string held_;
  std::size_t num_passed_ = 0;  // of its bytes
  std::size_t num_spaces_ = 0;  // that what is held back begins with: they need no second look
  std::size_t num_seen_ = 0;  // of a call's bytes, and where in its JSON they end
  int depth_ = 0;
  bool is_in_string_ = false;
  bool is_escaped_ = false;
  TaggedCallReader tagged_;
  std::string before_;  // the white space before a tag and the tag, for when no call follows
};

}  // namespace larder
