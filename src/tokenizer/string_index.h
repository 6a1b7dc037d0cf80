// Many short strings in one piece of memory, and a hash index over some of them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"

namespace larder {

// Strings by number, in order of append. A view stays valid until the next append. Thread: any, once all are in.
class StringPool {
 public:
  void append(std::string_view text) {
    bytes_.append(text);
    ends_.push_back(bytes_.size());
  }
  std::string_view operator[](TokenId id) const {
    const std::size_t begin = id == 0 ? 0 : ends_[id - 1];
    return std::string_view(bytes_).substr(begin, ends_[id] - begin);
  }
  TokenId size() const { return static_cast<TokenId>(ends_.size()); }

 private:
  std::string bytes_;
  std::vector<std::size_t> ends_;
};

// Fast, not safe against an adversary who can insert; only the vocabulary's author can.
std::uint64_t hash_string(std::string_view text);

// Which of a pool's strings equals a text. Open addressing; at most half of the slots are used.
// The pool must outlive the index and be complete before the first insert. Thread: any, after the last one.
class StringIndex {
 public:
  StringIndex(const StringPool& pool, std::size_t max_entries);
  // The id that already stands for this string, or -1 if id now does.
  TokenId insert(TokenId id);
  // -1: none.
  TokenId find(std::string_view text) const;

 private:
  struct Slot {
    std::uint32_t tag = 0;  // of the hash, so that most misses never touch the pool
    TokenId id = -1;
  };
  // The slot that holds text, or the free one where it belongs.
  std::size_t slot_of(std::string_view text, std::uint64_t hash) const;

  const StringPool& pool_;
  std::vector<Slot> slots_;  // a power of two
};

}  // namespace larder
