#include "server/chat/message_run.h"

#include <algorithm>
#include <string>

#include "base/hash.h"
#include "server/chat/response_items.h"
#include "server/message_role.h"

namespace larder {
namespace {

constexpr std::uint64_t kBase = 0x9e3779b97f4a7c15;  // odd, so that no power of it is 0

std::uint64_t mark_of(const Json& message) {
  std::string text = text_of(message);
  std::erase(text, '\n');
  return hash_text(message["role"].get_ref<const std::string&>() + '\n' + text);
}

}  // namespace

void MessageRun::add(const Json& message) {
  if (is_system_role(message["role"].get_ref<const std::string&>())) return;
  marks_.push_back(mark_of(message));
  prefixes_.push_back(prefixes_.back() * kBase + marks_.back());
}

void MessageRun::drop_last() {
  marks_.pop_back();
  prefixes_.pop_back();
}

bool MessageRun::has(const SummedRun& run) const {
  if (run.num_messages == 0 || run.num_messages > marks_.size()) return false;
  const auto length = static_cast<std::size_t>(run.num_messages);
  std::uint64_t power = 1;
  for (std::size_t i = 0; i < length; ++i) power *= kBase;
  for (std::size_t end = length; end <= marks_.size(); ++end)
    if (prefixes_[end] - prefixes_[end - length] * power == run.digest) return true;
  return false;
}

bool MessageRun::ends_with(const Json& messages) const {
  MessageRun other;
  for (const Json& message : messages) other.add(message);
  if (other.marks_.empty()) return marks_.empty();
  return marks_.size() >= other.marks_.size() &&
         std::equal(other.marks_.rbegin(), other.marks_.rend(), marks_.rbegin());
}

}  // namespace larder
