#include "server/chat/tool_turns.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "server/chat/render_chat.h"

namespace larder {
namespace {

constexpr std::size_t kShortIdBytes = 9;

bool is_result(const Json& message) { return find_text(message, "role") == "tool"; }

std::size_t num_calls(const Json& message) {
  const auto calls = message.find("tool_calls");
  return calls != message.end() && calls->is_array() ? calls->size() : 0;
}

class TurnSplitter {
 public:
  explicit TurnSplitter(ChatRequest& request) : request_(request), places_(request.messages.size()) {}

  void run() {
    const std::size_t size = request_.messages.size();
    for (std::size_t i = 0; i < size;) {
      std::size_t end = i + 1;
      if (num_calls(request_.messages[i].json) < 2) {
        move(i);
      } else {
        while (end < size && is_result(request_.messages[end].json)) ++end;
        split(i, end);
      }
      i = end;
    }
    for (CacheMark& mark : request_.marks) move_mark(mark);
    for (KnownTurn& turn : request_.known_turns) turn.message = static_cast<std::size_t>(places_.at(turn.message));
    request_.messages = std::move(messages_);
  }

 private:
  // A turn that was split.
  struct Turn {
    int first_part = 0;       // of its calls, see TextSpan::part
    std::vector<int> places;  // theirs
  };

  int add(ChatMessage message) {
    messages_.push_back(std::move(message));
    return static_cast<int>(messages_.size()) - 1;
  }

  void move(std::size_t index) { places_[index] = add(std::move(request_.messages[index])); }

  // The messages [turn + 1, end) are its results.
  void split(std::size_t turn, std::size_t end) {
    const auto results = results_of(turn, end);
    ChatMessage& whole = request_.messages[turn];
    const int sent_as = whole.sent_as;
    Json calls = std::move(whole.json["tool_calls"]);
    Turn& moved = turns_[static_cast<int>(turn)];
    moved.first_part = static_cast<int>(std::max<std::size_t>(whole.parts.size(), 1));
    for (std::size_t i = 0; i < calls.size(); ++i) {
      if (i == 0) {
        whole.json["tool_calls"] = Json::array({std::move(calls[0])});
        move(turn);
        moved.places.push_back(places_[turn]);
      } else {
        ChatMessage message = message_of("assistant", "");
        message.json["tool_calls"] = Json::array({std::move(calls[i])});
        message.sent_as = sent_as;
        moved.places.push_back(add(std::move(message)));
      }
      for (const std::size_t result : results[i]) move(result);
    }
  }

  // Of each call.
  std::vector<std::vector<std::size_t>> results_of(std::size_t turn, std::size_t end) const {
    const Json& calls = request_.messages[turn].json["tool_calls"];
    std::vector<std::vector<std::size_t>> results(calls.size());
    std::multimap<std::string_view, std::size_t> by_id;
    for (std::size_t i = 0; i < calls.size(); ++i) by_id.emplace(find_text(calls[i], "id"), i);
    std::vector<std::size_t> others;
    for (std::size_t i = turn + 1; i < end; ++i) {
      const std::string_view id = find_text(request_.messages[i].json, "tool_call_id");
      const auto found = by_id.lower_bound(id);  // the first of those that have it
      if (found == by_id.end() || found->first != id) {
        others.push_back(i);
      } else {
        results[found->second].push_back(i);
        by_id.erase(found);
      }
    }
    std::size_t next = 0;
    for (std::size_t i = 0; i < results.size() && next < others.size(); ++i)
      if (results[i].empty()) results[i].push_back(others[next++]);
    results.back().insert(results.back().end(), others.begin() + static_cast<std::ptrdiff_t>(next), others.end());
    return results;
  }

  void move_mark(CacheMark& mark) const {
    if (mark.message < 0) return;
    const auto turn = turns_.find(mark.message);
    mark.message = places_.at(static_cast<std::size_t>(mark.message));
    if (turn == turns_.end() || mark.part <= turn->second.first_part) return;
    const auto& places = turn->second.places;
    const auto call = std::min(static_cast<std::size_t>(mark.part - turn->second.first_part), places.size() - 1);
    mark = {.message = places[call], .part = 1, .ttl_s = mark.ttl_s};
  }

  ChatRequest& request_;
  std::vector<int> places_;  // of the request's messages
  std::map<int, Turn> turns_;
  std::vector<ChatMessage> messages_;
};

class IdShortener {
 public:
  void shorten(Json& object, const char* name) {
    if (!object.is_object()) return;
    const auto found = object.find(name);
    if (found == object.end() || !found->is_string()) return;
    auto& id = found->get_ref<std::string&>();
    const auto [known, is_new] = short_ids_.try_emplace(id);
    if (is_new) {
      std::string short_id = is_short(id) ? id : make(id, 0);
      for (int i = 1; !taken_.insert(short_id).second; ++i) short_id = make(id, i);
      known->second = std::move(short_id);
    }
    id = known->second;
  }

 private:
  static constexpr std::string_view kLetters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

  static bool is_short(std::string_view id) {
    return id.size() == kShortIdBytes && id.find_first_not_of(kLetters) == id.npos;
  }

  static std::string make(const std::string& id, int attempt) {
    std::uint64_t hash = hash_text(fmt::format("{} {}", attempt, id));
    std::string made;
    for (; made.size() < kShortIdBytes; hash /= kLetters.size()) made += kLetters[hash % kLetters.size()];
    return made;
  }

  std::map<std::string, std::string> short_ids_;
  std::set<std::string> taken_;
};

}  // namespace

void split_turns(ChatRequest& request) {
  if (std::ranges::any_of(request.messages, [](const ChatMessage& message) { return num_calls(message.json) > 1; }))
    TurnSplitter(request).run();
}

void shorten_call_ids(std::vector<ChatMessage>& messages) {
  IdShortener ids;
  for (ChatMessage& message : messages) {
    if (const auto calls = message.json.find("tool_calls"); calls != message.json.end() && calls->is_array())
      for (Json& call : *calls) ids.shorten(call, "id");
    ids.shorten(message.json, "tool_call_id");
  }
}

}  // namespace larder
