// Which methods a value has, and those of dicts and lists.
#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "tokenizer/jinja/jinja_runtime.h"

namespace larder::jinja {
namespace {

using Names = std::initializer_list<std::string_view>;

bool has(Names names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

const Names kTextMethods = {
    "capitalize",   "casefold",    "center",    "count",      "encode",       "endswith",
    "expandtabs",   "find",        "format",    "format_map", "index",        "isalnum",
    "isalpha",      "isascii",     "isdecimal", "isdigit",    "isidentifier", "islower",
    "isnumeric",    "isprintable", "isspace",   "istitle",    "isupper",      "join",
    "ljust",        "lower",       "lstrip",    "maketrans",  "partition",    "removeprefix",
    "removesuffix", "replace",     "rfind",     "rindex",     "rjust",        "rpartition",
    "rsplit",       "rstrip",      "split",     "splitlines", "startswith",   "strip",
    "swapcase",     "title",       "translate", "upper",      "zfill"};
const Names kDictMethods = {"copy", "fromkeys", "get", "items", "keys", "values"};
const Names kDictChanges = {"clear", "pop", "popitem", "setdefault", "update"};
const Names kListMethods = {"copy", "count", "index"};
const Names kListChanges = {"append", "clear",  "extend",  "insert",
                            "pop",    "remove", "reverse", "sort"};

Value dict_view(Runtime& runtime, const Value& self, ListKind kind) {
  ListBuilder items(runtime);
  for (const auto& [key, value] : self.dict()->entries()) {
    if (kind == ListKind::kKeys) {
      items.push(key);
    } else if (kind == ListKind::kValues) {
      items.push(value);
    } else {
      items.push(runtime.pair(key, value));
    }
  }
  return items.finish(kind, self.origin());
}

Value call_dict_method(Runtime& runtime, const Value& self, std::string_view name,
                       const Args& args) {
  const Dict& dict = *self.dict();
  if (name == "get") {
    const auto bound = args.bind("get", {"key", "default"}, 1);
    if (!args.keyword.empty()) fail("get() takes no keyword arguments");
    if (const Value* found = dict.find(runtime.budget(), *bound[0])) return *found;
    return bound[1] != nullptr ? *bound[1] : Value::none();
  }
  if (name == "fromkeys") {
    const auto bound = args.bind("fromkeys", {"iterable", "value"}, 1);
    Dict made(runtime.budget());
    const ListRef keys = runtime.elements(*bound[0]);
    for (const Value& key : keys->items) {
      made.set(runtime.budget(), key, bound[1] != nullptr ? *bound[1] : Value::none());
    }
    return runtime.dict(std::move(made));
  }
  args.bind(name, {});
  if (name == "items") return dict_view(runtime, self, ListKind::kItems);
  if (name == "keys") return dict_view(runtime, self, ListKind::kKeys);
  if (name == "values") return dict_view(runtime, self, ListKind::kValues);
  return self;  // copy: nothing can change either
}

Value call_list_method(Runtime& runtime, const Value& self, std::string_view name,
                       const Args& args) {
  if (name == "copy") {
    args.bind(name, {});
    return self;
  }
  const auto bound = args.bind(name, {"value", "start", "stop"}, 1);
  const auto& items = self.list()->items;
  if (name == "count") {
    return Value::integer(std::count_if(items.begin(), items.end(), [&](const Value& item) {
      return are_equal(runtime.budget(), item, *bound[0]);
    }));
  }
  const auto limit = [&](const Value* value, std::size_t otherwise) {
    if (value == nullptr) return otherwise;
    const auto size = static_cast<std::ptrdiff_t>(items.size());
    std::ptrdiff_t index = index_argument(*value, "slice indices");
    if (index < 0) index += size;
    return static_cast<std::size_t>(std::clamp<std::ptrdiff_t>(index, 0, size));
  };
  const std::size_t stop = limit(bound[2], items.size());
  for (std::size_t i = limit(bound[1], 0); i < stop; ++i) {
    if (are_equal(runtime.budget(), items[i], *bound[0])) return Value::integer(i);
  }
  fail("{} is not in {}", to_str(runtime.budget(), *bound[0])->bytes().substr(0, 100),
       type_name(self));
}

}  // namespace

MethodStatus find_method(const Value& self, std::string_view name) {
  const auto among = [name](Names allowed, Names forbidden) {
    if (has(allowed, name)) return MethodStatus::kAllowed;
    return has(forbidden, name) ? MethodStatus::kForbidden : MethodStatus::kNone;
  };
  if (self.text() != nullptr) return among(kTextMethods, {});
  if (self.dict() != nullptr) return among(kDictMethods, kDictChanges);
  if (const List* list = self.list()) {
    if (list->kind == ListKind::kList) return among(kListMethods, kListChanges);
    if (list->kind <= ListKind::kRange) return among({"count", "index"}, {});
  }
  if (self.is<double>() && name == "is_integer") return MethodStatus::kAllowed;
  return MethodStatus::kNone;
}

Value call_method(Runtime& runtime, const Value& self, std::string_view name, const Args& args) {
  runtime.budget().step();
  if (self.text() != nullptr) return call_text_method(runtime, self, name, args);
  if (self.dict() != nullptr) return call_dict_method(runtime, self, name, args);
  if (self.list() != nullptr) return call_list_method(runtime, self, name, args);
  args.bind(name, {});
  const double real = *self.get_if<double>();
  return Value::boolean(std::isfinite(real) && real == std::floor(real));
}

}  // namespace larder::jinja
