// What clients have the server remember: responses, conversations, and the items they are made of.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "server/chat/history_tokens.h"
#include "server/json_reader.h"

namespace larder {

// Bytes that count against a limit for as long as this lives. Thread: any.
class AccountedBytes {
 public:
  using Account = std::shared_ptr<std::atomic<std::size_t>>;

  AccountedBytes() = default;
  AccountedBytes(Account account, std::size_t bytes);
  ~AccountedBytes() { reset(); }
  AccountedBytes(const AccountedBytes& other) : AccountedBytes(other.account_, other.bytes_) {}
  AccountedBytes& operator=(const AccountedBytes& other);
  bool empty() const { return account_ == nullptr; }

 private:
  void reset();

  Account account_;
  std::size_t bytes_ = 0;
};

// One item of a conversation, in the API's shape: a message, a call of a tool, its output, ... with
// its "id". Immutable.
struct StoredItem {
  Json json;
  TokenList tokens;            // of an answer: as it was generated; else null
  std::size_t num_bytes = 0;   // about
  mutable AccountedBytes bytes;  // once it is stored; the store's alone

  const std::string& id() const { return json["id"].get_ref<const std::string&>(); }
};
using ItemPtr = std::shared_ptr<const StoredItem>;

// json has an "id".
ItemPtr make_item(Json json, TokenList tokens = nullptr);

// Immutable. The chain of previous responses lives as long as its last one.
struct StoredResponse {
  std::string id;
  Json body;                                       // as it was sent
  std::shared_ptr<const StoredResponse> previous;  // null: none
  std::vector<ItemPtr> context;                    // what came before the input, without a previous
  std::vector<ItemPtr> input;
  std::vector<ItemPtr> output;
  bool is_background = false;  // it was generated whether or not its client stayed
  AccountedBytes bytes;
  // The store's alone, as bytes: of it and all before it, and how many stored ones it is the previous of.
  std::size_t num_chain_bytes = 0;
  mutable std::atomic<int> num_followers{0};

  StoredResponse() = default;
  ~StoredResponse();
  StoredResponse(const StoredResponse&) = delete;
  StoredResponse& operator=(const StoredResponse&) = delete;

  // Everything up to the end of the output, in order.
  std::vector<ItemPtr> history() const;

 private:
  std::shared_ptr<const StoredResponse> leave_previous();
};
using ResponsePtr = std::shared_ptr<const StoredResponse>;

// What is added to a conversation is compared with all of it, while nobody else gets at the store.
inline constexpr std::size_t kMaxConversationItems = 10'000;

struct Conversation {
  std::string id;
  std::int64_t created_s = 0;
  Json metadata = Json::object();
  std::vector<ItemPtr> items;
  AccountedBytes bytes;
};
using ConversationPtr = std::shared_ptr<const Conversation>;

// Bounded in bytes and number; what was longest unused goes. Everything has an owner (the salt of
// its API key), and for others it is not there. Kept in memory only. Items count once they are put into
// it, for as long as anyone holds them. Thread: any.
class SessionStore {
 public:
  struct Limits {
    std::size_t max_bytes = 0;
    std::size_t max_count = 0;  // responses and conversations
  };

  explicit SessionStore(Limits limits);

  void put(const std::string& owner, std::shared_ptr<StoredResponse> response);
  void put(const std::string& owner, Conversation conversation);

  // null: there is none, or it is another's.
  ResponsePtr find_response(const std::string& owner, const std::string& id);
  ConversationPtr find_conversation(const std::string& owner, const std::string& id);
  // Whether another response may follow it: else its chain would be a quarter of all that is stored.
  bool may_be_followed(const StoredResponse& response) const {
    return response.num_chain_bytes <= max_chain_bytes();
  }
  std::size_t max_chain_bytes() const { return limits_.max_bytes / 4; }
  // Whatever was found of those ids, in no order; one walk over all that the owner has.
  std::vector<ItemPtr> find_items(const std::string& owner, const std::set<std::string>& ids);

  // change gets a copy that then takes its place; it must not call the store, and
  // changes nothing where it throws. false: see find.
  bool modify(const std::string& owner, const std::string& id,
              const std::function<void(Conversation&)>& change);
  bool remove_response(const std::string& owner, const std::string& id);
  bool remove_conversation(const std::string& owner, const std::string& id);

  std::size_t size_bytes() const { return account_->load(); }
  std::size_t count() const;

 private:
  struct Entry {
    std::string id, owner;
    std::variant<ResponsePtr, ConversationPtr> value;
  };
  using Entries = std::list<Entry>;

  template <class Pointer>
  Pointer* find(const std::string& owner, const std::string& id);
  template <class Pointer>
  bool remove(const std::string& owner, const std::string& id);
  // All three under the mutex.
  void charge(const std::vector<ItemPtr>& items);
  void insert(Entry entry);
  void trim();
  static bool is_followed(const Entry& entry);

  const Limits limits_;
  const AccountedBytes::Account account_;
  mutable std::mutex mutex_;
  Entries entries_;  // the one last used first
  std::unordered_map<std::string, Entries::iterator> by_id_;
};

// Memory that a value takes, about.
std::size_t memory_of(const Json& value);

}  // namespace larder
