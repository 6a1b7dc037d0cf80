#include "server/history_tokens.h"

#include <span>
#include <string>

namespace larder {
namespace {

const std::string* text_of(const Json& message, const char* name) {
  const auto found = message.find(name);
  const bool is_text = found != message.end() && found->is_string();
  return is_text ? found->get_ptr<const std::string*>() : nullptr;
}

}  // namespace

Digest HistoryTokens::key_of(std::string_view salt, const Json& before, std::string_view text) {
  const Json counted = Json::array({before.value("role", Json()), before.value("content", Json())});
  const std::string message = dump_json(counted);
  // Lengths first: no two keys spell the same bytes.
  std::string bytes = std::to_string(salt.size()) + ' ' + std::to_string(message.size()) + ' ';
  bytes.append(salt).append(message).append(text);
  return sha256(std::as_bytes(std::span(bytes)));
}

// The list's node and the map's beside the tokens.
std::size_t HistoryTokens::bytes_of(const Entry& entry) {
  constexpr std::size_t kOverhead = 256;
  return entry.second->capacity() * sizeof(TokenId) + kOverhead;
}

void HistoryTokens::remember(std::string_view salt, const Json& before, std::string_view text,
                             std::vector<TokenId> tokens) {
  if (text.empty() || tokens.empty()) return;
  tokens.shrink_to_fit();
  Entry entry(key_of(salt, before, text),
              std::make_shared<const std::vector<TokenId>>(std::move(tokens)));
  const std::size_t bytes = bytes_of(entry);
  if (bytes > max_bytes_) return;
  const std::lock_guard lock(mutex_);
  if (const auto found = by_key_.find(entry.first); found != by_key_.end()) {
    size_bytes_ -= bytes_of(*found->second);
    entries_.erase(found->second);
    by_key_.erase(found);
  }
  entries_.push_front(std::move(entry));
  by_key_[entries_.front().first] = entries_.begin();
  size_bytes_ += bytes;
  while (size_bytes_ > max_bytes_) {
    size_bytes_ -= bytes_of(entries_.back());
    by_key_.erase(entries_.back().first);
    entries_.pop_back();
  }
}

std::vector<KnownTurn> HistoryTokens::recall(std::string_view salt, const Json& messages) {
  std::vector<KnownTurn> turns;
  for (std::size_t i = 1; i < messages.size(); ++i) {
    const std::string* role = text_of(messages[i], "role");
    const std::string* content = text_of(messages[i], "content");
    if (role == nullptr || *role != "assistant" || content == nullptr || content->empty()) continue;
    const Digest key = key_of(salt, messages[i - 1], *content);
    const std::lock_guard lock(mutex_);
    const auto found = by_key_.find(key);
    if (found == by_key_.end()) continue;
    entries_.splice(entries_.begin(), entries_, found->second);
    turns.push_back({.message = i, .tokens = found->second->second});
  }
  return turns;
}

std::size_t HistoryTokens::size_bytes() const {
  const std::lock_guard lock(mutex_);
  return size_bytes_;
}

}  // namespace larder
