#include "server/api/choices_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "server/api/kv_transfer.h"
#include "server/sse.h"
#include "server/unix_time.h"

namespace larder {
namespace {

// Behind the name of a member, which no string can hold like this: quotes are escaped in there.
std::size_t place_behind(const std::string& text, std::string_view member) {
  const std::size_t place = text.find(member);
  CHECK(place != std::string::npos);
  return place + member.size();
}

}  // namespace

ChoicesWriter::ChoicesWriter(std::string id, std::string model_name,
                             const Tokenizer& tokenizer)
    : ReplyWriter(std::move(id), std::move(model_name)),
      tokenizer_(tokenizer),
      created_s_(unix_time_s()) {}

Json ChoicesWriter::envelope(bool streaming) const {
  return {{"id", id()},
          {"object", object_name(streaming)},
          {"created", created_s_},
          {"model", model_name()},
          {"choices", Json::array()}};
}

void ChoicesWriter::delta(Choice& choice, ChoiceDelta delta, std::span<const Choice> all,
                          std::string& out) {
  Json item = stream_choice(choice, delta);
  if (choice.begun && !options_.continuous_usage && says_nothing(item)) return;
  if (ends_with_calls(item)) {
    Json calls = item;
    calls["finish_reason"] = nullptr;
    calls.erase("stop_reason");
    write_event(choice, std::move(calls), {}, out);
    item["delta"] = Json::object();
    item["logprobs"] = nullptr;
    if (options_.return_token_ids) item["token_ids"] = Json::array();
  }
  const bool is_last = choice.done() && std::ranges::all_of(all, &Choice::done);
  write_event(choice, std::move(item), is_last ? all : std::span<const Choice>(), out);
}

void ChoicesWriter::write_event(Choice& choice, Json item, std::span<const Choice> all, std::string& out) {
  Json event = envelope(true);
  if (options_.return_token_ids && !choice.begun) add_prompt_tokens(event);
  choice.begun = true;
  event["choices"].push_back(std::move(item));
  if (options_.include_usage) event["usage"] = nullptr;  // but in the last chunk, as OpenAI has it
  if (options_.continuous_usage) event["usage"] = usage_json({&choice, 1});
  if (!all.empty() && !options_.include_usage) {
    event["timings"] = timings_json(all);
    add_reports(event, all);
    add_larder(event);
  }
  if (logprobs_text_.empty()) return append_event(out, event);
  const std::string text = dump_json(event);
  const std::size_t place = place_behind(text, "\"logprobs\":");
  out.append("data: ").append(text, 0, place).append(std::exchange(logprobs_text_, {}));
  out.append(text, place + std::string_view("null").size()).append("\n\n");
}

// OpenAI's client ends a call when it comes to the finish_reason, if it has heard of the call by then.
bool ChoicesWriter::ends_with_calls(const Json& item) {
  const auto delta = item.find("delta");
  return delta != item.end() && delta->contains("tool_calls") && !item["finish_reason"].is_null();
}

// Of a chat: while half a character or a call is held back.
bool ChoicesWriter::says_nothing(const Json& item) {
  const auto delta = item.find("delta");
  return delta != item.end() && delta->empty() && item["finish_reason"].is_null() && item["logprobs"].is_null() &&
         !item.contains("token_ids");
}

void ChoicesWriter::end(std::span<const Choice> all, std::string& out) {
  if (options_.include_usage) {
    Json event = envelope(true);
    event["usage"] = usage_json(all);
    event["timings"] = timings_json(all);
    add_reports(event, all);
    add_larder(event);
    append_event(out, event);
  }
  out += kSseDone;
}

void ChoicesWriter::add_reports(Json& body, std::span<const Choice> all) const {
  if (options_.hands_over) body["kv_transfer_params"] = kv_transfer_json(model_name(), all);
  if (!options_.wants_cache_report) return;
  Json reports = Json::array();
  for (const Choice& choice : all) {
    if (choice.cache_report) reports.push_back(cache_report_json(*choice.cache_report));
  }
  // One prompt is the rule; completions may have several.
  body["larder"] = {{"cache", reports.size() == 1 ? std::move(reports[0]) : std::move(reports)}};
}

void ChoicesWriter::failure(const ApiError& error, std::string& out) {
  append_event(out, error_json(error));
  out += kSseDone;
}

std::string ChoicesWriter::whole(std::span<Choice*> shown, std::span<const Choice> all) {
  Json body = envelope(false);
  if (options_.return_token_ids) add_prompt_tokens(body);
  body["usage"] = usage_json(all);
  body["timings"] = timings_json(all);
  add_reports(body, all);
  add_larder(body);
  const std::string text = dump_json(body);
  const std::size_t place = place_behind(text, "\"choices\":[");
  std::string out = text.substr(0, place);
  for (Choice* choice : shown) {
    if (choice != shown.front()) out += ',';
    write_choice(*choice, out);
  }
  return out.append(text, place);
}

void ChoicesWriter::write_choice(Choice& choice, std::string& out) {
  const std::string text = dump_json(whole_choice(choice));
  if (!wants_logprobs()) {
    out += text;
    return;
  }
  const std::size_t place = place_behind(text, "\"logprobs\":");
  out.append(text, 0, place);
  write_logprobs(choice, out);
  out.append(text, place + std::string_view("null").size());
  choice.tokens = std::vector<OutputToken>();  // {} would keep the memory
  choice.prompt_logprobs = nullptr;
}

HttpResponse ChoicesWriter::failure_response(const ApiError& error) const {
  return error_response(error);
}

Json ChoicesWriter::finish_reason(const Choice& choice) {
  switch (choice.finish) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    default:
      return nullptr;
  }
}

Json ChoicesWriter::stop_reason(const Choice& choice) const {
  if (!choice.stop_string.empty()) return choice.stop_string;
  const auto& ids = options_.sampling.stop_token_ids;
  const bool asked_for =
      choice.stop_token && std::ranges::find(ids, *choice.stop_token) != ids.end();
  return asked_for ? Json(*choice.stop_token) : Json();
}

Json ChoicesWriter::token_ids(std::span<const OutputToken> tokens, const Choice& choice) {
  Json ids = Json::array();
  for (const OutputToken& token : tokens) ids.push_back(token.token);
  if (choice.done() && choice.stop_token) ids.push_back(*choice.stop_token);
  return ids;
}

std::string ChoicesWriter::token_text(TokenId token) const {
  if (options_.logprobs_by_id) return fmt::format("token_id:{}", token);
  return std::string(tokenizer_.token_bytes(token, true));
}

}  // namespace larder
