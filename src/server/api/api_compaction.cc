// Router's part in summing a conversation up, in an answer's place or beside it.
#include <algorithm>
#include <cstdint>
#include <utility>

#include "server/api/response_plan.h"
#include "server/chat/response_items.h"
#include "server/json_fields.h"
#include "server/unix_time.h"

namespace larder {
namespace {

// Nothing where the summary was known.
Json usage_of(const AskedTokens& asked) {
  Json usage = {{"input_tokens", asked.num_input}};
  usage["input_tokens_details"] = {{"cached_tokens", asked.num_cached}, {"cache_write_tokens", asked.num_written}};
  usage["output_tokens"] = asked.num_output;
  usage["output_tokens_details"] = {{"reasoning_tokens", asked.num_thought}};
  usage["total_tokens"] = asked.num_input + asked.num_output;
  return usage;
}

void append_messages(const std::vector<ChatMessage>& from, std::size_t begin, std::size_t end, Json& to) {
  for (std::size_t i = begin; i < end; ++i) to.push_back(from[i].json);
}

// But for compactions, whose summaries are part of the new one.
void append_items(const std::vector<ItemPtr>& from, std::size_t begin, std::size_t end, Json& to) {
  for (std::size_t i = begin; i < end; ++i)
    if (from[i]->json["type"] != "compaction") to.push_back(from[i]->json);
}

}  // namespace

void Router::ResponsePlan::leave_instructions_out(Json& messages) const {
  if (!system_items.empty()) {
    messages[0]["content"] = system_items;
  } else if (!parsed.instructions.empty()) {
    messages.erase(0);
  }
}

Json Router::ResponsePlan::compaction(const HistoryReport& report) const {
  const std::string& summary = report.summary.text;
  if (report.kept.is_null() || summary.empty()) return {};
  // The summary alone does not tell: more turns may be summed up in the same words.
  if (summary == told_summary && first_kept(report.kept) == told_first_kept) return {};
  Json kept = report.kept;
  leave_instructions_out(kept);
  return make_compaction(summary, kept, report.summed);
}

Json Router::ResponsePlan::compacted(const std::vector<ChatMessage>& sent, const HistoryReport& report) const {
  const HistoryCut& cut = report.cut;
  const auto item_of = [&](std::size_t message) { return static_cast<std::size_t>(sent[message].sent_as); };
  Json kept = Json::array(), output = Json::array();
  append_messages(sent, 0, cut.num_head, kept);
  leave_instructions_out(kept);
  if (cut.unanswered) kept.push_back(sent[*cut.unanswered].json);
  append_messages(sent, cut.first_kept, sent.size(), kept);
  if (!items.empty()) {
    append_items(items, 0, item_of(cut.num_head), output);
    if (cut.unanswered) append_items(items, item_of(*cut.unanswered), item_of(*cut.unanswered) + 1, output);
    if (cut.first_kept < sent.size()) append_items(items, item_of(cut.first_kept), items.size(), output);
  }
  output.push_back(make_compaction(report.summary.text, kept, report.summed));
  return output;
}

Reply Router::compact_response(const HttpRequest& request, Mailbox::Wake wake) const {
  ResponsePlan plan =
      plan_response(request, parse_responses_request(parse_body(request), rules(), ResponsesUse::kCompaction));
  const std::vector<ChatMessage> sent = plan.chat.messages;
  SettledChat settled;
  if (auto errand = settle_chat(request, plan.chat, settled)) return generate(request, *std::move(errand), std::move(wake));
  const HistoryReport& report = *settled.history;
  if (report.cut.num_dropped() == 0) fail_field("input", "there is nothing to sum up; send messages of a user");
  // With an earlier one there is a summary all the same.
  if (report.summary.text.empty() || report.summary.num_untold > 0)
    fail_field("input", "the model has written no summary of it, or has no room for the question; send a shorter one, or go "
                        "on with a history of another strategy");
  const std::string id = make_id("resp_");
  Json body = {{"id", id}, {"object", "response.compaction"}, {"created_at", unix_time_s()}};
  body["output"] = plan.compacted(sent, report);
  body["usage"] = usage_of(asked_tokens(request));
  body["larder"]["history"] = report.json();
  HttpResponse response = json_response(body);
  response.headers = {{"x-request-id", id}, {"x-larder-route", "local"}};
  return {std::move(response)};
}

}  // namespace larder
