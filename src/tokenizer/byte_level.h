// The alphabet in which byte-level BPE vocabularies are written: one printable character per byte
// (Radford et al. 2019).
#pragma once

#include <array>
#include <string>
#include <string_view>

namespace larder {

// The character that stands for each byte.
std::array<char32_t, 256> byte_level_alphabet();

// Appends the bytes that text stands for; false, and nothing appended, if a character is not in the
// alphabet.
bool append_byte_level(std::string_view text, std::string& bytes);

}  // namespace larder
