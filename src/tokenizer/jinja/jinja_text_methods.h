// Python's string methods, over text that knows its origins. Filters use them too.
#pragma once

#include "tokenizer/jinja/jinja_runtime.h"
#include "tokenizer/jinja/jinja_unicode.h"

namespace larder::jinja {

enum class Side { kLeft, kRight, kBoth };

// The text in another case. Where a mapping changes lengths, origins are merged.
TextRef in_case(Runtime& runtime, const TextRef& text, Case to);
TextRef capitalized(Runtime& runtime, const TextRef& text);
// chars: nullptr = white space.
Value strip(Runtime& runtime, const TextRef& text, const Text* chars, Side side);
// max_count < 0: all.
TextRef replaced(Runtime& runtime, const TextRef& text, const Text& old_part, const Text& new_part,
                 std::ptrdiff_t max_count);
TextRef joined(Runtime& runtime, const Text& separator, const std::vector<Value>& parts,
               bool converts);
Value split(Runtime& runtime, const TextRef& text, const Text* separator, std::ptrdiff_t max_count);
ListRef split_lines(Runtime& runtime, const TextRef& text, bool keeps_ends);
// fill: one character.
TextRef padded(Runtime& runtime, const TextRef& text, std::ptrdiff_t width, const Text& fill,
               Side blanks_on);
// For HTML, and marked as such; what is marked already stays as it is.
TextRef escaped(Runtime& runtime, const TextRef& text);
// The same text with or without the mark.
TextRef as_markup(Runtime& runtime, const TextRef& text, bool is_markup);
// Maps the bytes, keeping each byte's origin where no byte moves.
TextRef mapped(Runtime& runtime, const TextRef& text, std::string bytes);
// The byte of the first (or last) occurrence, or npos. Linear in the text.
std::size_t find_bytes(Budget& budget, std::string_view text, std::string_view part);

// template % value, and template.format(...).
Value percent_format(Runtime& runtime, const TextRef& format, const Value& value);
Value brace_format(Runtime& runtime, const TextRef& format, const Args& args);

const Text& text_argument(const Value& value, std::string_view what);

}  // namespace larder::jinja
