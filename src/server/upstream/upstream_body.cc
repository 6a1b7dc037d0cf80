#include "server/upstream/upstream_body.h"

#include "base/check.h"
#include "server/json_reader.h"

namespace larder {
namespace {

// Walks the members of the outermost object.
class Members {
 public:
  explicit Members(std::string_view text) : text_(text) {
    constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";  // parse_json() takes one, too
    if (text.starts_with(kByteOrderMark)) at_ = kByteOrderMark.size();
    skip_space();
    CHECK(next() == '{', at_);
    ++at_;
    first_ = at_;
  }

  // Behind the brace.
  std::size_t first() const { return first_; }

  // To the next member. False = there is none.
  bool advance() {
    skip_space();
    if (next() == ',') ++at_;
    skip_space();
    if (next() != '"') return false;
    key_begin_ = at_;
    skip_string();
    key_end_ = at_;
    skip_space();
    ++at_;  // the colon
    skip_space();
    value_begin_ = at_;
    skip_value();
    value_end_ = at_;
    return true;
  }

  bool has_key(std::string_view name) const {
    const std::string_view key = text_.substr(key_begin_, key_end_ - key_begin_);  // with its quotes
    if (key.find('\\') == key.npos) return key.substr(1, key.size() - 2) == name;
    return parse_json(key, {}).get_ref<const std::string&>() == name;
  }
  std::size_t value_begin() const { return value_begin_; }
  std::size_t value_end() const { return value_end_; }

 private:
  char next() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void skip_space() {
    while (next() == ' ' || next() == '\t' || next() == '\r' || next() == '\n') ++at_;
  }
  void skip_string() {
    for (++at_; at_ < text_.size() && text_[at_] != '"'; ++at_) {
      if (text_[at_] == '\\') ++at_;
    }
    ++at_;
  }
  // Brackets within strings aside, a value ends where those that it opens are closed.
  void skip_value() {
    int depth = 0;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '"') {
        skip_string();
        if (depth == 0) return;
        continue;
      }
      if (c == '{' || c == '[') ++depth;
      if (c == '}' || c == ']') {
        if (depth == 0) return;  // the outermost object's
        ++at_;
        if (--depth == 0) return;
        continue;
      }
      const bool ends_word = c == ',' || c == ' ' || c == '\t' || c == '\r' || c == '\n';
      if (depth == 0 && ends_word) return;
      ++at_;
    }
  }

  const std::string_view text_;
  std::size_t at_ = 0;
  std::size_t first_ = 0;
  std::size_t key_begin_ = 0, key_end_ = 0;
  std::size_t value_begin_ = 0, value_end_ = 0;
};

}  // namespace

BodyEdit edit_model(std::string_view body, const std::string& name) {
  Members members(body);
  bool is_empty = true;
  while (members.advance()) {
    is_empty = false;
    if (!members.has_key("model")) continue;
    return {.begin = members.value_begin(), .end = members.value_end(), .replacement = dump_json(name)};
  }
  const std::size_t first = members.first();
  return {.begin = first, .end = first, .replacement = "\"model\":" + dump_json(name) + (is_empty ? "" : ",")};
}

std::string apply_edit(std::string_view body, const BodyEdit& edit) {
  std::string edited;
  edited.reserve(edit.new_size(body.size()));
  edited += body.substr(0, edit.begin);
  edited += edit.replacement;
  edited += body.substr(edit.end);
  return edited;
}

}  // namespace larder
