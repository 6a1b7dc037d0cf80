// The shape of a reply: what chat and completions have in common, and where they differ.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/request.h"
#include "engine/text_stream.h"
#include "server/json_reader.h"
#include "server/openai_request.h"
#include "tokenizer/tokenizer.h"

namespace larder {

// One answer, as far as it has come.
struct Choice {
  explicit Choice(TextStream stream) : text_stream(std::move(stream)) {}

  int index = 0;   // in the reply
  int prompt = 0;  // which prompt it answers
  TextStream text_stream;
  FinishReason finish = FinishReason::kNone;
  std::optional<TokenId> stop_token;
  std::string stop_string;  // what stopped it, "" if no string did
  RequestUsage usage;
  RequestTimes times;
  int num_tokens = 0;              // up to the stop string
  double sum_logprob = 0;          // for best_of
  std::size_t num_characters = 0;  // of tokens shown, for text_offset
  bool begun = false;              // a chunk was sent
  // Everything, for a reply that is not streamed.
  std::string text;
  std::vector<OutputToken> tokens;
  std::vector<OutputToken> prompt_logprobs;

  bool done() const { return finish != FinishReason::kNone; }
};

// What a step added to a choice. The text may lag behind the tokens: half characters and possible
// beginnings of a stop string are held back.
struct ChoiceDelta {
  std::string text;
  std::vector<OutputToken> tokens;
  std::vector<OutputToken> prompt_logprobs;
};

// Turns choices into JSON. Thread: the connection's strand.
class ReplyWriter {
 public:
  ReplyWriter(std::string id, std::string model_name, const Tokenizer& tokenizer);
  virtual ~ReplyWriter() = default;

  // One event of a stream, without usage.
  Json chunk(Choice& choice, ChoiceDelta delta);
  // The last event of a stream that asked for usage.
  Json usage_chunk(std::span<const Choice> choices) const;
  // The whole reply; choices are those to be shown, all_choices those that were computed.
  Json reply(std::span<Choice*> choices, std::span<const Choice> all_choices);

  // Both before the first reply.
  void set_options(const GenerationOptions& options) { options_ = options; }
  void set_prompts(std::vector<std::vector<TokenId>> prompts) { prompts_ = std::move(prompts); }

 protected:
  virtual std::string_view object_name(bool streaming) const = 0;
  virtual Json stream_choice(Choice& choice, ChoiceDelta& delta) = 0;
  virtual Json whole_choice(Choice& choice) = 0;
  // Beside choices, when return_token_ids asks for it.
  virtual void add_prompt_tokens(Json& body) const { (void)body; }

  // "stop", "length" or null.
  static Json finish_reason(const Choice& choice);
  // The stop string or the stop_token_ids entry that ended it, else null.
  Json stop_reason(const Choice& choice) const;
  static Json token_ids(std::span<const OutputToken> tokens);
  // The token's text as shown in logprobs; its own bytes, perhaps half a character.
  std::string token_text(TokenId token) const;
  // Kept only when the reply shows them: with return_token_ids or echo.
  const std::vector<TokenId>& prompt_tokens(const Choice& choice) const;
  bool wants_logprobs() const { return options_.sampling.num_logprobs >= 0; }

  const Tokenizer& tokenizer_;
  GenerationOptions options_;
  std::vector<std::vector<TokenId>> prompts_;

 private:
  Json envelope(bool streaming) const;

  const std::string id_;
  const std::string model_name_;
  const std::int64_t created_s_;
};

std::unique_ptr<ReplyWriter> make_chat_writer(std::string model_name, const Tokenizer& tokenizer);
// echo: per prompt the text to put first; empty = no echo.
std::unique_ptr<ReplyWriter> make_completion_writer(std::string model_name,
                                                    const Tokenizer& tokenizer,
                                                    std::vector<std::string> echo);

// usage{prompt_tokens, ..., prompt_tokens_details}: each prompt counts once, however many choices.
Json usage_json(std::span<const Choice> choices);
// llama.cpp's timings: the cached and the computed part of the prompt, and the answer.
Json timings_json(std::span<const Choice> choices);

// A logprob that JSON can hold: -infinity becomes -9999.
double finite_logprob(float logprob);

}  // namespace larder
