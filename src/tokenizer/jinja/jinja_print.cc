// str() and repr(), as Python writes them.
#include <cmath>

#include "tokenizer/jinja/jinja_unicode.h"
#include "tokenizer/jinja/jinja_value.h"

namespace larder::jinja {
namespace {

void append_escape(TextBuilder& out, std::int32_t code_point, Origin origin) {
  if (code_point < 0x100) {
    out.append(fmt::format("\\x{:02x}", code_point), origin);
  } else if (code_point < 0x10000) {
    out.append(fmt::format("\\u{:04x}", code_point), origin);
  } else {
    out.append(fmt::format("\\U{:08x}", code_point), origin);
  }
}

void append_text_repr(Budget& budget, TextBuilder& out, std::string_view bytes, Origin origin) {
  budget.step(1 + bytes.size() / 4);
  const bool has_single = bytes.find('\'') != std::string_view::npos;
  const char quote = has_single && bytes.find('"') == std::string_view::npos ? '"' : '\'';
  const std::string_view quote_text(&quote, 1);
  out.append(quote_text, origin);
  std::size_t plain = 0;  // what precedes `at` from here on is copied as it is
  for (std::size_t at = 0; at < bytes.size();) {
    const Character c = character_at(bytes, at);
    const bool is_plain = c.code_point != quote && c.code_point != '\\' &&
                          (c.code_point < 0 || is_printable(c.code_point));
    if (!is_plain) {
      out.append(bytes.substr(plain, at - plain), origin);
      plain = at + c.num_bytes;
      switch (c.code_point) {
        case '\n':
          out.append("\\n", origin);
          break;
        case '\r':
          out.append("\\r", origin);
          break;
        case '\t':
          out.append("\\t", origin);
          break;
        case '\\':
          out.append("\\\\", origin);
          break;
        default:
          if (c.code_point == quote) {
            out.append("\\", origin);
            out.append(quote_text, origin);
          } else {
            append_escape(out, c.code_point, origin);
          }
      }
    }
    at += c.num_bytes;
  }
  out.append(bytes.substr(plain), origin);
  out.append(quote_text, origin);
}

void append_items(Budget& budget, TextBuilder& out, const List& list, Origin origin) {
  bool is_first = true;
  for (const Value& item : list.items) {
    if (!is_first) out.append(", ", origin);
    is_first = false;
    append_repr(budget, out, item, origin);
  }
}

void append_list(Budget& budget, TextBuilder& out, const List& list, Origin origin) {
  if (list.kind == ListKind::kRange) {
    out.append("range(" + integer_text(list.range_start) + ", " + integer_text(list.range_stop),
               origin);
    if (list.range_step != 1) out.append(", " + integer_text(list.range_step), origin);
    out.append(")", origin);
    return;
  }
  if (list.kind == ListKind::kTuple) {
    out.append("(", origin);
    append_items(budget, out, list, origin);
    out.append(list.items.size() == 1 ? ",)" : ")", origin);
    return;
  }
  const bool is_view = list.kind != ListKind::kList;
  if (is_view) {
    out.append(list.kind == ListKind::kKeys     ? "dict_keys("
               : list.kind == ListKind::kValues ? "dict_values("
                                                : "dict_items(",
               origin);
  }
  out.append("[", origin);
  append_items(budget, out, list, origin);
  out.append(is_view ? "])" : "]", origin);
}

void append_dict(Budget& budget, TextBuilder& out, const Dict& dict, Origin origin) {
  out.append("{", origin);
  bool is_first = true;
  for (const auto& [key, value] : dict.entries()) {
    if (!is_first) out.append(", ", origin);
    is_first = false;
    append_repr(budget, out, key, origin);
    out.append(": ", origin);
    append_repr(budget, out, value, origin);
  }
  out.append("}", origin);
}

}  // namespace

void Object::append_repr(Budget&, TextBuilder& out, Origin origin) const {
  out.append(fmt::format("<{} object>", type_name()), origin);
}

std::string integer_text(Int128 value) { return fmt::format("{}", value); }

std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

void append_repr(Budget& budget, TextBuilder& out, const Value& value, Origin origin) {
  budget.step();
  const PrintGuard guard(budget);
  if (value.is_undefined()) return out.append("Undefined", origin);
  if (value.is_none()) return out.append("None", origin);
  if (const auto* boolean = value.get_if<bool>()) {
    return out.append(*boolean ? "True" : "False", origin);
  }
  if (const auto* integer = value.get_if<Integer>()) {
    return out.append(integer_text(*integer), origin);
  }
  if (const auto* real = value.get_if<double>()) return out.append(float_repr(*real), origin);
  if (const Text* text = value.text()) {
    if (text->is_markup()) out.append("Markup(", origin);
    append_text_repr(budget, out, text->bytes(), origin);
    if (text->is_markup()) out.append(")", origin);
    return;
  }
  if (const List* list = value.list()) return append_list(budget, out, *list, origin);
  if (const Dict* dict = value.dict()) return append_dict(budget, out, *dict, origin);
  if (const auto* object = value.get_if<Object*>()) {
    return (*object)->append_repr(budget, out, origin);
  }
  out.append("<generator object>", origin);
}

void append_str(Budget& budget, TextBuilder& out, const Value& value) {
  if (const Text* text = value.text()) return out.append(*text);
  if (value.is_undefined()) return;
  append_repr(budget, out, value, deep_origin(budget, value));
}

TextRef to_str(Budget& budget, const Value& value) {
  if (const auto* text = value.get_if<TextRef>()) return *text;
  TextBuilder out(budget);
  append_str(budget, out, value);
  return out.finish();
}

}  // namespace larder::jinja
