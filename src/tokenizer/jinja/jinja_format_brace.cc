// template.format(values).
#include "tokenizer/jinja/jinja_format.h"

namespace larder::jinja {
namespace {

class BraceFormatter {
 public:
  BraceFormatter(Runtime& runtime, const TextRef& format, const Args& args)
      : runtime_(runtime), format_(format), args_(args), out_(runtime.budget()) {}

  Value run() {
    const std::string_view bytes = format_->bytes();
    runtime_.budget().step(bytes.size() / 16);
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
    out_.set_markup(format_->is_markup());
    return Value(out_.finish());
  }

 private:
  static constexpr std::size_t kMaxSpec = 100;

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
    if (inside.size() > kMaxSpec) fail("a format specification is too long");
    const Text spec = expand_nested(end - inside.size(), end - 1);
    TextBuilder field_text(runtime_.budget());
    append_value(field_text, value, spec);
    const TextRef text = field_text.finish();
    const bool is_safe =
        !format_->is_markup() || (value.text() != nullptr && value.text()->is_markup());
    out_.append(is_safe ? *text : *escaped(runtime_, text));
    return end;
  }

  // A specification may itself name fields, one level deep: "{:{width}}". [at, end) is its place.
  Text expand_nested(std::size_t at, std::size_t end) {
    const std::string_view bytes = format_->bytes().substr(0, end);
    TextBuilder spec(runtime_.budget());
    while (at < end) {
      const std::size_t open = std::min(bytes.find('{', at), end);
      spec.append(*format_, at, open);
      if (open == end) break;
      const std::size_t close = bytes.find('}', open);
      if (close == std::string_view::npos) fail("expected '}}' before end of string");
      const Value value = lookup(bytes.substr(open + 1, close - open - 1));
      const TextRef text = to_str(runtime_.budget(), value);
      if (text->size() > kMaxSpec) fail("a format specification is too long");
      spec.append(*text);
      at = close + 1;
    }
    return spec.take();
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
    for (const auto& [key, value, origin] : args_.keyword) {
      runtime_.budget().step();
      if (key.size() == name.size() && begins_with(runtime_.budget(), key, name)) return value;
    }
    fail("KeyError: '{}'", name.substr(0, 100));
  }

  // [[fill]align][sign][#][0][width][,][.precision][type]
  Spec parse(const Text& from, bool is_text) {
    const std::string_view text = from.bytes();
    Spec spec;
    Reader reader{text};
    spec.is_left = is_text;
    spec.type = '\0';
    if (!text.empty()) {
      const std::size_t fill = character_at(text, 0).num_bytes;
      const bool has_fill = fill < text.size() && is_align(text[fill]);
      if (has_fill) {
        spec.fill = text.substr(0, fill);
        from.for_each_run(0, fill, [&](std::size_t, std::size_t, Origin origin) {
          spec.fill_origin = merge(spec.fill_origin, origin);
        });
      }
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

  void append_value(TextBuilder& out, const Value& value, const Text& text) {
    if (text.empty()) return append_str(runtime_.budget(), out, value);
    const bool is_plain_number = is_number(value);
    Spec spec = parse(text, !is_plain_number);
    if (value.text() != nullptr) {
      if (spec.type != '\0' && spec.type != 's')
        fail("unknown format code '{}' for a str", spec.type);
      if (spec.is_zero_padded && !spec.has_align) spec.fill.assign(1, '0');
      spec.is_zero_padded = false;
      return append_text(runtime_, out, *value.get_if<TextRef>(), spec);
    }
    if (!is_plain_number) fail("unsupported format string passed to {}", type_name(value));
    if (spec.type == '\0' && is_integral(value)) spec.type = 'd';
    if (spec.type == 'n') spec.type = is_integral(value) ? 'd' : 'g';
    if (spec.type == '\0' && spec.precision < 0) {
      const std::string body = float_repr(to_double(value));
      const std::string sign = sign_of(false, spec);
      return append_padded(runtime_, out, Text((body[0] == '-' ? "" : sign) + body, value.origin()),
                           spec, body[0] == '-' ? 1 : sign.size());
    }
    if (spec.type == '\0') spec.type = 'g';
    const bool wants_integer = std::string_view("dxXobc").find(spec.type) != std::string_view::npos;
    const bool wants_real = std::string_view("eEfFgG%").find(spec.type) != std::string_view::npos;
    if ((wants_integer && (!is_integral(value) || spec.type == 'c' || spec.precision >= 0)) ||
        (!wants_integer && !wants_real)) {
      fail("unknown format code '{}' for {}", spec.type, type_name(value));
    }
    append_number(runtime_, out, value, spec);
  }

  Runtime& runtime_;
  const TextRef& format_;
  const Args& args_;
  TextBuilder out_;
  std::size_t next_ = 0;
};

}  // namespace

Value brace_format(Runtime& runtime, const TextRef& format, const Args& args) {
  return BraceFormatter(runtime, format, args).run();
}

}  // namespace larder::jinja
