#include "server/chat/session_store.h"

#include <algorithm>
#include <utility>

#include "base/heap_size.h"

namespace larder {

AccountedBytes::AccountedBytes(Account account, std::size_t bytes)
    : account_(std::move(account)), bytes_(bytes) {
  if (account_) account_->fetch_add(bytes_);
}

AccountedBytes& AccountedBytes::operator=(const AccountedBytes& other) {
  if (this == &other) return *this;
  reset();
  account_ = other.account_;
  bytes_ = other.bytes_;
  if (account_) account_->fetch_add(bytes_);
  return *this;
}

void AccountedBytes::reset() {
  if (account_) account_->fetch_sub(bytes_);
  account_.reset();
}

// A chain of thousands would otherwise end in as many nested calls.
StoredResponse::~StoredResponse() {
  std::shared_ptr<const StoredResponse> next = leave_previous();
  while (next != nullptr && next.use_count() == 1) {
    // Nobody else can see it any more.
    next = const_cast<StoredResponse&>(*next).leave_previous();
  }
}

std::shared_ptr<const StoredResponse> StoredResponse::leave_previous() {
  const bool is_stored = !bytes.empty();
  if (previous != nullptr && is_stored) --previous->num_followers;
  return std::move(previous);
}

std::vector<ItemPtr> StoredResponse::history() const {
  std::vector<const StoredResponse*> chain;
  for (const StoredResponse* at = this; at != nullptr; at = at->previous.get()) chain.push_back(at);
  std::ranges::reverse(chain);
  std::vector<ItemPtr> items;
  for (const StoredResponse* response : chain) {
    for (const auto* part : {&response->context, &response->input, &response->output}) {
      items.insert(items.end(), part->begin(), part->end());
    }
  }
  return items;
}

std::size_t memory_of(const Json& value) {
  constexpr std::size_t kInPlace = 15;  // characters that a std::string holds without the heap
  const auto heap_of = [](const std::string& text) {
    return text.capacity() > kInPlace ? text.capacity() + 1 : 0;
  };
  // A value that is no number has a node of its own.
  const auto node_of = [](std::size_t num_bytes) { return static_cast<std::size_t>(heap_bytes(num_bytes)); };
  std::size_t bytes = sizeof(Json);
  if (value.is_string()) {
    bytes += node_of(sizeof(std::string)) + heap_of(value.get_ref<const std::string&>());
  } else if (value.is_binary()) {
    bytes += node_of(sizeof(Json::binary_t)) + node_of(value.get_binary().capacity());
  } else if (value.is_array()) {
    bytes += node_of(sizeof(Json::array_t));
    for (const Json& item : value) bytes += memory_of(item);
  } else if (value.is_object()) {
    bytes += node_of(sizeof(Json::object_t));
    for (const auto& [key, item] : value.get_ref<const Json::object_t&>()) {
      bytes += sizeof(std::string) + heap_of(key) + memory_of(item);
    }
  }
  return bytes;
}

namespace {

// The entry's place in the list and the map, and the values' own shells.
constexpr std::size_t kEntryBytes = 512;

std::size_t memory_of_pointers(const std::vector<ItemPtr>& items) {
  return items.size() * sizeof(ItemPtr);
}

}  // namespace

ItemPtr make_item(Json json, TokenList tokens) {
  constexpr std::size_t kShellBytes = sizeof(StoredItem) + 64;
  auto item = std::make_shared<StoredItem>();
  const std::size_t token_bytes = tokens ? tokens->capacity() * sizeof(TokenId) : 0;
  item->num_bytes = kShellBytes + memory_of(json) + token_bytes;
  item->json = std::move(json);
  item->tokens = std::move(tokens);
  return item;
}

SessionStore::SessionStore(Limits limits)
    : limits_(limits), account_(std::make_shared<std::atomic<std::size_t>>(0)) {}

void SessionStore::charge(const std::vector<ItemPtr>& items) {
  for (const ItemPtr& item : items) {
    if (item->bytes.empty()) item->bytes = AccountedBytes(account_, item->num_bytes);
  }
}

void SessionStore::put(const std::string& owner, std::shared_ptr<StoredResponse> response) {
  const std::size_t pointers = memory_of_pointers(response->context) +
                               memory_of_pointers(response->input) +
                               memory_of_pointers(response->output);
  const std::size_t own_bytes = kEntryBytes + pointers + memory_of(response->body);
  response->bytes = AccountedBytes(account_, own_bytes);
  response->num_chain_bytes = own_bytes;
  for (const auto* part : {&response->context, &response->input, &response->output})
    for (const ItemPtr& item : *part) response->num_chain_bytes += item->num_bytes;
  if (response->previous != nullptr) {
    response->num_chain_bytes += response->previous->num_chain_bytes;
    ++response->previous->num_followers;
  }
  const std::string id = response->id;
  const std::lock_guard lock(mutex_);
  for (const auto* part : {&response->context, &response->input, &response->output}) charge(*part);
  insert({id, owner, ResponsePtr(std::move(response))});
}

void SessionStore::put(const std::string& owner, Conversation conversation) {
  conversation.bytes =
      AccountedBytes(account_, kEntryBytes + memory_of_pointers(conversation.items) +
                                   memory_of(conversation.metadata));
  const std::string id = conversation.id;
  const std::lock_guard lock(mutex_);
  charge(conversation.items);
  insert({id, owner, std::make_shared<const Conversation>(std::move(conversation))});
}

void SessionStore::insert(Entry entry) {
  if (const auto found = by_id_.find(entry.id); found != by_id_.end()) {
    entries_.erase(found->second);
    by_id_.erase(found);
  }
  entries_.push_front(std::move(entry));
  by_id_[entries_.front().id] = entries_.begin();
  trim();
}

void SessionStore::trim() {
  while (!entries_.empty()) {
    const bool are_too_many = entries_.size() > limits_.max_count;
    if (!are_too_many && account_->load() <= limits_.max_bytes) return;
    auto last = std::prev(entries_.end());
    // What a chain's end keeps alive frees no bytes.
    while (!are_too_many && is_followed(*last)) {
      if (last == entries_.begin()) return;
      --last;
    }
    by_id_.erase(last->id);
    entries_.erase(last);
  }
}

bool SessionStore::is_followed(const Entry& entry) {
  const auto* response = std::get_if<ResponsePtr>(&entry.value);
  return response != nullptr && (*response)->num_followers > 0;
}

template <class Pointer>
Pointer* SessionStore::find(const std::string& owner, const std::string& id) {
  const auto found = by_id_.find(id);
  if (found == by_id_.end() || found->second->owner != owner) return nullptr;
  Pointer* value = std::get_if<Pointer>(&found->second->value);
  if (value != nullptr) entries_.splice(entries_.begin(), entries_, found->second);
  return value;
}

template <class Pointer>
bool SessionStore::remove(const std::string& owner, const std::string& id) {
  const std::lock_guard lock(mutex_);
  if (find<Pointer>(owner, id) == nullptr) return false;
  const auto found = by_id_.find(id);
  entries_.erase(found->second);
  by_id_.erase(found);
  return true;
}

ResponsePtr SessionStore::find_response(const std::string& owner, const std::string& id) {
  const std::lock_guard lock(mutex_);
  const ResponsePtr* found = find<ResponsePtr>(owner, id);
  return found == nullptr ? nullptr : *found;
}

ConversationPtr SessionStore::find_conversation(const std::string& owner, const std::string& id) {
  const std::lock_guard lock(mutex_);
  const ConversationPtr* found = find<ConversationPtr>(owner, id);
  return found == nullptr ? nullptr : *found;
}

std::vector<ItemPtr> SessionStore::find_items(const std::string& owner,
                                              const std::set<std::string>& ids) {
  std::vector<ItemPtr> found;
  if (ids.empty()) return found;
  const auto look_in = [&](const std::vector<ItemPtr>& items) {
    std::ranges::copy_if(items, std::back_inserter(found),
                         [&](const ItemPtr& item) { return ids.contains(item->id()); });
  };
  const std::lock_guard lock(mutex_);
  for (const Entry& entry : entries_) {
    if (entry.owner != owner) continue;
    if (const auto* response = std::get_if<ResponsePtr>(&entry.value)) {
      look_in((*response)->input);
      look_in((*response)->output);
    } else {
      look_in(std::get<ConversationPtr>(entry.value)->items);
    }
  }
  return found;
}

bool SessionStore::modify(const std::string& owner, const std::string& id,
                          const std::function<void(Conversation&)>& change) {
  const std::lock_guard lock(mutex_);
  ConversationPtr* found = find<ConversationPtr>(owner, id);
  if (found == nullptr) return false;
  auto changed = std::make_shared<Conversation>(**found);
  change(*changed);
  charge(changed->items);
  changed->bytes = AccountedBytes(account_, kEntryBytes + memory_of_pointers(changed->items) +
                                                memory_of(changed->metadata));
  *found = std::move(changed);
  trim();
  return true;
}

bool SessionStore::remove_response(const std::string& owner, const std::string& id) {
  return remove<ResponsePtr>(owner, id);
}

bool SessionStore::remove_conversation(const std::string& owner, const std::string& id) {
  return remove<ConversationPtr>(owner, id);
}

std::size_t SessionStore::count() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

}  // namespace larder
