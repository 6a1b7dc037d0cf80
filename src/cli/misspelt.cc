#include "cli/misspelt.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <numeric>
#include <string_view>
#include <vector>

namespace larder {
namespace {

// Letters to add, take or change (Levenshtein 1966).
std::size_t distance(std::string_view left, std::string_view right) {
  std::vector<std::size_t> row(right.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < left.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < right.size(); ++j) {
      const std::size_t changed = diagonal + (left[i] != right[j] ? 1 : 0);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

// "" where none is near.
std::string nearest(const std::string& word, const std::vector<std::string>& names) {
  std::string best;
  std::size_t best_distance = std::min<std::size_t>(3, word.size() / 2);
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
  const std::string meant = nearest(word, is_option ? option_names(*command) : command_names(*command));
  const std::string hint =
      meant.empty() ? fmt::format("see `{} --help`", path) : fmt::format("did you mean {}?", meant);
  return fmt::format("{}: no such {}; {}", word, is_option ? "option" : "command or argument", hint);
}

}  // namespace larder
