// larder tokenize: a text as token ids.
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/pull.h"
#include "model/files/model_files.h"
#include "model/vocabulary.h"
#include "tokenizer/tokenizer.h"

namespace larder {
namespace {

struct TokenizeOptions {
  std::string model = "smollm2-135m";
  std::optional<std::string> text;  // none: the file's
  std::string file = "-";
  bool special = false;
  bool ids_only = false;
  bool no_bos = false;
};

Tokenizer read_tokenizer(const std::string& path) {
  const ModelFiles files(path);
  try {
    return Tokenizer(read_vocabulary(files.gguf()));
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("{}: {}", path, error.what()));
  }
}

void tokenize(const TokenizeOptions& options) {
  const Tokenizer tokenizer = read_tokenizer(find_model(options.model));
  const std::string text = options.text ? *options.text : read_input(options.file);
  const auto tokens = tokenizer.encode(text, !options.no_bos, options.special, kAnyNumber);
  for (const TokenId token : tokens) {
    if (options.ids_only)
      std::printf("%d ", token);
    else
      std::printf("%7d  '%s'\n", token, std::string(tokenizer.token_bytes(token, true)).c_str());
  }
  if (options.ids_only) std::puts("");
  std::fprintf(stderr, "%zu tokens\n", tokens.size());
}

}  // namespace

void add_tokenize_command(CLI::App& app) {
  auto options = std::make_shared<TokenizeOptions>();
  CLI::App* command = app.add_subcommand("tokenize", "Show a text as the model's tokens");
  command->add_option("-m,--model", options->model, "A GGUF file, a folder as Hugging Face keeps models, or a known name");
  auto* prompt = command->add_option("-p,--prompt", options->text, "The text");
  auto* file =
      command->add_option("-f,--file", options->file, "Read it from a file (default: stdin)");
  prompt->excludes(file);
  command->add_flag("--special", options->special, "Recognise special tokens in the text");
  command->add_flag("--no-bos", options->no_bos, "Leave out the model's first and last token");
  command->add_flag("--ids", options->ids_only, "Ids alone, on one line");
  command->callback([options] { tokenize(*options); });
}

}  // namespace larder
