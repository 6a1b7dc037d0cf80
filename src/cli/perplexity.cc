// larder perplexity: how well a model predicts a text.
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <string>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/local_client.h"
#include "cli/runtime.h"
#include "kv/kv_type_names.h"

namespace larder {
namespace {

struct PerplexityOptions {
  RuntimeOptions runtime;
  std::string file;
  int window = 2048;
  bool has_window = false;  // else it may be cut to what fits
  int max_tokens = 0;
};

// What of the window fits, with one token of the context left for output: figures of other windows are
// not to be compared.
int fitting_window(const PerplexityOptions& options, const Runtime& runtime) {
  const int longest = runtime.max_request_len() - 1;
  if (options.window <= longest) return options.window;
  if (options.has_window)
    throw_invalid("--window {}: the context holds {} and a token of output; give a smaller --window, or a larger -c "
                  "or --kv-size",
                  options.window, longest);
  std::fprintf(stderr, "Warning: windows of %d tokens, not of %d: the context holds no more; see -c and --kv-size\n",
               longest, options.window);
  return longest;
}

// The text is cut into windows that each begin with BOS (if the model has one); every token but a
// window's first counts.
void perplexity(const PerplexityOptions& options) {
  const std::string text = read_input(options.file);
  Runtime runtime(options.runtime);
  print_start(runtime);
  const Tokenizer& tokenizer = runtime.tokenizer();
  std::vector<TokenId> tokens = tokenizer.encode(text, false, false, kAnyNumber);
  if (options.max_tokens > 0 && tokens.size() > static_cast<std::size_t>(options.max_tokens))
    tokens.resize(static_cast<std::size_t>(options.max_tokens));
  const int window_tokens = fitting_window(options, runtime);
  const std::size_t window = static_cast<std::size_t>(window_tokens) - 1;  // one is left for BOS
  if (tokens.size() < 2) throw_invalid("{}: too short, 2 tokens at least", options.file);

  SamplingParams sampling;
  sampling.max_tokens = 0;
  sampling.num_prompt_logprobs = 0;
  double sum = 0;
  std::size_t count = 0;
  for (std::size_t begin = 0; begin < tokens.size(); begin += window) {
    const std::size_t end = std::min(begin + window, tokens.size());
    std::vector<TokenId> prompt(tokens.begin() + static_cast<std::ptrdiff_t>(begin),
                                tokens.begin() + static_cast<std::ptrdiff_t>(end));
    if (tokenizer.bos()) prompt.insert(prompt.begin(), *tokenizer.bos());
    if (prompt.size() < 2) break;
    const Completion completion = complete(runtime, std::move(prompt), sampling);
    for (const OutputToken& token : *completion.prompt_logprobs) sum -= token.logprob;
    count += completion.prompt_logprobs->size();
    std::fprintf(stderr, "\r%zu of %zu tokens, perplexity %.4f", end, tokens.size(),
                 std::exp(sum / static_cast<double>(count)));
  }
  std::fprintf(stderr, "\n");
  std::printf("perplexity %.5f over %zu tokens in windows of %d, %s activations, %s KV, %s\n",
              std::exp(sum / static_cast<double>(count)), count, window_tokens,
              options.runtime.activations.c_str(),
              format_kv_types(runtime.layout().types()).c_str(), runtime.kernels().name);
}

}  // namespace

void add_perplexity_command(CLI::App& app) {
  auto options = std::make_shared<PerplexityOptions>();
  CLI::App* command = app.add_subcommand("perplexity", "How well a model predicts a text");
  add_runtime_options(*command, options->runtime);
  command->add_option("file", options->file, "The text, - = stdin")->required();
  command->add_option("--window", options->window, "Tokens that are scored together (default 2048)")
      ->check(CLI::Range(16, 1 << 20));
  command->add_option("--tokens", options->max_tokens, "Stop after that many tokens of the text")
      ->check(CLI::Range(2, std::numeric_limits<int>::max()));
  command->callback([options, command] {
    options->has_window = command->count("--window") > 0;
    perplexity(*options);
  });
}

}  // namespace larder
