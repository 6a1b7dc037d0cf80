// larder chat: a conversation in the terminal.
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/local_client.h"
#include "cli/runtime.h"
#include "server/chat/render_chat.h"

namespace larder {
namespace {

struct ChatOptions {
  RuntimeOptions runtime;
  SamplingParams sampling;
  std::string system;
};

void print_turn(const Completion& completion) {
  std::fprintf(stderr, "\n[%d prompt tokens, %d cached; first token %.0f ms; %d tokens, %.1f/s]\n",
               completion.usage.num_prompt_tokens, completion.usage.num_cached_tokens,
               completion.first_token_seconds() * 1e3, completion.usage.num_output_tokens,
               completion.decode_rate());
}

void chat(const ChatOptions& options) {
  Runtime runtime(options.runtime);
  print_start(runtime);
  LocalChat model(runtime);
  std::fprintf(stderr, "Type a message; /reset forgets the conversation, Ctrl-D ends it.\n");
  std::vector<ChatMessage> messages;
  const auto reset = [&] {
    messages.clear();
    if (!options.system.empty()) messages.push_back(message_of("system", options.system));
  };
  reset();
  for (std::string line; std::fputs("> ", stderr), std::getline(std::cin, line);) {
    if (line.empty()) continue;
    if (line == "/reset") {
      reset();
      continue;
    }
    messages.push_back(message_of("user", line));
    try {
      const Completion completion = model.answer(messages, options.sampling);
      messages.push_back(message_of("assistant", completion.text));
      print_turn(completion);
    } catch (const Error& error) {
      messages.pop_back();
      std::fprintf(stderr, "%s\n", error.what());
    }
  }
  std::fputs("\n", stderr);
}

}  // namespace

void add_chat_command(CLI::App& app) {
  auto options = std::make_shared<ChatOptions>();
  options->sampling.max_tokens = 1024;
  options->sampling.temperature = 0.7F;
  CLI::App* command = app.add_subcommand("chat", "Talk to a model in the terminal");
  add_runtime_options(*command, options->runtime);
  add_sampling_options(*command, options->sampling);
  command->add_option("-s,--system", options->system, "The system prompt");
  command->callback([options] { chat(*options); });
}

}  // namespace larder
