// A guess at a sequence's next tokens.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/types.h"

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
};
inline constexpr std::size_t kNumDraftKinds = 10;

struct DraftToken {
  TokenId token = 0;
  DraftKind kind = DraftKind::kLookup1;
};

// How likely a guess of each kind is to come true, once those before it have: averages that move. What is not
// tried drifts back to a guess, so that it is tried again.
class DraftOdds {
 public:
  double of(DraftKind kind) const { return odds_[static_cast<std::size_t>(kind)]; }
  void observe(DraftKind kind, bool came_true, double weight) {
    double& odds = odds_[static_cast<std::size_t>(kind)];
    odds += ((came_true ? 1 : 0) - odds) * weight;
  }
  void drift(DraftKind kind) {
    double& odds = odds_[static_cast<std::size_t>(kind)];
    if (odds < kUnknown) odds += (kUnknown - odds) * kDrift;
  }

 private:
  static constexpr double kUnknown = 0.4;
  static constexpr double kDrift = 0.004;
  std::array<double, kNumDraftKinds> odds_ = {0.1, 0.25, 0.4, 0.5, 0.6, 0.7, 0.7, 0.4, 0.7, 0.8};
};

// Of one sequence.
struct Draft {
  std::vector<DraftToken> tokens;  // of this step, to be computed behind the sequence's last one
  DraftOdds odds;                  // of its own
  bool has_odds = false;
  int num_guessed = 0;  // in all its steps
  int num_accepted = 0;
  // Of Request::prediction: the place behind what was found last, and what came of it.
  std::size_t predicted = 0;
  int num_predicted_accepted = 0;
  int num_predicted_rejected = 0;
};

}  // namespace larder
