#include "cli/misspelt.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <numeric>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace larder {
namespace {

// Options of llama.cpp, vLLM and SGLang, and what does their work here.
constexpr struct {
  std::string_view names;
  const char* option;  // that the command needs for the hint to be one; nullptr = none
  const char* hint;
} kOtherServers[] = {
    {"--ctx-size --context-length --max-seq-len", "--max-model-len", "here it is --max-model-len"},
    {"--alias --served-model-name", "--name", "here it is --name"},
    {"-np --parallel --max-num-seqs --max-running-requests", "--max-sequences", "here it is --max-sequences"},
    {"-ctk --cache-type-k -ctv --cache-type-v --kv-cache-dtype", "--kv-type", "here it is --kv-type, such as k=int8,v=int4"},
    {"-hf -hfr --hf-repo --model-path", "--model", "-m takes a GGUF file, a folder or a name that `larder pull` knows"},
    {"-ngl --gpu-layers --n-gpu-layers", "--device", "--device cuda:0 has a GPU compute all layers"},
    {"--gpu-memory-utilization --mem-fraction-static", "--memory", "--memory bounds what is taken, such as 16GiB"},
    {"-b --batch-size -ub --ubatch-size --max-num-batched-tokens", "--batch-tokens", "here it is --batch-tokens"},
    {"--tensor-parallel-size", "--workers", "--workers has other machines compute a part"},
    {"-md --model-draft --speculative-model", "--draft-model", "here it is --draft-model"},
    {"--draft --draft-max --num-speculative-tokens", "--draft-tokens", "here it is --draft-tokens"},
    {"--chat-template-file", "--chat-template", "here it is --chat-template"},
    {"--predict --n-predict", "--max-tokens", "here it is --max-tokens"},
    {"--repeat-penalty", "--repetition-penalty", "here it is --repetition-penalty"},
    {"--temp --temperature --top-p --top-k --min-p --repeat-penalty --seed --predict --n-predict", nullptr,
     "requests say it, and `larder chat` and `larder generate` take it"},
    {"-fa --flash-attn -cb --cont-batching --enable-prefix-caching --enable-chunked-prefill --jinja --metrics", nullptr,
     "leave it out, that is always so"},
};

// Letters to add, take, change, or swap with the next (Damerau's distance, where no letter is touched twice).
std::size_t distance(std::string_view left, std::string_view right) {
  std::vector<std::size_t> row(right.size() + 1), last, before_last;
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= left.size(); ++i) {
    before_last = std::exchange(last, row);
    row[0] = i;
    for (std::size_t j = 1; j <= right.size(); ++j) {
      const bool is_other = left[i - 1] != right[j - 1];
      row[j] = std::min({last[j - 1] + (is_other ? 1 : 0), last[j] + 1, row[j - 1] + 1});
      const bool is_swapped = i > 1 && j > 1 && left[i - 1] == right[j - 2] && left[i - 2] == right[j - 1];
      if (is_swapped) row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
  }
  return row.back();
}

// "" where none is near: with more than a quarter of its letters others, it is another word.
std::string nearest(const std::string& word, const std::vector<std::string>& names) {
  std::string best;
  std::size_t best_distance = word.size() / 4;
  for (const std::string& name : names) {
    const std::size_t found = distance(word, name);
    if (found >= best_distance && !(best.empty() && found == best_distance)) continue;
    best = name;
    best_distance = found;
  }
  return best;
}

std::vector<std::string> option_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(command->get_name());
  return names;
}

bool has_option(const CLI::App& command, const std::string& name) { return command.get_option_no_throw(name) != nullptr; }

bool has_word(std::string_view words, std::string_view word) {
  for (std::size_t begin = 0; begin < words.size();) {
    const std::size_t end = std::min(words.find(' ', begin), words.size());
    if (words.substr(begin, end - begin) == word) return true;
    begin = end + 1;
  }
  return false;
}

// "" where no other server has it, or there is nothing like it here.
std::string hint_of_other_servers(const std::string& word, const CLI::App& command) {
  for (const auto& [names, option, hint] : kOtherServers)
    if (has_word(names, word) && (option == nullptr || has_option(command, option))) return hint;
  return "";
}

// A command that takes the option; "" where none does.
std::string hint_of_other_commands(const std::string& word, const CLI::App& app) {
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    if (has_option(*command, word)) return fmt::format("`larder {}` takes it", command->get_name());
  return "";
}

// As if the model were the word that follows the command.
bool is_model(const std::string& word) {
  std::error_code ignored;
  return word.ends_with(".gguf") || std::filesystem::is_regular_file(word, ignored) ||
         std::filesystem::is_regular_file(std::filesystem::path(word) / "config.json", ignored);
}

std::string hint_of_option(const std::string& word, const CLI::App& command, const CLI::App& app) {
  if (std::string hint = hint_of_other_servers(word, command); !hint.empty()) return hint;
  if (const std::string meant = nearest(word, option_names(command)); !meant.empty())
    return fmt::format("did you mean {}?", meant);
  return hint_of_other_commands(word, app);
}

std::string hint_of_word(const std::string& word, const CLI::App& command, const CLI::App& app) {
  if (const std::string meant = nearest(word, command_names(command)); !meant.empty())
    return fmt::format("did you mean {}?", meant);
  const bool takes_model = &command == &app || has_option(command, "--model");
  return takes_model && is_model(word) ? "give it with -m" : "";
}

}  // namespace

std::string describe_extras(const CLI::App& app) {
  // The one that it was given to, which may have been followed by a command of that one.
  const CLI::App* command = &app;
  std::string path = "larder";
  while (command->remaining_size() == 0 && !command->get_subcommands().empty()) {
    command = command->get_subcommands().front();
    path += " " + command->get_name();
  }
  const std::vector<std::string> extras = command->remaining();
  const auto option = std::ranges::find_if(extras, [](const std::string& word) { return word.starts_with('-'); });
  const bool is_option = option != extras.end();
  const std::string word = is_option ? option->substr(0, option->find('=')) : extras.front();
  std::string hint = is_option ? hint_of_option(word, *command, app) : hint_of_word(word, *command, app);
  if (hint.empty()) hint = fmt::format("see `{} --help`", path);
  return fmt::format("{}: no such {}; {}", word, is_option ? "option" : "command or argument", hint);
}

}  // namespace larder
