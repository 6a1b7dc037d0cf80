// The tokens that answers were generated as, for when they come back as history.
//
// A model need not write a text in the tokens that the tokenizer would make of it. Encoded anew, the
// answer would differ from what is cached, and it and everything after it would be computed again.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "base/types.h"
#include "server/json_reader.h"
#include "server/lru_table.h"
#include "tokenizer/jinja/chat_template.h"

namespace larder {

using TokenList = std::shared_ptr<const std::vector<TokenId>>;

// An assistant message of a prompt, with the tokens it was generated as.
struct KnownTurn {
  std::size_t message = 0;  // index in the request's messages
  TokenList tokens;
  bool broke_off = false;  // its text may be a beginning of what they spell, or another answer
};

// A bounded table: (salt, the message before, the answer's text) -> its tokens; the one longest
// unused goes. Two answers of one text to different messages are two entries. Of those that broke off, whose
// readers have seen some beginning, the last one to a message is kept. Thread: any.
class HistoryTokens {
 public:
  explicit HistoryTokens(std::size_t max_bytes) : table_(max_bytes) {}

  // What counts of the message that is answered: its role and content.
  static Digest digest_of(const Json& message);

  void remember(std::string_view salt, const Digest& before, std::string_view text,
                std::vector<TokenId> tokens);
  void remember_broken(std::string_view salt, const Digest& before, std::vector<TokenId> tokens);
  // Every assistant message that is remembered. What the tokens spell is for prompt.cc to check.
  std::vector<KnownTurn> recall(std::string_view salt, const std::vector<ChatMessage>& messages);

  std::size_t size_bytes() const { return table_.size_bytes(); }

 private:
  void put(const Digest& key, std::vector<TokenId> tokens);
  static Digest key_of(std::string_view salt, const Digest& before, std::string_view text);

  LruTable<TokenList> table_;
};

}  // namespace larder
