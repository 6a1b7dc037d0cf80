// Events as a cache tells of them, and what becomes of those.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <vector>

#include "kv/cache/prefix_cache.h"
#include "server/report/kv_event_codec.h"

namespace larder::kv_event_test {

using Json = nlohmann::json;

constexpr double kNow = 1'700'000'000.25;

// Its hash is 0xA1...A8 plus number.
inline Digest digest_of(int number) {
  Digest digest{};
  for (int i = 0; i < 32; ++i) digest[static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(0x89 + i);
  digest[0] = digest[31] = static_cast<std::uint8_t>(digest[31] + number);
  return digest;
}

inline std::uint64_t hash_of(int number) { return 0xA1A2'A3A4'A5A6'A7A8 + static_cast<std::uint64_t>(number); }

// Block `number` of a prompt, behind the one before; its tokens are from 16 * number on.
inline KvEvent stored(int number, int group = 0, const char* salt = "") {
  KvEvent event{.kind = KvEvent::Kind::kStored,
                .is_first = number == 0,
                .group = group,
                .digest = digest_of(number),
                .parent = number == 0 ? salt_digest(salt) : digest_of(number - 1),
                .salt = salt_digest(salt)};
  for (int i = 0; i < kBlockSize; ++i) event.tokens[static_cast<std::size_t>(i)] = kBlockSize * number + i;
  return event;
}

inline KvEvent removed(int number, int group = 0) {
  return {.kind = KvEvent::Kind::kRemoved, .group = group, .digest = digest_of(number)};
}

inline Json tokens_of(int first_block, int num_blocks) {
  Json tokens = Json::array();
  for (int i = 0; i < num_blocks * kBlockSize; ++i) tokens.push_back(first_block * kBlockSize + i);
  return tokens;
}

inline Json hashes_of(std::initializer_list<int> numbers) {
  Json hashes = Json::array();
  for (const int number : numbers) hashes.push_back(hash_of(number));
  return hashes;
}

// The events of an encoded batch, whose frame is checked.
inline Json events_of(const std::vector<std::uint8_t>& bytes) {
  const Json batch = Json::from_msgpack(bytes);
  EXPECT_EQ(batch, Json::array({kNow, batch.at(1), 0}));
  return batch.at(1);
}

inline Json decode(const KvEvents& events, KvEventFormat format, std::string_view plain_salt = {}) {
  return events_of(encode_kv_events(events, kNow, format, salt_digest(plain_salt)));
}

}  // namespace larder::kv_event_test
