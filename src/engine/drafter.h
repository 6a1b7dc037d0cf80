// Speculative decoding (Leviathan et al. 2023, arXiv:2211.17192) without a second model: what a sequence's next tokens
// may be is looked up, and computed together with its last one, which reads the weights once for all of them.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/draft.h"
#include "engine/sequence.h"
#include "kv/kv_cache.h"

namespace larder {

struct DraftStats {
  std::uint64_t num_drafts = 0;  // of a sequence in a step
  std::uint64_t num_tokens = 0;
  std::uint64_t num_accepted = 0;
};

// What a guess may contain, at most.
struct DraftRoom {
  int num_tokens = 0;    // of all sequences of the step
  int num_per_draft = 0;
};

// Guesses come from the sequence itself (prompt lookup: what followed when the last tokens were seen before), from
// the cache (what another sequence went on with from here), from what the client says that the answer may be, and from
// the answer's form, where that leaves no choice. Guesses decide speed, never results: a token
// counts only where it is what would have been drawn. How many are tried is learned: how often each kind comes
// true, and what a step takes longer for them, measured. Where that gains nothing there are none.
// Thread: engine only.
class Drafter {
 public:
  // cache: where others' tokens are looked up.
  explicit Drafter(const KvCache& cache) : cache_(cache) {}

  // Drafts for a step in which these sequences decode and nothing else happens, Sequence::draft, which
  // must be empty; end_tokens are not guessed.
  void draft(std::span<Sequence* const> sequences, const DraftRoom& room, std::span<const TokenId> end_tokens);

  // The first num_accepted tokens of the sequence's draft were drawn, and no more. Clears it.
  void observe_result(Sequence& sequence, int num_accepted);
  // A step has ended in which num_decodes sequences decoded, with so many guesses.
  void observe_step(int num_decodes, int num_guesses, std::int64_t duration_ns);

  const DraftStats& stats() const { return stats_; }

 private:
  static constexpr int kSizes = 8;        // of batches, in powers of two
  static constexpr int kMostGuesses = 32;  // of a step

  // A guess that may be tried: token `place` of a sequence's draft.
  struct Candidate {
    double odds;  // that it and those before it come true
    int sequence;
    int place;
  };
  // How long steps of a number of sequences take.
  struct Pace {
    double plain_ns = 0;                               // without guesses; 0 = not known
    std::array<double, kMostGuesses + 1> longer = {};  // by number of guesses, as a share of plain_ns; 0 = not known
    double first_longer = 0.1;  // by a guess, while nobody knows
    int num_since_plain = 0;
  };

  Pace& pace_of(int num_decodes);
  static double longer_by(const Pace& pace, int num_guesses);
  void guess(Sequence& sequence, int most, std::span<const TokenId> end_tokens);
  static void look_up(std::span<const TokenId> tokens, int most, std::vector<DraftToken>& draft);
  void look_into_cache(const Sequence& sequence, int most, std::vector<DraftToken>& draft);
  static void look_into_prediction(Sequence& sequence, int most, std::vector<DraftToken>& draft);
  static void follow_form(const Sequence& sequence, int most, std::vector<DraftToken>& draft);
  double expected(const Sequence& sequence, std::span<const DraftToken> draft) const;
  int choose(const Pace& pace, int num_sequences);

  const KvCache& cache_;
  DraftOdds odds_;  // of all sequences, which new ones begin with
  std::array<Pace, kSizes> paces_ = {};
  std::uint64_t decoding_ = 0;  // who did when guesses were last asked for
  bool has_changed_ = false;    // since a step without guesses
  DraftStats stats_;
  // Scratch.
  std::vector<Candidate> candidates_;
  std::vector<DraftToken> other_;
  std::vector<TokenId> tokens_;
};

}  // namespace larder
