#include "server/answer/tool_calls.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "server/white_space.h"

namespace larder {
namespace {

constexpr std::string_view kBegin = kToolCall;
constexpr std::string_view kEnd = kToolCallEnd;

// An object, also one that stands in a string, as models copy it from calls that were none.
std::optional<Json> parse_arguments(Json value) {
  if (value.is_string()) {
    try {
      value = parse_json(value.get_ref<const std::string&>(), kLimitsOfAnswers);
    } catch (const Error&) {
      return std::nullopt;
    }
  }
  if (!value.is_object()) return std::nullopt;
  return value;
}

std::optional<ToolCall> parse_call(std::string_view text) {
  Json json;
  try {
    json = parse_json(text, kLimitsOfAnswers);
  } catch (const Error&) {
    return std::nullopt;  // a model may write anything
  }
  if (!json.is_object() || !json.contains("name") || !json["name"].is_string()) return std::nullopt;
  if (json["name"] == "") return std::nullopt;  // nobody's, and refused where it comes back
  ToolCall call{.name = json["name"].get<std::string>(), .arguments = Json::object()};
  for (const char* key : {"arguments", "parameters"}) {
    const auto found = json.find(key);
    if (found == json.end() || found->is_null()) continue;
    std::optional<Json> arguments = parse_arguments(std::move(*found));
    if (!arguments) return std::nullopt;
    call.arguments = std::move(*arguments);
    break;
  }
  return call;
}

bool is_beginning_of(std::string_view text, std::string_view tag) {
  return text.size() < tag.size() && tag.starts_with(text);
}

// Whether the byte may stand in JSON outside of strings; letters may.
bool is_of_json(char byte) {
  const bool is_letter = (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z');
  const bool is_digit = byte >= '0' && byte <= '9';
  return is_letter || is_digit || std::string_view(" \t\r\n{}[]:,.+-").find(byte) != std::string_view::npos;
}

}  // namespace

std::size_t size_of_possible_tag(std::string_view text, std::string_view tag) {
  std::size_t size = std::min(tag.size() - 1, text.size());
  while (!text.ends_with(tag.substr(0, size))) --size;
  return size;
}

std::vector<AnswerPiece> ToolCallScanner::push(std::string_view text) {
  std::vector<AnswerPiece> pieces;
  if (!rules_.are_read) {
    if (!text.empty()) pieces.push_back({.text = std::string(text)});
    return pieces;
  }
  held_ += text;
  scan(pieces);
  held_.erase(0, std::exchange(num_passed_, 0));
  return pieces;
}

std::vector<AnswerPiece> ToolCallScanner::finish() {
  std::vector<AnswerPiece> pieces;
  while (state_ == State::kBeforeCall || state_ == State::kInCall || state_ == State::kInTaggedCall) {
    give_up_call(state_ == State::kInTaggedCall ? rest().size() : 0, pieces);
    scan(pieces);
  }
  const bool is_behind_call = state_ == State::kBehindCall;
  if (is_behind_call) tell_call(pieces);
  // Of a closing tag that the answer's end has cut nobody is told, as of a whole one.
  const bool is_cut_tag = is_behind_call && is_beginning_of(rest().substr(pass_spaces()), kEnd);
  if (!is_cut_tag) emit(rest(), pieces);
  held_.clear();
  num_passed_ = 0;
  return pieces;
}

void ToolCallScanner::scan(std::vector<AnswerPiece>& pieces) {
  while (scan_on(pieces)) {
  }
}

// Whether there is more to be found, as of all that follow.
bool ToolCallScanner::scan_on(std::vector<AnswerPiece>& pieces) {
  switch (state_) {
    case State::kInText:
      return scan_text(pieces);
    case State::kBeforeCall:
      return scan_before_call(pieces);
    case State::kInCall:
      return scan_call(pieces);
    case State::kInTaggedCall:
      return scan_tagged_call(pieces);
    case State::kBehindCall:
      return scan_behind_call(pieces);
  }
  return false;
}

bool ToolCallScanner::scan_text(std::vector<AnswerPiece>& pieces) {
  const std::string_view text = rest();
  const auto begin = text.find(kBegin, num_spaces_);
  if (begin == text.npos) {
    // What may be the white space around a call is held back, and a beginning of a tag.
    const std::size_t tag = text.size() - size_of_possible_tag(text, kBegin);
    std::size_t safe = tag;
    while (safe > num_spaces_ && kSpace.find(text[safe - 1]) != kSpace.npos) --safe;
    if (safe == num_spaces_) safe = 0;
    pass(safe, pieces);
    num_spaces_ = tag - safe;
    return false;
  }
  num_spaces_ = 0;
  const std::size_t end = text.substr(0, begin).find_last_not_of(kSpace) + 1;  // npos + 1 = 0
  pass(end, pieces);
  before_ = text.substr(end, begin - end + kBegin.size());
  num_passed_ += before_.size();
  state_ = State::kBeforeCall;
  return true;
}

bool ToolCallScanner::scan_before_call(std::vector<AnswerPiece>& pieces) {
  const std::size_t begin = pass_spaces();
  if (begin == rest().size()) return false;
  num_spaces_ = 0;
  if (rest()[begin] == '{') {
    begin_call();
  } else if (rules_.tagged && rest()[begin] != '<') {
    tagged_.begin(begin);
    state_ = State::kInTaggedCall;
  } else {
    give_up_call(0, pieces);
  }
  return true;
}

bool ToolCallScanner::scan_tagged_call(std::vector<AnswerPiece>& pieces) {
  const auto state = tagged_.read(rest());
  if (state == TaggedCallReader::State::kOpen) return false;
  const std::string name(tagged_.name(rest()));
  // A word in tags may be spoken of; so may a call that is none, with all that it is made of.
  const bool is_call = state == TaggedCallReader::State::kWhole && (tagged_.has_arguments() || rules_.tagged->has_tool(name));
  std::optional<Json> arguments;
  if (is_call) arguments = tagged_.arguments(rest(), *rules_.tagged);
  if (arguments)
    take_call({.name = name, .arguments = std::move(*arguments)}, tagged_.num_read());
  else
    give_up_call(tagged_.num_read(), pieces);
  return true;
}

void ToolCallScanner::begin_call() {
  state_ = State::kInCall;
  num_seen_ = 0;
  depth_ = 0;
  is_in_string_ = is_escaped_ = false;
}

bool ToolCallScanner::scan_call(std::vector<AnswerPiece>& pieces) {
  while (num_seen_ < rest().size()) {
    const char byte = rest()[num_seen_++];
    if (is_escaped_) {
      is_escaped_ = false;
    } else if (is_in_string_) {
      is_escaped_ = byte == '\\';
      if (byte == '"') is_in_string_ = false;
      if (byte != '\n') continue;  // no string goes on behind a line's end
      give_up_call(0, pieces);
      return true;
    } else if (byte == '"') {
      is_in_string_ = true;
    } else if (!is_of_json(byte)) {
      give_up_call(0, pieces);
      return true;
    } else if (byte == '{') {
      ++depth_;
    } else if (byte == '}' && --depth_ == 0) {
      end_call(pieces);
      return true;
    }
  }
  return false;
}

// The object is whole: more of them may stand behind the same tag, and the closing one be left out.
void ToolCallScanner::end_call(std::vector<AnswerPiece>& pieces) {
  auto call = parse_call(rest().substr(0, num_seen_));
  if (!call) return give_up_call(num_seen_, pieces);
  take_call(std::move(*call), num_seen_);
}

void ToolCallScanner::take_call(ToolCall call, std::size_t size) {
  if (rules_.takes_many || !has_call_) found_ = std::move(call);
  has_call_ = true;
  num_passed_ += size;
  before_.clear();
  state_ = State::kBehindCall;
}

// Told once its closing tag has come, or something else: what a reader holds beside the text is the call's
// until then.
bool ToolCallScanner::scan_behind_call(std::vector<AnswerPiece>& pieces) {
  const std::size_t begin = pass_spaces();
  const std::string_view next = rest().substr(begin);
  if (next.empty() || is_beginning_of(next, kEnd) || is_beginning_of(next, kBegin)) return false;
  num_spaces_ = 0;
  state_ = State::kInText;
  tell_call(pieces);
  if (next.starts_with(kEnd)) {
    num_passed_ += begin + kEnd.size();
  } else if (next.front() == '{') {
    begin_call();
  }
  return true;
}

void ToolCallScanner::tell_call(std::vector<AnswerPiece>& pieces) {
  if (found_) pieces.push_back({.call = std::move(*found_)});
  found_.reset();
  follows_call_ = true;
}

// Where something else begins, or the end.
std::size_t ToolCallScanner::pass_spaces() {
  num_spaces_ = std::min(rest().find_first_not_of(kSpace, num_spaces_), rest().size());
  return num_spaces_;
}

// What was no call is text: the tag, and so many bytes behind it.
void ToolCallScanner::give_up_call(std::size_t size, std::vector<AnswerPiece>& pieces) {
  emit(before_, pieces);
  before_.clear();
  pass(size, pieces);
  state_ = State::kInText;
}

// As text.
void ToolCallScanner::pass(std::size_t size, std::vector<AnswerPiece>& pieces) {
  emit(rest().substr(0, size), pieces);
  num_passed_ += size;
}

void ToolCallScanner::emit(std::string_view text, std::vector<AnswerPiece>& pieces) {
  if (follows_call_) {
    text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size()));
  }
  if (text.empty()) return;
  follows_call_ = false;
  pieces.push_back({.text = std::string(text)});
}

}  // namespace larder
