// What each *_fuzz.cc has: fuzzer_main.cc hands it libFuzzer's inputs, replay_main.cc the corpus.
#pragma once

#include <cstddef>
#include <cstdint>

// Aborts where something does not hold that must. Whether the input was taken for a good one.
bool try_input(const std::uint8_t* data, std::size_t size);
