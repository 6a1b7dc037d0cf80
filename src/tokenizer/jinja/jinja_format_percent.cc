// template % values.
#include <cmath>

#include "tokenizer/jinja/jinja_format.h"

namespace larder::jinja {
namespace {

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
    runtime_.budget().step(format_->size() / 16);
    while (!reader_.is_end()) {
      runtime_.budget().step();
      const std::size_t percent = std::min(reader_.bytes.find('%', reader_.at), format_->size());
      out_.append(*format_, reader_.at, percent);
      reader_.at = percent;
      if (reader_.skip('%')) directive();
    }
    // Python takes whatever can be indexed for a mapping, and a mapping need not be used up.
    const List* list = value_.list();
    const bool is_mapping =
        value_.is_undefined() || value_.dict() != nullptr ||
        (list != nullptr && (list->kind == ListKind::kList || list->kind == ListKind::kRange));
    if (tuple_ != nullptr ? next_ < tuple_->items.size() : next_ == 0 && !is_mapping) {
      fail("not all arguments converted during string formatting");
    }
    out_.set_markup(format_->is_markup());
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
    if (spec.type == '%') return out_.append(*format_, reader_.at - 1, reader_.at);
    convert(named != nullptr ? *named : next(), spec);
  }

  const Value& named_value() {
    const std::size_t end = reader_.bytes.find(')', reader_.at);
    if (end == std::string_view::npos) fail("incomplete format key");
    const std::string_view key = reader_.bytes.substr(reader_.at, end - reader_.at);
    if (value_.dict() == nullptr) fail("format requires a mapping");
    const Value* found = value_.dict()->find(runtime_.budget(), key);
    if (found == nullptr) fail("KeyError: '{}'", key.substr(0, 100));
    reader_.at = end + 1;
    return *found;
  }

  void convert(const Value& value, Spec& spec) {
    switch (spec.type) {
      case 's':
        return append_text(runtime_, out_, marked(to_str(runtime_.budget(), value)),
                           without_zero(spec));
      case 'r':
      case 'a':
        return append_text(runtime_, out_, marked(repr_of(runtime_, value)), without_zero(spec));
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

  TextRef marked(TextRef text) { return format_->is_markup() ? escaped(runtime_, text) : text; }

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
        text != nullptr && count_characters(runtime_.budget(), (*text)->bytes()) == 1) {
      return append_text(runtime_, out_, *text, spec);
    }
    if (!is_integral(value) || to_integer(value) < 0 || to_integer(value) > 0x10FFFF) {
      fail("%c requires an int in range(0x110000) or a char");
    }
    std::string bytes;
    append_utf8(static_cast<std::int32_t>(to_integer(value)), bytes);
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

}  // namespace

Value percent_format(Runtime& runtime, const TextRef& format, const Value& value) {
  return PercentFormatter(runtime, format, value).run();
}

}  // namespace larder::jinja
