// Router's handlers of OpenAI's Responses API.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "server/api/item_page.h"
#include "server/api/response_plan.h"
#include "server/api/responses_writer.h"
#include "server/api/router.h"
#include "server/chat/response_items.h"
#include "server/json_fields.h"
#include "server/url.h"

namespace larder {
namespace {

[[noreturn]] void fail_not_found(const char* what, const std::string& id, const char* param) {
  throw Error(ErrorKind::kNotFound,
              fmt::format("{}: there is no {} \"{}\"; it was never stored, deleted, or dropped when "
                          "the store was full",
                          param, what, shorten(id)),
              param);
}

std::size_t num_bytes_of(const std::vector<ItemPtr>& items) {
  std::size_t num_bytes = 0;
  for (const ItemPtr& item : items) num_bytes += item->num_bytes;
  return num_bytes;
}

// The prompt has a copy of each item.
void require_size(const std::vector<ItemPtr>& conversation, std::size_t max_bytes) {
  const std::size_t num_bytes = num_bytes_of(conversation);
  if (num_bytes <= max_bytes) return;
  fail_field("conversation",
             fmt::format("its items have {} bytes, at most {} may be gone on with; delete items of it, or begin anew, "
                         "with what matters of them as input",
                         num_bytes, max_bytes));
}

// The prompt is made of the items; only those that will be stored have to wait for the answer.
void drop_unkept(ResponseDraft& draft) {
  if (!draft.keeps_response) {
    draft.previous.reset();
    draft.context.clear();
  }
  if (draft.store == nullptr) draft.input.clear();
}

// What chat's reader found wrong with a message, as said of the item that it is made of.
[[noreturn]] void fail_item(const Error& error, const ItemChat& chat,
                            const std::vector<ItemPtr>& items, const ResponsesRequest& request) {
  constexpr std::string_view kMessage = "messages[";
  const std::string& param = error.param();
  if (!param.starts_with(kMessage)) throw;
  std::size_t message = 0;
  std::from_chars(param.data() + kMessage.size(), param.data() + param.size(), message);
  const std::string& id = items.at(chat.item_of.at(message))->id();
  const auto sent = std::ranges::find(request.input, id, [](const Json& item) {
    return item["id"].get_ref<const std::string&>();
  });
  std::string name = request.conversation_id.empty() ? "previous_response_id" : "conversation";
  if (sent != request.input.end()) name = fmt::format("input[{}]", sent - request.input.begin());
  const std::string_view reason = std::string_view(error.message()).substr(param.size());
  throw Error(error.kind(), fmt::format("{}{}", name, reason), name);
}

}  // namespace

std::string Router::owner_of(const HttpRequest& request) const {
  return derive_salt(keys_.empty() ? std::nullopt : key_of(request), {});
}

std::vector<ItemPtr> Router::make_items(const std::string& owner, const std::vector<Json>& items,
                                        const std::string& param,
                                        const std::vector<ItemPtr>& history) const {
  std::set<std::string> wanted;
  for (const Json& item : items) {
    if (is_reference(item)) wanted.insert(item["id"].get<std::string>());
  }
  // The store need not have them any more: a chain lives as long as its last response.
  std::set<std::string> known;
  for (const ItemPtr& item : history) {
    if (wanted.erase(item->id()) > 0) known.insert(item->id());
  }
  std::map<std::string, ItemPtr> found;
  for (ItemPtr& item : sessions_->find_items(owner, wanted)) found[item->id()] = item;
  // A prompt has a copy of each, and a few bytes ask for one.
  std::size_t num_bytes = 0;
  for (const auto& [id, item] : found) num_bytes += item->num_bytes;
  if (num_bytes > sessions_->max_chain_bytes()) {
    fail_field(param, fmt::format("the items that it refers to have {} bytes, at most {} may be referred to at once; "
                                  "leave some out",
                                  num_bytes, sessions_->max_chain_bytes()));
  }
  std::vector<ItemPtr> made;
  made.reserve(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (!is_reference(items[i])) {
      made.push_back(make_item(items[i]));
      continue;
    }
    const auto id = items[i]["id"].get<std::string>();
    if (known.contains(id)) continue;
    const auto item = found.find(id);
    if (item == found.end()) {
      const std::string path = fmt::format("{}[{}].id", param, i);
      fail_not_found("item", id, path.c_str());
    }
    if (item->second == nullptr) {
      fail_field(fmt::format("{}[{}].id", param, i),
                 fmt::format("item \"{}\" is referred to before; refer to it once", shorten(id)));
    }
    made.push_back(std::exchange(item->second, nullptr));
  }
  return made;
}

void Router::hold(ResponseDraft& draft) const {
  const std::size_t num_bytes = memory_of(draft.echo) + num_bytes_of(draft.input);
  draft.share = std::make_unique<BudgetShare>(*drafts_);
  // One too large for all of it goes alone.
  const std::size_t most = config_.limits.max_total_draft_bytes;
  if (draft.share->grow(std::min(num_bytes, most))) return;
  throw Error(ErrorKind::kUnavailable,
              fmt::format("input: the requests being answered hold {} bytes of inputs already; try "
                          "again",
                          drafts_->used()),
              "input");
}

void Router::fail_no_response(const std::string& id, const char* param) { fail_not_found("response", id, param); }

ResponsePtr Router::find_previous(const std::string& owner, const std::string& id) const {
  if (backgrounds_->find(owner, id) != nullptr)
    fail_field("previous_response_id", "it is still under way in the background; wait for its end, or cancel it");
  ResponsePtr previous = sessions_->find_response(owner, id);
  if (previous == nullptr) fail_no_response(id, "previous_response_id");
  if (!sessions_->may_be_followed(*previous))
    fail_field("previous_response_id",
               fmt::format("it and the responses before it have {} bytes, at most {} may be gone on with; begin anew, with "
                           "what matters of them as input",
                           previous->num_chain_bytes, sessions_->max_chain_bytes()));
  return previous;
}

Router::ResponsePlan Router::plan_response(const HttpRequest& request,
                                           ResponsesRequest parsed) const {
  require_model(parsed.options.model);
  ResponseDraft draft;
  draft.owner = owner_of(request);
  std::vector<ItemPtr> items;
  if (const std::string& id = parsed.previous_response_id; !id.empty()) {
    draft.previous = find_previous(draft.owner, id);
    items = draft.previous->history();
  } else if (!parsed.conversation_id.empty()) {
    const ConversationPtr conversation =
        sessions_->find_conversation(draft.owner, parsed.conversation_id);
    if (conversation == nullptr) {
      fail_not_found("conversation", parsed.conversation_id, "conversation");
    }
    require_size(conversation->items, sessions_->max_chain_bytes());
    if (conversation->items.size() + parsed.input.size() >= kMaxConversationItems) {
      fail_field("conversation", fmt::format("it has {} items, at most {} are kept; delete some or begin another",
                                             conversation->items.size(), kMaxConversationItems));
    }
    require_new_ids(parsed.input, conversation->items, References::kArePassedOver, "input");
    draft.conversation_id = parsed.conversation_id;
    draft.context = conversation->items;
    items = conversation->items;
  }
  draft.input = make_items(draft.owner, parsed.input, "input", items);
  items.insert(items.end(), draft.input.begin(), draft.input.end());
  draft.prewarms = parsed.prewarms;
  draft.wants_logprobs = parsed.wants_logprobs;
  draft.keeps_response = parsed.stores;
  if (parsed.stores || !draft.conversation_id.empty()) draft.store = sessions_.get();
  draft.echo = std::move(parsed.echo);
  draft.tool_names = std::move(parsed.tool_names);
  drop_unkept(draft);
  hold(draft);

  ItemChat spelled = to_chat(parsed.instructions, items, draft.tool_names);
  if (spelled.messages.empty()) {
    fail_field("input", "there is nothing to answer; send a message");
  }
  ChatRequest chat;
  chat.options = parsed.options;
  Json body = {{"messages", std::move(spelled.messages)}};
  body["tools"] = std::move(parsed.tools);
  body["chat_template_kwargs"] = std::move(parsed.template_kwargs);
  const Json& reasoning = draft.echo["reasoning"];
  if (reasoning.is_object() && reasoning.contains("effort")) body["reasoning_effort"] = reasoning["effort"];
  try {
    read_chat_prompt(body, chat);
  } catch (const Error& error) {
    fail_item(error, spelled, items, parsed);
  }
  for (std::size_t i = 0; i < chat.messages.size(); ++i) chat.messages[i].sent_as = spelled.sent_as[i];
  chat.known_turns = std::move(spelled.known_turns);
  chat.summary = std::move(spelled.summary);
  if (parsed.use != ResponsesUse::kCompaction || spelled.holds_compacted) items.clear();
  return {std::move(parsed), std::move(chat), std::move(draft), std::move(spelled.told_summary),
          std::move(spelled.told_first_kept), std::move(spelled.system_items), std::move(items)};
}

Reply Router::create_response(const HttpRequest& request, Mailbox::Wake wake) const {
  Json body = parse_body(request);
  const UpstreamRoute route = find_upstream(request, body);
  if (route.named != nullptr) return go_upstream(request, route, UpstreamReason::kNamed);
  ResponsePlan plan = plan_response(request, parse_responses_request(std::exchange(body, {}), rules()));
  const bool is_background = plan.parsed.is_background;
  if (is_background) backgrounds_->require_room();
  GenerationJob job = prepare_job(request, plan.chat);
  if (job.errand) return generate(request, std::move(job), std::move(wake));
  job.keeps_answer = true;
  if (job.history_report && plan.parsed.compacts) {
    plan.draft.compaction = plan.compaction(*job.history_report);
  }
  BackgroundResponse::Origin origin{.owner = plan.draft.owner, .keeps_events = plan.chat.options.stream};
  if (is_background) origin.input = plan.draft.input;
  plan.draft.is_background = is_background;
  plan.draft.has_events = !is_background || origin.keeps_events;
  job.writer = make_responses_writer(model_.name, model_.tokenizer, std::move(plan.draft));
  origin.id = job.writer->id();
  job.options = std::move(plan.chat.options);
  job.options.stream |= is_background;  // so that its writer hears of all as it comes
  keep_next_turn(std::move(plan.chat), job);
  if (is_background) return run_in_background(request, std::move(origin), std::move(job), std::move(wake));
  return generate(request, std::move(job), std::move(wake));
}

Reply Router::count_input_tokens(const HttpRequest& request, Mailbox::Wake wake) const {
  ResponsePlan plan =
      plan_response(request, parse_responses_request(parse_body(request), rules(), ResponsesUse::kCount));
  SettledChat settled;
  if (auto errand = settle_chat(request, plan.chat, settled)) return generate(request, *std::move(errand), std::move(wake));
  const std::size_t num_tokens = tokens_of_any_number(std::move(plan.chat), model_).size();
  return {json_response(
              Json::object({{"object", "response.input_tokens"}, {"input_tokens", num_tokens}})),
          nullptr};
}

Reply Router::list_input_items(const HttpRequest& request, Mailbox::Wake) const {
  const std::string id = path_values("/v1/responses/{id}/input_items", request.path).at(0);
  const std::string owner = owner_of(request);
  const auto running = backgrounds_->find(owner, id);
  const ResponsePtr response = running == nullptr ? sessions_->find_response(owner, id) : nullptr;
  if (running == nullptr && response == nullptr) fail_no_response(id, "response_id");
  return {json_response(page_of(running != nullptr ? running->input() : response->input, request.query)), nullptr};
}

}  // namespace larder
