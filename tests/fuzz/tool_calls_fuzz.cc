// A generated text -> its pieces. They are the same however it comes, and all of it is told.
#include <algorithm>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "fuzz_target.h"
#include "server/answer/answer_scanner.h"

namespace {

using larder::AnswerPiece;
using larder::AnswerScanner;
using larder::ArgumentTypes;
using larder::ToolCallRules;

void append(const std::vector<AnswerPiece>& more, std::vector<AnswerPiece>& pieces) {
  for (const AnswerPiece& piece : more) {
    CHECK(piece.call.has_value() == piece.text.empty());
    if (!piece.call && !pieces.empty() && !pieces.back().call && pieces.back().is_thought == piece.is_thought) {
      pieces.back().text += piece.text;
    } else {
      pieces.push_back(piece);
    }
  }
}

// By so many bytes at a time.
std::vector<AnswerPiece> split_in_steps(std::string_view text, std::size_t step, const ToolCallRules& rules) {
  AnswerScanner scanner(rules);
  std::vector<AnswerPiece> pieces;
  for (std::size_t at = 0; at < text.size(); at += step) append(scanner.push(text.substr(at, step)), pieces);
  append(scanner.finish(), pieces);
  return pieces;
}

std::shared_ptr<const ArgumentTypes> types_of_tools() {
  static const auto types = std::make_shared<const ArgumentTypes>(
      larder::parse_json(R"([{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{
          "s":{"type":"string"},"n":{"type":["number","null"]}}}}}])", {}));
  return types;
}

bool is_same(const AnswerPiece& a, const AnswerPiece& b) {
  if (a.text != b.text || a.is_thought != b.is_thought || a.call.has_value() != b.call.has_value()) return false;
  return !a.call || (a.call->name == b.call->name && a.call->arguments == b.call->arguments);
}

}  // namespace

// Good: it has a call.
bool try_input(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto is_call = [](const AnswerPiece& piece) { return piece.call.has_value(); };
  bool has_call = false;
  for (const ToolCallRules& rules :
       {ToolCallRules{true, true, true}, ToolCallRules{true, false}, ToolCallRules{true},
        ToolCallRules{.are_read = true, .parts_thoughts = true},
        ToolCallRules{.are_read = true, .tagged = types_of_tools()},
        ToolCallRules{.are_read = true, .takes_many = false, .parts_thoughts = true, .tagged = types_of_tools()},
        ToolCallRules{.begins_in_thought = true, .parts_thoughts = true},
        ToolCallRules{.are_read = true, .is_harmony = true}, ToolCallRules{.is_harmony = true, .begins_in_text = true}}) {
    const std::vector<AnswerPiece> whole = larder::split_answer(text, rules);
    for (const std::size_t step : {1, 2, 3, 7, 16, 61})
      CHECK(std::ranges::equal(split_in_steps(text, step, rules), whole, is_same), step);
    const auto num_calls = std::ranges::count_if(whole, is_call);
    CHECK(rules.takes_many || num_calls <= 1, num_calls);
    has_call = has_call || num_calls > 0;
    // Of harmony headers and ends are not told, nor tags of thoughts that are told apart.
    if (!rules.is_harmony && !rules.parts_thoughts && num_calls == 0)
      CHECK(whole.size() == (text.empty() ? 0U : 1U) && (text.empty() || whole.front().text == text));
  }
  const std::vector<AnswerPiece> as_it_is = larder::split_answer(text, {});
  CHECK(text.empty() ? as_it_is.empty() : as_it_is.size() == 1 && as_it_is.front().text == text);
  return has_call;
}
