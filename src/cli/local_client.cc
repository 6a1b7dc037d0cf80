#include "cli/local_client.h"

#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <iterator>
#include <memory>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "server/answer/answer_scanner.h"
#include "server/chat/prompt.h"
#include "server/chat/tool_prompt.h"

namespace larder {
namespace {

// What a model thinks goes to standard error, dim on a terminal: standard output has the answers alone.
class AnswerPrinter {
 public:
  explicit AnswerPrinter(const ToolCallRules& rules) : scanner_(rules), dims_(::isatty(STDERR_FILENO) != 0) {}

  void push(std::string_view text) { print(scanner_.push(text)); }
  // The answer's text, without thoughts.
  std::string finish() {
    print(scanner_.finish());
    return std::move(text_);
  }

 private:
  void print(const std::vector<AnswerPiece>& pieces) {
    for (const AnswerPiece& piece : pieces) {
      const bool follows_other = has_printed_ && piece.is_thought != was_thought_;
      if (follows_other) std::fputs("\n\n", stderr);
      has_printed_ = true;
      was_thought_ = piece.is_thought;
      if (piece.is_thought) {  // each piece by itself, so that none leaves the terminal dim when the process ends
        std::fprintf(stderr, dims_ ? "\033[2m%s\033[0m" : "%s", piece.text.c_str());
      } else {
        print_text(piece.text);
        text_ += piece.text;
      }
    }
  }

  AnswerScanner scanner_;
  const bool dims_;
  bool has_printed_ = false, was_thought_ = false;
  std::string text_;
};

}  // namespace

// On their way from the engine's thread to this one.
class PendingCompletion::Updates {
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

PendingCompletion::PendingCompletion(Runtime& runtime, std::vector<TokenId> prompt,
                                     const SamplingParams& sampling, const std::string& salt)
    : runtime_(runtime), updates_(std::make_shared<Updates>()) {
  Request request;
  request.prompt = std::move(prompt);
  request.sampling = sampling;
  request.salt = salt;
  request.attention_window = runtime.attention().window;
  request.attention_sinks = runtime.attention().num_sinks;
  request.on_update = [updates = updates_](RequestUpdate&& update) {
    updates->push(std::move(update));
  };
  id_ = runtime.engine().submit(std::move(request));
}

Completion PendingCompletion::wait(const std::function<bool(std::string_view)>& on_text,
                                   bool continues_text) {
  Completion completion;
  StreamDecoder decoder(runtime_.tokenizer(), false, continues_text);
  bool wanted = true;
  const auto deliver = [&](const std::string& text) {
    if (text.empty() || !wanted) return;
    completion.text += text;
    if (on_text && !on_text(text)) {
      wanted = false;
      runtime_.engine().cancel(id_);
    }
  };
  while (completion.finish == FinishReason::kNone) {
    RequestUpdate update = updates_->pop();
    if (update.prompt_logprobs != nullptr) completion.prompt_logprobs = std::move(update.prompt_logprobs);
    for (const OutputToken& token : update.tokens) {
      if (!wanted) break;
      deliver(decoder.push(token.token));
    }
    completion.finish = update.finish;
    completion.usage = update.usage;
    completion.times = update.times;
  }
  if (completion.finish == FinishReason::kLost)
    throw Error(ErrorKind::kUnavailable, "a worker was lost; what was said before tells why");
  if (completion.finish == FinishReason::kNoMemory)
    throw Error(ErrorKind::kUnavailable, "there is no memory to go on with the answer");
  if (completion.finish == FinishReason::kCancelled && wanted)
    throw Error(ErrorKind::kStopped, "the engine has failed; what it said before tells why");
  deliver(decoder.finish());
  return completion;
}

Completion complete(Runtime& runtime, std::vector<TokenId> prompt, const SamplingParams& sampling,
                    const std::function<bool(std::string_view)>& on_text, const std::string& salt,
                    bool continues_text) {
  PendingCompletion pending(runtime, std::move(prompt), sampling, salt);
  return pending.wait(on_text, continues_text);
}

LocalChat::LocalChat(Runtime& runtime)
    : runtime_(runtime),
      model_{.name = {},
             .tokenizer = runtime.tokenizer(),
             .chat_template = runtime.chat_template(),
             .engine = runtime.engine(),
             .max_model_len = runtime.plan().max_model_len} {}

Completion LocalChat::answer(const std::vector<ChatMessage>& messages, const SamplingParams& sampling) {
  ChatRequest request;
  request.messages = messages;
  adapt_chat(request, model_.abilities);
  PreparedPrompt prompt = encode_chat(request, model_);
  part_thoughts(request.options.tool_calls, prompt);
  AnswerPrinter printer(request.options.tool_calls);
  Completion completion = complete(runtime_, std::move(prompt.tokens), sampling, [&](std::string_view text) {
    printer.push(text);
    return true;
  });
  completion.text = printer.finish();
  return completion;
}

bool print_text(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
  return true;
}

}  // namespace larder
