#include "engine/drafter.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "engine/step_pace.h"

namespace larder {
namespace {

// Of text that an answer's form leaves no choice in, at a step: each takes a look at all places of the grammar.
constexpr std::size_t kForcedBytes = 48;
constexpr std::size_t kBytesOfToken = 8;   // of a long one
constexpr std::size_t kMostPassed = 2000;  // places, some 0.2 us each
constexpr int kMostMatched = 16;       // tokens before a guess that are compared
constexpr int kLookBack = 32'768;      // tokens that are looked at, some 20 us
constexpr double kOwnWeight = 0.15;    // of a guess in the odds of its sequence
constexpr double kSharedWeight = 0.02;  // and in those of all
constexpr double kModelWeight = 0.05;   // of a draft model's in the latter: what it knows is alike for all
constexpr double kStepWeight = 0.2;
constexpr double kFirstWeight = 0.5;    // of the first step with so many guesses
constexpr double kChangedWeight = 0.6;  // of the first step of other sequences, whose contexts may be others
constexpr double kLeastLonger = 0.01;
constexpr double kForget = 0.998;        // of what steps were longer by, until they are tried again
constexpr double kLeastGain = 1.03;      // of tokens in a time, else it is noise
constexpr int kStaleAfter = 32;          // steps with guesses since one without

DraftKind lookup_kind(int num_matched) {
  if (num_matched >= 9) return DraftKind::kLookup9;
  if (num_matched >= 6) return DraftKind::kLookup6;
  if (num_matched >= 4) return DraftKind::kLookup4;
  return static_cast<DraftKind>(num_matched - 1);
}

// Where a text goes on behind most of what the tokens end with; of equal places the first that was looked at.
class LongestMatch {
 public:
  explicit LongestMatch(std::span<const TokenId> tokens)
      : last_(tokens.last(std::min<std::size_t>(tokens.size(), kMostMatched))) {}

  // Before place `end` of the text.
  void look(std::span<const TokenId> text, std::size_t end) {
    if (text[end - 1] != last_.back()) return;
    const auto before = text.first(end);
    const auto num = std::mismatch(before.rbegin(), before.rend(), last_.rbegin(), last_.rend()).first - before.rbegin();
    if (num <= length) return;
    length = static_cast<int>(num);
    next = end;
  }
  bool is_full() const { return length == kMostMatched; }

  int length = 0;
  std::size_t next = 0;

 private:
  std::span<const TokenId> last_;
};

}  // namespace

Drafter::Pace& Drafter::pace_of(int num_decodes) {
  const int width = std::bit_width(static_cast<unsigned>(num_decodes));
  return paces_[static_cast<std::size_t>(std::min(width, kSizes) - 1)];
}

// Unknown numbers in proportion to the nearest smaller one, hopefully, or else to the nearest larger one.
double Drafter::longer_by(const Pace& pace, int num_guesses) {
  for (int known = num_guesses; known > 0; --known) {
    const double longer = pace.longer[static_cast<std::size_t>(known)];
    if (longer > 0) return longer * num_guesses / known;
  }
  for (int known = num_guesses + 1; known <= kMostGuesses; ++known) {
    const double longer = pace.longer[static_cast<std::size_t>(known)];
    if (longer > 0) return longer * num_guesses / known;
  }
  return pace.first_longer * num_guesses;
}

void Drafter::draft(std::span<Sequence* const> sequences, const DraftRoom& room,
                    std::span<const TokenId> end_tokens) {
  const int num_sequences = static_cast<int>(sequences.size());
  const int most = std::min(room.num_tokens, kMostGuesses);
  if (num_sequences == 0 || most < 1) return;
  Pace& pace = pace_of(num_sequences);
  std::uint64_t decoding = 0;
  for (const Sequence* sequence : sequences)
    decoding = decoding * 31 + (sequence->request->request.id << 8) + static_cast<std::uint64_t>(sequence->choice);
  has_changed_ |= std::exchange(decoding_, decoding) != decoding;
  // Even if it were sure to come true, one more token has to be worth what all wait for it.
  if (has_changed_ || pace.plain_ns == 0 || pace.num_since_plain >= kStaleAfter ||
      1 + 1.0 / num_sequences < kLeastGain * (1 + longer_by(pace, 1)))
    return;
  for (Sequence* sequence : sequences) {
    if (!std::exchange(sequence->draft.has_odds, true)) sequence->draft.odds = odds_;
    guess(*sequence, most_guesses(*sequence, room), end_tokens);
  }
  const double extra = model_ != nullptr ? ask_model(sequences, room, end_tokens) : 0;
  list_candidates(sequences);
  const auto num_chosen = static_cast<std::size_t>(std::min(most, choose(pace, num_sequences, extra).num));
  // What is not tried: of each sequence a tail.
  for (std::size_t i = candidates_.size(); i-- > num_chosen;) {
    Draft& draft = sequences[static_cast<std::size_t>(candidates_[i].sequence)]->draft;
    if (candidates_[i].place == 0) draft.odds.drift(draft.tokens.front().kind);
    draft.tokens.resize(std::min(draft.tokens.size(), static_cast<std::size_t>(candidates_[i].place)));
  }
}

// Likeliest first.
void Drafter::list_candidates(std::span<Sequence* const> sequences) {
  candidates_.clear();
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const Draft& draft = sequences[i]->draft;
    double odds = 1;
    for (int place = 0; place < std::ssize(draft.tokens); ++place) {
      odds *= draft.odds.of(draft.tokens[static_cast<std::size_t>(place)].kind);
      candidates_.push_back({odds, static_cast<int>(i), place});
    }
  }
  std::ranges::stable_sort(candidates_, std::greater<>{}, &Candidate::odds);
}

// With which most tokens come in a time.
Drafter::Choice Drafter::choose(const Pace& pace, int num_sequences, double extra) {
  double num_tokens = num_sequences;
  Choice best{0, num_tokens / (1 + extra)};
  double least = kLeastGain * best.rate;
  const int most = static_cast<int>(std::min<std::size_t>(candidates_.size(), kMostGuesses));
  for (int num = 1; num <= most; ++num) {
    num_tokens += candidates_[static_cast<std::size_t>(num - 1)].odds;
    const double rate = num_tokens / (1 + longer_by(pace, num) + extra);
    if (rate <= least) continue;
    least = rate;
    best = {num, rate};
  }
  return best;
}

int Drafter::most_guesses(const Sequence& sequence, const DraftRoom& room) {
  return std::min({room.num_tokens, kMostGuesses, room.num_per_draft,
                   sequence.request->request.sampling.max_tokens - sequence.num_output - 1});
}

bool Drafter::ends(const Sequence& sequence, TokenId token, std::span<const TokenId> end_tokens) {
  const std::vector<TokenId>& stops = sequence.request->request.sampling.stop_token_ids;
  return std::ranges::find(end_tokens, token) != end_tokens.end() || std::ranges::find(stops, token) != stops.end();
}

void Drafter::guess(Sequence& sequence, int most, std::span<const TokenId> end_tokens) {
  std::vector<DraftToken>& draft = sequence.draft.tokens;
  CHECK(draft.empty());
  if (most < 1) return;
  look_up(sequence.tokens, most, draft);
  const auto consider = [&](const auto& source) {
    other_.clear();
    source();
    if (expected(sequence, other_) > expected(sequence, draft)) std::swap(draft, other_);
  };
  consider([&] { look_into_cache(sequence, most, other_); });
  if (sequence.request->request.prediction != nullptr)
    consider([&] { look_into_prediction(sequence, most, other_); });
  if (sequence.constrained) consider([&] { follow_form(sequence, most, other_); });
  draft.erase(std::ranges::find_if(draft, [&](const DraftToken& one) { return ends(sequence, one.token, end_tokens); }),
              draft.end());
}

// Tokens that come true.
double Drafter::expected(const Sequence& sequence, std::span<const DraftToken> draft) const {
  double sum = 0;
  double odds = 1;
  for (const DraftToken& guessed : draft) sum += odds *= sequence.draft.odds.of(guessed.kind);
  return sum;
}

// What followed where most of the last tokens were the same; there the last time. Prompt lookup decoding (Saxena 2023).
void Drafter::look_up(std::span<const TokenId> tokens, int most, std::vector<DraftToken>& draft) {
  const std::size_t size = tokens.size();
  const std::size_t begin = size > kLookBack ? size - kLookBack : 0;
  LongestMatch match(tokens);
  for (std::size_t end = size - 1; end > begin && !match.is_full(); --end) match.look(tokens, end);
  if (match.length == 0) return;
  // Where the end comes in sight it goes on with what was guessed: a loop.
  for (int i = 0; i < most; ++i) {
    const std::size_t place = match.next + static_cast<std::size_t>(i);
    draft.push_back({place < size ? tokens[place] : draft[place - size].token, lookup_kind(match.length + i)});
  }
}

void Drafter::look_into_cache(const Sequence& sequence, int most, std::vector<DraftToken>& draft) {
  tokens_.clear();
  cache_.foresee(sequence.table, sequence.tokens, static_cast<std::size_t>(most), tokens_);
  for (const TokenId token : tokens_) draft.push_back({token, DraftKind::kCached});
}

// Behind the longest of its parts that the answer ends with; of several behind the next one after the last time, so that an
// answer that is changed here and there is found again.
void Drafter::look_into_prediction(Sequence& sequence, int most, std::vector<DraftToken>& draft) {
  const std::span<const TokenId> prediction = *sequence.request->request.prediction;
  const std::span<const TokenId> output =
      std::span<const TokenId>(sequence.tokens).subspan(static_cast<std::size_t>(sequence.request->num_prompt));
  if (output.empty()) return;
  std::size_t& last = sequence.draft.predicted;
  LongestMatch match(output);
  for (std::size_t i = 0; i < prediction.size() && !match.is_full(); ++i)
    match.look(prediction, 1 + (last + i) % prediction.size());
  if (match.length == 0) return;
  last = match.next;
  for (; match.next < prediction.size() && std::ssize(draft) < most; ++match.next, ++match.length)
    draft.push_back({prediction[match.next], match.length < 4 ? DraftKind::kPredicted : DraftKind::kPredicted4});
}

// Tokens as long as they can be, which models mostly write.
void Drafter::follow_form(const Sequence& sequence, int most, std::vector<DraftToken>& draft) {
  if (!sequence.constrained->only_byte()) return;
  GrammarState state = *sequence.constrained;
  std::string text;
  std::size_t num_passed = 0;
  while (text.size() < std::min(kForcedBytes, kBytesOfToken * static_cast<std::size_t>(most)) && num_passed < kMostPassed) {
    const auto byte = state.only_byte();
    if (!byte || !state.push(*byte)) break;
    text += static_cast<char>(*byte);
    num_passed += state.num_passed();
  }
  const TokenTrie& tokens = *sequence.request->request.sampling.constraint->tokens;
  for (std::string_view rest = text; std::ssize(draft) < most;) {
    const auto token = tokens.longest_token(rest);
    if (!token) break;
    draft.push_back({*token, DraftKind::kForced});
    rest.remove_prefix(tokens.bytes(*token).size());
  }
}

void Drafter::observe_result(Sequence& sequence, int num_accepted) {
  Draft& draft = sequence.draft;
  if (draft.tokens.empty()) return;
  ++stats_.num_drafts;
  stats_.num_tokens += draft.tokens.size();
  stats_.num_accepted += static_cast<std::uint64_t>(num_accepted);
  draft.num_guessed += static_cast<int>(draft.tokens.size());
  draft.num_accepted += num_accepted;
  // Those behind the first that did not come true tell nothing.
  for (std::size_t i = 0; i < draft.tokens.size(); ++i) {
    const DraftKind kind = draft.tokens[i].kind;
    if (kind != DraftKind::kPredicted && kind != DraftKind::kPredicted4) continue;
    ++(static_cast<int>(i) < num_accepted ? draft.num_predicted_accepted : draft.num_predicted_rejected);
  }
  const auto num_told = std::min(draft.tokens.size(), static_cast<std::size_t>(num_accepted) + 1);
  for (std::size_t i = 0; i < num_told; ++i) {
    const DraftKind kind = draft.tokens[i].kind;
    const bool came_true = static_cast<int>(i) < num_accepted;
    draft.odds.observe(kind, came_true, kOwnWeight);
    odds_.observe(kind, came_true, is_by_model(kind) ? std::max(kModelWeight, 1.0 / (4 + num_told_)) : kSharedWeight);
    num_told_ += is_by_model(kind) ? 1 : 0;
    stats_.num_model_accepted += is_by_model(kind) && came_true ? 1 : 0;
    step_num_accepted_ += is_by_model(kind) && came_true ? 1 : 0;
  }
  const auto num_by_model = std::ranges::count_if(draft.tokens, is_by_model, &DraftToken::kind);
  stats_.num_model_tokens += static_cast<std::uint64_t>(num_by_model);
  step_num_guesses_ += static_cast<int>(num_by_model);
  draft.tokens.clear();
}

void Drafter::observe_step(int num_decodes, int num_guesses, std::int64_t duration_ns) {
  if (num_decodes == 0) return;
  Pace& pace = pace_of(num_decodes);
  const double step_ns = std::max(1.0, static_cast<double>(duration_ns));
  if (model_ != nullptr) settle(pace, num_decodes, num_guesses, step_ns);
  for (double& longer : pace.longer) longer *= kForget;
  pace.pass_ns *= kForget;
  pace.first_longer *= kForget;
  if (num_guesses == 0) {
    move_average(pace.plain_ns, step_ns, std::exchange(has_changed_, false) ? kChangedWeight : kStepWeight);
    pace.num_since_plain = 0;
    return;
  }
  ++pace.num_since_plain;
  CHECK(pace.plain_ns > 0 && num_guesses <= kMostGuesses, num_guesses);
  // Numbers near it learn of it, too, in proportion.
  const double longer = std::max(kLeastLonger, step_ns / pace.plain_ns - 1);
  for (int num = 1; num <= kMostGuesses; ++num) {
    double& known = pace.longer[static_cast<std::size_t>(num)];
    if (known == 0 && num != num_guesses) continue;
    const double weight = known > 0 ? std::ldexp(kStepWeight, -std::abs(num - num_guesses)) : kFirstWeight;
    double times = 1 + longer_by(pace, num);
    move_average(times, 1 + longer * num / num_guesses, weight);
    known = times - 1;
  }
}

}  // namespace larder
