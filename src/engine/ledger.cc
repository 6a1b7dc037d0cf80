#include "engine/ledger.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "base/check.h"

namespace larder {
namespace {

// A run of equal tokens after what differs that chance or a template's own text does not make.
constexpr int kTellingRun = 16;
constexpr int kLeastLikeness = 4;  // of kSketchSize shingles
constexpr double kWorthElsewhere = 0.75;  // of a token that is shared at another place, beside one from the start
constexpr std::size_t kBeginningStep = 4;  // tokens
constexpr int kMostRuns = 8;             // of equal tokens that are looked for behind each other
// Beside tokens and hashes: nodes of the indices (some 40 bytes a hash, three indices).
constexpr std::size_t kBytesPerHash = 48;

int num_equal(std::span<const TokenId> left, std::span<const TokenId> right) {
  const auto [end, other] = std::mismatch(left.begin(), left.end(), right.begin(), right.end());
  return static_cast<int>(end - left.begin());
}

// The longest run of equal tokens from num_common on, of those that begin in a message which both prompts
// have: however much was left out before it.
Realignment meet_in_messages(const PromptOrigin& origin, std::span<const TokenId> prompt,
                             const RememberedPrompt& relative, int num_common) {
  const std::vector<PromptPart>& others = relative.origin.parts;
  const auto num_known = static_cast<int>(relative.tokens.size());
  Realignment best;
  auto other = others.begin();
  int seen_until = num_common;  // of prompt: inside a run that was looked at already
  for (std::size_t i = 0; i < origin.parts.size(); ++i) {
    const PromptPart& part = origin.parts[i];
    const bool is_last = i + 1 == origin.parts.size();
    const int end = is_last ? static_cast<int>(prompt.size()) : origin.parts[i + 1].begin;
    const int index = origin.index_sent(part.message);
    if (index < 0 || end <= seen_until) continue;
    other = std::find_if(other, others.end(), [&](const PromptPart& candidate) {
      return relative.origin.index_sent(candidate.message) >= index;
    });
    if (other == others.end()) break;
    if (relative.origin.index_sent(other->message) != index) continue;
    const int left = std::max(part.begin, seen_until);
    const int right = other->begin + left - part.begin;
    if (right < num_common || right >= num_known) continue;
    const int run = num_equal(prompt.subspan(static_cast<std::size_t>(left)),
                              std::span(relative.tokens).subspan(static_cast<std::size_t>(right)));
    seen_until = left + run;
    if (run > best.num_equal) best = {left, right, run};
  }
  return best;
}

// With an answer of so many tokens: the last one's own keys and values are computed with the next one only.
int num_computed_of(const RememberedPrompt& prompt, std::size_t num_generated) {
  const int num_before_last = std::max(0, static_cast<int>(num_generated) - 1);
  return std::min(prompt.num_prompt + num_before_last, prompt.origin.num_shareable);
}

std::uint64_t seed_of(const PromptOrigin& origin) { return mix64(origin.salt, origin.tenant); }

std::size_t size_of(const PromptOrigin& origin) {
  std::size_t size = origin.id.size() * 2 + origin.parts.size() * sizeof(PromptPart) +
                     origin.sent_as.size() * sizeof(int) + 512;
  for (const std::string& role : origin.roles) size += role.size() + sizeof(std::string);
  return size;
}

MissReason reason_of(MissCause cause) {
  switch (cause) {
    case MissCause::kEvicted:
      return MissReason::kEvicted;
    case MissCause::kExpired:
      return MissReason::kExpired;
    case MissCause::kWindowSlid:
      return MissReason::kWindowSlid;
    case MissCause::kTierFailed:
      return MissReason::kTierFailed;
    case MissCause::kOtherModel:
      return MissReason::kOtherModel;
    case MissCause::kTooShort:
      return MissReason::kTooShort;
    case MissCause::kBypassed:
      return MissReason::kBypassed;
    case MissCause::kUnknown:
      break;
  }
  return MissReason::kNeverSeen;
}

}  // namespace

const char* miss_reason_name(MissReason reason) {
  constexpr const char* kNames[kNumMissReasons] = {
      "never_seen",  "diverged",    "evicted",     "expired",   "other_salt",
      "other_model", "window_slid", "tier_failed", "too_short", "bypassed"};
  return kNames[static_cast<std::size_t>(reason)];
}

bool is_compacted_since(const PromptOrigin& origin, const PromptOrigin& relative) {
  if (origin.tools != relative.tools || origin.system != relative.system) return false;
  const bool has_new_summary = origin.summary != 0 && origin.summary != relative.summary;
  return has_new_summary || origin.num_dropped > relative.num_dropped;
}

bool is_of_other_effort(const PromptOrigin& origin, const RememberedPrompt& relative, int num_common) {
  const PromptOrigin& before = relative.origin;
  if (origin.effort == before.effort || num_common >= relative.num_prompt) return false;
  if (origin.tools != before.tools || origin.system != before.system) return false;
  // Behind the last message, where the other one may go on with an answer.
  if (before.message_at(num_common) < 0) return true;
  // One of them may have no word of it, and goes on with the message's text there.
  const int num_here = origin.num_to_text(num_common);
  const int num_there = before.num_to_text(num_common);
  return num_here >= 0 && num_there >= 0 && num_here + num_there > 0;
}

// Not = {}, which keeps the memory.
void Comparison::forget_text() {
  if (!relative) return;
  PromptOrigin& origin = relative->origin;
  relative->tokens = std::vector<TokenId>();
  origin.parts = std::vector<PromptPart>();
  origin.roles = std::vector<std::string>();
  origin.sent_as = std::vector<int>();
}

const Ledger::Entry* Ledger::find(std::uint64_t number) const {
  const auto found = by_number_.find(number);
  return found == by_number_.end() ? nullptr : &*found->second;
}

Comparison Ledger::compare(PromptOrigin origin, std::span<const TokenId> prompt,
                           std::int64_t now_ns) {
  Entry entry;
  entry.prompt.tokens.assign(prompt.begin(), prompt.end());
  entry.prompt.num_prompt = static_cast<int>(prompt.size());
  entry.prompt.arrived_ns = now_ns;
  entry.prompt.origin = std::move(origin);
  const std::uint64_t seed = seed_of(entry.prompt.origin);
  entry.prefixes = prefix_hashes(prompt, seed);
  entry.tenant_prefixes = prefix_hashes(prompt, entry.prompt.origin.tenant);
  entry.beginnings = prefix_hashes(prompt.first(std::min(prompt.size(), 3 * kBeginningStep)), seed, kBeginningStep);
  entry.sketch = make_sketch(prompt, seed);

  const std::lock_guard lock(mutex_);
  Comparison comparison = compare_to(nearest(entry), entry.prompt.origin, prompt);
  comparison.num_known = num_known(entry, comparison);
  comparison.num_other_salt = num_known_to_other_salts(entry);
  part_prefixes(entry);
  comparison.entry = entry.number = next_number_++;
  entries_.push_back(std::move(entry));
  by_number_.emplace(comparison.entry, std::prev(entries_.end()));
  measure(entries_.back());
  shrink();
  return comparison;
}

std::optional<Comparison> Ledger::compare_with(const std::string& id, const PromptOrigin& origin,
                                               std::span<const TokenId> prompt) const {
  const std::lock_guard lock(mutex_);
  const auto found = by_id_.find(id);
  const Entry* entry = found == by_id_.end() ? nullptr : find(found->second);
  if (entry == nullptr || seed_of(entry->prompt.origin) != seed_of(origin)) return std::nullopt;
  return compare_to(entry, origin, prompt);
}

Comparison Ledger::compare_to(const Entry* relative, const PromptOrigin& origin,
                              std::span<const TokenId> prompt) const {
  Comparison comparison;
  if (relative == nullptr) return comparison;
  const Match match = Ledger::match(*relative, prompt);
  comparison.num_common = match.num_common;
  const RememberedPrompt& remembered = comparison.relative.emplace(with_answer(*relative, match));
  const std::vector<TokenId>& known = remembered.tokens;
  const auto num_common = static_cast<std::size_t>(match.num_common);
  if (num_common == prompt.size() || num_common == known.size()) {
    comparison.relation = Relation::kExtends;
    return comparison;
  }
  if (is_compacted_since(origin, remembered.origin)) {
    comparison.realigned = meet_in_messages(origin, prompt, remembered, match.num_common);
    comparison.compacted = comparison.realigned.num_equal >= kTellingRun;
  }
  if (!comparison.compacted) comparison.realigned = realign(prompt, known, match.num_common);
  Realignment run = comparison.realigned;
  if (run.num_equal < kTellingRun) {
    if (match.num_common >= remembered.num_prompt) comparison.relation = Relation::kGeneratedDiffers;
    return comparison;
  }
  comparison.relation = Relation::kRealigned;
  std::span<const TokenId> left = prompt, right = known;
  for (int i = 0; i < kMostRuns && run.num_equal >= kTellingRun; ++i) {
    left = left.subspan(static_cast<std::size_t>(run.left_end + run.num_equal));
    right = right.subspan(static_cast<std::size_t>(run.right_end + run.num_equal));
    run = realign(left, right, 0);
  }
  comparison.diverged_end = static_cast<int>(prompt.size() - left.size());
  return comparison;
}

Ledger::Match Ledger::match(const Entry& entry, std::span<const TokenId> prompt) {
  const RememberedPrompt& known = entry.prompt;
  Match best{.num_common = num_equal(prompt, known.tokens), .num_computed = known.num_computed};
  if (best.num_common < known.num_prompt) return best;
  const std::span<const TokenId> said = prompt.subspan(static_cast<std::size_t>(known.num_prompt));
  for (const std::vector<TokenId>& answer : entry.other_answers) {
    const int num_common = known.num_prompt + num_equal(said, answer);
    if (num_common <= best.num_common) continue;
    best = {.num_common = num_common, .num_computed = num_computed_of(known, answer.size()), .answer = &answer};
  }
  return best;
}

RememberedPrompt Ledger::with_answer(const Entry& entry, const Match& match) {
  RememberedPrompt prompt = entry.prompt;
  if (match.answer == nullptr) return prompt;
  prompt.tokens.resize(static_cast<std::size_t>(prompt.num_prompt));
  prompt.tokens.insert(prompt.tokens.end(), match.answer->begin(), match.answer->end());
  prompt.num_computed = match.num_computed;
  return prompt;
}

// Of the prompts that share most from the start, that share content, and that the client names as
// one conversation: the one of which most tokens could be of use. What is shared from the start is; of the
// rest, that which stands somewhere in both may be.
const Ledger::Entry* Ledger::nearest(const Entry& entry) const {
  const PromptSketch& sketch = entry.sketch;
  std::map<std::uint64_t, int> likeness;  // entry -> shingles of which it is the newest to have them
  for (std::size_t i = 0; i < sketch.size; ++i) {
    const auto found = by_shingle_.find(sketch.smallest[i]);
    if (found != by_shingle_.end()) ++likeness[found->second];
  }
  // What newer prompts have as well counts for these two, too.
  const auto add = [&](const Index& index, std::uint64_t hash) {
    const auto found = index.find(hash);
    const Entry* candidate = found == index.end() ? nullptr : find(found->second);
    if (candidate != nullptr) likeness[candidate->number] = num_in_common(sketch, candidate->sketch);
    return candidate != nullptr;
  };
  const auto add_longest = [&](const Index& index, const std::vector<std::uint64_t>& hashes) {
    return std::any_of(hashes.rbegin(), hashes.rend(), [&](std::uint64_t hash) { return add(index, hash); });
  };
  const bool has_kept = add_longest(by_prefix_, entry.prefixes);
  const bool has_unkept = add_longest(by_unkept_prefix_, entry.prefixes);
  if (!has_kept && !has_unkept) add_longest(by_beginning_, entry.beginnings);
  const PromptOrigin& origin = entry.prompt.origin;
  if (origin.conversation != 0) add(by_conversation_, mix64(origin.conversation, seed_of(origin)));
  const Entry* best = nullptr;
  double best_score = 0;
  for (const auto& [number, num_shared] : likeness) {
    const Entry* candidate = find(number);
    if (candidate == nullptr) continue;
    const int num_common = match(*candidate, entry.prompt.tokens).num_common;
    // A few tokens of a template in common make no relative.
    if (num_common < kBlockSize && num_shared < kLeastLikeness) continue;
    const double share = num_shared / std::max(1.0, static_cast<double>(sketch.size));
    const double score = num_common + kWorthElsewhere * share * (entry.prompt.num_prompt - num_common);
    if (score >= best_score) {  // the newer one of equal ones
      best = candidate;
      best_score = score;
    }
  }
  return best;
}

// Of what the relative begins with. It may be a request with a window, whose cache ended there, where an older one's
// went on.
int Ledger::num_known(const Entry& entry, const Comparison& comparison) const {
  if (!comparison.relative) return 0;
  int num = comparison.relative->num_computed;
  for (auto hash = entry.prefixes.rbegin(); hash != entry.prefixes.rend(); ++hash) {
    const auto found = by_prefix_.find(*hash);
    const Entry* other = found == by_prefix_.end() ? nullptr : find(found->second);
    if (other == nullptr) continue;
    const Match match = Ledger::match(*other, entry.prompt.tokens);
    num = std::max(num, std::min(match.num_common, match.num_computed));
    break;
  }
  return std::min(comparison.num_common, num);
}

// Beyond what its own salt has, that is.
int Ledger::num_known_to_other_salts(const Entry& entry) const {
  const Entry* last = nullptr;  // that has all prefixes up to here
  for (std::size_t i = 0; i < entry.tenant_prefixes.size(); ++i) {
    if (by_prefix_.contains(entry.prefixes[i])) continue;
    const auto found = by_tenant_prefix_.find(entry.tenant_prefixes[i]);
    if (found == by_tenant_prefix_.end()) break;
    const Entry* other = find(found->second);
    if (other == nullptr) break;
    last = other;
  }
  if (last == nullptr) return 0;
  const Match found = match(*last, entry.prompt.tokens);
  return std::min(found.num_common, found.num_computed);
}

// Once the entry itself has been compared, by all that it begins with.
void Ledger::part_prefixes(Entry& entry) {
  const auto num_most = static_cast<std::size_t>(entry.prompt.origin.num_shareable / kBlockSize);
  if (entry.prefixes.size() <= num_most) return;
  entry.unkept_prefixes.assign(entry.prefixes.begin() + static_cast<std::ptrdiff_t>(num_most), entry.prefixes.end());
  for (auto* prefixes : {&entry.prefixes, &entry.tenant_prefixes}) {
    prefixes->resize(num_most);
    prefixes->shrink_to_fit();
  }
}

void Ledger::index(Entry& entry) {
  const bool was_indexed = std::exchange(entry.is_indexed, true);
  const PromptOrigin& origin = entry.prompt.origin;
  // One that came later may have been completed before.
  const auto put = [&](auto& map, std::uint64_t hash) {
    std::uint64_t& number = map[hash];
    number = std::max(number, entry.number);
  };
  for (std::size_t& i = entry.num_indexed; i < entry.prefixes.size(); ++i) {
    put(by_prefix_, entry.prefixes[i]);
    put(by_tenant_prefix_, entry.tenant_prefixes[i]);
  }
  for (std::size_t& i = entry.num_unkept_indexed; i < entry.unkept_prefixes.size(); ++i)
    put(by_unkept_prefix_, entry.unkept_prefixes[i]);
  if (was_indexed) return;
  for (const std::uint64_t hash : entry.beginnings) put(by_beginning_, hash);
  for (std::size_t i = 0; i < entry.sketch.size; ++i) put(by_shingle_, entry.sketch.smallest[i]);
  if (origin.conversation != 0) put(by_conversation_, mix64(origin.conversation, seed_of(origin)));
  if (!origin.id.empty()) by_id_[origin.id] = entry.number;
}

void Ledger::measure(Entry& entry) {
  size_bytes_ -= entry.size_bytes;
  const std::size_t num_hashes =
      entry.prefixes.size() + entry.tenant_prefixes.size() + entry.unkept_prefixes.size() + entry.beginnings.size() +
      entry.sketch.size;
  entry.size_bytes = size_of(entry.prompt.origin) + sizeof(Entry) + num_hashes * kBytesPerHash +
                     entry.prompt.tokens.capacity() * sizeof(TokenId) +
                     entry.other_answers.capacity() * sizeof(std::vector<TokenId>);
  for (const std::vector<TokenId>& answer : entry.other_answers)
    entry.size_bytes += answer.capacity() * sizeof(TokenId);
  size_bytes_ += entry.size_bytes;
}

void Ledger::remove(const Entry& entry) {
  const auto erase = [&](auto& map, const auto& key) {
    const auto found = map.find(key);
    if (found != map.end() && found->second == entry.number) map.erase(found);
  };
  const PromptOrigin& origin = entry.prompt.origin;
  for (const std::uint64_t hash : entry.prefixes) erase(by_prefix_, hash);
  for (const std::uint64_t hash : entry.unkept_prefixes) erase(by_unkept_prefix_, hash);
  for (const std::uint64_t hash : entry.tenant_prefixes) erase(by_tenant_prefix_, hash);
  for (const std::uint64_t hash : entry.beginnings) erase(by_beginning_, hash);
  for (std::size_t i = 0; i < entry.sketch.size; ++i) erase(by_shingle_, entry.sketch.smallest[i]);
  if (origin.conversation != 0)
    erase(by_conversation_, mix64(origin.conversation, seed_of(origin)));
  erase(by_id_, origin.id);
  by_number_.erase(entry.number);
  size_bytes_ -= entry.size_bytes;
}

void Ledger::shrink() {
  while (size_bytes_ > max_bytes_ && !entries_.empty()) {
    remove(entries_.front());
    entries_.pop_front();
  }
}

void Ledger::complete(std::uint64_t number, std::span<const TokenId> generated) {
  const std::lock_guard lock(mutex_);
  const auto found = by_number_.find(number);
  if (found == by_number_.end()) return;
  Entry& entry = *found->second;
  RememberedPrompt& prompt = entry.prompt;
  if (prompt.origin.is_servers_own) return;  // it goes when its request does
  if (prompt.num_computed == 0) prompt.num_computed = num_computed_of(prompt, 0);
  if (!generated.empty()) add_answer(entry, generated);
  index(entry);
  measure(entry);
  shrink();
}

void Ledger::add_answer(Entry& entry, std::span<const TokenId> generated) {
  RememberedPrompt& prompt = entry.prompt;
  const auto first = std::span(prompt.tokens).subspan(static_cast<std::size_t>(prompt.num_prompt));
  const auto is_known = [&](std::span<const TokenId> answer) { return std::ranges::equal(answer, generated); };
  if (is_known(first) || std::ranges::any_of(entry.other_answers, is_known)) return;
  // The prompt's own hashes come first; behind them that of its last whole block goes on.
  const int num_blocks = prompt.num_prompt / kBlockSize;
  const int num_keepable = prompt.origin.num_shareable / kBlockSize;
  const auto rest = prompt.tokens.begin() + num_blocks * kBlockSize;
  std::vector<TokenId> computed(rest, prompt.tokens.begin() + prompt.num_prompt);
  computed.insert(computed.end(), generated.begin(), generated.end() - 1);
  const auto behind = [&](const std::vector<std::uint64_t>& hashes, int num_before, std::uint64_t seed) {
    return num_before == 0 ? prefix_hashes(computed, seed)
                           : further_hashes(hashes[static_cast<std::size_t>(num_before) - 1], computed);
  };
  const std::vector<std::uint64_t> hashes =
      num_blocks <= num_keepable ? behind(entry.prefixes, num_blocks, seed_of(prompt.origin))
                                 : behind(entry.unkept_prefixes, num_blocks - num_keepable, seed_of(prompt.origin));
  const auto num_kept = std::clamp<std::ptrdiff_t>(num_keepable - num_blocks, 0, std::ssize(hashes));
  entry.prefixes.insert(entry.prefixes.end(), hashes.begin(), hashes.begin() + num_kept);
  entry.unkept_prefixes.insert(entry.unkept_prefixes.end(), hashes.begin() + num_kept, hashes.end());
  if (num_kept > 0) {
    const std::vector<std::uint64_t> of_tenant = behind(entry.tenant_prefixes, num_blocks, prompt.origin.tenant);
    entry.tenant_prefixes.insert(entry.tenant_prefixes.end(), of_tenant.begin(), of_tenant.begin() + num_kept);
  }
  if (!first.empty()) {
    entry.other_answers.emplace_back(generated.begin(), generated.end());
    return;
  }
  prompt.tokens.insert(prompt.tokens.end(), generated.begin(), generated.end());
  prompt.num_computed = num_computed_of(prompt, generated.size());
}

void Ledger::forget(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  const auto found = by_number_.find(number);
  if (found == by_number_.end() || found->second->is_indexed) return;
  const auto place = found->second;
  remove(*place);
  entries_.erase(place);
}

std::size_t Ledger::num_prompts() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

std::size_t Ledger::size_bytes() const {
  const std::lock_guard lock(mutex_);
  return size_bytes_;
}

namespace {

// Appends [begin, end), joined with what precedes it where the reason is the same.
void append(std::vector<MissedTokens>& missed, MissedTokens span) {
  if (span.begin >= span.end) return;
  if (!missed.empty() && missed.back().reason == span.reason && missed.back().end == span.begin) {
    missed.back().end = span.end;
    return;
  }
  missed.push_back(span);
}

}  // namespace

std::vector<MissedTokens> explain(const Comparison& comparison, const CacheFacts& facts,
                                  int num_prompt, int num_cached) {
  CHECK(num_cached >= 0 && num_cached <= num_prompt, num_cached, num_prompt);
  const int diverged_end = std::min(num_prompt, comparison.lost_end(num_cached));
  std::vector<MissedTokens> missed;
  int place = num_cached;
  // What the cache says nothing about.
  const auto fill = [&](int end) {
    const auto step = [&](int limit, MissReason reason) {
      const int to = std::min(end, limit);
      append(missed, {.begin = place, .end = to, .reason = reason});
      place = std::max(place, to);
    };
    step(comparison.num_known, MissReason::kEvicted);
    step(comparison.num_other_salt, MissReason::kOtherSalt);
    step(std::min(comparison.num_common, diverged_end), MissReason::kNeverSeen);
    step(diverged_end, MissReason::kDiverged);
    step(num_prompt, MissReason::kNeverSeen);
  };
  for (const MissedSpan& span : facts.missed) {
    if (span.end <= place) continue;
    fill(std::max(place, std::min(span.begin, num_prompt)));
    append(missed, {.begin = place,
                    .end = std::min(span.end, num_prompt),
                    .reason = reason_of(span.cause),
                    .evicted_ns = span.evicted_ns,
                    .pool_in_use = span.pool_in_use,
                    .was_cleared = span.was_cleared});
    place = std::max(place, std::min(span.end, num_prompt));
  }
  fill(num_prompt);
  return missed;
}

}  // namespace larder
