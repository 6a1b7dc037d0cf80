// How far what a prompt left has come on its way to others.
#pragma once

#include <cstdint>
#include <optional>

namespace larder {

// Of the blocks that were complete when it was taken, see KvCache::share().
struct ShareMark {
  std::uint64_t num_queued = 0;
  std::optional<std::uint64_t> num_settled = std::nullopt;  // that the tier has to come to, once it has got them all
};

}  // namespace larder
