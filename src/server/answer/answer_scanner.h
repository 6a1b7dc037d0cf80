// The parts of a generated text, whatever its model writes them as.
#pragma once

#include <string_view>
#include <variant>
#include <vector>

#include "server/answer/harmony_answer.h"
#include "server/answer/thought_scanner.h"
#include "server/answer/tool_calls.h"

namespace larder {

// Text that may become part of a tag or a call is held back: push() everything, then finish(). Thread: one.
class AnswerScanner {
 public:
  explicit AnswerScanner(const ToolCallRules& rules) : scanner_(make(rules)) {}

  std::vector<AnswerPiece> push(std::string_view text) {
    return std::visit([&](auto& scanner) { return scanner.push(text); }, scanner_);
  }
  std::vector<AnswerPiece> finish() {
    return std::visit([](auto& scanner) { return scanner.finish(); }, scanner_);
  }
  // Whether the text so far ends in a thought.
  bool is_in_thought() const {
    return std::visit([](const auto& scanner) { return scanner.is_in_thought(); }, scanner_);
  }

 private:
  using Scanner = std::variant<ThoughtScanner, HarmonyScanner>;

  static Scanner make(const ToolCallRules& rules) {
    if (rules.is_harmony) return Scanner(std::in_place_type<HarmonyScanner>, rules);
    return Scanner(std::in_place_type<ThoughtScanner>, rules);
  }

  Scanner scanner_;
};

// The pieces of a whole answer.
std::vector<AnswerPiece> split_answer(std::string_view text, const ToolCallRules& rules);

}  // namespace larder
