// As much of nlohmann's JSON as the golden results need, for a machine that has not got it: objects,
// arrays, numbers and texts without escapes. For tests/gpu/run alone.
#pragma once

#include <istream>
#include <stdexcept>
#include <string>
#include <vector>

namespace nlohmann {

class json {
 public:
  static json parse(std::istream& in) {
    json value;
    char c = 0;
    in >> c;
    if (c == '{' || c == '[') {
      value.read_members(in, c == '{');
    } else if (c == '"') {
      std::getline(in, value.text_, '"');
    } else {
      in.unget();
      in >> value.number_;
    }
    if (!in) throw std::runtime_error("broken JSON");
    return value;
  }

  const json& at(const std::string& key) const {
    for (std::size_t i = 0; i < keys_.size(); ++i)
      if (keys_[i] == key) return items_[i];
    throw std::out_of_range("JSON lacks " + key);
  }
  std::string value(const std::string& key, const char* otherwise) const {
    for (std::size_t i = 0; i < keys_.size(); ++i)
      if (keys_[i] == key) return items_[i].text_;
    return otherwise;
  }

  template <class T>
  operator std::vector<T>() const {
    std::vector<T> numbers;
    for (const json& item : items_) numbers.push_back(static_cast<T>(item.number_));
    return numbers;
  }

 private:
  void read_members(std::istream& in, bool has_keys) {
    const char end = has_keys ? '}' : ']';
    char c = 0;
    if ((in >> std::ws).peek() == end) {
      in >> c;
      return;
    }
    do {
      if (has_keys) {
        keys_.push_back(parse(in).text_);
        in >> c;
        if (c != ':') in.setstate(std::ios::failbit);
      }
      items_.push_back(parse(in));
      in >> c;
    } while (in && c == ',');
    if (c != end) in.setstate(std::ios::failbit);
  }

  std::vector<std::string> keys_;
  std::vector<json> items_;
  std::string text_;
  double number_ = 0;
};

}  // namespace nlohmann
