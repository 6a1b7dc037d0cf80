// The words of a grammar in Lark's notation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace larder {

struct LarkToken {
  enum class Kind {
    kName,       // of a rule or a terminal
    kString,     // in quotes
    kRegex,      // between slashes
    kNumber,     // with its sign
    kDirective,  // %import and the like
    kSign,       // one of ()[]{}|?*+~:.,=!@&<> or -> or ..
    kEnd,
  };

  Kind kind = Kind::kEnd;
  std::size_t line = 1;  // where it begins
  bool is_first_of_line = true;
  std::string text;   // of a string what it stands for; of an expression what is between the slashes; else as written
  std::string flags;  // behind a string or an expression
  std::string json;   // behind %json and %llguidance, with its braces

  bool is(std::string_view sign) const { return kind == Kind::kSign && text == sign; }
};

// The last one is kEnd. Throws Error{kInvalidArgument} where no word can be read.
std::vector<LarkToken> lark_tokens(std::string_view text);

}  // namespace larder
