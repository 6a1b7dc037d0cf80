// Python's view of a string, over UTF-8: code points, white space, letter case. A byte that is not
// part of valid UTF-8 counts as one character. What looks at a whole text has the budget pay for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace larder::jinja {

class Budget;

struct Character {
  std::int32_t code_point = 0;  // -1: an invalid byte
  std::size_t num_bytes = 1;
};

// position < bytes.size().
Character character_at(std::string_view bytes, std::size_t position);
// The character that ends at position; position > 0.
Character character_before(std::string_view bytes, std::size_t position);

bool is_ascii(Budget& budget, std::string_view bytes);
std::size_t count_characters(Budget& budget, std::string_view bytes);
// The byte where character index begins; bytes.size() past the end. Looks at what comes before it only.
std::size_t byte_offset(Budget& budget, std::string_view bytes, std::size_t index);
bool begins_with(Budget& budget, std::string_view bytes, std::string_view part);
bool ends_with(Budget& budget, std::string_view bytes, std::string_view part);
// Of '0' to '9' and the letters after them, in either case; of any other byte 99.
int digit_value(char c);
// U+FFFD for what is no character, such as a surrogate.
void append_utf8(std::int32_t code_point, std::string& bytes);

bool is_space(std::int32_t code_point);      // str.isspace
bool is_printable(std::int32_t code_point);  // str.isprintable
bool is_alpha(std::int32_t code_point);
bool is_decimal(std::int32_t code_point);
bool is_digit(std::int32_t code_point);
bool is_numeric(std::int32_t code_point);
bool is_lower(std::int32_t code_point);
bool is_upper(std::int32_t code_point);
bool is_title(std::int32_t code_point);
bool is_identifier_start(std::int32_t code_point);
bool is_identifier_part(std::int32_t code_point);

// Whether the capital sigma at position becomes the small one that ends a word.
bool is_final_sigma(std::string_view bytes, std::size_t position);
// Every decimal digit of any script as 0 to 9.
std::string with_ascii_digits(std::string_view bytes);

enum class Case { kUpper, kLower, kTitle, kFold };
// Full mappings (ß -> SS), as str.upper and the like; kTitle takes the first character of the text
// alone, and leaves the rest.
std::string map_case(Budget& budget, std::string_view bytes, Case to);

}  // namespace larder::jinja
