// What an answer may be, as requests say it.
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "server/answer/custom_tool.h"
#include "server/json_reader.h"

namespace larder {

class Fields;

// The text that is asked for. The rest follows from it (answer_grammar.h).
struct AnswerFormat {
  enum class Kind { kText, kSchema, kRegex, kChoice, kGrammar };

  Kind kind = Kind::kText;
  Json schema = {};                       // JSON of this schema
  std::string source = {};                // a regular expression or a grammar
  std::vector<std::string> choices = {};  // one of these
  std::string field = {};                 // how messages name it
  bool is_compact = false;                // JSON without white space

  bool is_text() const { return kind == Kind::kText; }
};

// Of an expression or a grammar.
inline constexpr std::size_t kMaxSourceBytes = std::size_t{64} << 10;

// Of one request, namespaces' functions each by itself. OpenAI takes 128.
inline constexpr std::size_t kMaxTools = 1024;

// Which tools an answer may call, and whether it has to. Its names are looked for once for each tool.
struct ToolChoice {
  enum class Mode { kAuto, kNone, kRequired };

  Mode mode = Mode::kAuto;
  bool is_restricted = false;  // to the names
  bool is_one_call = false;    // where it has to call: of the one function that is demanded, once
  std::set<std::string> names = {};
  std::set<std::string> strict_names = {};  // of tools whose arguments are to be of their schema in any case
  CustomTools custom = {};

  bool may_call() const { return mode != Mode::kNone; }
  bool has_to_call() const { return mode == Mode::kRequired; }
  // Of the tool's name.
  bool permits(const std::string& name) const { return !is_restricted || names.contains(name); }
  bool is_strict(const std::string& name) const { return strict_names.contains(name); }
  // Those whose input is bound are strict.
  void take_custom(CustomTools tools);
};

// All throw Error{kInvalidArgument} with the field as param. Thread: any.

// {"type": "text" | "json_object" | "json_schema", ...}: the schema may stand in "json_schema", or in it itself.
AnswerFormat read_format(const Json& value, const std::string& path);
// response_format, and what vLLM and llama.cpp have for the same.
AnswerFormat read_answer_format(const Fields& fields);

// tool_choice, as chat and Responses have it: "auto", "none", "required", a function or a custom tool, allowed_tools.
ToolChoice read_tool_choice(const Fields& fields);
// path: of the field that has them.
void require_few_tools(std::size_t num_tools, const std::string& path);
// That the tools it speaks of are there, and no more of them than are taken. tools: as templates know them, or null.
void check_tool_choice(const ToolChoice& choice, const Json& tools);

}  // namespace larder
