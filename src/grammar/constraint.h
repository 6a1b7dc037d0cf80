// What an answer may be, in a model's tokens.
#pragma once

#include <memory>
#include <utility>

#include "grammar/grammar.h"
#include "grammar/token_trie.h"

namespace larder {

// Immutable, so that requests and choices may share it. Thread: any, concurrently.
struct Constraint {
  Grammar grammar;
  std::shared_ptr<const TokenTrie> tokens;
};

}  // namespace larder
