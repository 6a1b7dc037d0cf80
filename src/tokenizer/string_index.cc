#include "tokenizer/string_index.h"

#include <bit>
#include <cstring>

namespace larder {
namespace {

std::uint64_t mix(std::uint64_t hash, std::uint64_t word) {
  hash = (hash ^ word) * 0x9E3779B97F4A7C15ull;
  return hash ^ hash >> 32;
}

}  // namespace

std::uint64_t hash_string(std::string_view text) {
  std::uint64_t hash = text.size();
  std::size_t i = 0;
  for (; i + 8 <= text.size(); i += 8) {
    std::uint64_t word;
    std::memcpy(&word, text.data() + i, 8);
    hash = mix(hash, word);
  }
  std::uint64_t rest = 0;
  for (; i < text.size(); ++i) rest = rest << 8 | static_cast<std::uint8_t>(text[i]);
  return mix(hash, rest);
}

StringIndex::StringIndex(const StringPool& pool, std::size_t max_entries)
    : pool_(pool), slots_(std::bit_ceil(2 * max_entries + 2)) {}

std::size_t StringIndex::slot_of(std::string_view text, std::uint64_t hash) const {
  const std::size_t mask = slots_.size() - 1;
  const auto tag = static_cast<std::uint32_t>(hash >> 32);
  for (std::size_t slot = hash & mask;; slot = (slot + 1) & mask) {
    const Slot& candidate = slots_[slot];
    if (candidate.id < 0 || (candidate.tag == tag && pool_[candidate.id] == text)) return slot;
  }
}

TokenId StringIndex::insert(TokenId id) {
  const std::string_view text = pool_[id];
  const std::uint64_t hash = hash_string(text);
  Slot& slot = slots_[slot_of(text, hash)];
  if (slot.id >= 0) return slot.id;
  slot = {static_cast<std::uint32_t>(hash >> 32), id};
  return -1;
}

TokenId StringIndex::find(std::string_view text) const {
  return slots_[slot_of(text, hash_string(text))].id;
}

}  // namespace larder
