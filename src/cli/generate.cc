// larder generate: continue a text.
#include <cstdio>
#include <memory>
#include <string>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/local_client.h"
#include "cli/runtime.h"
#include "server/chat/render_chat.h"

namespace larder {
namespace {

struct GenerateOptions {
  RuntimeOptions runtime;
  SamplingParams sampling;
  std::string prompt;
  std::string prompt_file;
  bool chat = false;
};

Completion answer(Runtime& runtime, const GenerateOptions& options, const std::string& text) {
  if (!options.chat)
    return complete(runtime, runtime.tokenizer().encode(text, true, false, kAnyNumber), options.sampling, print_text, {},
                    /*continues_text=*/true);
  return LocalChat(runtime).answer({message_of("user", text)}, options.sampling);
}

void generate(const GenerateOptions& options) {
  const std::string text =
      options.prompt_file.empty() ? options.prompt : read_input(options.prompt_file);
  Runtime runtime(options.runtime);
  print_start(runtime);
  if (!options.chat && options.prompt_file.empty()) std::fputs(options.prompt.c_str(), stdout);
  const Completion completion = answer(runtime, options, text);
  std::puts("");
  std::fflush(stdout);
  std::fprintf(stderr, "%d prompt tokens in %.0f ms (%.0f/s), %d tokens at %.1f/s, finish: %s\n",
               completion.usage.num_prompt_tokens, completion.prefill_seconds() * 1e3,
               completion.usage.num_prompt_tokens / completion.prefill_seconds(),
               completion.usage.num_output_tokens, completion.decode_rate(),
               completion.finish == FinishReason::kStop ? "stop" : "length");
}

}  // namespace

void add_generate_command(CLI::App& app) {
  auto options = std::make_shared<GenerateOptions>();
  options->sampling.max_tokens = 128;
  options->sampling.temperature = 0;
  CLI::App* command = app.add_subcommand("generate", "Continue a text and stop");
  add_runtime_options(*command, options->runtime);
  add_sampling_options(*command, options->sampling);
  auto* prompt = command->add_option("-p,--prompt", options->prompt, "The text to continue");
  auto* file =
      command->add_option("-f,--file", options->prompt_file, "Read it from a file, - = stdin");
  prompt->excludes(file);
  command->add_flag("--chat", options->chat, "Send it as a user's message, by the chat template");
  command->callback([options] {
    if (options->prompt.empty() && options->prompt_file.empty())
      throw_invalid("generate needs a text: -p \"...\" or -f FILE");
    generate(*options);
  });
}

}  // namespace larder
