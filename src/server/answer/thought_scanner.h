// A thought that an answer begins with.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "server/answer/tool_calls.h"

namespace larder {

// Parts what stands between <think> and </think> at the beginning of an answer, or up to </think> where the prompt has
// opened it, as DeepSeek R1, Qwen 3 and others write it, from the text behind it, in which ToolCallScanner looks for
// calls: what a model thinks of calling it does not call. The tags go, and white space beside them; a thought that is
// never closed is all there is. Where thoughts are not told apart, they are text, tags included. push() everything, then
// finish(). Thread: one.
class ThoughtScanner {
 public:
  explicit ThoughtScanner(const ToolCallRules& rules);

  std::vector<AnswerPiece> push(std::string_view text);
  std::vector<AnswerPiece> finish();
  bool is_in_thought() const { return state_ == State::kInThought; }

 private:
  enum class State { kBeginning, kInThought, kBehindThought, kInText };

  void begin(std::vector<AnswerPiece>& pieces);
  void scan_thought(std::vector<AnswerPiece>& pieces);
  void pass_to_text(std::vector<AnswerPiece>& pieces);
  void take(std::size_t size, std::vector<AnswerPiece>& pieces);

  const bool tells_apart_;
  State state_;
  std::string held_;
  std::size_t num_spaces_ = 0;  // that what is held back begins with: they need no second look
  bool has_thought_ = false;    // some of it was told
  ToolCallScanner text_;
};

}  // namespace larder
