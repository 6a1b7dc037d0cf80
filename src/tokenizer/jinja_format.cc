// template % values and template.format(values), with Python's directives.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "tokenizer/jinja_text_methods.h"

namespace larder::jinja {
namespace {

constexpr std::ptrdiff_t kMaxPrecision = 1000;

// What both kinds of directive come to.
struct Spec {
  bool is_left = false, has_plus = false, has_blank = false, is_alternate = false;
  bool is_zero_padded = false, has_comma = false, is_centered = false, is_after_sign = false;
  bool has_align = false;
  std::string fill = " ";
  std::ptrdiff_t width = 0;
  std::ptrdiff_t precision = -1;  // -1: none
  char type = 's';
};

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

std::string sign_of(bool is_negative, const Spec& spec) {
  return is_negative ? "-" : spec.has_plus ? "+" : spec.has_blank ? " " : "";
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

void append_padded(Runtime& runtime, TextBuilder& out, const Text& body, const Spec& spec,
                   std::size_t num_sign) {
  const auto length = static_cast<std::ptrdiff_t>(count_characters(body.bytes()));
  const auto blanks = static_cast<std::uint64_t>(std::max<std::ptrdiff_t>(0, spec.width - length));
  runtime.budget().scan(body.size());
  const bool is_zero = spec.is_zero_padded && !spec.is_left && !spec.has_align;
  const Text fill(is_zero ? "0" : spec.fill, Origin::kTrusted);
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
    const std::size_t end = byte_offset(text->bytes(), static_cast<std::size_t>(spec.precision));
    text = *runtime.substring(text, 0, end).get_if<TextRef>();
  }
  append_padded(runtime, out, *text, spec, 0);
}

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

class PercentFormatter {
 public:
  PercentFormatter(Runtime& runtime, const TextRef& format, const Value& value)
      : runtime_(runtime),
        format_(format),
        value_(value),
        reader_{format->bytes()},
        out_(runtime.budget()) {
    const List* list = value.list();
    if (list != nullptr && list->kind == ListKind::kTuple) tuple_ = list;
  }

  Value run() {
    while (!reader_.is_end()) {
      runtime_.budget().step();
      const std::size_t percent = std::min(reader_.bytes.find('%', reader_.at), format_->size());
      out_.append(*format_, reader_.at, percent);
      reader_.at = percent;
      if (reader_.skip('%')) directive();
    }
    const bool is_mapping = value_.dict() != nullptr;
    if (tuple_ != nullptr ? next_ < tuple_->items.size() : next_ == 0 && !is_mapping) {
      fail("not all arguments converted during string formatting");
    }
    return Value(out_.finish());
  }

 private:
  const Value& next() {
    if (tuple_ != nullptr ? next_ < tuple_->items.size() : next_ == 0) {
      ++next_;
      return tuple_ != nullptr ? tuple_->items[next_ - 1] : value_;
    }
    fail("not enough arguments for format string");
  }

  std::ptrdiff_t star_or_number() {
    if (!reader_.skip('*')) return reader_.number();
    return index_argument(next(), "* wants int");
  }

  void directive() {
    Spec spec;
    const Value* named = nullptr;
    if (reader_.skip('(')) named = &named_value();
    for (;; ++reader_.at) {
      if (reader_.peek() == '-')
        spec.is_left = true;
      else if (reader_.peek() == '+')
        spec.has_plus = true;
      else if (reader_.peek() == ' ')
        spec.has_blank = true;
      else if (reader_.peek() == '#')
        spec.is_alternate = true;
      else if (reader_.peek() == '0')
        spec.is_zero_padded = true;
      else
        break;
    }
    spec.width = star_or_number();
    if (spec.width < 0) {
      spec.is_left = true;
      spec.width = -spec.width;
    }
    if (reader_.skip('.')) spec.precision = std::max<std::ptrdiff_t>(0, star_or_number());
    while (reader_.peek() == 'l' || reader_.peek() == 'h' || reader_.peek() == 'L') ++reader_.at;
    if (reader_.is_end()) fail("incomplete format");
    spec.type = reader_.peek();
    ++reader_.at;
    if (spec.type == '%') return out_.append("%", Origin::kTrusted);
    convert(named != nullptr ? *named : next(), spec);
  }

  const Value& named_value() {
    const std::size_t end = reader_.bytes.find(')', reader_.at);
    if (end == std::string_view::npos) fail("incomplete format key");
    const std::string_view key = reader_.bytes.substr(reader_.at, end - reader_.at);
    if (value_.dict() == nullptr) fail("format requires a mapping");
    const Value* found = value_.dict()->find(key);
    if (found == nullptr) fail("KeyError: '{}'", key.substr(0, 100));
    reader_.at = end + 1;
    return *found;
  }

  void convert(const Value& value, Spec& spec) {
    switch (spec.type) {
      case 's':
        return append_text(runtime_, out_, to_str(runtime_.budget(), value), without_zero(spec));
      case 'r':
      case 'a':
        return append_text(runtime_, out_, repr_of(runtime_, value), without_zero(spec));
      case 'c':
        return character(value, spec);
      case 'i':
      case 'u':
      case 'd':
        spec.type = 'd';
        return integer(value, spec);
      case 'x':
      case 'X':
      case 'o':
        if (!is_integral(value)) fail("%{} format: an integer is required", spec.type);
        return append_number(runtime_, out_, value, spec);
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G':
        if (!is_number(value)) fail("must be real number, not {}", type_name(value));
        return append_number(runtime_, out_, value, spec);
      default:
        fail("unsupported format character '{}'", spec.type);
    }
  }

  static const Spec& without_zero(Spec& spec) {
    spec.is_zero_padded = false;
    return spec;
  }

  void integer(const Value& value, const Spec& spec) {
    if (const auto* real = value.get_if<double>()) {
      if (!(std::fabs(*real) < 1e30)) fail("a float is too large for %d");
      return append_number(runtime_, out_,
                           Value::integer(static_cast<Int128>(*real), value.origin()), spec);
    }
    if (!is_integral(value)) fail("%d format: a real number is required, not {}", type_name(value));
    append_number(runtime_, out_, value, spec);
  }

  void character(const Value& value, Spec& spec) {
    spec.is_zero_padded = false;
    spec.precision = -1;
    if (const auto* text = value.get_if<TextRef>();
        text != nullptr && count_characters((*text)->bytes()) == 1) {
      return append_text(runtime_, out_, *text, spec);
    }
    if (!is_integral(value) || to_integer(value) < 0 || to_integer(value) > 0x10FFFF) {
      fail("%c requires an int in range(0x110000) or a char");
    }
    std::string bytes;
    append_utf8(bytes, static_cast<std::int32_t>(to_integer(value)));
    append_padded(runtime_, out_, Text(bytes, value.origin()), spec, 0);
  }

  Runtime& runtime_;
  const TextRef& format_;
  const Value& value_;
  Reader reader_;
  TextBuilder out_;
  const List* tuple_ = nullptr;
  std::size_t next_ = 0;
};

class BraceFormatter {
 public:
  BraceFormatter(Runtime& runtime, const TextRef& format, const Args& args)
      : runtime_(runtime), format_(format), args_(args), out_(runtime.budget()) {}

  Value run() {
    const std::string_view bytes = format_->bytes();
    for (std::size_t at = 0; at < bytes.size();) {
      runtime_.budget().step();
      const std::size_t brace = std::min(bytes.find_first_of("{}", at), bytes.size());
      out_.append(*format_, at, brace);
      if (brace == bytes.size()) break;
      at = brace + 1;
      if (at < bytes.size() && bytes[at] == bytes[brace]) {
        out_.append(*format_, at, at + 1);
        ++at;
        continue;
      }
      if (bytes[brace] == '}') fail("single '}}' encountered in format string");
      at = field(at);
    }
    return Value(out_.finish());
  }

 private:
  // Returns where the text goes on, behind the closing brace.
  std::size_t field(std::size_t at) {
    const std::string_view bytes = format_->bytes();
    std::size_t depth = 1, end = at;
    for (; end < bytes.size() && depth > 0; ++end) {
      if (bytes[end] == '{') ++depth;
      if (bytes[end] == '}') --depth;
    }
    if (depth > 0) fail("expected '}}' before end of string");
    std::string_view inside = bytes.substr(at, end - 1 - at);
    std::size_t name_end = inside.find_first_of(":!");
    const std::size_t bracket = inside.find('[');
    if (bracket < name_end) name_end = inside.find_first_of(":!", inside.find(']', bracket));
    const std::string_view name = inside.substr(0, name_end);
    inside.remove_prefix(name.size());
    Value value = lookup(name);
    if (inside.starts_with('!')) {
      const char conversion = inside.size() > 1 ? inside[1] : '\0';
      if (conversion != 's' && conversion != 'r' && conversion != 'a')
        fail("unknown conversion in format string");
      value =
          Value(conversion == 's' ? to_str(runtime_.budget(), value) : repr_of(runtime_, value));
      inside.remove_prefix(2);
    }
    if (!inside.empty() && inside[0] != ':') fail("expected ':' after conversion specifier");
    std::string spec(inside.empty() ? inside : inside.substr(1));
    expand_nested(spec);
    append_value(value, spec);
    return end;
  }

  // A specification may itself name fields, one level deep: "{:{width}}".
  void expand_nested(std::string& spec) {
    for (std::size_t open = spec.find('{'); open != std::string::npos;
         open = spec.find('{', open)) {
      const std::size_t close = spec.find('}', open);
      if (close == std::string::npos) fail("expected '}}' before end of string");
      const Value value = lookup(std::string_view(spec).substr(open + 1, close - open - 1));
      const TextRef text = to_str(runtime_.budget(), value);
      if (text->size() > 64) fail("a format specification is too long");
      spec.replace(open, close - open + 1, text->bytes());
      open += text->size();
    }
  }

  Value lookup(std::string_view path) {
    const std::size_t head_end = std::min(path.find_first_of(".["), path.size());
    Value value = argument(path.substr(0, head_end));
    path.remove_prefix(head_end);
    while (!path.empty()) {
      runtime_.budget().step();
      const bool is_item = path[0] == '[';
      const std::size_t end =
          std::min(is_item ? path.find(']') : path.find_first_of(".[", 1), path.size());
      const std::string_view key = path.substr(1, end - 1);
      if (is_item) {
        if (end == path.size()) fail("missing ']' in format string");
        value = runtime_.item(value, is_index(key) ? Value::integer(std::stoll(std::string(key)))
                                                   : runtime_.text(key));
      } else {
        value = runtime_.attribute(value, key);
      }
      path.remove_prefix(is_item ? end + 1 : end);
      require_defined(value);
    }
    return value;
  }

  static bool is_index(std::string_view key) {
    return !key.empty() && key.size() < 10 &&
           key.find_first_not_of("0123456789") == std::string_view::npos;
  }

  Value argument(std::string_view name) {
    if (name.empty() || is_index(name)) {
      const std::size_t index = name.empty() ? next_++ : std::stoull(std::string(name));
      if (index >= args_.positional.size()) fail("format index {} is out of range", index);
      return args_.positional[index];
    }
    for (const auto& [key, value] : args_.keyword) {
      runtime_.budget().step();
      if (key == name) return value;
    }
    fail("KeyError: '{}'", name.substr(0, 100));
  }

  // [[fill]align][sign][#][0][width][,][.precision][type]
  Spec parse(std::string_view text, bool is_text) {
    Spec spec;
    Reader reader{text};
    spec.is_left = is_text;
    spec.type = '\0';
    if (!text.empty()) {
      const std::size_t fill = character_at(text, 0).num_bytes;
      const bool has_fill = fill < text.size() && is_align(text[fill]);
      if (has_fill) spec.fill = text.substr(0, fill);
      if (has_fill || is_align(text[0])) {
        reader.at = has_fill ? fill : 0;
        const char align = text[reader.at++];
        spec.has_align = true;
        spec.is_left = align == '<';
        spec.is_centered = align == '^';
        spec.is_after_sign = align == '=';
      }
    }
    if (reader.skip('+'))
      spec.has_plus = true;
    else if (reader.skip(' '))
      spec.has_blank = true;
    else
      reader.skip('-');
    spec.is_alternate = reader.skip('#');
    if (reader.skip('0')) spec.is_zero_padded = true;
    spec.width = reader.number();
    spec.has_comma = reader.skip(',');
    if (reader.skip('.')) {
      if (!reader.is_digit()) fail("format specifier missing precision");
      spec.precision = reader.number();
    }
    if (!reader.is_end()) {
      spec.type = reader.peek();
      ++reader.at;
    }
    if (!reader.is_end()) fail("invalid format specifier");
    return spec;
  }

  static bool is_align(char c) { return c == '<' || c == '>' || c == '^' || c == '='; }

  void append_value(const Value& value, std::string_view text) {
    if (text.empty()) return append_str(runtime_.budget(), out_, value);
    const bool is_plain_number = is_number(value);
    Spec spec = parse(text, !is_plain_number);
    if (value.text() != nullptr) {
      if (spec.type != '\0' && spec.type != 's')
        fail("unknown format code '{}' for a str", spec.type);
      if (spec.is_zero_padded && !spec.has_align) spec.fill.assign(1, '0');
      spec.is_zero_padded = false;
      return append_text(runtime_, out_, *value.get_if<TextRef>(), spec);
    }
    if (!is_plain_number) fail("unsupported format string passed to {}", type_name(value));
    if (spec.type == '\0' && is_integral(value)) spec.type = 'd';
    if (spec.type == 'n') spec.type = is_integral(value) ? 'd' : 'g';
    if (spec.type == '\0' && spec.precision < 0) {
      const std::string body = float_repr(to_double(value));
      const std::string sign = sign_of(false, spec);
      return append_padded(runtime_, out_,
                           Text((body[0] == '-' ? "" : sign) + body, value.origin()), spec,
                           body[0] == '-' ? 1 : sign.size());
    }
    if (spec.type == '\0') spec.type = 'g';
    const bool wants_integer = std::string_view("dxXobc").find(spec.type) != std::string_view::npos;
    const bool wants_real = std::string_view("eEfFgG%").find(spec.type) != std::string_view::npos;
    if ((wants_integer && (!is_integral(value) || spec.type == 'c' || spec.precision >= 0)) ||
        (!wants_integer && !wants_real)) {
      fail("unknown format code '{}' for {}", spec.type, type_name(value));
    }
    append_number(runtime_, out_, value, spec);
  }

  Runtime& runtime_;
  const TextRef& format_;
  const Args& args_;
  TextBuilder out_;
  std::size_t next_ = 0;
};

}  // namespace

Value percent_format(Runtime& runtime, const TextRef& format, const Value& value) {
  return PercentFormatter(runtime, format, value).run();
}

Value brace_format(Runtime& runtime, const TextRef& format, const Args& args) {
  return BraceFormatter(runtime, format, args).run();
}

}  // namespace larder::jinja
