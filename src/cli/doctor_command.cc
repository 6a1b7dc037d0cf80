// larder doctor: what would keep a server from starting or slow it down, one line each.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/doctor.h"
#include "cli/server_memory.h"
#include "cli/service_options.h"

namespace larder {
namespace {

struct DoctorOptions {
  RuntimeOptions runtime;
  ServiceOptions service;
  ServerMemoryOptions memory;
  bool json = false;
};

const char* word_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOk:
      return "OK";
    case Verdict::kWarn:
      return "WARN";
    case Verdict::kFail:
      return "FAIL";
  }
  return "";
}

void print(const Findings& findings) {
  const bool has_colors = ::isatty(STDOUT_FILENO) != 0;
  for (const Finding& finding : findings.list()) {
    constexpr const char* kColors[] = {"\033[32m", "\033[33m", "\033[31m"};
    const char* color = has_colors ? kColors[static_cast<int>(finding.verdict)] : "";
    std::printf("%s%-4s%s %-14s %s%s%s\n", color, word_of(finding.verdict),
                has_colors ? "\033[0m" : "", finding.what.c_str(), finding.text.c_str(),
                finding.fix.empty() ? "" : "; fix: ", finding.fix.c_str());
  }
}

void print_json(const Findings& findings, bool is_well) {
  nlohmann::ordered_json json = {{"ok", is_well}, {"checks", nlohmann::ordered_json::array()}};
  for (const Finding& finding : findings.list())
    json["checks"].push_back({{"check", finding.what},
                              {"verdict", word_of(finding.verdict)},
                              {"text", finding.text},
                              {"fix", finding.fix}});
  std::puts(json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
}

// Where requests may go, and where routers listen, as far as options say it: nobody is called.
void check_server_options(const ServerMemoryOptions& options, Findings& findings) {
  const auto passes = [&](const char* what, const std::string& name, auto&& check) {
    if (name.empty()) return;
    try {
      check();
      findings.ok(what, name);
    } catch (const Error& error) {
      findings.fail(what, error, "what it says; see `larder serve --help`");
    }
  };
  passes("upstream", options.upstream.url, [&] { (void)upstream_of(options.upstream); });
  passes("events", options.kv_events.endpoint, [&] { check_kv_event_options(options); });
}

// What else a server would hold counts also where its upstream is none.
RuntimeOptions with_server_memory(const DoctorOptions& options) {
  RuntimeOptions runtime = options.runtime;
  ServerMemoryOptions memory = options.memory;
  try {
    keep_server_memory(memory, runtime);
  } catch (const Error&) {
    memory.upstream = {};
    keep_server_memory(memory, runtime);
  }
  return runtime;
}

void examine(const DoctorOptions& options) {
  Findings findings;
  check_machine(options.runtime, findings);
  const std::optional<std::int64_t> block_size_bytes = check_model(with_server_memory(options), findings);
  check_server_options(options.memory, findings);
  check_port(options.service.server, options.service.api_key_file, findings);
  check_disk_tier(options.runtime, block_size_bytes, findings);
  check_remote_tier(options.runtime, findings);
  const bool is_well = std::ranges::none_of(
      findings.list(), [](const Finding& f) { return f.verdict == Verdict::kFail; });
  if (options.json)
    print_json(findings, is_well);
  else
    print(findings);
  std::fflush(stdout);
  if (!is_well) throw CLI::RuntimeError(1);
}

}  // namespace

void add_doctor_command(CLI::App& app) {
  auto options = std::make_shared<DoctorOptions>();
  CLI::App* command = app.add_subcommand(
      "doctor", "Looks for what would keep a server from starting, or slow it down");
  add_runtime_options(*command, options->runtime);
  add_listen_options(*command, options->service);
  add_server_memory_options(*command, options->memory);
  add_unused_options(*command, [&] { add_service_options(*command, options->service); });
  command->add_flag("--json", options->json, "For programs");
  // Other examinations are subcommands of this one, each with a callback of its own.
  add_doctor_cache_command(*command);
  command->require_subcommand(0, 1);
  command->callback([options, command] {
    if (command->get_subcommands().empty()) examine(*options);
  });
}

}  // namespace larder
