// KV events as routers read them: vLLM's EventBatch in MessagePack.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/kv_events.h"

namespace larder {

enum class KvEventFormat {
  kMap,    // an event is a map with its "type"
  kArray,  // an array, the type's name first: vLLM's up to 0.23
};

// What routers know a block by: the low 64 bits of its digest, that is its last 8 bytes, big-endian.
std::uint64_t kv_event_hash(const Digest& digest);

// A batch [unix_s, [event, ...], 0]; unix_s: seconds since 1970. Stored blocks of which each continues the one
// before, and removed ones in a row, are one event where they are of one group. plain_salt: of prompts whose blocks are
// told without extra keys. Thread: any.
std::vector<std::uint8_t> encode_kv_events(std::span<const KvEvent> events, double unix_s, KvEventFormat format,
                                           const Digest& plain_salt);
// A batch of one event, AllBlocksCleared: nothing told so far holds.
std::vector<std::uint8_t> encode_kv_clear(double unix_s, KvEventFormat format);

}  // namespace larder
