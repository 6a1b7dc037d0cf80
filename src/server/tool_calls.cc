#include "server/tool_calls.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "server/white_space.h"

namespace larder {
namespace {

constexpr std::string_view kBegin = "<tool_call>";
constexpr std::string_view kEnd = "</tool_call>";

std::optional<ToolCall> parse_call(std::string_view text) {
  Json json;
  try {
    json = parse_json(text, {});
  } catch (const Error&) {
    return std::nullopt;  // a model may write anything
  }
  if (!json.is_object() || !json.contains("name") || !json["name"].is_string()) return std::nullopt;
  if (json["name"] == "") return std::nullopt;  // nobody's, and refused where it comes back
  ToolCall call{.name = json["name"].get<std::string>(), .arguments = Json::object()};
  for (const char* key : {"arguments", "parameters"}) {
    const auto found = json.find(key);
    if (found == json.end() || found->is_null()) continue;
    if (!found->is_object()) return std::nullopt;
    call.arguments = std::move(*found);
    break;
  }
  return call;
}

// The bytes of a beginning of the tag that ends the text.
std::size_t size_of_possible_tag(std::string_view text) {
  std::size_t size = std::min(kBegin.size() - 1, text.size());
  while (!text.ends_with(kBegin.substr(0, size))) --size;
  return size;
}

}  // namespace

std::vector<AnswerPiece> ToolCallScanner::push(std::string_view text) {
  std::vector<AnswerPiece> pieces;
  if (!is_active_) {
    if (!text.empty()) pieces.push_back({.text = std::string(text)});
    return pieces;
  }
  held_ += text;
  scan(pieces);
  return pieces;
}

std::vector<AnswerPiece> ToolCallScanner::finish() {
  std::vector<AnswerPiece> pieces;
  while (is_in_call_) {
    // The end token may have come in place of the closing tag.
    if (auto call = parse_call(held_)) {
      take_call(std::move(*call), pieces);
      held_.clear();
    } else {
      give_up_call(pieces);
      scan(pieces);
    }
  }
  emit(held_, pieces);
  held_.clear();
  return pieces;
}

void ToolCallScanner::scan(std::vector<AnswerPiece>& pieces) {
  while (is_in_call_ ? scan_call(pieces) : scan_text(pieces)) {
  }
}

// Both return whether there is more to be found.
bool ToolCallScanner::scan_text(std::vector<AnswerPiece>& pieces) {
  const auto begin = held_.find(kBegin, num_spaces_);
  if (begin == held_.npos) {
    // What may be the white space around a call is held back, and a beginning of its tag.
    const std::size_t tag = held_.size() - size_of_possible_tag(held_);
    std::size_t safe = tag;
    while (safe > num_spaces_ && kSpace.find(held_[safe - 1]) != kSpace.npos) --safe;
    if (safe == num_spaces_) safe = 0;
    emit(std::string_view(held_).substr(0, safe), pieces);
    held_.erase(0, safe);
    num_spaces_ = tag - safe;
    return false;
  }
  const std::string_view before = std::string_view(held_).substr(0, begin);
  const std::size_t end = before.find_last_not_of(kSpace) + 1;  // npos + 1 = 0
  gap_ = before.substr(end);
  emit(before.substr(0, end), pieces);
  held_.erase(0, begin + kBegin.size());
  num_spaces_ = 0;
  is_in_call_ = true;
  num_seen_ = 0;
  is_in_string_ = is_escaped_ = false;
  return true;
}

bool ToolCallScanner::scan_call(std::vector<AnswerPiece>& pieces) {
  const auto end = find_end();
  if (!end) return false;
  auto call = parse_call(std::string_view(held_).substr(0, *end));
  if (!call) {
    give_up_call(pieces);
    return true;
  }
  take_call(std::move(*call), pieces);
  held_.erase(0, *end + kEnd.size());
  return true;
}

void ToolCallScanner::take_call(ToolCall call, std::vector<AnswerPiece>& pieces) {
  if (takes_many_ || !has_call_) pieces.push_back({.call = std::move(call)});
  has_call_ = follows_call_ = true;
  is_in_call_ = false;
}

// Where the closing tag is that no string of the JSON holds.
std::optional<std::size_t> ToolCallScanner::find_end() {
  while (num_seen_ < held_.size()) {
    const char byte = held_[num_seen_++];
    if (is_escaped_) {
      is_escaped_ = false;
    } else if (is_in_string_) {
      is_escaped_ = byte == '\\';
      // No string goes on behind a line's end: this is no JSON, and need not be held back for long.
      if (byte == '"' || byte == '\n') is_in_string_ = false;
    } else if (byte == '"') {
      is_in_string_ = true;
    } else if (byte == '>' && std::string_view(held_).substr(0, num_seen_).ends_with(kEnd)) {
      return num_seen_ - kEnd.size();
    }
  }
  return std::nullopt;
}

// What was no call is text up to the first closing tag, wherever that stands, or to the end.
void ToolCallScanner::give_up_call(std::vector<AnswerPiece>& pieces) {
  const auto end = held_.find(kEnd);
  const std::size_t size = end == held_.npos ? held_.size() : end + kEnd.size();
  emit(gap_ + std::string(kBegin) + held_.substr(0, size), pieces);
  held_.erase(0, size);
  is_in_call_ = false;
}

void ToolCallScanner::emit(std::string_view text, std::vector<AnswerPiece>& pieces) {
  if (follows_call_) {
    text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size()));
  }
  if (text.empty()) return;
  follows_call_ = false;
  pieces.push_back({.text = std::string(text)});
}

std::vector<AnswerPiece> split_answer(std::string_view text, bool reads_tool_calls,
                                      bool takes_many_calls) {
  ToolCallScanner scanner(reads_tool_calls, takes_many_calls);
  std::vector<AnswerPiece> pieces = scanner.push(text);
  std::ranges::move(scanner.finish(), std::back_inserter(pieces));
  // Text that was held back follows its beginning.
  std::vector<AnswerPiece> joined;
  for (AnswerPiece& piece : pieces) {
    if (!piece.call && !joined.empty() && !joined.back().call) {
      joined.back().text += piece.text;
    } else {
      joined.push_back(std::move(piece));
    }
  }
  return joined;
}

}  // namespace larder
