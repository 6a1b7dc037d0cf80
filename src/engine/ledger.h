// Why a prompt's tokens had to be computed: what the cache knows, joined with the prompts that came
// before.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <list>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/types.h"
#include "engine/prompt_sketch.h"
#include "engine/request.h"

namespace larder {

enum class MissReason : std::uint8_t {
  kNeverSeen,   // no prompt with this prefix is remembered
  kDiverged,    // a recent prompt had what follows, but not at this place or not in these tokens
  kEvicted,
  kExpired,     // a pin had kept it until its time was up
  kOtherSalt,   // computed for the same API key under another cache_salt
  kOtherModel,  // stored for another model, KV type or instruction set
  kWindowSlid,
  kTierFailed,
  kTooShort,    // computing is cheaper than loading it; and always the last token
  kBypassed,    // the request itself asked for it
};
inline constexpr int kNumMissReasons = 10;
const char* miss_reason_name(MissReason reason);  // "never_seen", ...

// Tokens from begin up to the next part's came from that message.
struct PromptPart {
  int begin = 0;
  int message = -1;    // index in the request; -1 = the template's own end (the generation prompt)
  int text_begin = 0;  // of the message's own text, behind what the template prints before it
};

// What a client sent, as far as the ledger compares it. Hashes: 0 = there is none.
struct PromptOrigin {
  std::string id;                  // of the reply
  std::uint64_t tenant = 0;        // whose text this is: nobody else's ledger entries meet it
  std::uint64_t salt = 0;          // within the tenant
  std::uint64_t tools = 0;         // of the tools as they were sent
  std::uint64_t sorted_tools = 0;  // of the tools with the keys of their objects in order
  std::uint64_t system = 0;        // of the system prompt as it was sent
  std::uint64_t effort = 0;        // of how much the template was told to have the model think
  std::uint64_t summary = 0;       // of the text that stands for messages left out
  std::uint64_t conversation = 0;  // of what the client says belongs together (prompt_cache_key)
  // Tokens of the prompt before the first tool's definition, and before the first turn's own text.
  int tools_begin = std::numeric_limits<int>::max();  // there are none
  int tools_end = 0;
  int num_dropped = 0;             // messages that the server left out of the prompt
  bool is_servers_own = false;     // no client sent it: nobody's relative
  // Tokens that the cache may keep of it: AttentionSpan's.
  int num_shareable = std::numeric_limits<int>::max();
  std::vector<PromptPart> parts;   // in order; empty = one text
  std::vector<std::string> roles;  // of the messages
  std::vector<int> sent_as;        // their indices as the client sent them; empty = the same
  // Messages into which the server has put words that will not stand there the next time: quotes of what
  // was left out, the time. -1 = none.
  int quoted_message = -1;
  int timed_message = -1;

  // Whose words a token is, as parts say it.
  int message_at(int token) const {
    const auto after = std::ranges::upper_bound(parts, token, {}, &PromptPart::begin);
    return after == parts.begin() ? -1 : std::prev(after)->message;
  }
  // Tokens of the template's own text from there up to the message's; negative = it is the message's.
  int num_to_text(int token) const {
    const auto after = std::ranges::upper_bound(parts, token, {}, &PromptPart::begin);
    return after == parts.begin() ? -1 : std::prev(after)->text_begin - token;
  }
  // -1 = the client sent no such message.
  int index_sent(int message) const {
    const auto index = static_cast<std::size_t>(message);
    return message >= 0 && index < sent_as.size() ? sent_as[index] : message;
  }
};

// Whether the server has left messages out, or summed them up, since the relative's prompt. Not where
// the tools or the system prompt differ, which come first.
bool is_compacted_since(const PromptOrigin& origin, const PromptOrigin& relative);

struct RememberedPrompt {
  PromptOrigin origin;
  std::vector<TokenId> tokens;  // the prompt, then what was generated
  int num_prompt = 0;
  int num_computed = 0;         // tokens whose keys and values were once in the cache
  std::int64_t arrived_ns = 0;
};

// Whether what differs first is what the template prints of how much the model is to think, which the
// client changed. Not where the tools or the system prompt differ, which come first.
bool is_of_other_effort(const PromptOrigin& origin, const RememberedPrompt& relative, int num_common);

// What a prompt is to another one that has the same beginning, or content.
enum class Relation : std::uint8_t {
  kUnrelated,         // each says its own, by the look of what follows
  kExtends,           // one of them ends where the other goes on
  kGeneratedDiffers,  // one goes on from the other's prompt, but not as that was answered
  kRealigned,         // they meet again behind what differs: one conversation, or one prompt
};

// A new prompt beside its nearest relative.
struct Comparison {
  std::uint64_t entry = 0;  // the new prompt's place in the ledger
  // With its answer; of several, with the one that goes furthest with the new prompt.
  std::optional<RememberedPrompt> relative;
  Relation relation = Relation::kUnrelated;
  int num_common = 0;      // tokens that both begin with: the index of the first different one
  int num_known = 0;       // of those, that were once in the cache, whichever prompt had them there
  Realignment realigned;   // left: the new prompt; right: the relative
  // Tokens of the new prompt that could have been cached, had both not parted: up to where the last telling run
  // of equal ones ends, of realigned prompts.
  int diverged_end = 0;
  int num_other_salt = 0;  // tokens that another salt of the tenant begins with, too
  // What differs is what the server made of a long history: messages that it kept are in both.
  bool compacted = false;

  // diverged_end, or 0 where nothing was lost to what differs. Unless the prompts meet again, that is so, too,
  // where the cache goes on behind it: another prompt had this.
  int lost_end(int num_cached) const {
    const bool is_cached = relation != Relation::kRealigned && num_common < num_cached;
    return is_cached || diverged_end <= num_cached ? 0 : diverged_end;
  }

  // Leaves what explain() goes by: the request may wait in line for long.
  void forget_text();
};

// A span of computed tokens of a prompt, and why.
struct MissedTokens {
  int begin = 0;
  int end = 0;
  MissReason reason = MissReason::kNeverSeen;
  std::int64_t evicted_ns = 0;  // as MissedSpan
  float pool_in_use = 0;
  bool was_cleared = false;
};

// The last prompts of every tenant, at most max_bytes of them, oldest out first. Relatives are found
// through hashes of prefixes and of content (see PromptSketch), never by a scan.
// Thread: any.
class Ledger {
 public:
  explicit Ledger(std::size_t max_bytes) : max_bytes_(max_bytes) {}

  // Finds the relative of a prompt and remembers it. Others find it from complete() on: an attempt
  // that was refused or given up before is to hide nothing. now_ns: any clock that goes on.
  Comparison compare(PromptOrigin origin, std::span<const TokenId> prompt, std::int64_t now_ns);
  // The same against one reply, by its id; nullopt = not remembered, or not this tenant's and
  // salt's.
  std::optional<Comparison> compare_with(const std::string& id, const PromptOrigin& origin,
                                         std::span<const TokenId> prompt) const;
  // The entry's prompt was computed, and these tokens were generated after it, as one of its answers.
  void complete(std::uint64_t entry, std::span<const TokenId> generated);
  // Nobody will complete the entry any more. It goes unless that was done: it would only take room.
  void forget(std::uint64_t entry);

  std::size_t num_prompts() const;
  std::size_t size_bytes() const;

 private:
  struct Entry {
    std::uint64_t number = 0;
    RememberedPrompt prompt;  // with its first answer
    std::vector<std::vector<TokenId>> other_answers;
    // Of the prompt, then of it with each of its answers what is beyond; as far as the cache may keep it.
    std::vector<std::uint64_t> prefixes;         // seeded by tenant and salt
    std::vector<std::uint64_t> tenant_prefixes;  // by tenant
    std::vector<std::uint64_t> unkept_prefixes;  // the rest, as prefixes
    // As prefixes, of its first 4, 8 and 12 tokens. Where a prompt parts within its first block, the relative that
    // goes furthest with it is found by these.
    std::vector<std::uint64_t> beginnings;
    PromptSketch sketch;
    std::size_t size_bytes = 0;
    std::size_t num_indexed = 0;         // prefixes
    std::size_t num_unkept_indexed = 0;
    bool is_indexed = false;  // once it is completed
  };
  using Index = std::unordered_map<std::uint64_t, std::uint64_t>;
  // Of a prompt and the entry's with that one of its answers which goes furthest with it.
  struct Match {
    int num_common = 0;
    int num_computed = 0;                          // RememberedPrompt's, with this answer
    const std::vector<TokenId>* answer = nullptr;  // of other_answers; null = the first
  };

  const Entry* find(std::uint64_t number) const;
  Comparison compare_to(const Entry* relative, const PromptOrigin& origin,
                        std::span<const TokenId> prompt) const;
  static Match match(const Entry& entry, std::span<const TokenId> prompt);
  static RememberedPrompt with_answer(const Entry& entry, const Match& match);
  const Entry* nearest(const Entry& entry) const;
  int num_known(const Entry& entry, const Comparison& comparison) const;
  int num_known_to_other_salts(const Entry& entry) const;
  static void part_prefixes(Entry& entry);
  void index(Entry& entry);
  static void add_answer(Entry& entry, std::span<const TokenId> generated);
  void measure(Entry& entry);
  void remove(const Entry& entry);
  void shrink();

  const std::size_t max_bytes_;
  mutable std::mutex mutex_;
  std::uint64_t next_number_ = 1;
  std::size_t size_bytes_ = 0;
  std::list<Entry> entries_;  // oldest first
  std::unordered_map<std::uint64_t, std::list<Entry>::iterator> by_number_;
  std::unordered_map<std::string, std::uint64_t> by_id_;
  // Hash -> the number of the newest entry that has it.
  Index by_prefix_, by_unkept_prefix_, by_tenant_prefix_, by_beginning_, by_shingle_, by_conversation_;
};

// The computed tokens of a prompt, in order, each with one reason: what the cache tells goes first,
// then what the comparison does. They cover the prompt but for its cached tokens, exactly.
std::vector<MissedTokens> explain(const Comparison& comparison, const CacheFacts& facts,
                                  int num_prompt, int num_cached);

}  // namespace larder
