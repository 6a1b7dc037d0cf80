#include "cli/local_client.h"

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <iterator>
#include <memory>
#include <mutex>
#include <utility>

#include "server/prompt.h"
#include "server/server_config.h"
#include "server/tool_prompt.h"

namespace larder {
namespace {

// Updates on their way from the engine's thread to this one.
class UpdateQueue {
 public:
  void push(RequestUpdate&& update) {
    const std::lock_guard lock(mutex_);
    updates_.push_back(std::move(update));
    arrived_.notify_one();
  }
  RequestUpdate pop() {
    std::unique_lock lock(mutex_);
    arrived_.wait(lock, [&] { return !updates_.empty(); });
    RequestUpdate update = std::move(updates_.front());
    updates_.pop_front();
    return update;
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<RequestUpdate> updates_;
};

}  // namespace

Completion complete(Runtime& runtime, std::vector<TokenId> prompt, const SamplingParams& sampling,
                    const std::function<bool(std::string_view)>& on_text, const std::string& salt,
                    bool continues_text) {
  UpdateQueue queue;
  Request request;
  request.prompt = std::move(prompt);
  request.sampling = sampling;
  request.salt = salt;
  request.attention_window = runtime.attention().window;
  request.attention_sinks = runtime.attention().num_sinks;
  request.on_update = [&queue](RequestUpdate&& update) { queue.push(std::move(update)); };
  const std::uint64_t id = runtime.engine().submit(std::move(request));

  Completion completion;
  StreamDecoder decoder(runtime.tokenizer(), false, continues_text);
  bool wanted = true;
  const auto deliver = [&](const std::string& text) {
    if (text.empty() || !wanted) return;
    completion.text += text;
    if (on_text && !on_text(text)) {
      wanted = false;
      runtime.engine().cancel(id);
    }
  };
  while (completion.finish == FinishReason::kNone) {
    RequestUpdate update = queue.pop();
    std::ranges::move(update.prompt_logprobs, std::back_inserter(completion.prompt_logprobs));
    for (const OutputToken& token : update.tokens) {
      if (!wanted) break;
      completion.tokens.push_back(token.token);
      deliver(decoder.push(token.token));
    }
    completion.finish = update.finish;
    completion.usage = update.usage;
    completion.times = update.times;
  }
  deliver(decoder.finish());
  return completion;
}

std::vector<TokenId> encode_messages(Runtime& runtime, const nlohmann::ordered_json& messages) {
  const ServedModel model{.name = {},
                          .tokenizer = runtime.tokenizer(),
                          .chat_template = runtime.chat_template(),
                          .engine = runtime.engine(),
                          .max_model_len = runtime.plan().max_model_len};
  ChatRequest request;
  request.messages = messages;
  adapt_chat(request, model.chat_template);
  return encode_chat(request, model).tokens;
}

bool print_text(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
  return true;
}

}  // namespace larder
