// What a client asks for, whatever the API, once its request is checked.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/types.h"
#include "engine/request.h"
#include "kv/cache/block_table.h"
#include "server/answer/answer_format.h"
#include "server/answer/tool_calls.h"
#include "server/chat/cache_marks.h"
#include "server/chat/history_options.h"
#include "server/chat/history_tokens.h"
#include "server/chat/normalise.h"
#include "server/json_reader.h"
#include "tokenizer/jinja/chat_template.h"

namespace larder {

// What errors call what several APIs have under names of their own.
struct FieldNames {
  const char* messages = "messages";
  const char* max_tokens = "max_tokens";
  const char* logprobs = "logprobs";
};

// What is kept of a request until its reply has ended.
struct ReplyOptions {
  SamplingParams
      sampling;  // max_tokens is set by the prompt's length when not given, see has_max_tokens
  int n = 1;
  int best_of = 1;  // choices computed, of which the n likeliest are returned; >= n
  std::vector<std::string> stop;
  bool include_stop = false;        // the stop string stays in the text
  bool skip_special_tokens = true;  // false: control tokens are shown in the text
  bool stream = false;
  bool include_usage = false;     // in a last chunk of the stream
  bool continuous_usage = false;  // in every chunk
  bool return_token_ids = false;
  bool logprobs_by_id = false;  // "token_id:17" in place of the text
  bool hands_over = false;  // another server goes on with the prompt, see kv_transfer.h
  bool wants_cache_report = false;  // "larder": {"cache_report": true}
  ToolCallRules tool_calls;         // of the answer
  bool shows_thoughts = true;       // of a chat: else what is told apart as thought is left out
  AttentionSpan attention;
};

// What chat and completions have in common. Beside what the reply is made by: what is let go of once the prompts are in
// the engine, as a request may have any length and then waits in line.
struct GenerationOptions : ReplyOptions {
  std::string model;  // "" = not given
  bool has_max_tokens = false;
  int priority = 0;
  Normalisation normalisation;
  // A breakpoint at the end of the prompt beside those that the request marks: all that is computed
  // counts as written to the cache, and is pinned for so long (PromptPin).
  bool marks_whole_prompt = true;
  int pin_ttl_s = 0;
  int cache_ttl_s = 30 * 60;  // of marks that name no time
  std::string cache_salt;  // the client's own; never used as it is
  std::string prompt_cache_key;  // the client's name for prompts that share a prefix; "" = none
  // The earlier reply that diagnostics compare this one's prompt with.
  std::optional<std::string> comparison_id;
  bool wants_diagnostics = false;  // the reply says why tokens of the prompt were computed
  ToolChoice tool_choice;          // the prompt is the same either way
  AnswerFormat format;
  std::string prediction;          // what the answer may be in part; "" = not said
  std::optional<bool> parts_thoughts;  // of a chat: whether thoughts are told apart; nullopt = as the server does
  HistoryOptions history;  // of a chat: what becomes of one too long
  // Only the last tokens of the prompt are kept: that many, or -1 = as many as max_model_len
  // allows.
  std::optional<int> truncate_prompt_tokens;
  const char* truncation = "truncate_prompt_tokens";  // what an API has for prompts that are too long; "" = nothing
  FieldNames names = {};         // the API's
  // Of a request that only fills the cache: what the one that it prepares leaves for its answer; -1 = not said.
  std::optional<int> prepared_answer_tokens;

  // Tokens that the prompt is to leave for the answer. nullopt: the request does not say, as one that
  // asks for all that the model takes, which is as many as there is room for.
  std::optional<int> answer_tokens(int max_model_len) const {
    const int asked = prepared_answer_tokens.value_or(has_max_tokens ? sampling.max_tokens : -1);
    return asked >= 0 && asked < max_model_len ? std::optional(asked) : std::nullopt;
  }
};

// A request's breakpoints, the implicit one at the prompt's end among them.
inline constexpr std::size_t kMaxCacheMarks = kMaxPins;

struct ChatRequest {
  GenerationOptions options;
  std::vector<ChatMessage> messages;  // contents are strings or null
  std::vector<CacheMark> marks;   // the latest ones, in order; with the implicit one kMaxCacheMarks
  Json tools;                     // null or an array
  Json adapted_tools;             // those that adapt_chat() has written into the texts
  Json template_kwargs;           // null or an object
  bool add_generation_prompt = true;
  bool continue_final_message = false;
  bool add_special_tokens = false;  // the template writes BOS itself
  std::vector<KnownTurn> known_turns;  // answers that are encoded as they were generated
  std::string summary;  // of what came before the messages; "" = none
  int num_dropped = 0;  // messages that shorten_history() has left out
  int quoted_message = -1;      // the one that put_quotes() has put quotes into
  bool has_moved_time = false;  // normalise() has put the time into the last message of a user
  std::uint64_t system_hash = 0;  // of its system prompt as it was sent, see settle(); 0 = none
};

using Prompt = std::variant<std::string, std::vector<TokenId>>;

struct CompletionRequest {
  GenerationOptions options;
  std::vector<Prompt> prompts;  // at least one
  bool echo = false;
  bool add_special_tokens = true;
};

}  // namespace larder
