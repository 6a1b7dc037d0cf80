#include "grammar/json_members.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>

#include "base/printable.h"

namespace larder {
namespace {

using Json = nlohmann::ordered_json;

class Reader {
 public:
  explicit Reader(const JsonConjunction& said) : said_(said) {
    for (const Json* others : said.all("additionalProperties")) {
      is_said_ = true;
      if (*others == false && closing_ == nullptr) closing_ = others;
      if (*others != false) others_.push_back(others);
    }
  }

  JsonMembers run() {
    for (const SchemaWords* part : said_.parts()) read_properties(*part);
    for (const SchemaWords* part : said_.parts()) read_others(*part);
    read_names();
    for (const Json* required : said_.all("required")) read_required(*required);
    std::erase_if(members_.named, [this](const JsonMembers::Named& member) { return barred_.contains(member.name); });
    for (const auto& [name, place] : barred_) members_.barred.push_back(name);
    read_patterns();
    read_name_pattern();
    // What is not said of the others is that there are none, where some are named.
    const bool names_some = !said_.all("properties").empty() || !said_.all("patternProperties").empty() ||
                            !members_.named.empty();
    if (closing_ == nullptr && names_ == nullptr && (is_said_ || !names_some)) members_.others = others_;
    return std::move(members_);
  }

 private:
  JsonMembers::Named& member(std::string_view name) {
    const auto [place, is_new] = places_.emplace(name, members_.named.size());
    if (is_new) members_.named.push_back({name, {}});
    return members_.named[place->second];
  }

  void read_properties(const SchemaWords& part) {
    const Json* properties = part.find("properties");
    if (properties == nullptr) return;
    for (const auto& [name, value] : object_at(*properties).items()) {
      said_.document().take_steps(1 + name.size() / 16);
      if (value == false) barred_.emplace(name, &value);
      member(name).schemas.push_back(&value);
    }
  }

  // What one schema says of those that it does not name binds those that others name, too.
  void read_others(const SchemaWords& part) {
    const Json* others = part.find("additionalProperties");
    if (others == nullptr || *others == true) return;
    const Json* properties = part.find("properties");
    std::set<std::string_view> named;
    if (properties != nullptr)
      for (const auto& [name, value] : properties->items()) named.insert(name);
    said_.document().take_steps(members_.named.size());
    for (JsonMembers::Named& member : members_.named) {
      if (named.contains(member.name)) continue;
      if (*others == false) barred_.emplace(member.name, others);
      member.schemas.push_back(others);
    }
  }

  // One that no properties name.
  void add_other(std::string_view name) {
    if (places_.contains(name)) return;
    if (closing_ != nullptr) barred_.emplace(name, closing_);
    member(name).schemas = others_;
  }

  void read_required(const Json& names) {
    if (names.is_boolean()) return;  // draft 3 has it within the member
    if (!names.is_array()) fail_at(names, "must be an array of names");
    for (const Json& name : names) {
      const std::string& text = string_at(name);
      said_.document().take_steps(1);
      const bool is_named = places_.contains(text);
      if (names_ != nullptr && !is_named) barred_.emplace(text, names_);
      add_other(text);
      if (const auto barred = barred_.find(text); barred != barred_.end()) refuse_required(names, *barred, is_named);
      member(text).is_required = true;
    }
  }

  [[noreturn]] void refuse_required(const Json& place, const std::pair<std::string_view, const Json*>& barred,
                                    bool is_named) const {
    const std::vector<const Json*> closing = said_.all("additionalProperties");
    const bool is_closed = is_named && std::ranges::find(closing, barred.second) != closing.end();
    throw SchemaFault{
        .place = &place,
        .reason = fmt::format("\"{}\" is forbidden", printable(barred.first)),
        .is_impossible = true,
        .cause = barred.second,
        .advice = is_closed ? "leave that out, or say unevaluatedProperties beside allOf" : "leave one of them out"};
  }

  void read_patterns() {
    std::vector<const Json*> all = said_.all("patternProperties");
    std::erase_if(all, [](const Json* patterns) { return object_at(*patterns).empty(); });
    if (all.empty()) return;
    const Json& patterns = *all.front();
    refuse_beside_named(patterns);
    const bool is_closed_there = std::ranges::any_of(said_.parts(), [&](const SchemaWords* part) {
      const Json* others = part->find("additionalProperties");
      return part->find("patternProperties") == &patterns && others != nullptr && *others == false;
    });
    const std::size_t num_said = said_.all("additionalProperties").size();
    if (all.size() > 1 || num_said > (is_closed_there ? 1u : 0u))
      fail_at(patterns, "is supported without others; set additionalProperties to false");
    for (const auto& [expression, schema] : patterns.items())
      members_.by_pattern.push_back({&patterns, expression, {&schema}});
  }

  void refuse_beside_named(const Json& patterns) const {
    if (!members_.named.empty() || !barred_.empty())
      fail_at(patterns, "beside properties is not supported; leave it out");
  }

  void read_names() {
    const std::vector<const Json*> schemas = said_.all("propertyNames");
    const SchemaSet set = said_.document().together(schemas);
    if (set.empty()) return;
    for (const Json* place : set)
      if (place->is_array()) fail_at(*place, "is not supported for names; leave it out");
    const JsonConjunction names(said_.document(), set, *schemas.front());
    if (const auto values = names.values()) return read_names_of(*values);
    for (const SchemaWords* part : names.parts()) {
      for (const auto& [word, value] : part->all()) {
        constexpr std::string_view kTaken[] = {"type", "pattern", "format", "minLength", "maxLength", "$ref", "allOf"};
        if (std::ranges::find(kTaken, word) == std::end(kTaken))
          fail_at(*value, "is not supported; leave it out");
      }
    }
    if ((names.types().value_or(kString) & kString) == 0)
      fail_at(*schemas.front(), "leaves no name, as names are strings");
    read_name_form(names);
  }

  void read_name_form(const JsonConjunction& names) {
    const std::vector<const Json*> patterns = names.patterns();
    const JsonFormat* format = names.format();
    const Repetitions length = names.counts("minLength", "maxLength");
    const bool has_length = length.min > 0 || length.max;
    if (patterns.size() > 1) fail_at(*patterns[1], "beside another pattern is not supported; leave it out");
    if (!patterns.empty()) {
      if (has_length)
        fail_at(*patterns.front(), "beside minLength or maxLength is not supported; say the length in the pattern");
      name_pattern_ = patterns.front();
      name_expression_ = string_at(*name_pattern_);
    } else if (format != nullptr) {
      name_pattern_ = names.all("format").front();
      if (has_length) fail_at(*name_pattern_, "beside minLength or maxLength is not supported for names; leave it out");
      name_expression_ = fmt::format("^({})$", format->expression);
    } else if (has_length) {
      name_pattern_ = names.all(length.min > 0 ? "minLength" : "maxLength").front();
      const std::string most = length.max ? std::to_string(*length.max) : "";
      name_expression_ = fmt::format(R"(^[\s\S]{{{},{}}}$)", length.min, most);
    }
  }

  // Each of them may be there, once.
  void read_names_of(const std::vector<const Json*>& values) {
    names_ = said_.all("propertyNames").front();
    std::set<std::string_view> names;
    for (const Json* value : values)
      if (value->is_string()) names.insert(string_at(*value));
    for (const JsonMembers::Named& member : members_.named)
      if (!names.contains(member.name)) barred_.emplace(member.name, names_);
    for (const Json* value : values)
      if (value->is_string()) add_other(string_at(*value));
  }

  void read_name_pattern() {
    if (name_pattern_ == nullptr) return;
    refuse_beside_named(*name_pattern_);
    if (!members_.by_pattern.empty())
      fail_at(*name_pattern_, "beside patternProperties is not supported; leave it out");
    names_ = name_pattern_;
    if (closing_ == nullptr) members_.by_pattern.push_back({name_pattern_, name_expression_, others_});
  }

  const JsonConjunction& said_;
  bool is_said_ = false;  // what is not named
  const Json* closing_ = nullptr;  // says that there are no others
  const Json* names_ = nullptr;    // says which names there may be
  const Json* name_pattern_ = nullptr;  // says what all of them are like
  std::string name_expression_;
  SchemaSet others_;  // of what is not named
  JsonMembers members_;
  std::map<std::string_view, std::size_t> places_;
  std::map<std::string_view, const Json*> barred_;  // and by what
};

}  // namespace

JsonMembers read_members(const JsonConjunction& said) { return Reader(said).run(); }

}  // namespace larder
