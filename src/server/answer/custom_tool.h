// Tools that take a text and no JSON, OpenAI's of type "custom".
//
// To the model such a tool is a function whose only parameter is the string "input", so that every template can show it
// and every way of writing calls has room for it.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>

#include "server/json_reader.h"

namespace larder {

class Fields;

struct CustomTool {
  enum class Syntax { kText, kLark, kRegex };

  Syntax syntax = Syntax::kText;
  std::string definition = {};  // what its input matches; of kText none
  std::string field = {};       // how messages name that

  bool is_bound() const { return syntax != Syntax::kText; }
};

// By the names that the model knows them by.
using CustomTools = std::map<std::string, CustomTool>;
using CustomNames = std::set<std::string>;

// Null: there are none.
std::shared_ptr<const CustomNames> names_of(const CustomTools& tools);

// custom: its name, description and format, as an API has them. Throws Error{kInvalidArgument} with the field as param.
CustomTool read_custom_tool(const Fields& custom);

// The tool as templates know it. custom is one that read_custom_tool() has taken.
Json custom_as_function(const std::string& name, const Fields& custom);

// The function's arguments in a call, and the text that is the tool's input: all of them where they have none, as a model
// may write that nothing binds.
Json custom_arguments(Json input);
std::string custom_input(const Json& arguments);

}  // namespace larder
