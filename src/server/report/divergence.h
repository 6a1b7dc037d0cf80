// What it was in a prompt that kept it from reusing its relative: told from both texts.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "engine/ledger.h"
#include "tokenizer/tokenizer.h"

namespace larder {

enum class DivergenceKind {
  kTimestamp,
  kNonce,  // a UUID, a hash, a random id or a counter
  kReorderedJsonKeys,
  kWhitespace,
  kChangedTools,
  kChangedSystemPrompt,
  kChangedEffort,          // of thinking, as far as the template tells the model of it
  kEditedHistory,
  kTruncatedHistory,       // messages of the relative are missing
  kRerenderedThinking,     // a turn's reasoning was left out, or put in
  kRetokenisedGeneration,  // the text of a generated turn came back, and became other tokens
  kEditedText,             // of a prompt without messages
};
const char* divergence_name(DivergenceKind kind);  // "timestamp", ...
// What a client can do about it: one sentence.
const char* divergence_advice(DivergenceKind kind);

struct Divergence {
  DivergenceKind kind = DivergenceKind::kEditedText;
  int token = 0;      // index of the first different one
  int end = 0;        // tokens up to there the relative had, too, by what differs: Comparison::diverged_end
  int message = -1;   // of the new prompt as the client sent it; -1 = none, or Anthropic's system
  std::string role;   // its role, "tools", "effort", "summary", or "system" where that is no message of its own
  std::string shared_text;  // what both have just before, some 40 characters
  std::string old_text;     // from the first difference on, some 80 characters
  std::string new_text;
};

// nullopt: nothing differs, or it is another prompt rather than a changed one. Prompts that do not meet
// again have only those kinds which their texts tell by themselves. At most some 0.3 ms; where an answer comes back in
// other tokens besides what it takes to decode it twice. Thread: any.
std::optional<Divergence> find_divergence(const Comparison& comparison, const PromptOrigin& origin,
                                          std::span<const TokenId> prompt,
                                          const Tokenizer& tokenizer);

}  // namespace larder
