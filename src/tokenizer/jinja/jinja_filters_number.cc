#include "tokenizer/jinja/jinja_filters_number.h"

#include <charconv>
#include <cmath>
#include <limits>

#include "tokenizer/jinja/jinja_operators.h"
#include "tokenizer/jinja/jinja_text_methods.h"
#include "tokenizer/jinja/jinja_unicode.h"

namespace larder::jinja {
namespace {

std::string_view strip_space(std::string_view bytes) {
  while (!bytes.empty()) {
    const Character c = character_at(bytes, 0);
    if (!is_space(c.code_point)) break;
    bytes.remove_prefix(c.num_bytes);
  }
  while (!bytes.empty()) {
    const Character c = character_before(bytes, bytes.size());
    if (!is_space(c.code_point)) break;
    bytes.remove_suffix(c.num_bytes);
  }
  return bytes;
}

// An underscore may stand between two digits.
std::optional<std::string> without_underscores(std::string_view bytes) {
  std::string plain;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] != '_') {
      plain += bytes[i];
    } else if (i == 0 || i + 1 == bytes.size() || bytes[i - 1] == '_') {
      return std::nullopt;
    }
  }
  return plain;
}

Value to_int(Runtime& runtime, const Value& value, const Args& args) {
  const auto bound = args.bind("int", {"default", "base"});
  require_defined(value);
  const Value otherwise = bound[0] != nullptr ? *bound[0] : Value::integer(0);
  const Origin origin = value.origin();
  std::optional<double> real;
  if (is_integral(value)) return Value::integer(to_integer(value), origin);
  if (const Text* text = value.text()) {
    runtime.budget().step(text->size() / 8);
    const Int128 base = bound[1] != nullptr ? integer_argument(*bound[1], "base") : 10;
    const std::string digits = with_ascii_digits(text->bytes());
    if (base == 0 || (base >= 2 && base <= 36)) {
      const auto whole = parse_integer(digits, static_cast<int>(base));
      if (whole) return Value::integer(*whole, origin);
    }
    real = parse_real(digits);
  } else if (const auto* own = value.get_if<double>()) {
    real = *own;
    if (std::isinf(*own)) fail("cannot convert float infinity to integer");
  }
  if (!real || !std::isfinite(*real)) return otherwise;
  if (std::fabs(*real) > 1e38) fail("an integer is larger than 128 bits");
  return Value::integer(static_cast<Int128>(*real), origin);
}

Value to_float(Runtime& runtime, const Value& value, const Args& args) {
  const auto bound = args.bind("float", {"default"});
  require_defined(value);
  if (is_number(value)) return Value::real(to_double(value), value.origin());
  if (const Text* text = value.text()) {
    runtime.budget().step(text->size() / 8);
    const auto real = parse_real(with_ascii_digits(text->bytes()));
    if (real) return Value::real(*real, value.origin());
  }
  return bound[0] != nullptr ? *bound[0] : Value::real(0);
}

Value absolute(Runtime& runtime, const Value& value, const Args& args) {
  args.bind("abs", {});
  runtime.budget().step();
  require_defined(value);
  if (!is_number(value)) fail("bad operand type for abs(): '{}'", type_name(value));
  if (is_integral(value)) return to_integer(value) < 0 ? negate(value) : plus(value);
  return Value::real(std::fabs(to_double(value)), value.origin());
}

// Round half to even, on the decimal digits of the number's exact binary value.
double round_real(double value, int precision) {
  if (!std::isfinite(value)) return value;
  if (precision > 300) return value;
  if (precision < 0) {
    const double scale = std::pow(10.0, -precision);
    return std::isinf(scale) ? std::copysign(0.0, value) : std::nearbyint(value / scale) * scale;
  }
  return std::strtod(fmt::format("{:.{}f}", value, precision).c_str(), nullptr);
}

Int128 round_integer(Int128 value, Int128 precision) {
  if (precision >= 0) return value;
  if (precision < -37) return 0;
  Int128 scale = 1;
  for (; precision < 0; ++precision) scale *= 10;
  Int128 quotient = value / scale;
  const Int128 twice = 2 * (value < 0 ? -(value % scale) : value % scale);
  const bool rounds_away = twice > scale || (twice == scale && (quotient & 1) != 0);
  if (rounds_away) quotient += value < 0 ? -1 : 1;
  Int128 rounded = 0;
  if (__builtin_mul_overflow(quotient, scale, &rounded)) fail("an integer is larger than 128 bits");
  return rounded;
}

Value round(Runtime& runtime, const Value& value, const Args& args) {
  const auto bound = args.bind("round", {"precision", "method"});
  runtime.budget().step();
  const std::string_view method =
      bound[1] != nullptr ? text_argument(*bound[1], "method").bytes() : "common";
  if (method != "common" && method != "ceil" && method != "floor") {
    fail("method must be common, ceil or floor");
  }
  require_defined(value);
  if (!is_number(value)) fail("type {} doesn't define round", type_name(value));
  const Int128 wide = bound[0] != nullptr ? integer_argument(*bound[0], "precision") : 0;
  const int precision = static_cast<int>(wide < -400 ? -400 : wide > 400 ? 400 : wide);
  if (method == "common") {
    if (is_integral(value)) {
      return Value::integer(round_integer(to_integer(value), precision), value.origin());
    }
    return Value::real(round_real(to_double(value), precision), value.origin());
  }
  const double scale = std::pow(10.0, precision);
  const double scaled = to_double(value) * scale;
  if (!std::isfinite(scaled) || scale == 0) fail("cannot round {}", float_repr(scaled));
  return Value::real((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale,
                     value.origin());
}

}  // namespace

std::optional<double> parse_real(std::string_view bytes) {
  const auto plain = without_underscores(strip_space(bytes));
  if (!plain || plain->empty() || plain->size() > 10'000) return std::nullopt;
  std::string_view rest = *plain;
  const bool is_negative = rest[0] == '-';
  if (rest[0] == '-' || rest[0] == '+') rest.remove_prefix(1);
  if (rest.empty() || rest[0] == '-') return std::nullopt;
  double value = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
  if (end != rest.data() + rest.size() || rest.find('(') != std::string_view::npos) {
    return std::nullopt;
  }
  if (error == std::errc::result_out_of_range) {
    value = std::strtod(std::string(rest).c_str(), nullptr);
  } else if (error != std::errc()) {
    return std::nullopt;
  }
  return is_negative ? -value : value;
}

std::optional<Int128> parse_integer(std::string_view bytes, int base) {
  std::string_view rest = strip_space(bytes);
  const bool is_negative = rest.starts_with('-');
  if (is_negative || rest.starts_with('+')) rest.remove_prefix(1);
  if (rest.size() > 2 && rest[0] == '0') {
    const char mark = static_cast<char>(rest[1] | 0x20);
    const int marked = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
    if (marked != 0 && (base == 0 || base == marked)) {
      base = marked;
      rest.remove_prefix(rest[2] == '_' ? 3 : 2);
    }
  }
  if (base == 0) {
    if (rest.size() > 1 && rest[0] == '0' &&
        rest.find_first_not_of("0_") != std::string_view::npos) {
      return std::nullopt;
    }
    base = 10;
  }
  const auto plain = without_underscores(rest);
  if (!plain || plain->empty()) return std::nullopt;
  Int128 value = 0;
  bool overflows = false;
  for (const char c : *plain) {
    const int digit = digit_value(c);
    if (digit >= base) return std::nullopt;
    overflows = overflows || __builtin_mul_overflow(value, Int128{base}, &value) ||
                __builtin_add_overflow(value, Int128{digit}, &value);
  }
  if (overflows) fail("an integer is larger than 128 bits");
  return is_negative ? -value : value;
}

const FilterTable& number_filters() {
  static const FilterTable kTable = {
      {"int", to_int}, {"float", to_float}, {"abs", absolute}, {"round", round}};
  return kTable;
}

}  // namespace larder::jinja
