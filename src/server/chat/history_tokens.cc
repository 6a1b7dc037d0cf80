#include "server/chat/history_tokens.h"

#include <span>
#include <string>
#include <utility>

namespace larder {
Digest HistoryTokens::digest_of(const Json& message) {
  const std::string counted =
      dump_json(Json::array({message.value("role", Json()), message.value("content", Json())}));
  return sha256(std::as_bytes(std::span(counted)));
}

Digest HistoryTokens::key_of(std::string_view salt, const Digest& before, std::string_view text) {
  // The length first: no two keys spell the same bytes.
  std::string bytes = std::to_string(salt.size()) + ' ';
  bytes.append(salt).append(before.begin(), before.end()).append(text);
  return sha256(std::as_bytes(std::span(bytes)));
}

void HistoryTokens::remember(std::string_view salt, const Digest& before, std::string_view text,
                             std::vector<TokenId> tokens) {
  if (!text.empty()) put(key_of(salt, before, text), std::move(tokens));
}

// In the place of the answer that nobody gives.
void HistoryTokens::remember_broken(std::string_view salt, const Digest& before,
                                    std::vector<TokenId> tokens) {
  put(key_of(salt, before, ""), std::move(tokens));
}

void HistoryTokens::put(const Digest& key, std::vector<TokenId> tokens) {
  if (tokens.empty()) return;
  tokens.shrink_to_fit();
  const std::size_t bytes = tokens.size() * sizeof(TokenId);
  table_.put(key, std::make_shared<const std::vector<TokenId>>(std::move(tokens)), bytes);
}

std::vector<KnownTurn> HistoryTokens::recall(std::string_view salt, const std::vector<ChatMessage>& messages) {
  std::vector<KnownTurn> turns;
  for (std::size_t i = 1; i < messages.size(); ++i) {
    const std::string_view content = find_text(messages[i].json, "content");
    if (find_text(messages[i].json, "role") != "assistant" || content.empty()) continue;
    const Digest before = digest_of(messages[i - 1].json);
    if (const auto tokens = table_.find(key_of(salt, before, content))) {
      turns.push_back({.message = i, .tokens = *tokens});
    } else if (const auto broken = table_.find(key_of(salt, before, ""))) {
      turns.push_back({.message = i, .tokens = *broken, .broke_off = true});
    }
  }
  return turns;
}

}  // namespace larder
