#include "server/tool_turns.h"

#include <fmt/format.h>

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "base/hash.h"

namespace larder {
namespace {

constexpr std::size_t kShortIdBytes = 9;

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

void shorten_call_ids(Json& messages) {
  IdShortener ids;
  for (Json& message : messages) {
    if (const auto calls = message.find("tool_calls"); calls != message.end() && calls->is_array())
      for (Json& call : *calls) ids.shorten(call, "id");
    ids.shorten(message, "tool_call_id");
  }
}

}  // namespace larder
