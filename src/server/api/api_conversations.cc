// Router's handlers of OpenAI's conversations.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "server/api/item_page.h"
#include "server/api/router.h"
#include "server/chat/response_items.h"
#include "server/json_fields.h"
#include "server/unix_time.h"
#include "server/url.h"

namespace larder {
namespace {

constexpr std::string_view kItemPattern = "/v1/conversations/{id}/items/{item}";

HttpResponse describe(const Conversation& conversation) {
  Json body = {{"id", conversation.id},
               {"object", "conversation"},
               {"created_at", conversation.created_s}};
  std::string brief = dump_json(body);
  body["metadata"] = conversation.metadata;
  HttpResponse response = json_response(body);
  response.brief = std::move(brief);
  return response;
}

std::string conversation_id(const HttpRequest& request) {
  // Of longer paths, too: what follows the id does not matter.
  return path_values(kItemPattern, request.path).at(0);
}

[[noreturn]] void fail_not_found(const std::string& param, const std::string& id) {
  throw Error(ErrorKind::kNotFound,
              fmt::format("{}: there is no \"{}\"; it was never stored, deleted, or dropped when the "
                          "store was full",
                          param, shorten(id)),
              param);
}

std::vector<Json> read_items(const Json& body, bool must) {
  const Fields fields(body, "");
  const Json* items = fields.array("items");
  if (items == nullptr && must) fields.fail("items", "is missing; send an array of items");
  if (items == nullptr) return {};
  return normalize_items(*items, "items");
}

void require_room(std::size_t num_present, std::size_t num_added) {
  if (num_present + num_added <= kMaxConversationItems) return;
  fail_field("items", fmt::format("the conversation would have {} items, at most {} are kept; delete some or "
                                  "begin another",
                                  num_present + num_added, kMaxConversationItems));
}

}  // namespace

ConversationPtr Router::require_conversation(const HttpRequest& request,
                                             const std::string& id) const {
  ConversationPtr conversation = sessions_->find_conversation(owner_of(request), id);
  if (conversation == nullptr) fail_not_found("conversation_id", id);
  return conversation;
}

Reply Router::create_conversation(const HttpRequest& request, Mailbox::Wake) const {
  const Json body = parse_body(request);
  Conversation conversation;
  conversation.id = make_id("conv_");
  conversation.created_s = unix_time_s();
  conversation.metadata = read_metadata(body);
  const std::string owner = owner_of(request);
  const std::vector<Json> items = read_items(body, false);
  require_room(0, items.size());
  require_new_ids(items, {}, References::kCount, "items");
  conversation.items = make_items(owner, items, "items");
  HttpResponse described = describe(conversation);
  sessions_->put(owner, std::move(conversation));
  return {std::move(described), nullptr};
}

Reply Router::get_conversation(const HttpRequest& request, Mailbox::Wake) const {
  return {describe(*require_conversation(request, conversation_id(request))), nullptr};
}

Reply Router::update_conversation(const HttpRequest& request, Mailbox::Wake) const {
  const std::string id = conversation_id(request);
  const Json body = parse_body(request);
  Json metadata = read_metadata(body);
  if (!body.contains("metadata")) {
    fail_field("metadata", "is missing; send an object, or null to clear it");
  }
  const bool found = sessions_->modify(
      owner_of(request), id,
      [&](Conversation& conversation) { conversation.metadata = std::move(metadata); });
  if (!found) fail_not_found("conversation_id", id);
  return get_conversation(request, {});
}

Reply Router::delete_conversation(const HttpRequest& request, Mailbox::Wake) const {
  const std::string id = conversation_id(request);
  if (!sessions_->remove_conversation(owner_of(request), id)) fail_not_found("conversation_id", id);
  return {json_response(
              Json::object({{"id", id}, {"object", "conversation.deleted"}, {"deleted", true}})),
          nullptr};
}

Reply Router::list_items(const HttpRequest& request, Mailbox::Wake) const {
  const ConversationPtr conversation = require_conversation(request, conversation_id(request));
  return {json_response(page_of(conversation->items, request.query)), nullptr};
}

Reply Router::create_items(const HttpRequest& request, Mailbox::Wake) const {
  const std::string id = conversation_id(request);
  const std::string owner = owner_of(request);
  const std::vector<Json> items = read_items(parse_body(request), true);
  const std::vector<ItemPtr> added = make_items(owner, items, "items");
  const bool found = sessions_->modify(owner, id, [&](Conversation& conversation) {
    require_room(conversation.items.size(), items.size());
    require_new_ids(items, conversation.items, References::kCount, "items");
    conversation.items.insert(conversation.items.end(), added.begin(), added.end());
  });
  if (!found) fail_not_found("conversation_id", id);
  Json page = page_of(added);
  HttpResponse response = json_response(page);
  for (Json& item : page["data"]) item = Json::object({{"id", item["id"]}, {"type", item["type"]}});
  response.brief = dump_json(page);
  return {std::move(response), nullptr};
}

Reply Router::get_item(const HttpRequest& request, Mailbox::Wake) const {
  const auto ids = path_values(kItemPattern, request.path);
  const ConversationPtr conversation = require_conversation(request, ids.at(0));
  const auto found = std::ranges::find_if(
      conversation->items, [&](const ItemPtr& item) { return item->id() == ids.at(1); });
  if (found == conversation->items.end()) fail_not_found("item_id", ids[1]);
  return {json_response((*found)->json), nullptr};
}

Reply Router::delete_item(const HttpRequest& request, Mailbox::Wake) const {
  const auto ids = path_values(kItemPattern, request.path);
  std::size_t num_removed = 0;
  const bool found = sessions_->modify(owner_of(request), ids.at(0), [&](Conversation& changed) {
    num_removed = std::erase_if(changed.items,
                                [&](const ItemPtr& item) { return item->id() == ids.at(1); });
  });
  if (!found) fail_not_found("conversation_id", ids[0]);
  if (num_removed == 0) fail_not_found("item_id", ids[1]);
  return get_conversation(request, {});
}

}  // namespace larder
