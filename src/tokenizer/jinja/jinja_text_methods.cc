#include "tokenizer/jinja/jinja_text_methods.h"

#include <algorithm>
#include <unordered_map>

namespace larder::jinja {
namespace {

// One call of a method of str.
struct Call {
  Runtime& runtime;
  const TextRef& self;
  std::string_view name;
  const Args& args;

  std::string_view bytes() const { return self->bytes(); }
  Value make(TextRef text) const { return Value(std::move(text)); }
};
using Method = Value (*)(const Call&);

// Bytes [begin, end) for the optional start and stop of find, count, startswith.
struct Window {
  std::size_t begin = 0, end = 0, first_index = 0;
  bool is_empty = false;  // start beyond the end: not even "" is in it
};

Window window_of(const Call& call, const Value* start, const Value* stop) {
  if ((start == nullptr || start->is_none()) && (stop == nullptr || stop->is_none())) {
    return {0, call.bytes().size(), 0, false};
  }
  const auto length = static_cast<std::ptrdiff_t>(call.runtime.length(Value(call.self)));
  const auto index = [&](const Value* value, std::ptrdiff_t otherwise) {
    if (value == nullptr || value->is_none()) return otherwise;
    const std::ptrdiff_t at = index_argument(*value, "slice indices");
    return std::max<std::ptrdiff_t>(0, at < 0 ? at + length : at);
  };
  const std::ptrdiff_t first = index(start, 0);
  const std::ptrdiff_t last = std::min(index(stop, length), length);
  if (first > last) return {0, 0, 0, true};
  Window window;
  window.first_index = static_cast<std::size_t>(first);
  window.begin = byte_offset(call.runtime.budget(), call.bytes(), window.first_index);
  window.end = byte_offset(call.runtime.budget(), call.bytes(), static_cast<std::size_t>(last));
  return window;
}

std::size_t find_last(Budget& budget, std::string_view text, std::string_view part) {
  // From the front, so that it stays linear whatever the text repeats.
  std::size_t last = std::string_view::npos;
  if (part.empty()) return text.size();
  for (std::size_t at = 0;;) {
    const std::size_t found = find_bytes(budget, text.substr(at), part);
    if (found == std::string_view::npos) return last;
    budget.step(1 + part.size() / 16);
    last = at + found;
    at = last + 1;
  }
}

Value find(const Call& call) {
  const auto bound = call.args.bind(call.name, {"sub", "start", "end"}, 1);
  const Window window = window_of(call, bound[1], bound[2]);
  const std::string_view text = call.bytes().substr(window.begin, window.end - window.begin);
  const std::string_view part = text_argument(*bound[0], "the argument of find").bytes();
  const bool is_from_right = call.name[0] == 'r';
  Budget& budget = call.runtime.budget();
  std::size_t found = std::string_view::npos;
  if (!window.is_empty) {
    found = is_from_right ? find_last(budget, text, part) : find_bytes(budget, text, part);
  }
  if (found == std::string_view::npos) {
    if (call.name.ends_with("index")) fail("substring not found");
    return Value::integer(-1);
  }
  return Value::integer(window.first_index + count_characters(budget, text.substr(0, found)));
}

Value count(const Call& call) {
  const auto bound = call.args.bind(call.name, {"sub", "start", "end"}, 1);
  const Window window = window_of(call, bound[1], bound[2]);
  if (window.is_empty) return Value::integer(0);
  const std::string_view text = call.bytes().substr(window.begin, window.end - window.begin);
  const std::string_view part = text_argument(*bound[0], "the argument of count").bytes();
  if (part.empty()) return Value::integer(count_characters(call.runtime.budget(), text) + 1);
  std::size_t number = 0;
  for (std::size_t at = 0;; ++number) {
    const std::size_t found = find_bytes(call.runtime.budget(), text.substr(at), part);
    if (found == std::string_view::npos) return Value::integer(number);
    call.runtime.budget().step();
    at += found + part.size();
  }
}

Value starts_or_ends(const Call& call) {
  const auto bound = call.args.bind(call.name, {"prefix", "start", "end"}, 1);
  const Window window = window_of(call, bound[1], bound[2]);
  const std::string_view text = call.bytes().substr(window.begin, window.end - window.begin);
  const auto matches = [&](const Value& part) {
    const std::string_view bytes = text_argument(part, "the argument of startswith").bytes();
    Budget& budget = call.runtime.budget();
    budget.step();
    if (window.is_empty) return false;
    return call.name[0] == 's' ? begins_with(budget, text, bytes) : ends_with(budget, text, bytes);
  };
  const List* choices = bound[0]->list();
  if (choices == nullptr || choices->kind != ListKind::kTuple) {
    return Value::boolean(matches(*bound[0]));
  }
  return Value::boolean(std::any_of(choices->items.begin(), choices->items.end(), matches));
}

Value change_case(const Call& call) {
  call.args.bind(call.name, {});
  const Case to = call.name == "upper"   ? Case::kUpper
                  : call.name == "lower" ? Case::kLower
                                         : Case::kFold;
  return call.make(in_case(call.runtime, call.self, to));
}

// title and swapcase: what becomes of a character depends on itself and the one before.
Value change_case_by_character(const Call& call) {
  call.args.bind(call.name, {});
  const bool is_title_case = call.name == "title";
  call.runtime.budget().step(call.bytes().size());
  Charge scratch(call.runtime.budget());
  scratch.add(call.bytes().size() * 3);
  std::string changed;
  bool follows_cased = false;
  for (std::size_t at = 0; at < call.bytes().size();) {
    const Character c = character_at(call.bytes(), at);
    const std::string_view one = call.bytes().substr(at, c.num_bytes);
    Case to = follows_cased ? Case::kLower : Case::kTitle;
    if (!is_title_case) to = is_upper(c.code_point) ? Case::kLower : Case::kUpper;
    const bool is_lowered_sigma = c.code_point == 0x3A3 && to == Case::kLower;
    const bool ends_word = is_lowered_sigma && is_final_sigma(call.bytes(), at);
    changed += ends_word ? "ς" : map_case(call.runtime.budget(), one, to);
    follows_cased = is_upper(c.code_point) || is_lower(c.code_point) || is_title(c.code_point);
    at += c.num_bytes;
  }
  return call.make(mapped(call.runtime, call.self, std::move(changed)));
}

Value capitalize(const Call& call) {
  call.args.bind(call.name, {});
  return call.make(capitalized(call.runtime, call.self));
}

Value strip_sides(const Call& call) {
  const auto bound = call.args.bind(call.name, {"chars"});
  const Text* chars = bound[0] == nullptr || bound[0]->is_none()
                          ? nullptr
                          : &text_argument(*bound[0], "the argument of strip");
  const Side side = call.name == "strip"    ? Side::kBoth
                    : call.name == "lstrip" ? Side::kLeft
                                            : Side::kRight;
  return strip(call.runtime, call.self, chars, side);
}

Value reversed(Runtime& runtime, const ListRef& parts) {
  ListBuilder list(runtime);
  for (auto part = parts->items.rbegin(); part != parts->items.rend(); ++part) list.push(*part);
  return list.finish();
}

Value split_from_right(const Call& call, std::string_view separator, std::ptrdiff_t most) {
  ListBuilder parts(call.runtime);
  std::size_t end = call.bytes().size();
  for (; most != 0; --most) {
    const std::size_t found =
        find_last(call.runtime.budget(), call.bytes().substr(0, end), separator);
    if (found == std::string_view::npos) break;
    parts.push(call.runtime.substring(call.self, found + separator.size(), end));
    end = found;
  }
  parts.push(call.runtime.substring(call.self, 0, end));
  return reversed(call.runtime, parts.take());
}

Value split_space_from_right(const Call& call, std::ptrdiff_t most) {
  call.runtime.budget().step(call.bytes().size() / 16);
  ListBuilder parts(call.runtime);
  const auto skip = [&](std::size_t end, bool is_blank) {
    while (end > 0) {
      const Character c = character_before(call.bytes(), end);
      if (is_space(c.code_point) != is_blank) break;
      end -= c.num_bytes;
    }
    return end;
  };
  for (std::size_t end = skip(call.bytes().size(), true); end > 0; --most) {
    const std::size_t begin = most == 0 ? 0 : skip(end, false);
    parts.push(call.runtime.substring(call.self, begin, end));
    end = skip(begin, true);
  }
  return reversed(call.runtime, parts.take());
}

Value split_parts(const Call& call) {
  const auto bound = call.args.bind(call.name, {"sep", "maxsplit"});
  const Text* separator = bound[0] == nullptr || bound[0]->is_none()
                              ? nullptr
                              : &text_argument(*bound[0], "the separator");
  const std::ptrdiff_t most = bound[1] != nullptr ? index_argument(*bound[1], "maxsplit") : -1;
  if (call.name == "rsplit") {
    if (separator == nullptr) return split_space_from_right(call, most);
    const std::string_view bytes = separator->bytes();
    // A separator that cannot overlap itself splits the same from either side.
    call.runtime.budget().scan(bytes.size());
    const bool may_overlap = !bytes.empty() && bytes.find(bytes[0], 1) != std::string_view::npos;
    if (!bytes.empty() && (most >= 0 || may_overlap)) return split_from_right(call, bytes, most);
  }
  return split(call.runtime, call.self, separator, most);
}

Value partition(const Call& call) {
  const auto bound = call.args.bind(call.name, {"sep"}, 1);
  const Text& separator = text_argument(*bound[0], "the separator");
  if (separator.empty()) fail("empty separator");
  const bool is_from_right = call.name[0] == 'r';
  Budget& budget = call.runtime.budget();
  const std::size_t found = is_from_right ? find_last(budget, call.bytes(), separator.bytes())
                                          : find_bytes(budget, call.bytes(), separator.bytes());
  ListBuilder parts(call.runtime);
  const Value nothing = call.runtime.text("");
  if (found == std::string_view::npos) {
    parts.push(is_from_right ? nothing : Value(call.self));
    parts.push(nothing);
    parts.push(is_from_right ? Value(call.self) : nothing);
  } else {
    const std::size_t end = found + separator.size();
    parts.push(call.runtime.substring(call.self, 0, found));
    parts.push(call.runtime.substring(call.self, found, end));
    parts.push(call.runtime.substring(call.self, end, call.bytes().size()));
  }
  return parts.finish(ListKind::kTuple);
}

Value replace(const Call& call) {
  const auto bound = call.args.bind("replace", {"old", "new", "count"}, 2);
  const std::ptrdiff_t most = bound[2] != nullptr ? index_argument(*bound[2], "count") : -1;
  const Text& old_part = text_argument(*bound[0], "old");
  text_argument(*bound[1], "new");
  TextRef new_part = *bound[1]->get_if<TextRef>();
  const bool is_markup = call.self->is_markup();
  if (is_markup) new_part = escaped(call.runtime, new_part);
  const TextRef made = replaced(call.runtime, call.self, old_part, *new_part, most);
  return call.make(as_markup(call.runtime, made, is_markup));
}

Value remove_affix(const Call& call) {
  const auto bound = call.args.bind(call.name, {"affix"}, 1);
  const std::string_view affix = text_argument(*bound[0], "the affix").bytes();
  const std::size_t size = call.bytes().size();
  Budget& budget = call.runtime.budget();
  if (call.name == "removeprefix") {
    const bool has_it = begins_with(budget, call.bytes(), affix);
    return call.runtime.substring(call.self, has_it ? affix.size() : 0, size);
  }
  const bool has_it = ends_with(budget, call.bytes(), affix);
  return call.runtime.substring(call.self, 0, has_it ? size - affix.size() : size);
}

Value join(const Call& call) {
  const auto bound = call.args.bind("join", {"iterable"}, 1);
  const ListRef parts = call.runtime.elements(*bound[0]);
  return call.make(joined(call.runtime, *call.self, parts->items, false));
}

Value pad(const Call& call) {
  const auto bound = call.args.bind(call.name, {"width", "fill"}, 1);
  static const Text kBlank(" ", Origin::kTrusted);
  const Text& fill = bound[1] != nullptr ? text_argument(*bound[1], "the fill") : kBlank;
  if (count_characters(call.runtime.budget(), fill.bytes()) != 1)
    fail("the fill character must be exactly one character");
  const Side side = call.name == "ljust"   ? Side::kRight
                    : call.name == "rjust" ? Side::kLeft
                                           : Side::kBoth;
  return call.make(
      padded(call.runtime, call.self, index_argument(*bound[0], "the width"), fill, side));
}

Value zero_fill(const Call& call) {
  const auto bound = call.args.bind("zfill", {"width"}, 1);
  const auto width = index_argument(*bound[0], "the width");
  const auto length = static_cast<std::ptrdiff_t>(call.runtime.length(Value(call.self)));
  if (width <= length) return Value(call.self);
  static const Text kZero("0", Origin::kTrusted);
  const bool has_sign = call.bytes().starts_with('+') || call.bytes().starts_with('-');
  TextBuilder out(call.runtime.budget());
  if (has_sign) out.append(*call.self, 0, 1);
  out.append_repeated(kZero, static_cast<std::uint64_t>(width - length));
  out.append(*call.self, has_sign ? 1 : 0, call.bytes().size());
  return call.make(out.finish());
}

Value lines(const Call& call) {
  const auto bound = call.args.bind("splitlines", {"keepends"});
  const bool keeps = bound[0] != nullptr && is_true(*bound[0]);
  return Value(split_lines(call.runtime, call.self, keeps));
}

Value has_case(const Call& call) {
  call.args.bind(call.name, {});
  call.runtime.budget().step(call.bytes().size() / 16);
  const bool wants_lower = call.name == "islower";
  bool is_cased = false;
  for (std::size_t at = 0; at < call.bytes().size();) {
    const Character c = character_at(call.bytes(), at);
    const bool lower = is_lower(c.code_point);
    const bool upper = is_upper(c.code_point) || is_title(c.code_point);
    if (wants_lower ? upper : lower || is_title(c.code_point)) return Value::boolean(false);
    is_cased = is_cased || lower || upper;
    at += c.num_bytes;
  }
  return Value::boolean(is_cased);
}

Value is_title_case(const Call& call) {
  call.args.bind(call.name, {});
  call.runtime.budget().step(call.bytes().size() / 16);
  bool is_cased = false, follows_cased = false;
  for (std::size_t at = 0; at < call.bytes().size();) {
    const Character c = character_at(call.bytes(), at);
    const bool upper = is_upper(c.code_point) || is_title(c.code_point);
    const bool lower = is_lower(c.code_point);
    if ((upper && follows_cased) || (lower && !follows_cased)) return Value::boolean(false);
    follows_cased = upper || lower;
    is_cased = is_cased || follows_cased;
    at += c.num_bytes;
  }
  return Value::boolean(is_cased);
}

// isspace and its kin: true when the text is not empty and every character is of the class.
Value all_are(const Call& call) {
  using Predicate = bool (*)(std::int32_t);
  static const std::unordered_map<std::string_view, Predicate> kClasses = {
      {"isalpha", is_alpha},
      {"isdecimal", is_decimal},
      {"isdigit", is_digit},
      {"isnumeric", is_numeric},
      {"isprintable", is_printable},
      {"isspace", is_space},
      {"isascii", [](std::int32_t c) { return c >= 0 && c < 0x80; }},
      {"isidentifier", is_identifier_part},
      {"isalnum", [](std::int32_t c) { return is_alpha(c) || is_numeric(c); }},
  };
  call.args.bind(call.name, {});
  call.runtime.budget().step(call.bytes().size() / 16);
  const Predicate is_member = kClasses.at(call.name);
  if (call.bytes().empty())
    return Value::boolean(call.name == "isascii" || call.name == "isprintable");
  if (call.name == "isidentifier" &&
      !is_identifier_start(character_at(call.bytes(), 0).code_point)) {
    return Value::boolean(false);
  }
  for (std::size_t at = 0; at < call.bytes().size();) {
    const Character c = character_at(call.bytes(), at);
    if (!is_member(c.code_point)) return Value::boolean(false);
    at += c.num_bytes;
  }
  return Value::boolean(true);
}

Value format(const Call& call) { return brace_format(call.runtime, call.self, call.args); }

Value format_map(const Call& call) {
  const auto bound = call.args.bind("format_map", {"mapping"}, 1);
  const Dict* dict = bound[0]->dict();
  if (dict == nullptr) fail("format_map() takes a mapping");
  Args args;
  for (const auto& [key, value] : dict->entries()) {
    if (key.text() == nullptr) continue;
    args.copy(call.runtime.budget(), key.text()->bytes(), value, key.origin());
  }
  return brace_format(call.runtime, call.self, args);
}

const std::unordered_map<std::string_view, Method>& methods() {
  static const std::unordered_map<std::string_view, Method> kMethods = {
      {"capitalize", capitalize},
      {"casefold", change_case},
      {"center", pad},
      {"count", count},
      {"endswith", starts_or_ends},
      {"find", find},
      {"format", format},
      {"format_map", format_map},
      {"index", find},
      {"isalnum", all_are},
      {"isalpha", all_are},
      {"isascii", all_are},
      {"isdecimal", all_are},
      {"isdigit", all_are},
      {"isidentifier", all_are},
      {"islower", has_case},
      {"isnumeric", all_are},
      {"isprintable", all_are},
      {"isspace", all_are},
      {"istitle", is_title_case},
      {"isupper", has_case},
      {"join", join},
      {"ljust", pad},
      {"lower", change_case},
      {"lstrip", strip_sides},
      {"partition", partition},
      {"removeprefix", remove_affix},
      {"removesuffix", remove_affix},
      {"replace", replace},
      {"rfind", find},
      {"rindex", find},
      {"rjust", pad},
      {"rpartition", partition},
      {"rsplit", split_parts},
      {"rstrip", strip_sides},
      {"split", split_parts},
      {"splitlines", lines},
      {"startswith", starts_or_ends},
      {"strip", strip_sides},
      {"swapcase", change_case_by_character},
      {"title", change_case_by_character},
      {"upper", change_case},
      {"zfill", zero_fill},
  };
  return kMethods;
}

}  // namespace

Value call_text_method(Runtime& runtime, const Value& self, std::string_view name,
                       const Args& args) {
  const auto found = methods().find(name);
  if (found == methods().end()) fail("str.{}() is not supported", name);
  return found->second({runtime, *self.get_if<TextRef>(), name, args});
}

}  // namespace larder::jinja
