// What makes a table of hashes slow, for tests of what strangers may choose.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace larder {

// Different ASCII texts of 16 bytes, to which libstdc++'s std::hash gives one value: it is MurmurHash2 with
// a known seed, and what its second block has to be follows from the first.
inline std::vector<std::string> texts_of_one_hash(std::size_t count) {
  constexpr std::uint64_t kMultiplier = 0xC6A4'A793'5BD1'E995, kSeed = 0xC70F'6907;
  std::uint64_t inverse = kMultiplier;
  for (int i = 0; i < 6; ++i) inverse *= 2 - kMultiplier * inverse;
  const auto mix = [](std::uint64_t value) { return value ^ (value >> 47); };  // its own inverse
  std::vector<std::string> texts;
  for (std::uint64_t number = 0; texts.size() < count; ++number) {
    std::uint64_t blocks[2] = {0x6161'6161'6161'6161};
    for (int digit = 0; digit < 8; ++digit) blocks[0] += (number >> 4 * digit & 15) << 8 * digit;
    std::uint64_t state = kSeed ^ (sizeof blocks * kMultiplier);
    state = (state ^ (mix(blocks[0] * kMultiplier) * kMultiplier)) * kMultiplier;
    blocks[1] = mix(state * inverse) * inverse;  // state becomes 0
    if ((blocks[1] & 0x8080'8080'8080'8080) != 0) continue;
    std::memcpy(texts.emplace_back(sizeof blocks, ' ').data(), blocks, sizeof blocks);
  }
  return texts;
}

}  // namespace larder
