// A bounded table whose entry longest unused goes.
#pragma once

#include <cstddef>
#include <iterator>
#include <list>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/hash.h"

namespace larder {

// Value is copied out: a pointer or something small. Thread: any.
template <class Value>
class LruTable {
 public:
  explicit LruTable(std::size_t max_bytes) : max_bytes_(max_bytes) {}

  // bytes: what the value takes, its place in the table aside. One too large for the table is left
  // out.
  void put(const Digest& key, Value value, std::size_t bytes) {
    bytes += kPlaceBytes;
    if (bytes > max_bytes_) return;
    const std::lock_guard lock(mutex_);
    if (const auto found = by_key_.find(key); found != by_key_.end()) erase(found->second);
    entries_.push_front({key, std::move(value), bytes});
    by_key_[key] = entries_.begin();
    size_bytes_ += bytes;
    while (size_bytes_ > max_bytes_) erase(std::prev(entries_.end()));
  }
  std::optional<Value> find(const Digest& key) {
    const std::lock_guard lock(mutex_);
    const auto found = by_key_.find(key);
    if (found == by_key_.end()) return std::nullopt;
    entries_.splice(entries_.begin(), entries_, found->second);
    return found->second->value;
  }
  std::size_t size_bytes() const {
    const std::lock_guard lock(mutex_);
    return size_bytes_;
  }

 private:
  static constexpr std::size_t kPlaceBytes = 256;  // nodes of list and map

  struct Entry {
    Digest key;
    Value value;
    std::size_t bytes = 0;
  };
  using Entries = std::list<Entry>;

  void erase(typename Entries::iterator entry) {
    size_bytes_ -= entry->bytes;
    by_key_.erase(entry->key);
    entries_.erase(entry);
  }

  const std::size_t max_bytes_;
  mutable std::mutex mutex_;
  Entries entries_;  // the one last used first
  std::unordered_map<Digest, typename Entries::iterator, DigestHash> by_key_;
  std::size_t size_bytes_ = 0;
};

}  // namespace larder
