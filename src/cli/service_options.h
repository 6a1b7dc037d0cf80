// The options of `larder serve` that memory does not depend on: where it listens, whom it lets in, and what it makes of
// requests.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "server/api/server_config.h"

namespace larder {

struct ServiceOptions {
  ServerConfig server;
  std::string api_key_file;
  std::string name;  // "" = the file's, or the folder's
  std::vector<std::string> normalise;
  std::string history;
  std::string reasoning_format = "auto";
  double drain_delay_seconds = 0;
  double drain_seconds = 30;
  double log_seconds = 5;
};

// --host, --port, --api-key, --api-key-file and --open. The port becomes 8080.
void add_listen_options(CLI::App& command, ServiceOptions& options);
// All others.
void add_service_options(CLI::App& command, ServiceOptions& options);

// Has add() add options that the command makes no use of and does not show: so it takes a server's whole line.
template <class Add>
void add_unused_options(CLI::App& command, const Add& add) {
  const std::size_t num_before = command.get_options().size();
  add();
  const std::vector<CLI::Option*> all = command.get_options();
  for (std::size_t i = num_before; i < all.size(); ++i) all[i]->group("");
}

}  // namespace larder
