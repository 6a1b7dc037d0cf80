// Speculative decoding (Leviathan et al. 2023, arXiv:2211.17192): what a sequence's next tokens may be is looked up, or
// a small model says it, and computed together with its last one, which reads the weights once for all of them.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "base/clock.h"
#include "engine/draft.h"
#include "engine/guessing_model.h"
#include "engine/sequence.h"
#include "kv/cache/kv_cache.h"

namespace larder {

struct DraftStats {
  std::uint64_t num_drafts = 0;  // of a sequence in a step
  std::uint64_t num_tokens = 0;
  std::uint64_t num_accepted = 0;
  // Of those, by a draft model, and its time.
  std::uint64_t num_model_tokens = 0;
  std::uint64_t num_model_accepted = 0;
  std::int64_t model_ns = 0;
};

// What a guess may contain, at most.
struct DraftRoom {
  int num_tokens = 0;    // of all sequences of the step
  int num_per_draft = 0;
};

// Guesses come from the sequence itself (prompt lookup: what followed when the last tokens were seen before), from
// the cache (what another sequence went on with from here), from what the client says that the answer may be, and from
// the answer's form, where that leaves no choice; or a draft model makes them. Guesses decide speed, never results: a token
// counts only where it is what would have been drawn. How many are tried is learned: how often each kind comes
// true, and what a step takes longer for them, measured. Where that gains nothing there are none. A draft model's time
// counts like a step's: it guesses where lookups promise less than it does, pass by pass while that pays, and what it has cost
// and gained is kept account of, so that it costs a hundredth of the time at most where nothing comes true.
// Thread: engine only.
class Drafter {
 public:
  // cache: where others' tokens are looked up. model: null = none. References must outlive it.
  Drafter(const KvCache& cache, const Clock& clock, GuessingModel* model = nullptr)
      : cache_(cache), clock_(clock), model_(model) {}

  // A step begins, with guesses or without.
  void begin_step() { step_model_ns_ = 0; }
  // Drafts for a step in which these sequences decode and nothing else happens, Sequence::draft, which
  // must be empty; end_tokens are not guessed.
  void draft(std::span<Sequence* const> sequences, const DraftRoom& room, std::span<const TokenId> end_tokens);

  // The first num_accepted tokens of the sequence's draft were drawn, and no more. Clears it.
  void observe_result(Sequence& sequence, int num_accepted);
  // What the sequence holds in the draft model is given back.
  void forget(Sequence& sequence) {
    if (model_ != nullptr) model_->release(sequence);
  }
  // A step has ended in which num_decodes sequences decoded, with so many guesses; without the draft model's time.
  void observe_step(int num_decodes, int num_guesses, std::int64_t duration_ns);

  std::int64_t step_model_ns() const { return step_model_ns_; }  // the draft model's, of this step
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
    double pass_ns = 0;  // of the draft model; 0 = not known
    int num_passes = 0;  // that were measured, or a few
  };
  struct Choice {
    int num = 0;  // of the candidates, likeliest first
    double rate = 0;  // tokens in the time of a step without guesses
  };

  Pace& pace_of(int num_decodes);
  static double longer_by(const Pace& pace, int num_guesses);
  void guess(Sequence& sequence, int most, std::span<const TokenId> end_tokens);
  static void look_up(std::span<const TokenId> tokens, int most, std::vector<DraftToken>& draft);
  void look_into_cache(const Sequence& sequence, int most, std::vector<DraftToken>& draft);
  static void look_into_prediction(Sequence& sequence, int most, std::vector<DraftToken>& draft);
  static void follow_form(const Sequence& sequence, int most, std::vector<DraftToken>& draft);
  double expected(const Sequence& sequence, std::span<const DraftToken> draft) const;
  void list_candidates(std::span<Sequence* const> sequences);
  // extra: what the step takes longer beside, as a share of one without guesses.
  Choice choose(const Pace& pace, int num_sequences, double extra);
  static int most_guesses(const Sequence& sequence, const DraftRoom& room);
  static bool ends(const Sequence& sequence, TokenId token, std::span<const TokenId> end_tokens);

  // With the draft model, see drafter_model.cc. What it took, as a share of a step without guesses.
  double ask_model(std::span<Sequence* const> sequences, const DraftRoom& room, std::span<const TokenId> end_tokens);
  bool promises_more(std::span<Sequence* const> sequences, const DraftRoom& room, const Pace& pace);
  bool is_catching_up_worth_it(const Sequence& sequence, const Pace& pace, double rate);
  void catch_up(const Pace& pace);
  void make_pass(Pace& pace, const DraftRoom& room, std::span<const TokenId> end_tokens);
  bool is_pass_worth_it(std::span<Sequence* const> sequences, const Pace& pace, int num_passes);
  static double pass_share(const Pace& pace);
  template <class Function>
  double model_time(const Function& function);
  void settle(const Pace& pace, int num_decodes, int num_guesses, double step_ns);

  const KvCache& cache_;
  const Clock& clock_;
  GuessingModel* const model_;
  DraftOdds odds_;  // of all sequences, which new ones begin with
  std::array<Pace, kSizes> paces_ = {};
  std::uint64_t decoding_ = 0;  // who did when guesses were last asked for
  bool has_changed_ = false;    // since a step without guesses
  DraftStats stats_;
  // The draft model's.
  // What it may lose before it has to wait: at most so many steps' time, once it is known how long those take.
  double credit_ns_ = std::numeric_limits<double>::infinity();
  double token_ns_ = 0;       // of one that it catches up with; 0 = not known
  int num_told_ = 0;          // of its guesses
  int step_num_guesses_ = 0;  // of those in this step, and that came true
  int step_num_accepted_ = 0;
  std::int64_t step_model_ns_ = 0;
  std::vector<Sequence*> asked_;  // for whom it guesses in this step
  std::vector<ModelGuess> guesses_;
  // Scratch.
  std::vector<Candidate> candidates_;
  std::vector<DraftToken> other_;
  std::vector<TokenId> tokens_;
};

}  // namespace larder
