// The items of OpenAI's Responses API: what conversations are made of, and the chat that they spell.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "server/chat/history_tokens.h"
#include "server/chat/message_run.h"
#include "server/chat/session_store.h"
#include "server/json_reader.h"

namespace larder {

// One item as a client sent it -> with its type, an id, a status and, for messages, a list of parts.
// An item_reference keeps its id and is for the caller to resolve. path: how errors name the item.
// Throws Error{kInvalidArgument} for what is malformed and for what a model of text cannot read.
Json normalize_item(const Json& value, const std::string& path);
// "input": a string is one user message. "items" likewise, but for the string.
std::vector<Json> normalize_items(const Json& value, const std::string& path);

bool is_reference(const Json& item);

enum class References { kCount, kArePassedOver };
// Throws Error{kInvalidArgument} that names the first of the normalised items whose id another one before
// it has, or one that is present.
void require_new_ids(const std::vector<Json>& added, const std::vector<ItemPtr>& present,
                     References references, const std::string& param);

// A message of the assistant, complete.
Json make_output_message(const std::string& id, const std::string& text, bool is_complete,
                         Json logprobs = Json::array());

// A summary of what came before the messages kept, and these themselves: a chat's. summed: what it sums up, which tells
// whether that is there as well where it comes back.
Json make_compaction(const std::string& summary, const Json& kept, const SummedRun& summed);
// The first of the messages kept that is no system prompt, by which one cut is told from the next; null = none.
Json first_kept(const Json& kept);

// A function as the client knows it.
struct ToolName {
  std::string space;  // its namespace's; "" = none
  std::string name;

  bool operator==(const ToolName&) const = default;
};
// By what the model calls them: their own names, but "space.name" where another tool of the request has that name, too.
using ToolNames = std::map<std::string, ToolName>;
// "space.name".
std::string whole_name(const ToolName& tool);

// A chat for the template: OpenAI's chat messages, not yet checked, with the answers whose tokens are
// known. Reasoning is left out. Where what a compaction of ours sums up is there as well, it is passed
// over; else it stands for that, beside the messages that it keeps, or that are there right before it. A system message behind
// the instructions joins them, an answer's text behind its calls is of their message.
struct ItemChat {
  Json messages = Json::array();
  std::vector<KnownTurn> known_turns;
  std::vector<std::size_t> item_of;  // per message, the first item in it; instructions: 0
  std::vector<int> sent_as;  // likewise; -1 = none: instructions, and what a compaction of ours holds
  std::string summary;       // of compactions, for what the messages do not hold; "" = none
  std::string told_summary;  // of our last compaction
  Json told_first_kept;      // what first_kept() finds in it
  bool holds_compacted = false;  // some of the messages, or of what joined the first one, are of a compaction
  std::string system_items;  // text of those that have joined the instructions; "" = none
};
// instructions: "" = none; they go first. tools: the request's, which calls of the same are named as.
ItemChat to_chat(std::string_view instructions, const std::vector<ItemPtr>& items, const ToolNames& tools = {});

// All text of an item's content or output.
std::string text_of(const Json& item);

// What opens the summary of a conversation in the system message.
inline constexpr std::string_view kSummaryHeading = "Summary of the conversation so far:\n";

// Random ids: "msg_" + 32 digits.
std::string make_id(std::string_view prefix);

}  // namespace larder
