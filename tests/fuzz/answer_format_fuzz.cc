// A schema, an expression or a grammar of a stranger's -> which tokens may follow. The first byte says which it is.
// What is taken can be walked by what it allows, and each token that is allowed is one that leads on.
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "fuzz_target.h"
#include "grammar/grammar_text.h"
#include "grammar/json_schema.h"
#include "grammar/lark.h"
#include "grammar/regex.h"
#include "grammar/token_masks.h"

namespace {

using larder::Constraint;
using larder::Fragment;
using larder::GrammarBuilder;
using larder::GrammarState;
using larder::TokenId;

constexpr int kMostSteps = 12;
constexpr std::size_t kFewNodes = 4096;  // so that no input takes long

std::shared_ptr<const larder::TokenTrie> vocabulary() {
  static const std::vector<std::string> kTexts = [] {
    std::vector<std::string> texts{"",      "{\"", "\": ",     "\",",      "\"}",  "ab",
                                   "abc\"", "12",  "\xc3\xa9", "\xe2\x82", "\\\"", "\n  "};
    for (int byte = 0; byte < 256; ++byte) texts.push_back(std::string(1, static_cast<char>(byte)));
    return texts;
  }();
  static const auto kTrie = std::make_shared<const larder::TokenTrie>(
      static_cast<int>(kTexts.size()),
      [](TokenId token) -> std::string_view { return kTexts[static_cast<std::size_t>(token)]; });
  return kTrie;
}

Fragment read(GrammarBuilder& builder, char kind, std::string_view text) {
  if (kind == 'r') return larder::add_regex(builder, text, larder::TextForm::kPlain, true);
  if (kind == 'p') return larder::add_regex(builder, text, larder::TextForm::kJsonString, false);
  if (kind == 'g') return larder::add_grammar(builder, text);
  if (kind == 'l') return larder::add_lark(builder, text, larder::TextForm::kJsonString);
  if (kind == 'y') return larder::add_python_regex(builder, text, larder::TextForm::kJsonString);
  larder::JsonParts parts(builder);
  nlohmann::ordered_json schema;
  try {
    schema = nlohmann::ordered_json::parse(text);
  } catch (const std::exception&) {
    larder::throw_invalid("no JSON");
  }
  return larder::add_json_schema(parts, schema, "schema");
}

void walk(const Constraint& constraint, std::size_t seed) {
  larder::TokenMasks masks(std::size_t{64} << 10), forgetful(1000);
  GrammarState state(constraint.grammar);
  for (int i = 0; i < kMostSteps && !state.is_over(); ++i) {
    const auto allowed = masks.allowed(constraint, state);
    CHECK(std::ranges::equal(allowed, forgetful.allowed(constraint, state)));
    if (allowed.empty()) return;
    std::vector<TokenId> open;
    for (TokenId token = 0; token < constraint.tokens->vocab_size(); ++token) {
      if (((allowed[static_cast<std::size_t>(token) / 64] >> (token % 64)) & 1) != 0) open.push_back(token);
    }
    if (open.empty()) return;
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    for (const char byte : constraint.tokens->bytes(open[(seed >> 33) % open.size()]))
      CHECK(state.push(static_cast<std::uint8_t>(byte)));
  }
}

}  // namespace

// Good: it is taken, and something may come.
bool try_input(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return false;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    GrammarBuilder builder(kFewNodes);
    const Fragment whole = read(builder, static_cast<char>(data[0]), text);
    const Constraint constraint{builder.finish(whole), vocabulary()};
    for (std::size_t seed = 0; seed < 3; ++seed) walk(constraint, seed + size);
    return !GrammarState(constraint.grammar).is_over();
  } catch (const larder::Error& error) {
    CHECK(!error.message().empty());
    return false;
  }
}
