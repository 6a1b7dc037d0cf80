#include "tokenizer/jinja/jinja_json.h"

#include <algorithm>
#include <cmath>

#include "tokenizer/jinja/jinja_filters_number.h"
#include "tokenizer/jinja/jinja_sort.h"
#include "tokenizer/jinja/jinja_text_methods.h"

namespace larder::jinja {
namespace {

Value convert(Runtime& runtime, const nlohmann::ordered_json& json, Origin origin, int depth);

TextRef plain_text(const std::string& bytes, Origin origin) {
  return std::make_shared<const Text>(bytes, origin);
}

Value convert_object(Runtime& runtime, const nlohmann::ordered_json& json, Origin origin,
                     int depth) {
  Dict dict;
  for (const auto& [key, value] : json.items()) {
    dict.set(runtime.budget(), Value(plain_text(key, origin)),
             convert(runtime, value, origin, depth + 1));
  }
  return runtime.dict(std::move(dict), origin);
}

Value convert_long_integer(const nlohmann::ordered_json& json, Origin origin) {
  constexpr std::size_t kMaxDigits = 38;  // as many always fit, with or without a sign
  const std::string digits(json.get_binary().begin(), json.get_binary().end());
  if (digits.size() <= kMaxDigits) return Value::integer(*parse_integer(digits, 10), origin);
  return Value::real(*parse_real(digits), origin);
}

Value convert(Runtime& runtime, const nlohmann::ordered_json& json, Origin origin, int depth) {
  if (depth > runtime.budget().max_depth()) {
    fail("the request is nested deeper than {}", runtime.budget().max_depth());
  }
  using Type = nlohmann::ordered_json::value_t;
  switch (json.type()) {
    case Type::boolean:
      return Value::boolean(json.get<bool>(), origin);
    case Type::number_integer:
      return Value::integer(json.get<std::int64_t>(), origin);
    case Type::number_unsigned:
      return Value::integer(json.get<std::uint64_t>(), origin);
    case Type::number_float:
      return Value::real(json.get<double>(), origin);
    case Type::binary:
      return convert_long_integer(json, origin);
    case Type::string:
      return Value(plain_text(json.get_ref<const std::string&>(), origin));
    case Type::object:
      return convert_object(runtime, json, origin, depth);
    case Type::array: {
      auto list = std::make_shared<List>();
      for (const auto& item : json) {
        list->items.push_back(convert(runtime, item, origin, depth + 1));
        list->depth = std::max(list->depth, 1 + depth_of(list->items.back()));
      }
      return {ListRef(std::move(list)), origin};
    }
    default:
      return Value::none(origin);
  }
}

// The output is wholly untrusted, so it is written as plain bytes, of one origin per element.
class Writer {
 public:
  Writer(Runtime& runtime, const Value& value, const Args& args)
      : runtime_(runtime), out_(runtime.budget()) {
    const auto bound = args.bind("tojson", {"ensure_ascii", "indent", "separators", "sort_keys"});
    if (bound[0] != nullptr) is_ascii_only_ = is_true(*bound[0]);
    if (bound[3] != nullptr) sorts_keys_ = is_true(*bound[3]);
    if (bound[1] != nullptr && !bound[1]->is_none()) set_indent(*bound[1]);
    if (bound[2] != nullptr && !bound[2]->is_none()) set_separators(*bound[2]);
    origin_ = deep_origin(runtime.budget(), value);
    if (origin_ == Origin::kTrusted) origin_ = Origin::kOutside;
  }

  Value write(const Value& value) {
    write_value(value, 0);
    return Value(out_.finish());
  }

 private:
  void set_indent(const Value& indent) {
    is_indented_ = true;
    item_separator_.assign(1, ',');
    if (const Text* text = indent.text()) {
      indent_ = text->bytes();
      return;
    }
    const std::ptrdiff_t width = index_argument(indent, "indent");
    if (width > 1000) fail("an indent of {} is too large", width);
    indent_.assign(static_cast<std::size_t>(std::max<std::ptrdiff_t>(0, width)), ' ');
  }

  void set_separators(const Value& separators) {
    const ListRef parts = runtime_.elements(separators);
    if (parts->items.size() != 2) fail("separators must be two strings");
    item_separator_ = text_argument(parts->items[0], "a separator").bytes();
    key_separator_ = text_argument(parts->items[1], "a separator").bytes();
  }

  void put(std::string_view bytes) { out_.append(bytes, origin_); }

  void new_line(int depth) {
    if (!is_indented_) return;
    put("\n");
    for (int i = 0; i < depth; ++i) put(indent_);
  }

  void write_value(const Value& value, int depth) {
    const Origin around = origin_;
    if (value.origin() != Origin::kTrusted) origin_ = value.origin();
    write_plain_value(value, depth);
    origin_ = around;
  }

  void write_plain_value(const Value& value, int depth) {
    runtime_.budget().step();
    if (value.is_none()) return put("null");
    if (const auto* boolean = value.get_if<bool>()) return put(*boolean ? "true" : "false");
    if (const auto* integer = value.get_if<Integer>()) return put(integer_text(*integer));
    if (const auto* real = value.get_if<double>()) return put(real_text(*real));
    if (const Text* text = value.text()) return write_text(text->bytes());
    if (const Dict* dict = value.dict()) return write_dict(*dict, depth);
    const List* list = value.list();
    if (list == nullptr || list->kind > ListKind::kTuple) {
      fail("Object of type {} is not JSON serializable", type_name(value));
    }
    if (list->items.empty()) return put("[]");
    put("[");
    for (std::size_t i = 0; i < list->items.size(); ++i) {
      if (i > 0) put(item_separator_);
      new_line(depth + 1);
      write_value(list->items[i], depth + 1);
    }
    new_line(depth);
    put("]");
  }

  void write_dict(const Dict& dict, int depth) {
    if (dict.size() == 0) return put("{}");
    std::vector<const Dict::Entry*> entries;
    for (const auto& entry : dict.entries()) entries.push_back(&entry);
    if (sorts_keys_) {
      merge_sort(entries, [&](const auto* a, const auto* b) {
        return compare(runtime_.budget(), a->first, b->first) < 0;
      });
    }
    put("{");
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) put(item_separator_);
      new_line(depth + 1);
      write_key(entries[i]->first);
      put(key_separator_);
      write_value(entries[i]->second, depth + 1);
    }
    new_line(depth);
    put("}");
  }

  void write_key(const Value& key) {
    if (const Text* text = key.text()) return write_text(text->bytes());
    if (!key.is_none() && !is_number(key)) {
      fail("keys must be str, int, float, bool or None, not {}", type_name(key));
    }
    put("\"");
    write_value(key, 0);
    put("\"");
  }

  static std::string real_text(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
    return float_repr(value);
  }

  void write_text(std::string_view bytes) {
    runtime_.budget().step(bytes.size() / 4);
    put("\"");
    std::size_t plain = 0;
    for (std::size_t at = 0; at < bytes.size();) {
      const Character c = character_at(bytes, at);
      const bool is_plain = c.code_point != '"' && c.code_point != '\\' &&
                            (c.code_point < 0 || c.code_point >= 0x20) &&
                            !(is_ascii_only_ && c.code_point > 0x7E);
      if (!is_plain) {
        put(bytes.substr(plain, at - plain));
        plain = at + c.num_bytes;
        put(escape(c.code_point));
      }
      at += c.num_bytes;
    }
    put(bytes.substr(plain));
    put("\"");
  }

  static std::string escape(std::int32_t c) {
    switch (c) {
      case '"':
        return "\\\"";
      case '\\':
        return "\\\\";
      case '\n':
        return "\\n";
      case '\r':
        return "\\r";
      case '\t':
        return "\\t";
      case '\f':
        return "\\f";
      case '\b':
        return "\\b";
      default:
        break;
    }
    if (c < 0x10000) return fmt::format("\\u{:04x}", c);
    const std::int32_t rest = c - 0x10000;
    return fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (rest >> 10), 0xDC00 + (rest & 0x3FF));
  }

  Runtime& runtime_;
  TextBuilder out_;
  Origin origin_ = Origin::kOutside;
  bool is_ascii_only_ = false, sorts_keys_ = false, is_indented_ = false;
  std::string indent_, item_separator_ = ", ", key_separator_ = ": ";
};

}  // namespace

Value from_json(Runtime& runtime, const nlohmann::ordered_json& json, Origin origin) {
  return convert(runtime, json, origin, 1);
}

Value to_json(Runtime& runtime, const Value& value, const Args& args) {
  return Writer(runtime, value, args).write(value);
}

}  // namespace larder::jinja
