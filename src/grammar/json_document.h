// A JSON schema as it was sent: its places, and which of them hold at once. Nothing of it is copied.
#pragma once

#include <cstddef>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace larder {

// What holds at once: of a schema its own words, of a list (anyOf, oneOf) one of what it holds. Each once, in the order
// in which they are come upon; of none, anything is permitted.
using SchemaSet = std::vector<const nlohmann::ordered_json*>;

// Why a schema cannot be taken.
struct SchemaFault {
  const nlohmann::ordered_json* place;  // in the document
  std::string reason;
  bool is_impossible = false;   // nothing satisfies it: no fault where there is a choice
  std::string_view word = {};   // of that place, which several schemas at once say; "" = none
  // By what it is so, and what to do about it: behind the reason.
  const nlohmann::ordered_json* cause = nullptr;
  std::string_view advice = {};
};

// Throw a SchemaFault.
[[noreturn]] void fail_at(const nlohmann::ordered_json& place, std::string reason);
[[noreturn]] void fail_impossible(const nlohmann::ordered_json& place, std::string reason, std::string_view word = {});

// Throw where it is none.
const std::string& string_at(const nlohmann::ordered_json& value);
const nlohmann::ordered_json& list_at(const nlohmann::ordered_json& value);  // nor empty
const nlohmann::ordered_json& object_at(const nlohmann::ordered_json& value);

// Those words of a schema that JSON Schema has and that are obeyed here.
class SchemaWords {
 public:
  // Throws SchemaFault where it is no object or, if is_strict, has a word that would have to be obeyed and cannot be.
  SchemaWords(const nlohmann::ordered_json& schema, bool is_strict);

  // Null: it does not say that.
  const nlohmann::ordered_json* find(std::string_view word) const;
  const std::map<std::string_view, const nlohmann::ordered_json*>& all() const { return words_; }
  // Whether it says anything of a value by itself, and not by other schemas only.
  bool says_anything() const { return says_anything_; }
  // The type that it speaks of where it does not name one; "" = of none.
  std::string_view implied_type() const { return implied_type_; }

 private:
  std::map<std::string_view, const nlohmann::ordered_json*> words_;
  bool says_anything_ = false;
  std::string_view implied_type_;
};

// Thread: one at a time. The schema must outlive it.
class SchemaDocument {
 public:
  static constexpr int kMaxDepth = 200;  // of schemas within or behind each other
  static constexpr std::size_t kMaxSteps = std::size_t{1} << 20;  // of reading

  // path: how messages name it.
  SchemaDocument(const nlohmann::ordered_json& root, const std::string& path, bool is_strict)
      : root_(root), path_(path), is_strict_(is_strict) {}

  const nlohmann::ordered_json& root() const { return root_; }
  bool is_strict() const { return is_strict_; }

  // Adds what a schema comes to, $ref and allOf followed. Throws SchemaFault.
  void add(const nlohmann::ordered_json& schema, SchemaSet& set);
  SchemaSet together(const SchemaSet& schemas);
  const SchemaWords& words(const nlohmann::ordered_json& schema);

  // Counts what reading costs: sets of schemas can be far more than schemas. Throws Error{kTooLarge} beyond kMaxSteps.
  void take_steps(std::size_t num_steps);

  std::string path_of(const SchemaFault& fault) const;

 private:
  enum class Visit { kOpen, kClosed };
  using Visits = std::map<const nlohmann::ordered_json*, Visit>;

  void follow(const nlohmann::ordered_json& schema, int depth, Visits& visits, SchemaSet& set);
  const nlohmann::ordered_json& referred(const nlohmann::ordered_json& reference) const;

  const nlohmann::ordered_json& root_;
  const std::string& path_;
  const bool is_strict_;
  std::map<const nlohmann::ordered_json*, SchemaWords> words_;
  std::size_t num_steps_ = 0;
};

// What a text, or all of a value, counts in steps.
std::size_t steps_of(const nlohmann::ordered_json& value);

// Compact JSON. An integer beyond 64 bits is held as its digits, in a binary value, as no double has all of them.
std::string written(const nlohmann::ordered_json& value);

}  // namespace larder
