// larder pull: fetch a known model.
#include <cstdio>
#include <memory>
#include <string>

#include "cli/commands.h"
#include "cli/pull.h"

namespace larder {

void add_pull_command(CLI::App& app) {
  auto name = std::make_shared<std::string>();
  CLI::App* command =
      app.add_subcommand("pull", "Fetch a model and print its path; without a name, list them");
  command->add_option("name", *name, "smollm2-135m, gemma3-270m");
  command->callback([name] {
    if (!name->empty()) {
      std::puts(pull_model(*name).c_str());
      return;
    }
    for (const KnownModel& model : known_models())
      std::printf("%-14s %-34s %s\n", model.name, model.file, model.license);
  });
}

}  // namespace larder
