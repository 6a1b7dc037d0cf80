// The tokens that answers were generated as, for when they come back as history.
//
// A model need not write a text in the tokens that the tokenizer would make of it. Encoded anew, the
// answer would differ from what is cached, and it and everything after it would be computed again.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/types.h"
#include "server/json_reader.h"

namespace larder {

using TokenList = std::shared_ptr<const std::vector<TokenId>>;

// An assistant message of a prompt, with the tokens it was generated as.
struct KnownTurn {
  std::size_t message = 0;  // index in the request's messages
  TokenList tokens;
};

// A bounded table: (salt, the message before, the answer's text) -> its tokens; the one longest
// unused goes. Two answers of one text to different messages are two entries. Thread: any.
class HistoryTokens {
 public:
  explicit HistoryTokens(std::size_t max_bytes) : max_bytes_(max_bytes) {}

  // before: the message that was answered; its role and content count.
  void remember(std::string_view salt, const Json& before, std::string_view text,
                std::vector<TokenId> tokens);
  // Every assistant message that is remembered. What the tokens spell is for prompt.cc to check.
  std::vector<KnownTurn> recall(std::string_view salt, const Json& messages);

  std::size_t size_bytes() const;

 private:
  using Entry = std::pair<Digest, TokenList>;

  static Digest key_of(std::string_view salt, const Json& before, std::string_view text);
  static std::size_t bytes_of(const Entry& entry);

  const std::size_t max_bytes_;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // the one last used first
  std::unordered_map<Digest, std::list<Entry>::iterator, DigestHash> by_key_;
  std::size_t size_bytes_ = 0;
};

}  // namespace larder
