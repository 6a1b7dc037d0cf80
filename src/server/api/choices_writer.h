// The shape that OpenAI's chat and completions share: envelopes with a list of choices.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "server/api/reply_writer.h"
#include "tokenizer/tokenizer.h"

namespace larder {

// Thread: as ReplyWriter.
class ChoicesWriter : public ReplyWriter {
 public:
  ChoicesWriter(std::string id, std::string model_name, const Tokenizer& tokenizer);

  void delta(Choice& choice, ChoiceDelta delta, std::span<const Choice> all,
             std::string& out) final;
  void end(std::span<const Choice> all, std::string& out) final;
  void failure(const ApiError& error, std::string& out) final;
  std::string whole(std::span<Choice*> shown, std::span<const Choice> all) final;
  HttpResponse failure_response(const ApiError& error) const final;

 protected:
  virtual std::string_view object_name(bool streaming) const = 0;
  virtual Json stream_choice(Choice& choice, ChoiceDelta& delta) = 0;
  // With "logprobs" null.
  virtual Json whole_choice(Choice& choice) = 0;
  // They are many: as JSON they would take some ten times what their text does.
  virtual void write_logprobs(Choice& choice, std::string& out) = 0;
  // Beside choices, when return_token_ids asks for it.
  virtual void add_prompt_tokens(Json& body) const { (void)body; }

  // "stop", "length" or null.
  static Json finish_reason(const Choice& choice);
  // The stop string or the stop_token_ids entry that ended it, else null.
  Json stop_reason(const Choice& choice) const;
  // With the token that ended the choice behind its last ones.
  static Json token_ids(std::span<const OutputToken> tokens, const Choice& choice);
  // The token's text as shown in logprobs; its own bytes, perhaps half a character.
  std::string token_text(TokenId token) const;
  bool wants_logprobs() const { return options_.sampling.num_logprobs >= 0; }

  const Tokenizer& tokenizer_;
  // In place of the null of stream_choice(), where there are so many that JSON would take too much; else "".
  std::string logprobs_text_;

 private:
  static bool says_nothing(const Json& item);
  static bool ends_with_calls(const Json& item);
  // all: of the reply where this is its last event, else empty.
  void write_event(Choice& choice, Json item, std::span<const Choice> all, std::string& out);
  void write_choice(Choice& choice, std::string& out);
  void add_reports(Json& body, std::span<const Choice> all) const;
  Json envelope(bool streaming) const;

  const std::int64_t created_s_;
};

}  // namespace larder
