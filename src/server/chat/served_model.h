// The model that the server serves.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "kv/cache/block_table.h"
#include "server/chat/template_abilities.h"
#include "tokenizer/jinja/chat_template.h"
#include "tokenizer/tokenizer.h"

namespace larder {

class KvEventPublisher;
class WorkerLinks;

// References must outlive the server.
struct ServedModel {
  std::string name;
  std::vector<std::string> aliases = {};  // also answered to; "default" always is
  const Tokenizer& tokenizer;
  const ChatTemplate& chat_template;
  TemplateAbilities abilities = probe_template(chat_template);
  Engine& engine;
  int max_model_len = 0;            // tokens of prompt and output
  AttentionSpan attention = {};     // of requests that do not say; see Request::attention_window
  std::int64_t created_s = 0;       // Unix time of the file
  const KvEventPublisher* kv_events = nullptr;  // for its statistics; null = nobody is told
  const WorkerLinks* workers = nullptr;         // likewise; null = one machine has all
  nlohmann::ordered_json metadata = {};  // what /v1/models tells about the file; null or an object

  // Of a prompt, counted or computed.
  std::size_t max_text_tokens() const {
    return std::max(kMaxTextTokens, static_cast<std::size_t>(max_model_len));
  }
  bool answers_to(const std::string& model) const {
    if (model == name || model == "default") return true;
    for (const std::string& alias : aliases) {
      if (model == alias) return true;
    }
    return false;
  }
};

}  // namespace larder
