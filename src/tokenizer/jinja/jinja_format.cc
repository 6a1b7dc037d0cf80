#include "tokenizer/jinja/jinja_format.h"

#include <cmath>
#include <cstdio>

namespace larder::jinja {

std::string sign_of(bool is_negative, const Spec& spec) {
  return is_negative ? "-" : spec.has_plus ? "+" : spec.has_blank ? " " : "";
}

namespace {

constexpr std::ptrdiff_t kMaxPrecision = 1000;

std::string digits_of(Int128 value, char type) {
  const bool is_upper = type == 'X';
  const unsigned base = type == 'x' || type == 'X' ? 16 : type == 'o' ? 8 : type == 'b' ? 2 : 10;
  auto rest = static_cast<unsigned __int128>(value);
  if (value < 0) rest = 0 - rest;
  std::string digits;
  do {
    const auto digit = static_cast<char>(rest % base);
    digits += digit < 10 ? static_cast<char>('0' + digit)
                         : static_cast<char>((is_upper ? 'A' : 'a') + digit - 10);
    rest /= base;
  } while (rest != 0);
  std::reverse(digits.begin(), digits.end());
  return digits;
}

std::string with_commas(std::string digits) {
  const std::size_t end = std::min(digits.find_first_not_of("0123456789"), digits.size());
  for (std::size_t at = end; at > 3; at -= 3) digits.insert(at - 3, 1, ',');
  return digits;
}

// Sign and digits, without padding; the sign's size is left in num_sign.
std::string integer_body(Int128 value, const Spec& spec, std::size_t& num_sign) {
  std::string prefix = sign_of(value < 0, spec);
  if (spec.is_alternate && spec.type != 'd') {
    prefix += '0';
    prefix += spec.type;
  }
  num_sign = prefix.size();
  std::string digits = digits_of(value, spec.type);
  if (spec.precision > static_cast<std::ptrdiff_t>(digits.size())) {
    digits.insert(0, static_cast<std::size_t>(spec.precision) - digits.size(), '0');
  }
  return prefix + (spec.has_comma ? with_commas(std::move(digits)) : digits);
}

std::string real_body(double value, const Spec& spec, std::size_t& num_sign) {
  const std::string sign = sign_of(std::signbit(value) && !std::isnan(value), spec);
  num_sign = sign.size();
  const double size = std::fabs(value);
  char type = spec.type == '%' ? 'f' : spec.type;
  const char format[] = {'%',
                         spec.is_alternate ? '#' : '.',
                         spec.is_alternate ? '.' : '*',
                         spec.is_alternate ? '*' : type,
                         spec.is_alternate ? type : '\0',
                         '\0'};
  const int precision = spec.precision < 0 ? 6 : static_cast<int>(spec.precision);
  std::string digits(static_cast<std::size_t>(precision) + 400, '\0');
  const int num_digits = std::snprintf(digits.data(), digits.size(), format, precision,
                                       spec.type == '%' ? size * 100 : size);
  digits.resize(static_cast<std::size_t>(
      std::clamp<int>(num_digits, 0, static_cast<int>(digits.size()) - 1)));
  if (spec.has_comma) digits = with_commas(std::move(digits));
  if (spec.type == '%') digits += '%';
  return sign + digits;
}

}  // namespace

void append_padded(Runtime& runtime, TextBuilder& out, const Text& body, const Spec& spec,
                   std::size_t num_sign) {
  const auto length = static_cast<std::ptrdiff_t>(count_characters(runtime.budget(), body.bytes()));
  const auto blanks = static_cast<std::uint64_t>(std::max<std::ptrdiff_t>(0, spec.width - length));
  const bool is_zero = spec.is_zero_padded && !spec.is_left && !spec.has_align;
  const Text fill(is_zero ? "0" : spec.fill, is_zero ? Origin::kTrusted : spec.fill_origin);
  if (is_zero || spec.is_after_sign) {
    out.append(body, 0, num_sign);
    out.append_repeated(fill, blanks);
    return out.append(body, num_sign, body.size());
  }
  const std::uint64_t before = spec.is_left ? 0 : spec.is_centered ? blanks / 2 : blanks;
  out.append_repeated(fill, before);
  out.append(body);
  out.append_repeated(fill, blanks - before);
}

void append_number(Runtime& runtime, TextBuilder& out, const Value& value, const Spec& spec) {
  if (spec.precision > kMaxPrecision) fail("a precision of {} is too large", spec.precision);
  runtime.budget().step(1 +
                        static_cast<std::size_t>(std::max<std::ptrdiff_t>(0, spec.precision)) / 4);
  std::size_t num_sign = 0;
  const std::string body = std::string_view("dxXob").find(spec.type) != std::string_view::npos
                               ? integer_body(to_integer(value), spec, num_sign)
                               : real_body(to_double(value), spec, num_sign);
  append_padded(runtime, out, Text(body, value.origin()), spec, num_sign);
}

TextRef repr_of(Runtime& runtime, const Value& value) {
  TextBuilder out(runtime.budget());
  append_repr(runtime.budget(), out, value, deep_origin(runtime.budget(), value));
  return out.finish();
}

void append_text(Runtime& runtime, TextBuilder& out, TextRef text, const Spec& spec) {
  if (spec.precision >= 0) {
    const std::size_t end = byte_offset(runtime.budget(), text->bytes(), static_cast<std::size_t>(spec.precision));
    text = *runtime.substring(text, 0, end).get_if<TextRef>();
  }
  append_padded(runtime, out, *text, spec, 0);
}

}  // namespace larder::jinja
