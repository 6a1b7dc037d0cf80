// Chats in the form that JSON has them.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "tokenizer/jinja/chat_template.h"

namespace larder {

// As a client sent them.
inline std::vector<ChatMessage> messages_of(const nlohmann::ordered_json& list) {
  std::vector<ChatMessage> messages;
  for (const auto& message : list) messages.push_back({.json = message, .sent_as = static_cast<int>(messages.size())});
  return messages;
}

inline nlohmann::ordered_json json_of(const std::vector<ChatMessage>& messages) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const ChatMessage& message : messages) list.push_back(message.json);
  return list;
}

inline std::vector<int> sent_as(const std::vector<ChatMessage>& messages) {
  std::vector<int> places;
  for (const ChatMessage& message : messages) places.push_back(message.sent_as);
  return places;
}

}  // namespace larder
