// Router's handlers that make the engine work.
#include <utility>

#include "server/router.h"
#include "server/tool_prompt.h"

namespace larder {

std::string Router::salt_of(const HttpRequest& request, const GenerationOptions& options) const {
  const std::optional<Digest> key = keys_.empty() ? std::nullopt : key_of(request);
  return derive_salt(key ? std::optional(keys_.cache_owner(*key)) : std::nullopt,
                     options.cache_salt);
}

std::vector<KnownTurn> Router::recall_turns(const std::string& salt,
                                            const ChatRequest& chat) const {
  std::vector<KnownTurn> turns = history_->recall(salt, chat.messages);
  // What the request itself knows counts last, and so more.
  turns.insert(turns.end(), chat.known_turns.begin(), chat.known_turns.end());
  return turns;
}

GenerationJob Router::prepare_job(const HttpRequest& request, ChatRequest& chat) const {
  GenerationJob job;
  job.salt = salt_of(request, chat.options);
  std::vector<std::string> normalised =
      normalise(chat.options.normalisation, chat.messages, chat.parts, chat.tools);
  for (const std::string& name : normalised) metrics_.count_normalisation(name);
  adapt_tools(chat, model_.chat_template);
  chat.known_turns = recall_turns(job.salt, chat);
  job.prompts.push_back(prepare_chat(chat, model_));
  job.prompts.back().normalised = std::move(normalised);
  // An endless answer never comes back, and half of one does not come back alone.
  if (chat.options.attention.window == 0 && !chat.continue_final_message) {
    job.history = history_.get();
    job.asked = chat.messages.back();
  }
  return job;
}

std::uint64_t Router::tenant_of(const HttpRequest& request) const {
  const std::optional<Digest> key = keys_.empty() ? std::nullopt : key_of(request);
  return key ? hash_text(to_hex(*key)) : 0;
}

Reply Router::generate(const HttpRequest& request, GenerationJob job, Mailbox::Wake wake) const {
  if (job.salt.empty()) job.salt = salt_of(request, job.options);
  job.cache_log = cache_log_.get();
  job.tenant = tenant_of(request);
  job.max_waiting_bytes = config_.limits.max_stream_buffer_bytes;
  job.writer->set_options(job.options);
  Reply reply;
  reply.generation = Generation::start(model_, std::move(job), metrics_, std::move(wake));
  return reply;
}

Reply Router::chat(const HttpRequest& request, Mailbox::Wake wake) const {
  ChatRequest chat = parse_chat_request(parse_body(request), rules());
  require_model(chat.options.model);
  GenerationJob job = prepare_job(request, chat);
  job.writer = make_chat_writer(model_.name, model_.tokenizer);
  if (chat.options.return_token_ids) job.writer->set_prompts({job.prompts.front().tokens});
  job.options = std::move(chat.options);
  return generate(request, std::move(job), std::move(wake));
}

Reply Router::completions(const HttpRequest& request, Mailbox::Wake wake) const {
  CompletionRequest completion = parse_completion_request(parse_body(request), rules());
  require_model(completion.options.model);
  GenerationJob job;
  job.prompts = prepare_completion(completion, model_);
  std::vector<std::string> echo;
  std::vector<std::vector<TokenId>> tokens;
  for (std::size_t i = 0; i < job.prompts.size(); ++i) {
    const bool shown = completion.echo || completion.options.return_token_ids;
    if (shown) tokens.push_back(job.prompts[i].tokens);
    if (!completion.echo) continue;
    const auto* text = std::get_if<std::string>(&completion.prompts[i]);
    const bool whole = text != nullptr && !completion.options.truncate_prompt_tokens;
    echo.push_back(whole ? *text : model_.tokenizer.decode(job.prompts[i].tokens, true));
  }
  job.writer = make_completion_writer(model_.name, model_.tokenizer, std::move(echo));
  job.writer->set_prompts(std::move(tokens));
  job.options = std::move(completion.options);
  return generate(request, std::move(job), std::move(wake));
}

}  // namespace larder
