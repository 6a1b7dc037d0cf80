// What a cache tells of its blocks: for routers that send a prompt to whoever has most of it.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/hash.h"
#include "base/types.h"

namespace larder {

// Where a block is.
enum class KvMedium : std::uint8_t { kPool, kHost, kDisk };

// A full block of the pool, or of a tier behind it, that prompts can hit from now on, or no more.
struct KvEvent {
  enum class Kind : std::uint8_t {
    kStored,
    kRemoved,
    kCleared,  // some were lost: what was told before, of any medium, may be wrong; nothing else is said
  };

  Kind kind = Kind::kStored;
  KvMedium medium = KvMedium::kPool;
  bool is_first = false;  // of its prompt: `parent` is its salt's address
  int group = 0;          // KvLayout's
  int window = 0;         // the group's, in tokens; 0 = none; of kStored
  Digest digest{};        // of everything up to and with it; of a tier's kRemoved the last 8 bytes alone
  Digest parent{};        // of the block before it; of kStored alone, as what follows
  Digest salt{};          // salt_digest()
  std::array<TokenId, kBlockSize> tokens{};
};

using KvEvents = std::vector<KvEvent>;

}  // namespace larder
