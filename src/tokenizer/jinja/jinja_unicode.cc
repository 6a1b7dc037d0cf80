#include "tokenizer/jinja/jinja_unicode.h"

#include <unicode/casemap.h>
#include <unicode/ucasemap.h>
#include <unicode/uchar.h>
#include <unicode/utf8.h>

#include <algorithm>
#include <limits>
#include <memory>

#include "tokenizer/jinja/jinja_budget.h"
#include "tokenizer/utf8.h"

namespace larder::jinja {
namespace {

constexpr std::size_t kBytesPerStep = 16;  // where each character is looked at

struct CloseCaseMap {
  void operator()(UCaseMap* map) const { ucasemap_close(map); }
};
using CaseMap = std::unique_ptr<UCaseMap, CloseCaseMap>;

std::int32_t category_mask(std::int32_t code_point) {
  return code_point < 0 ? 0 : static_cast<std::int32_t>(U_GET_GC_MASK(code_point));
}

using Mapping = std::int32_t (*)(const UCaseMap*, char*, std::int32_t, const char*, std::int32_t,
                                 UErrorCode*);

std::string map_with(Mapping mapping, std::string_view bytes) {
  if (bytes.size() > std::numeric_limits<std::int32_t>::max() / 4) fail("a string is too long");
  // Opened once: mapping leaves it as it is.
  static const CaseMap map = [] {
    UErrorCode error = U_ZERO_ERROR;
    return CaseMap(ucasemap_open("", 0, &error));
  }();
  if (map == nullptr) fail("no case mapping");
  UErrorCode status = U_ZERO_ERROR;
  std::string mapped(bytes.size() + 16, '\0');
  for (;;) {
    status = U_ZERO_ERROR;
    const std::int32_t size =
        mapping(map.get(), mapped.data(), static_cast<std::int32_t>(mapped.size()), bytes.data(),
                static_cast<std::int32_t>(bytes.size()), &status);
    const bool is_short = status == U_BUFFER_OVERFLOW_ERROR;
    if (U_FAILURE(status) && !is_short) fail("no case mapping: {}", u_errorName(status));
    mapped.resize(static_cast<std::size_t>(size) + (is_short ? 1 : 0));
    if (!is_short) return mapped;
  }
}

// The title form of one character, which may be of several: ǆ -> ǅ, ß -> Ss.
std::string title_of(std::string_view character) {
  constexpr std::int32_t kMaxBytes = 32;
  char mapped[kMaxBytes];
  UErrorCode status = U_ZERO_ERROR;
  const std::uint32_t as_it_is = U_TITLECASE_WHOLE_STRING | U_TITLECASE_NO_BREAK_ADJUSTMENT | U_TITLECASE_NO_LOWERCASE;
  const std::int32_t size =
      icu::CaseMap::utf8ToTitle("", as_it_is, nullptr, character.data(), static_cast<std::int32_t>(character.size()),
                                mapped, kMaxBytes, nullptr, status);
  if (U_FAILURE(status)) fail("no case mapping: {}", u_errorName(status));
  return {mapped, static_cast<std::size_t>(size)};
}

}  // namespace

Character character_at(std::string_view bytes, std::size_t position) {
  const auto lead = static_cast<std::uint8_t>(bytes[position]);
  if (lead < 0x80) return {lead, 1};
  // No character is longer than four bytes, so ICU sees a window of 32-bit length.
  const std::string_view window = bytes.substr(position, U8_MAX_LENGTH);
  std::int32_t next = 0;
  UChar32 code_point = 0;
  U8_NEXT(window.data(), next, static_cast<std::int32_t>(window.size()), code_point);
  if (code_point < 0) return {-1, 1};
  return {code_point, static_cast<std::size_t>(next)};
}

Character character_before(std::string_view bytes, std::size_t position) {
  const auto last = static_cast<std::uint8_t>(bytes[position - 1]);
  if (last < 0x80) return {last, 1};
  for (std::size_t num_bytes = 2; num_bytes <= std::min<std::size_t>(4, position); ++num_bytes) {
    const Character character = character_at(bytes.substr(0, position), position - num_bytes);
    if (character.code_point >= 0 && character.num_bytes == num_bytes) return character;
  }
  return {-1, 1};
}

bool is_ascii(Budget& budget, std::string_view bytes) {
  budget.scan(bytes.size());
  std::uint8_t all = 0;
  for (const char byte : bytes) all |= static_cast<std::uint8_t>(byte);
  return all < 0x80;
}

std::size_t count_characters(Budget& budget, std::string_view bytes) {
  if (is_ascii(budget, bytes)) return bytes.size();
  budget.step(bytes.size() / kBytesPerStep);
  std::size_t count = 0;
  for (std::size_t at = 0; at < bytes.size(); ++count) at += character_at(bytes, at).num_bytes;
  return count;
}

std::size_t byte_offset(Budget& budget, std::string_view bytes, std::size_t index) {
  const std::string_view head = bytes.substr(0, index);
  if (is_ascii(budget, head)) return head.size();
  budget.step(head.size() / kBytesPerStep);
  std::size_t at = 0;
  for (; index > 0 && at < bytes.size(); --index) at += character_at(bytes, at).num_bytes;
  return at;
}

bool begins_with(Budget& budget, std::string_view bytes, std::string_view part) {
  if (part.size() > bytes.size()) return false;
  budget.scan(part.size());
  return bytes.starts_with(part);
}

bool ends_with(Budget& budget, std::string_view bytes, std::string_view part) {
  if (part.size() > bytes.size()) return false;
  budget.scan(part.size());
  return bytes.ends_with(part);
}

int digit_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = static_cast<char>(c | 0x20);
  return lower >= 'a' && lower <= 'z' ? lower - 'a' + 10 : 99;
}

void append_utf8(std::int32_t code_point, std::string& bytes) {
  const bool is_character =
      code_point >= 0 && code_point <= 0x10FFFF && (code_point < 0xD800 || code_point > 0xDFFF);
  larder::append_utf8(is_character ? static_cast<char32_t>(code_point) : kReplacementCharacter,
                      bytes);
}

bool is_space(std::int32_t c) {
  return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool is_printable(std::int32_t c) {
  if (c == ' ') return true;
  return c >= 0 && (category_mask(c) & (U_GC_C_MASK | U_GC_Z_MASK)) == 0;
}

bool is_alpha(std::int32_t c) { return (category_mask(c) & U_GC_L_MASK) != 0; }
bool is_decimal(std::int32_t c) { return (category_mask(c) & U_GC_ND_MASK) != 0; }

bool is_digit(std::int32_t c) {
  const auto type = c < 0 ? 0 : u_getIntPropertyValue(c, UCHAR_NUMERIC_TYPE);
  return type == U_NT_DECIMAL || type == U_NT_DIGIT;
}

bool is_numeric(std::int32_t c) {
  return c >= 0 && u_getIntPropertyValue(c, UCHAR_NUMERIC_TYPE) != U_NT_NONE;
}

bool is_lower(std::int32_t c) { return c >= 0 && u_hasBinaryProperty(c, UCHAR_LOWERCASE); }
bool is_upper(std::int32_t c) { return c >= 0 && u_hasBinaryProperty(c, UCHAR_UPPERCASE); }
bool is_title(std::int32_t c) { return (category_mask(c) & U_GC_LT_MASK) != 0; }

bool is_identifier_start(std::int32_t c) {
  return c == '_' || (c >= 0 && u_hasBinaryProperty(c, UCHAR_XID_START));
}

bool is_identifier_part(std::int32_t c) {
  return c == '_' || (c >= 0 && u_hasBinaryProperty(c, UCHAR_XID_CONTINUE));
}

bool is_final_sigma(std::string_view bytes, std::size_t position) {
  const auto is_ignored = [](std::int32_t c) {
    return c >= 0 && u_hasBinaryProperty(c, UCHAR_CASE_IGNORABLE);
  };
  const auto is_cased = [](std::int32_t c) {
    return c >= 0 && u_hasBinaryProperty(c, UCHAR_CASED);
  };
  std::int32_t before = -1, after = -1;
  for (std::size_t at = position; at > 0;) {
    const Character c = character_before(bytes, at);
    before = c.code_point;
    if (!is_ignored(before)) break;
    at -= c.num_bytes;
  }
  for (std::size_t at = position + 2; at < bytes.size();) {
    const Character c = character_at(bytes, at);
    after = c.code_point;
    if (!is_ignored(after)) break;
    at += c.num_bytes;
  }
  return is_cased(before) && !is_cased(after);
}

std::string with_ascii_digits(std::string_view bytes) {
  std::string made;
  for (std::size_t at = 0; at < bytes.size();) {
    const Character c = character_at(bytes, at);
    if (c.code_point >= 0x80 && is_decimal(c.code_point)) {
      made += static_cast<char>('0' + u_charDigitValue(c.code_point));
    } else {
      made += bytes.substr(at, c.num_bytes);
    }
    at += c.num_bytes;
  }
  return made;
}

std::string map_case(Budget& budget, std::string_view bytes, Case to) {
  budget.step(bytes.size() / kBytesPerStep);
  if (to == Case::kTitle) {
    if (bytes.empty()) return {};
    const Character first = character_at(bytes, 0);
    const std::string_view head = bytes.substr(0, first.num_bytes);
    std::string mapped = first.code_point >= 0 ? title_of(head) : std::string(head);
    return mapped.append(bytes.substr(first.num_bytes));
  }
  if (is_ascii(budget, bytes)) {
    std::string mapped(bytes);
    for (char& c : mapped) {
      if (to == Case::kUpper ? (c >= 'a' && c <= 'z') : (c >= 'A' && c <= 'Z')) c ^= 0x20;
    }
    return mapped;
  }
  switch (to) {
    case Case::kUpper:
      return map_with(ucasemap_utf8ToUpper, bytes);
    case Case::kLower:
      return map_with(ucasemap_utf8ToLower, bytes);
    default:
      return map_with(ucasemap_utf8FoldCase, bytes);
  }
}

}  // namespace larder::jinja
