// A guess at a sequence's next tokens.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/types.h"
#include "kv/cache/block_table.h"

namespace larder {

// Why a token is guessed. Lookups by how many tokens before it were the same where it was seen.
enum class DraftKind : std::uint8_t {
  kLookup1,
  kLookup2,
  kLookup3,
  kLookup4,
  kLookup6,
  kLookup9,
  kCached,      // it stands in the cache, behind all that the sequence has
  kPredicted,   // Request::prediction goes on so, behind a few tokens
  kPredicted4,  // behind four tokens or more
  kForced,      // the answer's form has no other text
  // The draft model drew it, and gave it less than 0.4, 0.7, 0.9, 0.99, or more.
  kModel0,
  kModel4,
  kModel7,
  kModel9,
  kModel99,
  kModel,  // it has not been asked yet
};
inline constexpr std::size_t kNumDraftKinds = 16;
inline constexpr bool is_by_model(DraftKind kind) { return kind >= DraftKind::kModel0; }

struct DraftToken {
  TokenId token = 0;
  DraftKind kind = DraftKind::kLookup1;
};

// How likely a guess of each kind is to come true, once those before it have: averages that move. What is not
// tried drifts back to a guess, so that it is tried again.
class DraftOdds {
 public:
  double of(DraftKind kind) const { return odds_[static_cast<std::size_t>(kind)]; }
  void observe(DraftKind kind, bool came_true, double weight) { move(kind, came_true ? 1 : 0, weight); }
  // What the draft model guessed is that likely, as far as is known.
  void observe_model(double odds, double weight) { move(DraftKind::kModel, odds, weight); }
  void drift(DraftKind kind) {
    const double unknown = kind == DraftKind::kModel ? kUnknownModel : kUnknown;
    if (of(kind) < unknown) move(kind, unknown, kDrift);
  }

 private:
  static constexpr double kUnknown = 0.4;
  static constexpr double kUnknownModel = 0.7;
  static constexpr double kDrift = 0.004;

  void move(DraftKind kind, double observed, double weight) {
    double& odds = odds_[static_cast<std::size_t>(kind)];
    odds += (observed - odds) * weight;
  }

  std::array<double, kNumDraftKinds> odds_ = {0.1, 0.25, 0.4, 0.5,  0.6, 0.7,  0.7,  0.4,
                                              0.7, 0.8,  0.3, 0.55, 0.8, 0.95, 0.98, kUnknownModel};
};

// What a draft model has computed of a sequence.
struct DraftContext {
  BlockTable table;            // of its cache
  std::vector<TokenId> ahead;  // guesses whose keys and values lie behind the table's computed tokens
  bool is_refused = false;     // it does not guess for this one
};

// Of one sequence.
struct Draft {
  std::vector<DraftToken> tokens;  // of this step, to be computed behind the sequence's last one
  DraftOdds odds;                  // of its own
  bool has_odds = false;
  DraftContext context;
  int num_guessed = 0;  // in all its steps
  int num_accepted = 0;
  // Of Request::prediction: the place behind what was found last, and what came of it.
  std::size_t predicted = 0;
  int num_predicted_accepted = 0;
  int num_predicted_rejected = 0;
};

}  // namespace larder
