// What clients take of the heap, for memory that is planned: as client_memory_test.cc measures it, rounded up.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/engine.h"
#include "server/server_limits.h"

namespace larder {

// Of a connection, whatever it does: its coroutine, its timers, and what counts nowhere of a head that is not whole or
// of a reply. Idle it takes a quarter of it.
inline constexpr std::int64_t kConnectionBytes = 12 << 10;
// Of an answer under way or in line, from the request that was parsed to its place in the scheduler.
inline constexpr std::int64_t kAnswerBytes = 24 << 10;
// And of each token of it that the cache holds: as text, and twice as a token, in lists that grow by doubling.
inline constexpr std::int64_t kAnswerTokenBytes = 24;

// Of as many as there may be at once: of each connection one waits in line, for its turn or for its reader, whose answer's
// tokens the cache may hold no more; those in the background wait without one. max_sequences: EngineConfig's.
constexpr std::int64_t clients_bytes(int max_connections, int max_sequences) {
  const int num_in_line = max_connections + static_cast<int>(ServerLimits{}.max_background_responses);
  const std::int64_t num_answers = std::int64_t{max_sequences} + std::min(EngineConfig{}.max_waiting, num_in_line);
  return max_connections * kConnectionBytes + num_answers * kAnswerBytes;
}

}  // namespace larder
