// The line that the log gets every few seconds while there is work.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/engine.h"

namespace larder {

// Thread: one at a time.
class StatsLog {
 public:
  // What happened since the last call, seconds ago; nullopt when nothing did, then and before.
  std::optional<std::string> line(const EngineStats& stats, double seconds);

 private:
  std::uint64_t num_prompt_tokens_ = 0;
  std::uint64_t num_generated_tokens_ = 0;
  bool was_busy_ = false;
};

}  // namespace larder
