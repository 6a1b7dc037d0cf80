#include "grammar/json_schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <queue>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"
#include "grammar/grammar_state.h"
#include "grammar/json_conjunction.h"
#include "grammar/json_document.h"
#include "grammar/json_formats.h"
#include "grammar/json_members.h"
#include "grammar/json_numbers.h"
#include "grammar/regex.h"

namespace larder {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMaxValues = 10'000;  // of JSON
constexpr JsonTypes kEachType[] = {kObject, kArray, kString, kInteger, kBoolean, kNull};

std::size_t count_values(const Json& value) {
  std::size_t count = 1;
  if (value.is_structured()) {
    for (const Json& item : value) count += count_values(item);
  }
  return count;
}

// A rule for each set of schemas that hold at once, by which what refers to itself comes to an end. What only one place
// of the document leads to needs none.
class Compiler {
 public:
  Compiler(JsonParts& parts, const Json& root, const std::string& path, SchemaUse use)
      : parts_(parts), builder_(parts.builder()), document_(root, path, use == SchemaUse::kStrict), use_(use) {}

  Fragment run() {
    const Json& root = document_.root();
    const Fragment whole = value_of({&root}, {.is_once = true});
    for (; !pending_.empty(); pending_.pop()) {
      const Pending next = std::move(pending_.front());
      const auto make = [&] { return build(next.set, *next.place, {.is_once = next.set.size() == 1}); };
      builder_.define(next.rule, guarded(make, [&] { return any_of_type(next.set); }));
    }
    if (use_ == SchemaUse::kLenient) free_values(whole);
    if (builder_.prune(whole)) return whole;
    if (const auto cause = builder_.find_cause(whole, dead_)) tell(impossible_[*cause]);
    tell({&root, "is satisfied by nothing that has an end; have it require less"});
  }

 private:
  struct Nesting {
    int depth = 0;
    bool is_once = false;  // nothing else leads to what is within
  };
  struct Pending {
    GrammarRule rule;
    SchemaSet set;
    const Json* place;
  };
  // Of a member or an item, or the whole.
  struct Value {
    GrammarBuilder::Replaceable part;
    SchemaSet schemas;
  };

  [[noreturn]] void tell(const SchemaFault& fault) const {
    const std::string path = document_.path_of(fault);
    std::string reason = fault.reason;
    if (fault.cause != nullptr) reason += fmt::format(" by {}; {}", document_.path_of({fault.cause, {}}), fault.advice);
    throw Error(ErrorKind::kInvalidArgument, fmt::format("{}: {}", path, reason), path);
  }

  // make_free: of what is passed over, what remains.
  template <class Make, class MakeFree>
  std::invoke_result_t<Make> guarded(Make make, MakeFree make_free) {
    try {
      return make();
    } catch (const SchemaFault& fault) {
      if (fault.is_impossible) {
        dead_.push_back(builder_.replaceable({builder_.add_node(), builder_.add_node()}));
        impossible_.push_back(fault);
        return dead_.back().outer;
      }
      if (use_ == SchemaUse::kStrict) tell(fault);
      return make_free();
    }
  }

  // What these permit where nothing but their types counts.
  Fragment any_of_type(const SchemaSet& schemas) {
    SchemaSet set;
    for (const Json* schema : schemas) {
      try {
        if (!schema->is_array()) document_.add(*schema, set);
      } catch (const SchemaFault&) {
        if (schema->is_object()) set.push_back(schema);
      }
    }
    std::erase_if(set, [](const Json* schema) { return schema->is_array(); });
    std::optional<JsonTypes> types;
    try {
      if (!set.empty()) types = JsonConjunction(document_, set, *set.front()).types();
    } catch (const SchemaFault&) {  // they have none that is known, or none in common
    }
    if (!types) return parts_.any_value();
    std::vector<Fragment> choices;
    for (const JsonTypes type : kEachType) {
      if ((*types & type) == type) choices.push_back(any_of_type(type, *types));
    }
    return builder_.choice(choices);
  }

  // types: one number stands for integers, too.
  Fragment any_of_type(JsonTypes type, JsonTypes types) {
    switch (type) {
      case kObject:
        return parts_.any_object();
      case kArray:
        return parts_.any_array();
      case kString:
        return parts_.any_string();
      case kBoolean:
        return parts_.one_of({"true", "false"});
      case kNull:
        return builder_.text("null");
      default:
        return (types & kNumber) == kNumber ? add_json_number(builder_, {}) : add_json_integer(builder_, {});
    }
  }

  // All of the schemas. Of a tool that is not strict it is freed where nothing satisfies them.
  Fragment value_of(const SchemaSet& schemas, Nesting nesting) {
    const Fragment value = any(schemas, nesting);
    if (use_ == SchemaUse::kStrict) return value;
    values_.push_back({builder_.replaceable(value), schemas});
    return values_.back().part.outer;
  }

  // The least of them by which nothing is left that has to be there, or that may be.
  void free_values(Fragment whole) {
    std::vector<GrammarBuilder::Replaceable> parts;
    for (const Value& value : values_) parts.push_back(value.part);
    for (const std::size_t index : builder_.find_dead_parts(whole, parts, choices_)) {
      const Value& value = values_[index];
      builder_.replace(value.part, any_of_type(value.schemas));
    }
  }

  Fragment choice(const std::vector<Fragment>& parts) {
    const Fragment whole = builder_.choice(parts);
    if (parts.size() > 1) choices_.push_back(whole.begin);
    return whole;
  }

  Fragment any(const SchemaSet& schemas, Nesting nesting) {
    const auto make = [&] {
      const SchemaSet set = document_.together(schemas);
      return any_of_set(set, *(schemas.empty() ? &document_.root() : schemas.front()),
                        {.depth = nesting.depth, .is_once = nesting.is_once && is_alone(schemas)});
    };
    return guarded(make, [&] { return any_of_type(schemas); });
  }

  Fragment any_of_set(const SchemaSet& set, const Json& place, Nesting nesting) {
    if (set.empty()) return parts_.any_value();
    return nesting.is_once ? build(set, place, nesting) : builder_.call(rule_of(set, place));
  }

  // Without others that it leads to.
  bool is_alone(const SchemaSet& schemas) {
    if (schemas.size() != 1 || !schemas.front()->is_object()) return false;
    const SchemaWords& words = document_.words(*schemas.front());
    return words.find("$ref") == nullptr && words.find("allOf") == nullptr;
  }

  const GrammarRule& rule_of(const SchemaSet& set, const Json& place) {
    SchemaSet key = set;
    std::ranges::sort(key);
    const auto [found, is_new] = rules_.try_emplace(std::move(key));
    if (is_new) {
      found->second = builder_.declare();
      pending_.push({found->second, set, &place});
    }
    return found->second;
  }

  Fragment build(const SchemaSet& set, const Json& place, Nesting nesting) {
    if (++nesting.depth > SchemaDocument::kMaxDepth) {
      fail_at(place,
              fmt::format("schemas are nested deeper than {} levels; send a simpler one", SchemaDocument::kMaxDepth));
    }
    if (std::ranges::any_of(set, &Json::is_array)) return any_of({set, &place, nesting.is_once}, nesting);
    const JsonConjunction said(document_, set, place);
    try {
      return typed(said, nesting);
    } catch (const Error& error) {
      // The parts that know nothing of the schema do not know the place.
      if (!error.param().empty()) throw;
      const std::string path = document_.path_of({&place, {}});
      throw Error(error.kind(), fmt::format("{}: {}", path, error.message()), path);
    }
  }

  struct Choice {
    SchemaSet set;
    const Json* place;
    bool is_once;
  };

  // Choices of choices are choices of one. What is come to again by nothing but choices adds nothing.
  Fragment any_of(Choice first, Nesting nesting) {
    const Json& choices = **std::ranges::find_if(first.set, &Json::is_array);
    std::vector<Fragment> parts;
    std::vector<Choice> found;
    std::set<SchemaSet> seen;
    std::queue<Choice> open;
    const auto add = [&](Choice choice) {
      SchemaSet key = choice.set;
      std::ranges::sort(key);
      if (seen.insert(std::move(key)).second) open.push(std::move(choice));
    };
    for (add(std::move(first)); !open.empty(); open.pop()) {
      const Choice& next = open.front();
      const auto list = std::ranges::find_if(next.set, &Json::is_array);
      if (list == next.set.end()) {
        found.push_back(next);
        continue;
      }
      for (Choice& choice : choices_of(next, **list, parts)) add(std::move(choice));
    }
    if (std::ranges::any_of(found, [this](const Choice& one) { return (types_of(one) & kInteger) != 0; }))
      std::erase_if(found, [this](const Choice& one) { return is_unreadable_string(one); });
    for (const Choice& next : found) {
      const auto make = [&] {
        return any_of_set(next.set, *next.place, {.depth = nesting.depth, .is_once = next.is_once});
      };
      parts.push_back(guarded(make, [&] { return any_of_type(next.set); }));
    }
    if (parts.empty()) fail_impossible(choices, "holds nothing that a value could be");
    return choice(parts);
  }

  // As far as it is known.
  JsonTypes types_of(const Choice& choice) {
    try {
      return JsonConjunction(document_, choice.set, *choice.place).types().value_or(kNoType);
    } catch (const SchemaFault&) {
      return kNoType;
    }
  }

  // Some write a number as a string, too, and say what it looks like by what expressions cannot: it is no loss where a
  // number may stand there.
  bool is_unreadable_string(const Choice& choice) {
    if (types_of(choice) != kString) return false;
    const JsonConjunction said(document_, choice.set, *choice.place);
    for (const Json* pattern : said.all("pattern")) {
      try {
        (void)said.grammar_of(*pattern, TextForm::kJsonString);
      } catch (const SchemaFault&) {
        return true;
      }
    }
    return false;
  }

  // Of one list of the set. What becomes of those that cannot be obeyed is added to parts.
  std::vector<Choice> choices_of(const Choice& from, const Json& list, std::vector<Fragment>& parts) {
    document_.take_steps(list.size() * from.set.size());
    SchemaSet others = from.set;
    std::erase(others, &list);
    std::vector<Choice> choices;
    const auto add = [&](const Json& choice) {
      SchemaSet set = others;
      document_.add(choice, set);
      // It may lead to the list again, from which it has been chosen: that is true of it.
      const bool leads_back = std::erase(set, &list) > 0;
      if (!leads_back || set != others)
        choices.push_back({set, &choice, from.is_once && others.empty() && is_alone({&choice})});
      return std::optional<Fragment>();
    };
    for (const Json& choice : list) {
      if (choice == false) continue;
      const auto free = guarded([&] { return add(choice); }, [&]() -> std::optional<Fragment> {
        SchemaSet all = others;
        all.push_back(&choice);
        return any_of_type(all);
      });
      if (free) parts.push_back(*free);
    }
    return choices;
  }

  Fragment typed(const JsonConjunction& said, Nesting nesting) {
    if (const auto values = said.values()) {
      std::vector<std::string> texts;
      for (const Json* value : *values) texts.push_back(written(*value));
      return parts_.one_of(std::move(texts));
    }
    const std::optional<JsonTypes> types = said.types();
    if (!types) return parts_.any_value();
    std::vector<Fragment> choices;
    const auto add = [&](JsonTypes type, auto make) {
      if ((*types & type) == type) choices.push_back(guarded(make, [&] { return any_of_type(type, *types); }));
    };
    add(kObject, [&] { return object(said, nesting); });
    add(kArray, [&] { return array(said, nesting); });
    add(kString, [&] { return string(said); });
    add(kInteger, [&] { return number(said, (*types & kNumber) == kNumber); });
    add(kBoolean, [&] { return parts_.one_of({"true", "false"}); });
    add(kNull, [&] { return builder_.text("null"); });
    return choice(choices);
  }

  Fragment number(const JsonConjunction& said, bool may_have_fraction) {
    const NumberBounds bounds = said.bounds();
    try {
      return may_have_fraction ? add_json_number(builder_, bounds) : add_json_integer(builder_, bounds);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kInvalidArgument) throw;
      fail_impossible(said.place(), error.message());
    }
  }

  Fragment regex(std::string_view expression, const Json& place) {
    try {
      return parts_.quoted(add_regex(builder_, expression, TextForm::kJsonString, false));
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kInvalidArgument) throw;
      fail_at(place, error.message());
    }
  }

  Fragment string(const JsonConjunction& said) {
    const Repetitions length = said.counts("minLength", "maxLength");
    const std::vector<const Json*> patterns = said.patterns();
    if (!patterns.empty()) {
      const Json& pattern = *patterns.front();
      for (const Json* other : patterns)
        if (*other != pattern) fail_at(*other, "beside another pattern is not supported; say it in one");
      if (!has_every_length(said, pattern, length))
        fail_at(pattern, "beside minLength or maxLength is not supported; say the length in the pattern");
      return regex(string_at(pattern), pattern);
    }
    if (const JsonFormat* format = said.format()) {
      if (length.min > format->shortest || (length.max && *length.max < format->longest)) {
        fail_at(*said.all("format").front(),
                fmt::format("is written with {} to {} characters here, which minLength and maxLength have to permit",
                            format->shortest, format->longest));
      }
      return parts_.quoted(add_regex(builder_, format->expression, TextForm::kJsonString, true));
    }
    return length.min > 0 || length.max ? parts_.string_of_length(length) : parts_.any_string();
  }

  // That a string is not empty, the pattern may say by itself.
  static bool has_every_length(const JsonConjunction& said, const Json& pattern, const Repetitions& length) {
    if (length.max || length.min > 1) return false;
    if (length.min == 0) return true;
    const Grammar alone = said.grammar_of(pattern, TextForm::kJsonString);
    return !GrammarState(alone).is_whole();
  }

  struct ItemWords {
    std::vector<const Json*> first;  // of the first places, one each
    const Json* others = nullptr;    // of all behind those
  };

  // Before 2020 a list of items was what prefixItems is now.
  static ItemWords read_items(const SchemaWords& part) {
    const Json* items = part.find("items");
    const bool is_old = items != nullptr && items->is_array();
    ItemWords said{.first = {}, .others = is_old ? part.find("additionalItems") : items};
    if (const Json* first = is_old ? items : part.find("prefixItems")) {
      for (const Json& item : list_at(*first)) said.first.push_back(&item);
    }
    return said;
  }

  Fragment array(const JsonConjunction& said, Nesting nesting) {
    std::vector<ItemWords> parts;
    for (const SchemaWords* part : said.parts()) parts.push_back(read_items(*part));
    std::size_t num_first = 0;
    std::optional<std::size_t> most;
    for (const ItemWords& part : parts) {
      num_first = std::max(num_first, part.first.size());
      const bool is_closed = part.others != nullptr && *part.others == false;
      if (is_closed) most = std::min(most.value_or(part.first.size()), part.first.size());
    }
    JsonParts::Items items;
    items.count = said.counts("minItems", "maxItems");
    if (most && items.count.min > *most) {
      fail_impossible(said.place(), fmt::format("is {}, and there are {} items", items.count.min, *most), "minItems");
    }
    document_.take_steps(num_first * parts.size());
    // Of the first place that has none of its own, what is true of all others.
    const auto rule_at = [&](std::size_t index) {
      SchemaSet schemas;
      for (const ItemWords& part : parts) {
        const Json* schema = index < part.first.size() ? part.first[index] : part.others;
        if (schema != nullptr) schemas.push_back(schema);
      }
      return builder_.rule(value_of(schemas, nesting));
    };
    for (std::size_t i = 0; i < std::min(num_first, most.value_or(num_first)); ++i) items.first.push_back(rule_at(i));
    if (!most) items.others = rule_at(num_first);
    return parts_.array_of(items);
  }

  // Nullopt: there are none beside those that are named.
  std::optional<GrammarRule> other_members(const JsonMembers& members, Nesting nesting) {
    if (!members.has_others()) return std::nullopt;
    std::vector<Fragment> kinds;
    for (const auto& [place, expression, schemas] : members.by_pattern) {
      const Fragment name = regex(expression, *place);
      kinds.push_back(builder_.sequence({name, parts_.colon(), value_of(schemas, nesting)}));
    }
    if (members.others) {
      std::vector<std::string> names;
      for (const JsonMembers::Named& member : members.named) names.push_back(written(Json(member.name)));
      for (const std::string_view name : members.barred) names.push_back(written(Json(name)));
      for (std::string& name : names) name = name.substr(1, name.size() - 2);
      const Fragment value = value_of(*members.others, nesting);
      kinds.push_back(builder_.sequence({parts_.other_string(names), parts_.colon(), value}));
    }
    return builder_.rule(builder_.choice(kinds));
  }

  Fragment object(const JsonConjunction& said, Nesting nesting) {
    const JsonMembers all = read_members(said);
    const std::vector<JsonMembers::Named>& members = all.named;
    // What is said of other members may be said of several that are named.
    nesting.is_once &= members.empty() || std::ranges::all_of(said.all("additionalProperties"), &Json::is_boolean);
    const std::optional<GrammarRule> others = other_members(all, nesting);
    // Before each member, whoever follows may be the next one; behind it, the end or a comma.
    const Fragment begin = builder_.sequence({builder_.text("{"), parts_.space()});
    const GrammarNode end = builder_.add_node();
    const auto add_end = [&](GrammarNode from) {
      const Fragment blank = parts_.space();
      builder_.add_empty(from, blank.begin);
      builder_.add_bytes(blank.end, {'}', '}'}, end);
    };
    const auto add_comma = [&](GrammarNode from, GrammarNode to) {
      const Fragment comma = parts_.comma();
      builder_.add_empty(from, comma.begin);
      builder_.add_empty(comma.end, to);
    };
    std::size_t num_needed = 0;  // members up to the last required one
    for (std::size_t i = 0; i < members.size(); ++i) num_needed = members[i].is_required ? i + 1 : num_needed;
    GrammarNode next = builder_.add_node();
    builder_.add_empty(begin.end, next);
    if (num_needed == 0) builder_.add_bytes(begin.end, {'}', '}'}, end);
    for (std::size_t i = 0; i < members.size(); ++i) {
      const GrammarNode after = builder_.add_node();
      const Fragment value = value_of(members[i].schemas, nesting);
      const Fragment member = builder_.sequence({builder_.text(written(Json(members[i].name))), parts_.colon(), value});
      builder_.add_empty(next, member.begin);
      if (!members[i].is_required) builder_.add_empty(next, after);
      if (i + 1 >= num_needed) add_end(member.end);
      if (i + 1 < members.size() || others) add_comma(member.end, after);
      next = after;
    }
    if (others) {
      const Fragment member = builder_.call(*others);
      builder_.add_empty(next, member.begin);
      add_end(member.end);
      add_comma(member.end, next);
    }
    return {begin.begin, end};
  }

  JsonParts& parts_;
  GrammarBuilder& builder_;
  SchemaDocument document_;
  const SchemaUse use_;
  std::map<SchemaSet, GrammarRule> rules_;
  std::queue<Pending> pending_;
  std::vector<GrammarBuilder::Replaceable> dead_;  // that nothing satisfies
  std::vector<SchemaFault> impossible_;            // and why, each
  std::vector<Value> values_;         // that may have to be freed
  std::vector<GrammarNode> choices_;  // begins of what needs one part only
};

}  // namespace

Fragment add_json_schema(JsonParts& parts, const nlohmann::ordered_json& schema, const std::string& path,
                         SchemaUse use) {
  if (const std::size_t count = count_values(schema); count > kMaxValues) {
    throw Error(
        ErrorKind::kTooLarge,
        fmt::format("{}: has {} values of JSON, at most {} are taken; send a simpler one", path, count, kMaxValues),
        path);
  }
  return Compiler(parts, schema, path, use).run();
}

}  // namespace larder
