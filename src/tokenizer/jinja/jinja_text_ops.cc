// The building blocks of string methods and filters.
#include <algorithm>
#include <cstring>

#include "tokenizer/jinja/jinja_text_methods.h"

namespace larder::jinja {

const Text& text_argument(const Value& value, std::string_view what) {
  require_defined(value);
  if (value.text() == nullptr) fail("{} must be a str, not {}", what, type_name(value));
  return *value.text();
}

std::size_t find_bytes(Budget& budget, std::string_view text, std::string_view part) {
  if (part.size() > text.size()) return std::string_view::npos;
  const void* found = memmem(text.data(), text.size(), part.data(), part.size());
  if (found == nullptr) {
    budget.scan(text.size());
    return std::string_view::npos;
  }
  const auto at = static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
  budget.scan(at + part.size());
  return at;
}

TextRef mapped(Runtime& runtime, const TextRef& text, std::string bytes) {
  TextBuilder out(runtime.budget());
  out.set_markup(text->is_markup());
  if (text->is_uniform() || bytes.size() != text->size() || !is_ascii(runtime.budget(), text->bytes())) {
    out.append(bytes, text->origin());
  } else {
    const std::string_view view = bytes;
    text->for_each_run(0, view.size(), [&](std::size_t begin, std::size_t end, Origin origin) {
      out.append(view.substr(begin, end - begin), origin);
    });
  }
  return out.finish();
}

TextRef as_markup(Runtime& runtime, const TextRef& text, bool is_markup) {
  if (text->is_markup() == is_markup) return text;
  TextBuilder out(runtime.budget());
  out.append(*text);
  out.set_markup(is_markup);
  return out.finish();
}

TextRef escaped(Runtime& runtime, const TextRef& text) {
  if (text->is_markup()) return text;
  TextBuilder out(runtime.budget());
  out.set_markup(true);
  runtime.budget().step(text->size() / 16);
  text->for_each_run(0, text->size(), [&](std::size_t begin, std::size_t end, Origin origin) {
    const std::string_view run = text->bytes().substr(0, end);  // there may be many: each by itself
    while (begin < end) {
      const std::size_t next = std::min(run.find_first_of("&<>\"'", begin), end);
      out.append(text->bytes().substr(begin, next - begin), origin);
      if (next == end) return;
      switch (text->bytes()[next]) {
        case '&':
          out.append("&amp;", origin);
          break;
        case '<':
          out.append("&lt;", origin);
          break;
        case '>':
          out.append("&gt;", origin);
          break;
        case '"':
          out.append("&#34;", origin);
          break;
        default:
          out.append("&#39;", origin);
      }
      begin = next + 1;
    }
  });
  return out.finish();
}

TextRef in_case(Runtime& runtime, const TextRef& text, Case to) {
  Charge scratch(runtime.budget());
  scratch.add(text->size());
  return mapped(runtime, text, map_case(runtime.budget(), text->bytes(), to));
}

TextRef capitalized(Runtime& runtime, const TextRef& text) {
  if (text->empty()) return text;
  Charge scratch(runtime.budget());
  scratch.add(text->size() * 2);
  const std::size_t head = character_at(text->bytes(), 0).num_bytes;
  return mapped(runtime, text,
                map_case(runtime.budget(), text->bytes().substr(0, head), Case::kTitle) +
                    map_case(runtime.budget(), text->bytes().substr(head), Case::kLower));
}

Value strip(Runtime& runtime, const TextRef& text, const Text* chars, Side side) {
  const std::string_view bytes = text->bytes();
  const auto is_stripped = [&](std::size_t at, const Character& c) {
    runtime.budget().step(chars == nullptr ? 0 : 1 + chars->size() / 16);
    if (chars == nullptr) return is_space(c.code_point);
    // In valid UTF-8 the bytes of one character occur nowhere else.
    return chars->bytes().find(bytes.substr(at, c.num_bytes)) != std::string_view::npos;
  };
  std::size_t begin = 0, end = bytes.size();
  while (side != Side::kRight && begin < end) {
    const Character c = character_at(bytes, begin);
    if (!is_stripped(begin, c)) break;
    begin += c.num_bytes;
  }
  while (side != Side::kLeft && end > begin) {
    const Character c = character_before(bytes, end);
    if (!is_stripped(end - c.num_bytes, c)) break;
    end -= c.num_bytes;
  }
  runtime.budget().step((begin + bytes.size() - end) / 16);
  return runtime.substring(text, begin, end);
}

TextRef replaced(Runtime& runtime, const TextRef& text, const Text& old_part, const Text& new_part,
                 std::ptrdiff_t max_count) {
  const std::string_view bytes = text->bytes();
  TextBuilder out(runtime.budget());
  std::size_t at = 0;
  if (old_part.empty()) {
    // Python puts the new part before every character and at the end.
    for (; max_count != 0; --max_count) {
      runtime.budget().step();
      out.append(new_part);
      if (at == bytes.size()) break;
      const std::size_t next = at + character_at(bytes, at).num_bytes;
      out.append(*text, at, next);
      at = next;
    }
    if (at < bytes.size()) out.append(*text, at, bytes.size());
    return out.finish();
  }
  for (; max_count != 0; --max_count) {
    runtime.budget().step();
    const std::size_t found = find_bytes(runtime.budget(), bytes.substr(at), old_part.bytes());
    if (found == std::string_view::npos) break;
    out.append(*text, at, at + found);
    out.append(new_part);
    at += found + old_part.size();
  }
  if (at == 0) return text;
  out.append(*text, at, bytes.size());
  return out.finish();
}

TextRef joined(Runtime& runtime, const Text& separator, const std::vector<Value>& parts,
               bool converts) {
  TextBuilder out(runtime.budget());
  const bool is_markup = separator.is_markup() && !converts;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    runtime.budget().step();
    if (i > 0) out.append(separator);
    if (!converts && parts[i].text() == nullptr) {
      fail("sequence item {}: expected str instance, {} found", i, type_name(parts[i]));
    }
    if (is_markup) {
      out.append(*escaped(runtime, to_str(runtime.budget(), parts[i])));
    } else {
      append_str(runtime.budget(), out, parts[i]);
    }
  }
  out.set_markup(is_markup);
  return out.finish();
}

namespace {

Value split_at_space(Runtime& runtime, const TextRef& text, std::ptrdiff_t max_count) {
  const std::string_view bytes = text->bytes();
  runtime.budget().step(bytes.size() / 16);
  ListBuilder parts(runtime);
  const auto skip = [&](std::size_t at, bool is_blank) {
    while (at < bytes.size()) {
      const Character c = character_at(bytes, at);
      if (is_space(c.code_point) != is_blank) break;
      at += c.num_bytes;
    }
    return at;
  };
  for (std::size_t at = skip(0, true); at < bytes.size();) {
    std::size_t end = skip(at, false);
    if (max_count >= 0 && static_cast<std::ptrdiff_t>(parts.size()) == max_count) {
      parts.push(runtime.substring(text, at, bytes.size()));
      break;
    }
    parts.push(runtime.substring(text, at, end));
    at = skip(end, true);
  }
  return parts.finish();
}

}  // namespace

Value split(Runtime& runtime, const TextRef& text, const Text* separator,
            std::ptrdiff_t max_count) {
  if (separator == nullptr) return split_at_space(runtime, text, max_count);
  if (separator->empty()) fail("empty separator");
  const std::string_view bytes = text->bytes();
  ListBuilder parts(runtime);
  std::size_t at = 0;
  for (; max_count != 0; --max_count) {
    const std::size_t found = find_bytes(runtime.budget(), bytes.substr(at), separator->bytes());
    if (found == std::string_view::npos) break;
    parts.push(runtime.substring(text, at, at + found));
    at += found + separator->size();
  }
  parts.push(runtime.substring(text, at, bytes.size()));
  return parts.finish();
}

ListRef split_lines(Runtime& runtime, const TextRef& text, bool keeps_ends) {
  const std::string_view bytes = text->bytes();
  runtime.budget().step(bytes.size() / 16);
  ListBuilder lines(runtime);
  std::size_t begin = 0;
  for (std::size_t at = 0; at < bytes.size();) {
    const Character c = character_at(bytes, at);
    std::size_t next = at + c.num_bytes;
    const std::int32_t p = c.code_point;
    if ((p >= 10 && p <= 13) || (p >= 28 && p <= 30) || p == 0x85 || p == 0x2028 || p == 0x2029) {
      if (p == '\r' && next < bytes.size() && bytes[next] == '\n') ++next;
      lines.push(runtime.substring(text, begin, keeps_ends ? next : at));
      begin = next;
    }
    at = next;
  }
  if (begin < bytes.size()) lines.push(runtime.substring(text, begin, bytes.size()));
  return lines.take();
}

TextRef padded(Runtime& runtime, const TextRef& text, std::ptrdiff_t width, const Text& fill,
               Side blanks_on) {
  const auto length = static_cast<std::ptrdiff_t>(runtime.length(Value(text)));
  if (width <= length) return text;
  const auto blanks = static_cast<std::uint64_t>(width - length);
  std::uint64_t left = blanks_on == Side::kLeft ? blanks : 0;
  // Python's centre puts the odd blank on the left when the width is odd.
  if (blanks_on == Side::kBoth)
    left = blanks / 2 + (blanks & static_cast<std::uint64_t>(width) & 1);
  TextBuilder out(runtime.budget());
  out.set_markup(text->is_markup());
  out.append_repeated(fill, left);
  out.append(*text);
  out.append_repeated(fill, blanks - left);
  return out.finish();
}

}  // namespace larder::jinja
