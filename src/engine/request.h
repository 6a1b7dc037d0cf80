// What a client asks of the engine, and what it hears back.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/types.h"
#include "grammar/constraint.h"
#include "kv/cache/miss.h"
#include "kv/share_mark.h"

namespace larder {

// How the next token is drawn. Defaults leave the model's distribution as it is.
struct SamplingParams {
  float temperature = 1;         // 0 = greedy
  float top_p = 1;               // (0, 1]
  int top_k = 0;                 // 0 = all
  float min_p = 0;               // [0, 1], relative to the best token
  float repetition_penalty = 1;  // > 0, over prompt and output (CTRL, arXiv:1909.05858)
  float frequency_penalty = 0;   // [-2, 2], over output
  float presence_penalty = 0;    // [-2, 2], over output
  std::vector<std::pair<TokenId, float>> logit_bias;  // added before anything else
  std::optional<std::uint64_t> seed;                  // nullopt: drawn by the engine
  std::vector<TokenId> stop_token_ids;  // beside the model's end tokens; the stop token is not text
  int min_tokens = 0;                   // no end or stop token before that many, nor a stop string (TextStream)
  int max_tokens = 16;                  // 0 = prompt only (with prompt_logprobs)
  bool ignore_eos = false;
  int num_logprobs = -1;         // -1 = none; 0 = of the chosen token; k = and of the k best
  int num_prompt_logprobs = -1;  // likewise for every prompt token but the first
  // What the output may be; null = anything. It ends (kStop) where nothing may follow; where the vocabulary has no
  // token that may, as kLength. Not together with min_tokens and ignore_eos.
  std::shared_ptr<const Constraint> constraint = nullptr;
};

inline constexpr TokenId kNoToken = -1;

struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0;
};

struct OutputToken {
  TokenId token = 0;
  float logprob = 0;               // of the model's distribution before temperature and filters
  std::vector<TokenLogprob> best;  // the num_logprobs best, best first
};

// Of a prompt: one list, however many choices are told.
using SharedTokens = std::shared_ptr<const std::vector<OutputToken>>;

// kLost: another machine that computes a part of the model does not answer. kNoMemory: there is none for what goes with
// the request's size. kStuck: of no token it is known that the constraint permits it.
enum class FinishReason { kNone, kStop, kLength, kCancelled, kLost, kNoMemory, kStuck };

// Nanoseconds of the engine's clock, less what the request had paused by then; 0 = not reached. Between two of them no
// time is the reader's.
struct RequestTimes {
  std::int64_t arrived_ns = 0;
  std::int64_t scheduled_ns = 0;  // first time in a batch, or begun to load
  std::int64_t first_token_ns = 0;
  std::int64_t last_token_ns = 0;
  std::int64_t finished_ns = 0;  // also of a choice that generates nothing

  // Of what has been seen; whoever ends a choice behind the engine's back does so at a token.
  std::int64_t end_ns() const { return finished_ns != 0 ? finished_ns : last_token_ns; }
  std::int64_t prompt_end_ns() const { return first_token_ns != 0 ? first_token_ns : end_ns(); }
};

// A place in the prompt up to which the cache is to keep it.
struct PromptPin {
  int num_tokens = 0;  // of the prompt, from its beginning
  int ttl_s = 0;       // KvCache::pin, from when the prompt is computed; 0 = only counted as written

  std::int64_t ttl_ns() const { return ttl_s * std::int64_t{1'000'000'000}; }
};
inline constexpr int kMaxPins = 4;  // of a request

// Tokens that a request has put into the cache, up to one of its pins.
struct WrittenTokens {
  int ttl_s = 0;  // the pin's
  int num_tokens = 0;
  bool is_pinned = false;  // else nobody asked for a time, or it was refused
};

// num_prompt_tokens = num_cached_tokens + those written + those beyond the last pin.
struct RequestUsage {
  int num_prompt_tokens = 0;
  int num_cached_tokens = 0;  // of the prompt, not computed for this request
  int num_loaded_tokens = 0;  // of those, from a tier beyond the pool
  int num_output_tokens = 0;  // of this choice
  int num_preemptions = 0;
  int num_draft_tokens = 0;     // guessed ahead for this choice, see Drafter
  int num_accepted_tokens = 0;  // of those, which came true
  // Of the guesses, those from Request::prediction.
  int num_predicted_accepted = 0;
  int num_predicted_rejected = 0;
  // Per pin, what was computed beyond the pin before it.
  std::array<WrittenTokens, kMaxPins> written{};

  int num_written_tokens() const {
    int sum = 0;
    for (const WrittenTokens& tokens : written) sum += tokens.num_tokens;
    return sum;
  }
  // Of those, what was to stay longer than that.
  int num_written_beyond(int ttl_s) const {
    int sum = 0;
    for (const WrittenTokens& tokens : written) sum += tokens.ttl_s > ttl_s ? tokens.num_tokens : 0;
    return sum;
  }
  // And does.
  int num_pinned_beyond(int ttl_s) const {
    int sum = 0;
    for (const WrittenTokens& tokens : written)
      sum += tokens.is_pinned && tokens.ttl_s > ttl_s ? tokens.num_tokens : 0;
    return sum;
  }
};

// Where a prompt's tokens came from, as of the time when it was first scheduled.
struct CacheFacts {
  std::vector<int> num_loaded_by_tier;  // of RequestUsage::num_loaded_tokens; empty = none
  // Of the tokens that were computed: those that the cache can tell about, in order.
  std::vector<MissedSpan> missed;
};

// One step's news of one choice.
struct RequestUpdate {
  int choice = 0;                   // [0, n)
  std::vector<OutputToken> tokens;  // new ones, in order; an end or stop token is not among them
  SharedTokens prompt_logprobs;     // once, with the choice's first update, if asked for; else null
  FinishReason finish = FinishReason::kNone;
  std::optional<TokenId> stop_token;  // which token ended it
  bool follows_pause = false;         // its first token does: how long that took is no latency
  RequestUsage usage;
  RequestTimes times;
  CacheFacts cache;  // once, with the first update of choice 0
  // With the last one of a request that waits until its blocks are shared; Engine keeps it until then.
  std::optional<ShareMark> share = std::nullopt;
};

// Called on the engine thread for every update, in order; must not block and must not throw.
using UpdateCallback = std::function<void(RequestUpdate&&)>;

// Tokens of an endless request, prompt and output: its positions and its list of tokens are held to
// that.
inline constexpr int kMaxEndlessTokens = 1 << 24;

struct Request {
  std::uint64_t id = 0;  // given by Engine::submit
  std::vector<TokenId> prompt;
  // What the answer is likely to be in part: for guesses (Drafter), never for results. null = not said.
  std::shared_ptr<const std::vector<TokenId>> prediction = nullptr;
  SamplingParams sampling;
  int n = 1;         // choices; the prompt is computed once
  // Whose it is: where several wait, their tenants take turns (FairLine).
  std::uint64_t tenant = 0;
  // Lower goes first, equal ones in turns. What a request below 0 leaves in the cache
  // stays longer (EvictionPolicy), until another one uses it.
  int priority = 0;
  std::vector<PromptPin> pins;  // at most kMaxPins, each of more tokens than the one before
  std::string salt;  // KV is shared only among equal salts
  // Endless context (StreamingLLM, Xiao et al. 2024): a token sees the attention_window tokens up to
  // itself and the first attention_sinks of all; what lies between is forgotten, and the length is
  // not bounded by max_model_len. Both multiples of kBlockSize; 0 = everything is seen.
  int attention_window = 0;
  int attention_sinks = 0;
  // It only may come, and its prompt is computed for when it does: it has no part in statistics of prompts, and its
  // steps are short.
  bool is_anticipated = false;
  // The last update waits, for some seconds at most, until others can load the prompt from a tier that they share.
  bool waits_until_shared = false;
  UpdateCallback on_update;
};

}  // namespace larder
