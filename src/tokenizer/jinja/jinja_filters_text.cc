// Filters that make text of one value.
#include <algorithm>

#include "tokenizer/jinja/jinja_filters.h"
#include "tokenizer/jinja/jinja_json.h"
#include "tokenizer/jinja/jinja_text_methods.h"

namespace larder::jinja {
namespace {

TextRef as_text(Runtime& runtime, const Value& value) { return to_str(runtime.budget(), value); }

template <Case kCase>
Value change_case(Runtime& runtime, const Value& value, const Args& args) {
  args.bind("the filter", {});
  return Value(in_case(runtime, as_text(runtime, value), kCase));
}

Value capitalize(Runtime& runtime, const Value& value, const Args& args) {
  args.bind("capitalize", {});
  return Value(capitalized(runtime, as_text(runtime, value)));
}

// Jinja's own idea of a title: words begin behind spaces, hyphens and opening brackets.
Value title(Runtime& runtime, const Value& value, const Args& args) {
  args.bind("title", {});
  const TextRef text = as_text(runtime, value);
  const std::string_view bytes = text->bytes();
  runtime.budget().step(bytes.size());
  Charge scratch(runtime.budget());
  scratch.add(bytes.size() * 3);
  std::string made;
  const auto is_separator = [](std::int32_t c) {
    return is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
  };
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t begin = at;
    const bool is_gap = is_separator(character_at(bytes, at).code_point);
    const std::size_t head_end = at + character_at(bytes, at).num_bytes;
    while (at < bytes.size()) {
      const Character c = character_at(bytes, at);
      if (is_separator(c.code_point) != is_gap) break;
      at += c.num_bytes;
    }
    made += map_case(runtime.budget(), bytes.substr(begin, head_end - begin), Case::kUpper);
    made += map_case(runtime.budget(), bytes.substr(head_end, at - head_end), Case::kLower);
  }
  return Value(mapped(runtime, text, std::move(made)));
}

Value trim(Runtime& runtime, const Value& value, const Args& args) {
  const auto bound = args.bind("trim", {"chars"});
  const Text* chars = bound[0] == nullptr || bound[0]->is_none()
                          ? nullptr
                          : &text_argument(*bound[0], "the argument of trim");
  return strip(runtime, as_text(runtime, value), chars, Side::kBoth);
}

Value string(Runtime& runtime, const Value& value, const Args& args) {
  args.bind("string", {});
  return Value(as_text(runtime, value));
}

Value replace(Runtime& runtime, const Value& value, const Args& args) {
  const auto bound = args.bind("replace", {"old", "new", "count"}, 2);
  const bool is_limited = bound[2] != nullptr && !bound[2]->is_none();
  const std::ptrdiff_t most = is_limited ? index_argument(*bound[2], "count") : -1;
  const TextRef plain = as_markup(runtime, as_text(runtime, value), false);
  return Value(
      replaced(runtime, plain, *as_text(runtime, *bound[0]), *as_text(runtime, *bound[1]), most));
}

Value safe(Runtime& runtime, const Value& value, const Args& args) {
  args.bind("safe", {});
  return Value(as_markup(runtime, as_text(runtime, value), true));
}

Value escape(Runtime& runtime, const Value& value, const Args& args) {
  args.bind("escape", {});
  return Value(escaped(runtime, as_text(runtime, value)));
}

Value indent(Runtime& runtime, const Value& value, const Args& args) {
  const auto bound = args.bind("indent", {"width", "first", "blank"});
  text_argument(value, "the text to indent");
  static const Text kBlank(" ", Origin::kTrusted);
  TextBuilder blanks(runtime.budget());
  if (bound[0] != nullptr && bound[0]->text() != nullptr) {
    blanks.append(*bound[0]->text());
  } else {
    const auto width = bound[0] != nullptr ? index_argument(*bound[0], "the width") : 4;
    blanks.append_repeated(kBlank, static_cast<std::uint64_t>(std::max<std::ptrdiff_t>(0, width)));
  }
  const TextRef indention = blanks.finish();
  const bool indents_first = bound[1] != nullptr && is_true(*bound[1]);
  const bool indents_blank = bound[2] != nullptr && is_true(*bound[2]);
  // A final line break counts as one more, empty, line.
  TextBuilder ended(runtime.budget());
  ended.append(*value.text());
  ended.append("\n", Origin::kTrusted);
  const ListRef lines = split_lines(runtime, ended.finish(), false);
  TextBuilder out(runtime.budget());
  for (std::size_t i = 0; i < lines->items.size(); ++i) {
    const Text& line = *lines->items[i].text();
    if (i > 0) out.append("\n", Origin::kTrusted);
    if (i == 0 ? indents_first : indents_blank || !line.empty()) out.append(*indention);
    out.append(line);
  }
  return Value(out.finish());
}

Value truncate(Runtime& runtime, const Value& value, const Args& args) {
  const auto bound = args.bind("truncate", {"length", "killwords", "end", "leeway"});
  static const Text kDots("...", Origin::kTrusted);
  const Text& end = bound[2] != nullptr ? text_argument(*bound[2], "end") : kDots;
  const auto end_length = static_cast<std::ptrdiff_t>(count_characters(runtime.budget(), end.bytes()));
  const std::ptrdiff_t length = bound[0] != nullptr ? index_argument(*bound[0], "length") : 255;
  const bool has_leeway = bound[3] != nullptr && !bound[3]->is_none();
  const std::ptrdiff_t leeway = has_leeway ? index_argument(*bound[3], "leeway") : 5;
  if (length < end_length) fail("expected length >= {}, got {}", end_length, length);
  if (leeway < 0) fail("expected leeway >= 0, got {}", leeway);
  const auto size = static_cast<std::ptrdiff_t>(runtime.length(value));
  if (size <= length + leeway) return value;
  text_argument(value, "the text to truncate");
  const TextRef text = *value.get_if<TextRef>();
  std::size_t cut = byte_offset(runtime.budget(), text->bytes(), static_cast<std::size_t>(length - end_length));
  if (bound[1] == nullptr || !is_true(*bound[1])) {
    const std::size_t blank = text->bytes().substr(0, cut).rfind(' ');
    if (blank != std::string_view::npos) cut = blank;
  }
  TextBuilder out(runtime.budget());
  out.append(*text, 0, cut);
  out.append(end);
  return Value(out.finish());
}

Value center(Runtime& runtime, const Value& value, const Args& args) {
  const auto bound = args.bind("center", {"width"});
  static const Text kBlank(" ", Origin::kTrusted);
  const std::ptrdiff_t width = bound[0] != nullptr ? index_argument(*bound[0], "width") : 80;
  return Value(padded(runtime, as_text(runtime, value), width, kBlank, Side::kBoth));
}

Value word_count(Runtime& runtime, const Value& value, const Args& args) {
  args.bind("wordcount", {});
  const TextRef text = as_text(runtime, value);
  runtime.budget().step(text->size() / 8);
  std::size_t count = 0;
  bool is_inside = false;
  for (std::size_t at = 0; at < text->size();) {
    const Character c = character_at(text->bytes(), at);
    const bool is_word = c.code_point == '_' || is_alpha(c.code_point) || is_numeric(c.code_point);
    if (is_word && !is_inside) ++count;
    is_inside = is_word;
    at += c.num_bytes;
  }
  return Value::integer(static_cast<Int128>(count), text->origin());
}

Value format(Runtime& runtime, const Value& value, const Args& args) {
  if (!args.positional.empty() && !args.keyword.empty()) {
    fail("format can't handle positional and keyword arguments at the same time");
  }
  const TextRef text = as_text(runtime, value);
  if (!args.keyword.empty()) {
    Dict named(runtime.budget());
    for (const auto& [key, item, origin] : args.keyword)
      named.set(runtime.budget(), runtime.text(key, origin), item);
    return percent_format(runtime, text, runtime.dict(std::move(named)));
  }
  ListBuilder values(runtime);
  for (const Value& item : args.positional) values.push(item);
  return percent_format(runtime, text, values.finish(ListKind::kTuple));
}

void append_quoted(TextBuilder& out, const Text& text, bool is_query) {
  constexpr std::string_view kSafe =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-~";
  for (const char byte : text.bytes()) {
    if (kSafe.find(byte) != std::string_view::npos || (byte == '/' && !is_query)) {
      out.append(std::string_view(&byte, 1), text.origin());
    } else if (byte == ' ' && is_query) {
      out.append("+", text.origin());
    } else {
      out.append(fmt::format("%{:02X}", static_cast<std::uint8_t>(byte)), text.origin());
    }
  }
}

Value urlencode(Runtime& runtime, const Value& value, const Args& args) {
  args.bind("urlencode", {});
  TextBuilder out(runtime.budget());
  if (value.text() != nullptr || !runtime.is_iterable(value)) {
    const TextRef text = as_text(runtime, value);
    runtime.budget().step(text->size());
    append_quoted(out, *text, false);
    return Value(out.finish());
  }
  const Value pairs = value.dict() != nullptr ? call_method(runtime, value, "items", {}) : value;
  bool is_first = true;
  const ListRef elements = runtime.elements(pairs);
  for (const Value& pair : elements->items) {
    runtime.budget().step();
    const ListRef parts = runtime.elements(pair);
    if (parts->items.size() != 2) fail("urlencode needs pairs");
    if (!is_first) out.append("&", Origin::kTrusted);
    is_first = false;
    for (std::size_t i = 0; i < 2; ++i) {
      if (i == 1) out.append("=", Origin::kTrusted);
      const TextRef text = as_text(runtime, parts->items[i]);
      runtime.budget().step(text->size());
      append_quoted(out, *text, true);
    }
  }
  return Value(out.finish());
}

}  // namespace

const FilterTable& text_filters() {
  static const FilterTable kTable = {
      {"upper", change_case<Case::kUpper>},
      {"lower", change_case<Case::kLower>},
      {"capitalize", capitalize},
      {"title", title},
      {"trim", trim},
      {"string", string},
      {"safe", safe},
      {"replace", replace},
      {"escape", escape},
      {"e", escape},
      {"forceescape", escape},
      {"indent", indent},
      {"truncate", truncate},
      {"center", center},
      {"wordcount", word_count},
      {"format", format},
      {"urlencode", urlencode},
      {"tojson", to_json},
  };
  return kTable;
}

}  // namespace larder::jinja
