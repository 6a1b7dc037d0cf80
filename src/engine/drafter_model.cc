// What a draft model guesses, and whether it is asked.
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include "engine/drafter.h"
#include "engine/step_pace.h"

namespace larder {
namespace {

constexpr double kLeastGain = 1.03;     // of tokens in a time, over those without it
constexpr double kPassWeight = 0.1;     // of a pass in the average
constexpr double kOwnWeight = 0.1;      // of a guess's odds in what a sequence expects of it
constexpr double kSharedWeight = 0.05;  // and all others
constexpr double kFirstPass = 0.3;      // of a step's time, while nobody knows
constexpr int kFewPasses = 8;           // that say little: the first ones find nothing in the caches
constexpr double kAllowance = 0.01;     // of the time of all steps
constexpr double kMostCredit = 40;      // steps' time, and at first
// What a step may take longer for tokens that the model lacks.
constexpr double kCatchUpShare = 0.3;
constexpr double kLeastCatchUpNs = 1e6;
constexpr double kMostCatchUpNs = 5e6;
constexpr double kCheapCatchUp = 4;  // of a step's time, which is not much to find out
constexpr int kTellingTokens = 16;   // of an answer, that say how well it goes without
constexpr int kLeastLeft = 64;
constexpr int kLeastPiece = 16;  // fewer take nearly as long
constexpr int kFirstPiece = 32;
constexpr int kMostPiece = 256;

DraftKind kind_of(const ModelGuess& guess) {
  constexpr std::array<double, 4> kBounds = {0.4, 0.7, 0.9, 0.99};
  const auto place = std::ranges::upper_bound(kBounds, guess.probability) - kBounds.begin();
  return static_cast<DraftKind>(static_cast<int>(DraftKind::kModel0) + static_cast<int>(place));
}

}  // namespace

// As a share of a step without guesses.
double Drafter::pass_share(const Pace& pace) {
  const double measured = pace.pass_ns / pace.plain_ns;
  if (pace.num_passes >= kFewPasses) return measured;
  return pace.num_passes == 0 ? kFirstPass : std::min(measured, kFirstPass);
}

template <class Function>
double Drafter::model_time(const Function& function) {
  const std::int64_t begin_ns = clock_.now_ns();
  function();
  const std::int64_t duration_ns = std::max<std::int64_t>(1, clock_.now_ns() - begin_ns);
  step_model_ns_ += duration_ns;
  stats_.model_ns += duration_ns;
  return static_cast<double>(duration_ns);
}

double Drafter::ask_model(std::span<Sequence* const> sequences, const DraftRoom& room,
                          std::span<const TokenId> end_tokens) {
  Pace& pace = pace_of(static_cast<int>(sequences.size()));
  if (credit_ns_ <= 0 || std::ssize(sequences) > GuessingModel::kMostSequences) return 0;
  if (!promises_more(sequences, room, pace)) {
    for (Sequence* sequence : sequences)
      for (auto kind = static_cast<int>(DraftKind::kModel0); kind <= static_cast<int>(DraftKind::kModel); ++kind)
        sequence->draft.odds.drift(static_cast<DraftKind>(kind));
    return 0;
  }
  catch_up(pace);
  for (Sequence* sequence : asked_) sequence->draft.tokens.clear();
  for (int num_passes = 0; !asked_.empty() && is_pass_worth_it(sequences, pace, num_passes); ++num_passes)
    make_pass(pace, room, end_tokens);
  return static_cast<double>(step_model_ns_) / pace.plain_ns;
}

// Fills asked_: those of whom the model knows more than their drafts, and whom it can guess for. False: none, or its
// passes would take longer than they bring.
bool Drafter::promises_more(std::span<Sequence* const> sequences, const DraftRoom& room, const Pace& pace) {
  const auto num_sequences = static_cast<int>(sequences.size());
  list_candidates(sequences);
  const double without = choose(pace, num_sequences, 0).rate;
  asked_.clear();
  for (Sequence* sequence : sequences) {
    const Draft& draft = sequence->draft;
    double sum = 0, odds = 1;
    for (std::size_t i = 0; i < std::max<std::size_t>(1, draft.tokens.size()); ++i)
      sum += odds *= draft.odds.of(DraftKind::kModel);
    if (most_guesses(*sequence, room) < 1 || sum <= expected(*sequence, draft.tokens)) continue;
    model_->settle(*sequence);
    if (model_->num_missing(*sequence) > 0) asked_.push_back(sequence);
  }
  if (asked_.empty()) return false;
  // As if it had guessed one, two... tokens for each.
  const double pass = pass_share(pace);
  std::erase_if(candidates_, [&](const Candidate& candidate) {
    return std::ranges::find(asked_, sequences[static_cast<std::size_t>(candidate.sequence)]) != asked_.end();
  });
  double best = 0;
  for (int num_passes = 1; num_passes <= room.num_per_draft; ++num_passes) {
    for (std::size_t i = 0; i < asked_.size(); ++i)
      candidates_.push_back({std::pow(asked_[i]->draft.odds.of(DraftKind::kModel), num_passes), 0, 0});
    std::ranges::stable_sort(candidates_, std::greater<>{}, &Candidate::odds);
    const double rate = choose(pace, num_sequences, num_passes * pass).rate;
    if (rate <= best) break;
    best = rate;
  }
  if (best <= kLeastGain * without) return false;
  std::erase_if(asked_, [&](const Sequence* sequence) { return !is_catching_up_worth_it(*sequence, pace, best / num_sequences); });
  return !asked_.empty();
}

// Whether the time that the model takes for tokens of the sequence's that it lacks comes back. An answer is taken to go on
// for as long as it has, and as fast; rate: of tokens in the time of a step without guesses, with the model.
bool Drafter::is_catching_up_worth_it(const Sequence& sequence, const Pace& pace, double rate) {
  const double cost_ns = token_ns_ * model_->num_missing(sequence);
  if (cost_ns <= kCheapCatchUp * pace.plain_ns) return true;
  const int num_output = sequence.num_output;
  if (num_output < kTellingTokens) return false;
  const double num_left = std::min(sequence.request->request.sampling.max_tokens - num_output, std::max(num_output, kLeastLeft));
  const int num_steps = std::max(1, num_output - sequence.draft.num_accepted);
  const double own_rate = num_output / (num_steps * (1 + longer_by(pace, 1)));
  return num_left * pace.plain_ns * (1 / own_rate - 1 / rate) > cost_ns;
}

// The model computes what it lacks of them, as much as the step has time for. Those that it lacks more of are not asked.
void Drafter::catch_up(const Pace& pace) {
  double left_ns = std::clamp(kCatchUpShare * pace.plain_ns, kLeastCatchUpNs, kMostCatchUpNs);
  bool has_begun = false;
  std::erase_if(asked_, [&](Sequence* sequence) {
    int num_missing = model_->num_missing(*sequence);
    while (num_missing > GuessingModel::kMostMissing) {
      const double num_fitting = token_ns_ > 0 ? left_ns / token_ns_ : kFirstPiece;
      if (has_begun && num_fitting < kLeastPiece) return true;
      has_begun = true;
      const int num_tokens = std::clamp(static_cast<int>(std::min(num_fitting, 1.0 * kMostPiece)), kLeastPiece, kMostPiece);
      const double duration_ns = model_time([&] { model_->compute(*sequence, num_tokens); });
      left_ns -= duration_ns;
      const int num_left = model_->num_missing(*sequence);
      // Of a prefix that its cache had nothing is to be learned.
      if (const int num_done = num_missing - num_left; num_left > 0 && num_done <= num_tokens)
        move_average(token_ns_, duration_ns / std::max(1, num_done), kPassWeight);
      num_missing = num_left;
    }
    return num_missing < 0;
  });
}

// Another token for each of those who are asked.
void Drafter::make_pass(Pace& pace, const DraftRoom& room, std::span<const TokenId> end_tokens) {
  guesses_.resize(asked_.size());
  move_average(pace.pass_ns, model_time([&] { model_->guess(asked_, guesses_); }), kPassWeight);
  pace.num_passes = std::min(pace.num_passes + 1, kFewPasses);
  std::size_t i = 0;
  std::erase_if(asked_, [&](Sequence* sequence) {
    const ModelGuess& guess = guesses_[i++];
    if (guess.token < 0 || ends(*sequence, guess.token, end_tokens)) return true;
    Draft& draft = sequence->draft;
    const DraftKind kind = kind_of(guess);
    draft.tokens.push_back({guess.token, kind});
    draft.odds.observe_model(draft.odds.of(kind), kOwnWeight);
    odds_.observe_model(odds_.of(kind), std::max(kSharedWeight, 1.0 / (4 + num_told_)));
    return std::ssize(draft.tokens) >= most_guesses(*sequence, room);
  });
}

// Whether more tokens come in a time with another pass than without it, if those asked guess as well as ever.
bool Drafter::is_pass_worth_it(std::span<Sequence* const> sequences, const Pace& pace, int num_passes) {
  if (num_passes == 0) return true;
  const auto num_sequences = static_cast<int>(sequences.size());
  const double spent = static_cast<double>(step_model_ns_) / pace.plain_ns;
  list_candidates(sequences);
  const double without = choose(pace, num_sequences, spent).rate;
  for (const Sequence* sequence : asked_) {
    double odds = sequence->draft.odds.of(DraftKind::kModel);
    for (const DraftToken& guessed : sequence->draft.tokens) odds *= sequence->draft.odds.of(guessed.kind);
    candidates_.push_back({odds, 0, 0});
  }
  std::ranges::stable_sort(candidates_, std::greater<>{}, &Candidate::odds);
  return choose(pace, num_sequences, spent + pass_share(pace)).rate > without;
}

// A step has ended: what the model's guesses were worth to those who waited, less what they took.
void Drafter::settle(const Pace& pace, int num_decodes, int num_guesses, double step_ns) {
  double gained_ns = kAllowance * step_ns - static_cast<double>(step_model_ns_);
  if (step_num_guesses_ > 0 && num_guesses > 0)
    gained_ns += pace.plain_ns * (static_cast<double>(step_num_accepted_) / num_decodes -
                                  longer_by(pace, num_guesses) * step_num_guesses_ / num_guesses);
  step_num_guesses_ = step_num_accepted_ = 0;
  if (pace.plain_ns == 0) return;
  const double most_ns = kMostCredit * pace.plain_ns;
  credit_ns_ = std::clamp(credit_ns_ + gained_ns, -most_ns, most_ns);
}

}  // namespace larder
