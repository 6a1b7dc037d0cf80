#include "server/report/divergence.h"

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <utility>
#include <vector>

#include "server/json_reader.h"
#include "server/message_role.h"
#include "server/text_pattern.h"
#include "server/utf8.h"

namespace larder {
namespace {

using Tokens = std::span<const TokenId>;

constexpr int kContextTokens = 32;    // shown to the patterns around what differs
constexpr int kUnalignedTokens = 96;  // where the prompts never meet again
constexpr std::size_t kSlack = 8;     // characters of a word that may be cut
constexpr int kMostPartTokens = 6000; // of a message that is searched for JSON
constexpr std::size_t kMostPartBytes = std::size_t{64} << 10;
constexpr std::size_t kMostTries = 8;  // brackets around the difference
constexpr int kMostDepth = 64;         // of JSON that is compared

// Dates, times, days and seconds since 1970, each by itself.
constexpr const char* kTimestampPattern = R"(
  \b \d{4} [-/.] \d{1,2} [-/.] \d{1,2} (?: T (?=\d) )?
  | \b \d{1,2} [-/.] \d{1,2} [-/.] \d{2,4} \b
  | \b \d{1,2} (?:st|nd|rd|th)? [ ]
    (?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]* \.? (?: ,? [ ] \d{4} )? \b
  | \b (?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]* \.? [ ]
    \d{1,2} (?:st|nd|rd|th)? \b (?! :) (?: ,? [ ] \d{4} )?
  | \b (?:january|february|march|april|may|june|july|august|september|october|november|december)
    [ ] \d{4} \b
  | \d{1,2} : \d{2} (?: : \d{2} (?: [.,] \d{1,9} )? )? (?: [ ]? [ap] \.? m \b \.? )?
    (?: [ ]? (?: Z | UTC | GMT | [+-] \d{2} :? \d{2} ) \b )?
  | \b (?: mon | tue | tues | wed | wednes | thu | thur | thurs | fri | sat | satur | sun )
    (?: day )? \b
  | \b 1[4-9]\d{8} (?: \d{3} | \d{6} | \d{9} | \. \d{1,9} )? \b
)";

// Ids that look like chance, or are named as such.
constexpr const char* kNoncePattern = R"(
  \b [0-9a-f]{8} - (?: [0-9a-f]{4} - ){3} [0-9a-f]{12} \b
  | \b (?: nonce | cch | cc_version | (?: request | req | session | trace | run ) [-_ ]? id | seed )
    ["']? \s* [=:\#] \s* ["']? [\w./+-]+ =*
  | \b [a-z]{2,8} _ (?= [0-9a-z]* \d ) [0-9a-z]{6,} \b
  | \b (?= [a-z]* \d ) (?= \d* [a-z] ) [0-9a-z]{8,} (?: [-_] [0-9a-z]+ )* =*
  | \b (?= [\w+/-]* \d ) (?= [\w+/-]* [a-z] ) [\w+/-]{16,} =*
  | \# \d{3,} \b
  | \b \d{5,} \b
)";

const TextPattern& timestamps() {
  static const TextPattern pattern(kTimestampPattern);
  return pattern;
}
const TextPattern& nonces() {
  static const TextPattern pattern(kNoncePattern);
  return pattern;
}
const TextPattern& spaces() {
  static const TextPattern pattern(R"([\s\x{00}]+)");
  return pattern;
}
// Ends with the first that is not closed: to look on from each such place to the end of a text would take
// the square of its length.
const TextPattern& thoughts() {
  static const TextPattern pattern(R"( <(think|thinking|reasoning)> (?: [\s\S]*? </\1> \s* | (*COMMIT)(*FAIL) ) )");
  return pattern;
}

// One of the two prompts, around the first difference.
struct Side {
  Tokens tokens;
  int part_begin = 0, part_end = 0;  // the part that the first different token belongs to
  int message = -1;
  std::string role;
  std::string text;  // around what differs, from the same token in both
};

int end_of(Tokens tokens) { return static_cast<int>(tokens.size()); }

Tokens slice(Tokens tokens, int begin, int end) {
  end = std::clamp(end, 0, end_of(tokens));
  begin = std::clamp(begin, 0, end);
  return tokens.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
}

void locate(Side& side, const PromptOrigin& origin, int token) {
  side.part_end = end_of(side.tokens);
  const auto after = std::ranges::upper_bound(origin.parts, token, {}, &PromptPart::begin);
  if (after == origin.parts.begin()) return;
  const PromptPart& part = *std::prev(after);
  side.part_begin = part.begin;
  if (after != origin.parts.end()) side.part_end = after->begin;
  side.message = part.message;
  const auto index = static_cast<std::size_t>(part.message);
  if (part.message >= 0 && index < origin.roles.size()) side.role = origin.roles[index];
}

// Equal up to where the shorter one ends, but for its last characters.
bool begin_alike(const std::string& left, const std::string& right, std::size_t slack) {
  constexpr std::size_t kLeast = 24;
  const std::size_t size = std::min(left.size(), right.size());
  return size >= kLeast && left.compare(0, size - slack, right, 0, size - slack) == 0;
}

// Which brackets are open in a text that may hold JSON. Strings begin within brackets only, and end with
// their line: the text around may have a quotation mark or a bracket of its own.
struct BracketScan {
  std::vector<std::size_t> open;  // where they stand
  bool in_string = false;
  bool is_escaped = false;

  void take(char c, std::size_t place) {
    if (in_string) {
      if (std::exchange(is_escaped, false)) return;
      is_escaped = c == '\\';
      in_string = c != '"' && c != '\n';
      return;
    }
    if (c == '"') in_string = !open.empty();
    if (c == '{' || c == '[') open.push_back(place);
    if ((c == '}' || c == ']') && !open.empty()) open.pop_back();
  }
};

class Classifier {
 public:
  Classifier(const Comparison& comparison, const PromptOrigin& origin, Tokens prompt,
             const Tokenizer& tokenizer)
      : comparison_(comparison),
        relative_(*comparison.relative),
        origin_(origin),
        tokenizer_(tokenizer),
        first_(comparison.num_common),
        // Of what was left out, which may be long, the beginning will do.
        is_aligned_(comparison.realigned.num_equal > 0 && !comparison.compacted) {
    new_.tokens = prompt;
    old_.tokens = relative_.tokens;
    locate(new_, origin, first_);
    locate(old_, relative_.origin, first_);
    const Realignment& met = comparison.realigned;
    const int reach = is_aligned_ ? std::min(met.num_equal, kContextTokens) : kUnalignedTokens;
    const int begin = std::max(0, first_ - kContextTokens);
    new_.text = decode(slice(prompt, begin, (is_aligned_ ? met.left_end : first_) + reach));
    old_.text = decode(slice(old_.tokens, begin, (is_aligned_ ? met.right_end : first_) + reach));
    // The shorter text may be cut within a word, but not where that is all that differs.
    const std::size_t num_needed = std::max(decode(slice(prompt, begin, first_ + 1)).size(),
                                            decode(slice(old_.tokens, begin, first_ + 1)).size());
    if (std::min(new_.text.size(), old_.text.size()) > num_needed + kSlack) slack_ = kSlack;
  }

  // nullopt = nothing of which one could say that it changed.
  std::optional<DivergenceKind> kind() const {
    if (comparison_.compacted) return DivergenceKind::kTruncatedHistory;
    if (old_.message >= 0) {
      if (old_.message == relative_.origin.quoted_message) return DivergenceKind::kTruncatedHistory;
      if (old_.message == relative_.origin.timed_message) return DivergenceKind::kTimestamp;
    }
    if (first_ >= relative_.num_prompt && is_rethought()) return DivergenceKind::kRerenderedThinking;
    if (says_nothing()) return std::nullopt;
    if (are_equal(new_.text, old_.text)) return DivergenceKind::kRetokenisedGeneration;
    if (is_in_tools()) {
      return origin_.sorted_tools == relative_.origin.sorted_tools
                 ? DivergenceKind::kReorderedJsonKeys
                 : DivergenceKind::kChangedTools;
    }
    if (is_of_effort()) return DivergenceKind::kChangedEffort;
    if (equal_without(spaces(), "")) return DivergenceKind::kWhitespace;
    if (has_equal_json()) return DivergenceKind::kReorderedJsonKeys;
    if (is_rethought()) return DivergenceKind::kRerenderedThinking;
    // A time or a number in an answer is its own.
    if (comparison_.relation == Relation::kGeneratedDiffers) return std::nullopt;
    if (is_small() && equal_without(timestamps(), "@")) return DivergenceKind::kTimestamp;
    if (is_small() && has_other_nonces()) return DivergenceKind::kNonce;
    if (is_truncated()) return DivergenceKind::kTruncatedHistory;
    if (comparison_.relation != Relation::kRealigned) return std::nullopt;
    if (origin_.parts.empty()) return DivergenceKind::kEditedText;
    return is_system_role(segment()) ? DivergenceKind::kChangedSystemPrompt
                                     : DivergenceKind::kEditedHistory;
  }

  Divergence describe(DivergenceKind kind) const {
    constexpr std::size_t kShared = 40, kShown = 80;
    const auto [in_new, in_old] = std::mismatch(new_.text.begin(), new_.text.end(),
                                                old_.text.begin(), old_.text.end());
    const auto place = static_cast<std::size_t>(in_new - new_.text.begin());
    const auto piece = [](const std::string& text, std::size_t begin, std::size_t size) {
      return to_valid_utf8(text.substr(begin, size));
    };
    const std::size_t shared = std::min(place, kShared);
    const std::string role = kind == DivergenceKind::kChangedEffort ? "effort" : segment();
    return {.kind = kind,
            .token = first_,
            .end = end_of_loss(kind),
            .message = role == new_.role ? origin_.index_sent(new_.message) : -1,
            .role = role,
            .shared_text = piece(new_.text, place - shared, shared),
            .old_text = piece(old_.text, place, kShown),
            .new_text = piece(new_.text, place, kShown)};
  }

 private:
  std::string decode(Tokens tokens) const { return tokenizer_.decode(tokens, true); }

  int end_of_loss(DivergenceKind kind) const {
    if (comparison_.relation == Relation::kRealigned) return comparison_.diverged_end;
    if (kind == DivergenceKind::kRetokenisedGeneration) return end_of_same_text();
    return std::min(end_of(new_.tokens), end_of(old_.tokens));  // it had no more than these
  }

  // Tokens of the new prompt up to where it says what the relative does, in other ones.
  int end_of_same_text() const {
    const std::string rest = decode(slice(old_.tokens, first_, end_of(old_.tokens)));
    StreamDecoder decoder(tokenizer_, true);
    std::size_t size = 0;
    int end = first_;
    while (end < end_of(new_.tokens) && size < rest.size()) {
      const std::string piece = decoder.push(new_.tokens[static_cast<std::size_t>(end)]);
      const std::size_t num_compared = std::min(piece.size(), rest.size() - size);
      if (rest.compare(size, num_compared, piece, 0, num_compared) != 0) break;
      size += piece.size();
      ++end;
    }
    return end;
  }

  // An answer of no words, behind which the prompt goes on in its own: nothing can be compared.
  bool says_nothing() const {
    if (comparison_.relation != Relation::kGeneratedDiffers) return false;
    const std::string rest = decode(slice(old_.tokens, first_, first_ + kUnalignedTokens));
    return spaces().replace_all(rest, "").empty();
  }

  // What a template prints of it may be the beginning of a thought, which is left out of a history.
  bool is_of_effort() const { return is_of_other_effort(origin_, relative_, first_) && !is_rethought(); }

  bool are_equal(const std::string& left, const std::string& right) const {
    return is_aligned_ ? left == right : begin_alike(left, right, slack_);
  }

  bool equal_without(const TextPattern& pattern, std::string_view replacement) const {
    return are_equal(pattern.replace_all(new_.text, replacement),
                     pattern.replace_all(old_.text, replacement));
  }

  // A timestamp beside a nonce is a nonce, too.
  bool has_other_nonces() const {
    const auto masked = [](const std::string& text) {
      return nonces().replace_all(timestamps().replace_all(text, "@"), "@");
    };
    return are_equal(masked(new_.text), masked(old_.text)) || equal_without(nonces(), "@");
  }

  // Of a few dozen tokens: whatever else it is, it is no other text.
  bool is_small() const {
    const Realignment& met = comparison_.realigned;
    return !is_aligned_ || (met.left_end - first_ < 200 && met.right_end - first_ < 200);
  }

  // Of the prompt, what differs first. What the template refuses as a system prompt, and summaries, stand
  // in messages that say other things, too.
  std::string segment() const {
    if (is_in_tools()) return "tools";
    const bool is_in_head = is_system_role(new_.role) || is_system_role(old_.role) ||
                            new_.message == 0 || old_.message == 0;
    if (!is_in_head) return new_.role;
    const PromptOrigin& before = relative_.origin;
    if (origin_.system != before.system) return is_system_role(new_.role) ? new_.role : "system";
    return origin_.summary != before.summary ? "summary" : new_.role;
  }

  // Tools stand in what a template prints before the first turn, of either prompt: one may have none.
  bool is_in_tools() const {
    const PromptOrigin& before = relative_.origin;
    if (origin_.tools == before.tools) return false;
    // Of a system prompt that differs, too, and stands before them.
    const int begin = std::min(origin_.tools_begin, before.tools_begin);
    if (origin_.system != before.system && first_ < begin) return false;
    return first_ < std::max(origin_.tools_end, relative_.origin.tools_end);
  }

  bool is_rethought() const {
    const std::string in_new = thoughts().replace_all(new_.text, "");
    const std::string in_old = thoughts().replace_all(old_.text, "");
    const bool had_some = in_new.size() != new_.text.size() || in_old.size() != old_.text.size();
    if (had_some) return are_equal(spaces().replace_all(in_new, ""), spaces().replace_all(in_old, ""));
    // A long thought ends beyond the text that is looked at.
    const auto opens = [](const std::string& text) {
      return text.find("<think") != std::string::npos ||
             text.find("<reasoning>") != std::string::npos;
    };
    return opens(new_.text) != opens(old_.text);
  }

  // Messages of the relative are left out between two that stay.
  bool is_truncated() const {
    const Realignment& met = comparison_.realigned;
    if (comparison_.relation != Relation::kRealigned) return false;  // a template's own text is no run
    // Left out or put in, a system prompt is no message of the history.
    if (origin_.system != relative_.origin.system && is_system_role(segment())) return false;
    const int num_new = met.left_end - first_;
    const int num_old = met.right_end - first_;
    if (num_old <= num_new || num_new > kContextTokens / 2) return false;
    // Where the run begins inside a message, its first token tells which one it is.
    return relative_.origin.message_at(met.right_end) - relative_.origin.message_at(first_) >
           origin_.message_at(met.left_end) - origin_.message_at(first_);
  }

  // An object or array around the difference that says the same in both.
  bool has_equal_json() const {
    if (new_.part_end - new_.part_begin > kMostPartTokens ||
        old_.part_end - old_.part_begin > kMostPartTokens)
      return false;
    const std::string in_new = decode(slice(new_.tokens, new_.part_begin, new_.part_end));
    const std::string in_old = decode(slice(old_.tokens, old_.part_begin, old_.part_end));
    if (in_new.size() > kMostPartBytes || in_old.size() > kMostPartBytes) return false;
    const auto [place, other] =
        std::mismatch(in_new.begin(), in_new.end(), in_old.begin(), in_old.end());
    const auto difference = static_cast<std::size_t>(place - in_new.begin());
    BracketScan scan;
    for (std::size_t i = 0; i < difference; ++i) scan.take(in_new[i], i);
    // Only what is still open can be around it, and what is next to it is most likely to say it all.
    const std::size_t num_tries = std::min(scan.open.size(), kMostTries);
    const std::vector<std::size_t> new_ends = closings(scan, in_new, difference, num_tries);
    const std::vector<std::size_t> old_ends = closings(scan, in_old, difference, num_tries);
    for (std::size_t i = 0; i < num_tries && new_ends[i] > 0 && old_ends[i] > 0; ++i) {
      const std::size_t begin = scan.open[scan.open.size() - 1 - i];
      if (same_json(in_new.substr(begin, new_ends[i] - begin),
                    in_old.substr(begin, old_ends[i] - begin)))
        return true;
    }
    return false;
  }

  // One past what closes each of the num innermost brackets that are open at begin, the innermost first;
  // 0 = nothing does.
  static std::vector<std::size_t> closings(BracketScan scan, const std::string& text,
                                           std::size_t begin, std::size_t num) {
    std::vector<std::size_t> ends(num);
    const std::size_t depth = scan.open.size();
    std::size_t num_closed = 0;
    for (std::size_t i = begin; i < text.size() && num_closed < num; ++i) {
      scan.take(text[i], i);
      if (scan.open.size() < depth - num_closed) ends[num_closed++] = i + 1;
    }
    return ends;
  }

  static bool same_json(const std::string& left, const std::string& right) {
    // Comparing goes as deep as the values do.
    bool is_shallow = true;
    const auto watch = [&](int depth, nlohmann::json::parse_event_t, const nlohmann::json&) {
      is_shallow = is_shallow && depth <= kMostDepth;
      return is_shallow;
    };
    // Without regard to the order of keys, unlike Json.
    const auto parsed_left = nlohmann::json::parse(left, watch, false);
    if (parsed_left.is_discarded()) return false;
    const auto parsed_right = nlohmann::json::parse(right, watch, false);
    return is_shallow && parsed_left == parsed_right;
  }

  const Comparison& comparison_;
  const RememberedPrompt& relative_;
  const PromptOrigin& origin_;
  const Tokenizer& tokenizer_;
  const int first_;
  const bool is_aligned_;
  Side new_, old_;
  std::size_t slack_ = 0;
};

}  // namespace

const char* divergence_name(DivergenceKind kind) {
  switch (kind) {
    case DivergenceKind::kTimestamp:
      return "timestamp";
    case DivergenceKind::kNonce:
      return "nonce";
    case DivergenceKind::kReorderedJsonKeys:
      return "reordered_json_keys";
    case DivergenceKind::kWhitespace:
      return "whitespace";
    case DivergenceKind::kChangedTools:
      return "changed_tools";
    case DivergenceKind::kChangedSystemPrompt:
      return "changed_system_prompt";
    case DivergenceKind::kChangedEffort:
      return "changed_effort";
    case DivergenceKind::kEditedHistory:
      return "edited_history";
    case DivergenceKind::kTruncatedHistory:
      return "truncated_history";
    case DivergenceKind::kRerenderedThinking:
      return "rerendered_thinking";
    case DivergenceKind::kRetokenisedGeneration:
      return "retokenised_generation";
    case DivergenceKind::kEditedText:
      break;
  }
  return "edited_text";
}

const char* divergence_advice(DivergenceKind kind) {
  switch (kind) {
    case DivergenceKind::kTimestamp:
      return "Put the time at the end of the last message, or round it to the day.";
    case DivergenceKind::kNonce:
      return "Leave ids that change with each request out of the prompt, or put them at its end.";
    case DivergenceKind::kReorderedJsonKeys:
      return "Write JSON with its keys in one order, as json.dumps(..., sort_keys=True) does.";
    case DivergenceKind::kWhitespace:
      return "Send what stays the same byte for byte: do not trim or reformat it.";
    case DivergenceKind::kChangedTools:
      return "Send one list of tools in one order each time, also those that a turn has no use for.";
    case DivergenceKind::kChangedSystemPrompt:
      return "Keep the system prompt; send what changes in a later message.";
    case DivergenceKind::kChangedEffort:
      return "Keep one effort of thinking throughout a conversation.";
    case DivergenceKind::kEditedHistory:
      return "Append to the history rather than edit it.";
    case DivergenceKind::kTruncatedHistory:
      return "Drop old turns rarely and many at a time, so that the rest is reused between.";
    case DivergenceKind::kRerenderedThinking:
      return "Send the turns' reasoning back as it came, or never.";
    case DivergenceKind::kRetokenisedGeneration:
      return "Send the answer back unchanged as an assistant message, so that its tokens are kept.";
    case DivergenceKind::kEditedText:
      break;
  }
  return "Put what changes at the end of the prompt.";
}

std::optional<Divergence> find_divergence(const Comparison& comparison, const PromptOrigin& origin,
                                          std::span<const TokenId> prompt,
                                          const Tokenizer& tokenizer) {
  if (!comparison.relative || comparison.relation == Relation::kExtends) return std::nullopt;
  const Classifier classifier(comparison, origin, prompt, tokenizer);
  const std::optional<DivergenceKind> kind = classifier.kind();
  if (!kind) return std::nullopt;
  return classifier.describe(*kind);
}

}  // namespace larder
