// Calls of tools as GLM 4.5 writes them: in tags, their arguments without a type.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/json_reader.h"

namespace larder {

inline constexpr std::string_view kArgumentKey = "<arg_key>";

// What the schemas of a request's tools let arguments be: a text of "5" may be a number or not.
class ArgumentTypes {
 public:
  // tools: as templates know them.
  explicit ArgumentTypes(const Json& tools);

  bool has_tool(std::string_view name) const { return tools_.contains(name); }
  // JSON if it is any, of a type that the argument may have, and no string: those stand there as they are.
  Json value_of(std::string_view tool, std::string_view argument, std::string_view text) const;
  std::size_t size_bytes() const { return size_bytes_; }  // about

 private:
  using Types = std::uint8_t;  // a set

  Types types_of(std::string_view tool, std::string_view argument) const;

  std::map<std::string, std::map<std::string, Types, std::less<>>, std::less<>> tools_;
  std::size_t size_bytes_ = 0;
};

// Reads one behind its opening tag: NAME, for each argument <arg_key>KEY</arg_key> and <arg_value>VALUE</arg_value>, and
// </tool_call>, with white space between them as it likes. Each byte is looked at once. Thread: one.
class TaggedCallReader {
 public:
  // kNone: it is no such call.
  enum class State { kOpen, kWhole, kNone };

  // at: of the text, where the name begins.
  void begin(std::size_t at);
  // text: all that there is of it, which begins with what the last call had.
  State read(std::string_view text);
  // Of the text: where a whole call's closing tag begins, or else up to which it might have been one.
  std::size_t num_read() const { return at_; }
  std::string_view name(std::string_view text) const { return text.substr(name_.begin, name_.end - name_.begin); }
  bool has_arguments() const { return !arguments_.empty(); }
  // Of a whole one, an object; nullopt: it has a key twice.
  std::optional<Json> arguments(std::string_view text, const ArgumentTypes& types) const;

 private:
  enum class Step { kName, kBeforeKey, kKey, kBeforeValue, kValue };
  struct Range {
    std::size_t begin = 0, end = 0;
  };
  struct Argument {
    Range key, value;
  };

  State read_step(std::string_view text);
  State read_name(std::string_view text);
  State read_tag(std::string_view text);
  State read_key(std::string_view text);
  State read_value(std::string_view text);

  Step step_ = Step::kName;
  std::size_t at_ = 0;     // all before was read
  std::size_t begin_ = 0;  // of the name, key or value that is being read
  Range name_;
  std::vector<Argument> arguments_;  // the last may lack its value
};

}  // namespace larder
