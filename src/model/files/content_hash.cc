#include "model/files/content_hash.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>

namespace larder {

std::string content_hash(const ModelFiles& files) {
  constexpr std::size_t kPieceBytes = std::size_t{32} << 20;
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(),
                                                                              XXH3_freeState);
  XXH3_128bits_reset(state.get());
  for (const MappedFile& file : files.files()) {
    for (std::span<const std::byte> rest = file.bytes(); !rest.empty();) {
      const auto piece = rest.first(std::min(rest.size(), kPieceBytes));
      XXH3_128bits_update(state.get(), piece.data(), piece.size());
      file.drop_pages();
      rest = rest.subspan(piece.size());
    }
  }
  const XXH128_hash_t hash = XXH3_128bits_digest(state.get());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace larder
