// The parts of a generated text, whatever its model writes them as.
#pragma once

#include <string_view>
#include <variant>
#include <vector>

#include "server/harmony_answer.h"
#include "server/thought_scanner.h"
#include "server/tool_calls.h"

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
  // Whether the text so far ends in a thought that is told apart.
  bool is_in_thought() const {
    if (const auto* thoughts = std::get_if<ThoughtScanner>(&scanner_)) return thoughts->is_in_thought();
    if (const auto* harmony = std::get_if<HarmonyScanner>(&scanner_)) return harmony->is_in_thought();
    return false;
  }

 private:
  using Scanner = std::variant<ToolCallScanner, ThoughtScanner, HarmonyScanner>;

  static Scanner make(const ToolCallRules& rules) {
    if (rules.is_harmony) return Scanner(std::in_place_type<HarmonyScanner>, rules);
    if (rules.parts_thoughts) return Scanner(std::in_place_type<ThoughtScanner>, rules);
    return Scanner(std::in_place_type<ToolCallScanner>, rules);
  }

  Scanner scanner_;
};

// The pieces of a whole answer.
std::vector<AnswerPiece> split_answer(std::string_view text, const ToolCallRules& rules);

}  // namespace larder
