#include "server/answer/harmony_answer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/error.h"
#include "server/white_space.h"

namespace larder {
namespace {

constexpr std::string_view kStart = "<|start|>", kChannel = "<|channel|>", kMessage = "<|message|>",
                           kConstrain = "<|constrain|>", kRecipient = "to=";
// That end a message: the first three stand for that alone, the others begin the next one.
constexpr std::string_view kEnds[] = {"<|end|>", "<|call|>", "<|return|>", kStart, kChannel};
constexpr std::size_t kNumPlainEnds = 3;
constexpr std::size_t kMaxHeaderBytes = 512;  // a role, a recipient, a channel, a type

bool starts_alike(std::string_view text, std::string_view tag) {
  return text.size() < tag.size() ? tag.starts_with(text) : text.starts_with(tag);
}

std::string_view without_spaces(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(kSpace), text.size()));
}

// Whether a header may begin so.
bool may_be_header(std::string_view text) {
  const std::string_view first = without_spaces(text);
  if (text.size() > kMaxHeaderBytes) return false;
  return std::ranges::any_of(std::initializer_list<std::string_view>{kStart, kChannel, kMessage, kConstrain, kRecipient},
                             [&](std::string_view tag) { return starts_alike(first, tag); });
}

// The word that begins there: up to white space or a tag.
std::string_view word_at(std::string_view text) {
  const std::string_view word = without_spaces(text);
  return word.substr(0, word.find_first_of(" \t\r\n<"));
}

std::string_view channel_of(std::string_view header) {
  const auto at = header.find(kChannel);
  return at == header.npos ? std::string_view() : word_at(header.substr(at + kChannel.size()));
}

// "" where there is none.
std::string_view recipient_of(std::string_view header) {
  for (std::size_t at = header.find(kRecipient); at != header.npos; at = header.find(kRecipient, at + 1))
    if (at == 0 || kSpace.find(header[at - 1]) != kSpace.npos || header[at - 1] == '>')
      return word_at(header.substr(at + kRecipient.size()));
  return {};
}

std::optional<Json> parse_object(std::string_view text) {
  if (trimmed(text).empty()) return Json::object();
  try {
    Json json = parse_json(text, kLimitsOfAnswers);
    if (json.is_object()) return json;
  } catch (const Error&) {  // a model may write anything
  }
  return std::nullopt;
}

// The first end from `begin` on; npos and none where there is no whole one.
std::pair<std::size_t, std::size_t> find_end(std::string_view text, std::size_t begin) {
  for (std::size_t at = text.find("<|", begin); at != text.npos; at = text.find("<|", at + 1))
    for (std::size_t i = 0; i < std::size(kEnds); ++i)
      if (text.substr(at).starts_with(kEnds[i])) return {at, i};
  return {text.npos, 0};
}

// Where a tag may begin of which the text has not all.
std::size_t begin_of_possible_end(std::string_view text) {
  constexpr std::size_t kMost = 10;  // bytes of one
  const std::size_t last = text.size() - std::min(text.size(), kMost);
  const auto begin = text.substr(last).rfind('<');
  if (begin == text.npos) return text.size();
  const std::size_t at = last + begin;
  const auto rest = text.substr(at);
  const bool may_be = std::ranges::any_of(kEnds, [&](std::string_view end) { return rest.size() < end.size() && end.starts_with(rest); });
  return may_be ? at : text.size();
}

}  // namespace

HarmonyScanner::HarmonyScanner(const ToolCallRules& rules) : rules_(rules), is_in_body_(rules.begins_in_text) {}

std::vector<AnswerPiece> HarmonyScanner::push(std::string_view text) {
  std::vector<AnswerPiece> pieces;
  held_ += text;
  while (is_in_body_ ? scan_body(pieces) : scan_header(pieces)) {
  }
  return pieces;
}

std::vector<AnswerPiece> HarmonyScanner::finish() {
  std::vector<AnswerPiece> pieces;
  if (is_in_body_ && kind_ == Kind::kCall) {
    end_call(held_, pieces);
  } else if (is_in_body_) {
    emit(held_, pieces);
  }
  // What was to be a header says nothing.
  held_.clear();
  return pieces;
}

bool HarmonyScanner::scan_header(std::vector<AnswerPiece>&) {
  const std::string_view first = without_spaces(held_);
  for (std::size_t i = 0; i < kNumPlainEnds; ++i) {  // an end too many
    if (!first.starts_with(kEnds[i])) continue;
    held_.erase(0, held_.size() - first.size() + kEnds[i].size());
    return true;
  }
  const auto end = held_.find(kMessage);
  const bool is_whole = end != held_.npos;
  const std::size_t size = is_whole ? end : held_.size() - size_of_possible_tag(held_, kMessage);
  if (!may_be_header(std::string_view(held_).substr(0, size))) {
    const auto may_become = [&](std::string_view tag) { return tag.starts_with(first); };
    if (!first.empty() && std::ranges::any_of(kEnds, may_become)) return false;
    // A tag that begins no header would end each body at once.
    for (const std::string_view tag : {kStart, kChannel})
      if (held_.starts_with(tag)) held_.erase(0, tag.size());
    begin_body({});
    return true;
  }
  if (!is_whole) return false;
  const std::string header = held_.substr(0, end);
  held_.erase(0, end + kMessage.size());
  begin_body(header);
  return true;
}

void HarmonyScanner::begin_body(std::string_view header) {
  is_in_body_ = is_new_ = true;
  num_seen_ = 0;
  const std::string_view recipient = recipient_of(header);
  constexpr std::string_view kFunctions = "functions.";
  tool_ = recipient.starts_with(kFunctions) ? recipient.substr(kFunctions.size()) : recipient;
  if (rules_.are_read && !tool_.empty())
    kind_ = Kind::kCall;
  else
    kind_ = recipient.empty() && channel_of(header) == "analysis" ? Kind::kThinking : Kind::kText;
}

bool HarmonyScanner::scan_body(std::vector<AnswerPiece>& pieces) {
  const auto [at, which] = find_end(held_, num_seen_);
  const bool is_over = at != held_.npos;
  const std::size_t size = is_over ? at : begin_of_possible_end(held_);
  if (kind_ == Kind::kCall && !is_over) {
    num_seen_ = size;
    return false;
  }
  const std::string body = held_.substr(0, size);
  held_.erase(0, size + (is_over && which < kNumPlainEnds ? kEnds[which].size() : 0));
  if (kind_ == Kind::kCall)
    end_call(body, pieces);
  else
    emit(body, pieces);
  if (is_over) is_in_body_ = false;
  return is_over;
}

void HarmonyScanner::end_call(std::string_view body, std::vector<AnswerPiece>& pieces) {
  std::optional<Json> arguments = parse_object(body);
  if (!arguments) {
    kind_ = Kind::kText;
    return emit(body, pieces);
  }
  if (rules_.takes_many || !has_call_)
    pieces.push_back({.call = ToolCall{.name = tool_, .arguments = std::move(*arguments)}});
  has_call_ = true;
}

void HarmonyScanner::emit(std::string_view text, std::vector<AnswerPiece>& pieces) {
  if (text.empty()) return;
  const bool is_thought = kind_ == Kind::kThinking;
  bool& has_some = is_thought ? has_thought_ : has_text_;
  std::string told(std::exchange(is_new_, false) && has_some ? "\n\n" : "");
  told += text;
  has_some = true;
  pieces.push_back({.text = std::move(told), .is_thought = is_thought});
}

}  // namespace larder
