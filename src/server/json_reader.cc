#include "server/json_reader.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include "base/error.h"

namespace larder {
namespace {

// Receives the parser's events and builds the value. nlohmann's own builder looks through an
// ordered object's keys for every insertion, which a long object turns into hours.
class Builder final : public nlohmann::json_sax<Json> {
 public:
  Builder(const JsonLimits& limits, std::size_t& num_values) : limits_(limits), num_values_(num_values) {
    num_values_ = 0;
  }

  Json take() { return std::move(root_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t& text) override {
    if (text.find_first_of(".eE") != text.npos) return add(value);
    return add(Json::binary({text.begin(), text.end()}));
  }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t&) override { return false; }

  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }

  bool key(string_t& name) override {
    auto& members = open_.back()->get_ref<Json::object_t&>();
    members.emplace_back(std::move(name), nullptr);
    slot_ = &members.back().second;
    return true;
  }

  bool end_object() override {
    auto& members = open_.back()->get_ref<Json::object_t&>();
    limits_.takes_same_keys ? join_same_keys(members) : refuse_same_keys(members);
    return close();
  }
  bool end_array() override { return close(); }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    std::string_view reason = error.what();
    if (const auto end = reason.find("] "); end != std::string_view::npos) {
      reason.remove_prefix(end + 2);  // the library's own error code
    }
    throw_invalid("the body is not valid JSON at byte {}: {}", position, shorten(reason, 200));
  }

 private:
  template <class Value>
  bool add(Value&& value) {
    place(Json(std::forward<Value>(value)));
    return true;
  }

  Json* place(Json&& value) {
    if (++num_values_ > limits_.max_values) {
      throw_invalid("the body has more than {} JSON values; split the request", limits_.max_values);
    }
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (open_.back()->is_array()) {
      auto& items = open_.back()->get_ref<Json::array_t&>();
      items.push_back(std::move(value));
      return &items.back();
    }
    *slot_ = std::move(value);
    return slot_;
  }

  bool open(Json&& value) {
    if (open_.size() >= static_cast<std::size_t>(limits_.max_depth)) {
      throw_invalid("the body nests arrays and objects deeper than {} levels; make it flatter", limits_.max_depth);
    }
    open_.push_back(place(std::move(value)));
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  static std::vector<std::string_view> sorted_names(const Json::object_t& members) {
    // Sorted, not hashed: whoever chooses the keys can choose some that share one hash.
    std::vector<std::string_view> names;
    names.reserve(members.size());
    for (const auto& [name, value] : members) names.push_back(name);
    std::ranges::sort(names);
    return names;
  }

  static void refuse_same_keys(const Json::object_t& members) {
    if (members.size() < 2) return;
    const std::vector<std::string_view> names = sorted_names(members);
    if (const auto same = std::ranges::adjacent_find(names); same != names.end()) {
      throw_invalid("the body has the key \"{}\" twice in one object; send it once", shorten(*same));
    }
  }

  static void join_same_keys(Json::object_t& members) {
    if (members.size() < 2) return;
    const std::vector<std::string_view> names = sorted_names(members);
    if (std::ranges::adjacent_find(names) == names.end()) return;
    std::map<std::string, std::size_t> places;
    Json::object_t joined;
    for (auto& [name, value] : members) {
      const auto [place, is_new] = places.emplace(name, joined.size());
      if (is_new) joined.emplace_back(name, nullptr);
      std::next(joined.begin(), static_cast<std::ptrdiff_t>(place->second))->second = std::move(value);
    }
    members = std::move(joined);
  }

  const JsonLimits limits_;
  Json root_;
  std::vector<Json*> open_;  // containers that have begun, outermost first
  Json* slot_ = nullptr;     // where the value of the last key goes
  std::size_t& num_values_;
};

// Long integers' digits, and JSON that is written; in bytes.
std::size_t text_size(const Json& value) {
  if (value.is_binary()) return value.get_binary().size();
  std::size_t num_bytes = 0;
  if (value.is_structured())
    for (const Json& item : value) num_bytes += text_size(item);
  return num_bytes;
}

}  // namespace

Json parse_json(std::string_view text, const JsonLimits& limits, std::size_t* num_values) {
  if (text.empty()) throw_invalid("the body is empty; send a JSON object");
  std::size_t unused = 0;
  Builder builder(limits, num_values != nullptr ? *num_values : unused);
  Json::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

Json written_json(std::vector<std::uint8_t> text) {
  constexpr Json::binary_t::subtype_type kWritten = 1;
  return Json::binary(std::move(text), kWritten);
}

std::string_view find_text(const Json& value, const char* name) {
  const auto found = value.find(name);
  if (found == value.end() || !found->is_string()) return {};
  return found->get_ref<const std::string&>();
}

std::string dump_json(const Json& value) {
  const std::size_t num_bytes = text_size(value);
  if (num_bytes == 0) return value.dump(-1, ' ', false, Json::error_handler_t::replace);
  constexpr std::size_t kUsualRest = 16 << 10;  // so that what is long is not copied as the text grows
  std::string text;
  text.reserve(num_bytes + kUsualRest);
  append_json(value, ",", ":", text);
  return text;
}

void append_json(const Json& value, std::string_view comma, std::string_view colon,
                 std::string& out) {
  if (value.is_binary()) {
    const Json::binary_t& text = value.get_binary();
    out.append(reinterpret_cast<const char*>(text.data()), text.size());
  } else if (!value.is_structured()) {
    out += dump_json(value);
  } else {
    out += value.is_object() ? '{' : '[';
    bool is_first = true;
    for (const auto& [key, item] : value.items()) {
      if (!std::exchange(is_first, false)) out += comma;
      if (value.is_object()) out.append(dump_json(key)).append(colon);
      append_json(item, comma, colon, out);
    }
    out += value.is_object() ? '}' : ']';
  }
}

std::string shorten(std::string_view text, std::size_t max_bytes) {
  if (text.size() <= max_bytes) return std::string(text);
  std::size_t end = max_bytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return std::string(text.substr(0, end)) + "...";
}

}  // namespace larder
