// What template % values and template.format(values) have in common.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

#include "tokenizer/jinja/jinja_text_methods.h"

namespace larder::jinja {

// What both kinds of directive come to.
struct Spec {
  bool is_left = false, has_plus = false, has_blank = false, is_alternate = false;
  bool is_zero_padded = false, has_comma = false, is_centered = false, is_after_sign = false;
  bool has_align = false;
  std::string fill = " ";
  Origin fill_origin = Origin::kTrusted;
  std::ptrdiff_t width = 0;
  std::ptrdiff_t precision = -1;  // -1: none
  char type = 's';
};

// A cursor over a format string.
struct Reader {
  std::string_view bytes;
  std::size_t at = 0;

  bool is_end() const { return at >= bytes.size(); }
  char peek() const { return is_end() ? '\0' : bytes[at]; }
  bool skip(char c) { return peek() == c && !is_end() ? (++at, true) : false; }
  bool is_digit() const { return peek() >= '0' && peek() <= '9'; }
  std::ptrdiff_t number() {
    std::ptrdiff_t value = 0;
    for (; is_digit(); ++at) value = std::min<std::ptrdiff_t>(value * 10 + (peek() - '0'), 1 << 30);
    return value;
  }
};

// "+", " ", "-" or "".
std::string sign_of(bool is_negative, const Spec& spec);
// num_sign: the bytes at the front that zeros go behind.
void append_padded(Runtime& runtime, TextBuilder& out, const Text& body, const Spec& spec,
                   std::size_t num_sign);
// spec.type decides between integers (d, x, X, o, b) and reals; the value must fit it.
void append_number(Runtime& runtime, TextBuilder& out, const Value& value, const Spec& spec);
void append_text(Runtime& runtime, TextBuilder& out, TextRef text, const Spec& spec);
TextRef repr_of(Runtime& runtime, const Value& value);

}  // namespace larder::jinja
