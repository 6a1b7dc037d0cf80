// The shape of completions, with echo and logprobs as lm-evaluation-harness reads them.
#include <algorithm>
#include <utility>

#include "server/api/choices_writer.h"
#include "server/request_id.h"
#include "server/utf8.h"

namespace larder {
namespace {

std::span<const OutputToken> all_of(const SharedTokens& tokens) {
  return tokens == nullptr ? std::span<const OutputToken>() : *tokens;
}

class CompletionWriter final : public ChoicesWriter {
 public:
  CompletionWriter(std::string model_name, const Tokenizer& tokenizer,
                   std::vector<EchoedPrompt> echo)
      : ChoicesWriter("cmpl-" + make_request_id(), std::move(model_name), tokenizer),
        echo_(std::move(echo)) {}

 private:
  std::string_view object_name(bool) const override { return "text_completion"; }

  Json stream_choice(Choice& choice, ChoiceDelta& delta) override {
    Json result = {{"index", choice.index}};
    const bool echo = !choice.begun && !echo_.empty();
    result["text"] = echo ? echo_of(choice).text + delta.text : std::move(delta.text);
    result["logprobs"] = nullptr;
    if (wants_logprobs()) write_scored(choice, {all_of(delta.prompt_logprobs), delta.tokens, echo}, logprobs_text_);
    result["finish_reason"] = finish_reason(choice);
    if (choice.done()) result["stop_reason"] = stop_reason(choice);
    if (options_.return_token_ids) {
      if (!choice.begun) result["prompt_token_ids"] = prompt_tokens(choice);
      result["token_ids"] = token_ids(delta.tokens, choice);
    }
    return result;
  }

  Json whole_choice(Choice& choice) override {
    Json result = {{"index", choice.index}};
    const bool echo = !echo_.empty();
    result["text"] = echo ? echo_of(choice).text + choice.text : std::move(choice.text);
    result["logprobs"] = nullptr;
    result["finish_reason"] = finish_reason(choice);
    result["stop_reason"] = stop_reason(choice);
    if (options_.return_token_ids) {
      result["prompt_token_ids"] = prompt_tokens(choice);
      result["token_ids"] = token_ids(choice.tokens, choice);
    }
    return result;
  }

  const EchoedPrompt& echo_of(const Choice& choice) const {
    return echo_.at(static_cast<std::size_t>(choice.prompt));
  }

  struct Scored {
    std::span<const OutputToken> prompt;
    std::span<const OutputToken> tokens;
    bool echo = false;  // the prompt's are shown, too
  };
  // One entry of each of the parallel arrays.
  struct Entry {
    std::size_t text_offset;
    Json token_logprob;
    std::string token;
    Json top_logprobs;
  };

  void write_logprobs(Choice& choice, std::string& out) override {
    write_scored(choice, {all_of(choice.prompt_logprobs), choice.tokens, !echo_.empty()}, out);
  }

  void write_scored(Choice& choice, const Scored& scored, std::string& out) const {
    std::string text_offsets, token_logprobs, tokens;
    const char* comma = "";
    out += R"({"top_logprobs":[)";  // the longest by far, which is nowhere else meanwhile
    for_each_entry(choice, scored, [&](const Entry& entry) {
      out += comma + dump_json(entry.top_logprobs);
      text_offsets += comma + std::to_string(entry.text_offset);
      token_logprobs += comma + dump_json(entry.token_logprob);
      tokens += comma + dump_json(entry.token);
      comma = ",";
    });
    out.append(R"(],"text_offset":[)").append(text_offsets);
    out.append(R"(],"token_logprobs":[)").append(token_logprobs);
    out.append(R"(],"tokens":[)").append(tokens).append("]}");
  }

  // The prompt's first token has no logprob: null.
  template <class Add>
  void for_each_entry(Choice& choice, const Scored& scored, const Add& add) const {
    const auto entry_of = [&](const OutputToken& token, std::size_t offset) {
      return Entry{offset, finite_logprob(token.logprob), to_valid_utf8(token_text(token.token)), best_of(token)};
    };
    if (scored.echo) {
      const EchoedPrompt& shown = echo_of(choice);
      add(Entry{shown.offsets.at(0), nullptr, to_valid_utf8(token_text(prompt_tokens(choice).front())), nullptr});
      for (std::size_t i = 0; i < scored.prompt.size(); ++i) add(entry_of(scored.prompt[i], shown.offsets.at(i + 1)));
      choice.num_characters = count_characters(shown.text);
    }
    for (const OutputToken& token : scored.tokens) {
      add(entry_of(token, choice.num_characters));
      // Of a character in pieces, each piece has its offset.
      choice.num_characters += count_characters(choice.decoder->push(token.token));
    }
  }

  // Text -> logprob of the best tokens and the chosen one. Where two have the same text (halves of
  // characters all read U+FFFD), the likelier stays, so that the greatest value is the model's
  // best.
  Json best_of(const OutputToken& token) const {
    Json best = Json::object();
    const auto add = [&](TokenId id, float logprob) {
      const std::string text = to_valid_utf8(token_text(id));
      const double value = finite_logprob(logprob);
      const auto known = best.find(text);
      if (known == best.end()) {
        best[text] = value;
      } else {
        *known = std::max(known->get<double>(), value);
      }
    };
    for (const TokenLogprob& other : token.best) add(other.token, other.logprob);
    add(token.token, token.logprob);
    return best;
  }

  const std::vector<EchoedPrompt> echo_;
};

}  // namespace

std::unique_ptr<ReplyWriter> make_completion_writer(std::string model_name,
                                                    const Tokenizer& tokenizer,
                                                    std::vector<EchoedPrompt> echo) {
  return std::make_unique<CompletionWriter>(std::move(model_name), tokenizer, std::move(echo));
}

}  // namespace larder
