// The binary: where the parts are put together.
#include <CLI/CLI.hpp>
#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "base/patient_log.h"
#include "base/start_thread.h"
#include "cli/commands.h"
#include "cli/misspelt.h"
#include "kernels/kernels.h"

namespace {

constexpr const char* kDescription =
    "Larder serves large language models, and keeps what it computed.\n\n"
    "  larder                          serve the default model on 127.0.0.1:8080\n"
    "  larder serve -m model.gguf      serve a file\n"
    "  larder chat                     talk to it here\n"
    "  larder generate -p \"Once\"       continue a text\n"
    "  larder bench -m model.gguf      tokens per second, time to first token\n"
    "  larder plan -m model.gguf       what it will take, before it takes it\n"
    "  larder doctor                   what would keep it from starting, or slow it down\n\n"
    "LARDER_ISA=generic|avx2|avx512|avx512_bf16|amx chooses the instruction set (default: the machine's best).";

// What the machine runs, best last: "generic avx2 avx512".
void print_isas() {
  using larder::Isa;
  std::string names;
  for (const Isa isa : larder::kCpuIsas)
    if (const larder::KernelTable* table = larder::kernels_for(isa))
      names += std::string(names.empty() ? "" : " ") + table->name;
  std::puts(names.c_str());
}

// Where one of them is closed at the start, the next file to be opened would get its number, and the
// log would be written into a segment of KV blocks.
void open_standard_streams() {
  int fd = 0;
  while (fd >= 0 && fd <= STDERR_FILENO) fd = ::open("/dev/null", O_RDWR);
  if (fd > STDERR_FILENO) ::close(fd);
}

// Options without a command are serve's.
std::vector<const char*> with_command(const CLI::App& app, int argc, char** argv) {
  std::vector<const char*> arguments;
  for (int i = 0; i < argc; ++i) {
    arguments.push_back(argv[i]);
    const std::size_t equals = std::string_view(argv[i]).find('=');
    if (!std::string_view(argv[i]).starts_with("--") || equals + 1 != std::strlen(argv[i])) continue;
    // "--name=", of a variable that is not set: CLI11 would take the next word for its value.
    argv[i][equals] = '\0';
    arguments.push_back("");
  }
  const bool has_option = argc > 1 && argv[1][0] == '-';
  if (argc <= 1 || (has_option && app.get_option_no_throw(argv[1]) == nullptr))
    arguments.insert(arguments.begin() + 1, "serve");
  return arguments;
}

bool can_write_output() { return std::fflush(stdout) == 0 && std::ferror(stdout) == 0; }

// Of threads that compute: kernels put rows in order on their stacks, up to 1.7 MiB on AMX.
constexpr std::size_t kStackBytes = std::size_t{4} << 20;

int run(int argc, char** argv) {
  open_standard_streams();
  // Past `ulimit -f` a segment of KV blocks cannot grow: that costs blocks, not the process.
  std::signal(SIGXFSZ, SIG_IGN);
  CLI::App app(kDescription, "larder");
  app.set_version_flag("--version", std::string("larder ") + LARDER_VERSION);
  app.require_subcommand(0, 1);
  app.add_flag_callback(
      "--isa-list",
      [] {
        print_isas();
        throw CLI::Success();
      },
      "Print the instruction sets that this machine runs");
  larder::add_serve_command(app);
  larder::add_worker_command(app);
  larder::add_chat_command(app);
  larder::add_generate_command(app);
  larder::add_bench_command(app);
  larder::add_perplexity_command(app);
  larder::add_tokenize_command(app);
  larder::add_pull_command(app);
  larder::add_plan_command(app);
  larder::add_doctor_command(app);
  try {
    const std::vector<const char*> arguments = with_command(app, argc, argv);
    const std::string_view command = arguments[1];
    // What servers print is their log; other commands' is for other programs, and no place for one.
    larder::log_to(command == "serve" || command == "worker" ? stdout : stderr);
    app.parse(static_cast<int>(arguments.size()), arguments.data());
  } catch (const CLI::ExtrasError& error) {
    std::fprintf(stderr, "larder: %s\n", larder::describe_extras(app).c_str());
    return error.get_exit_code();
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "larder: %s\n", error.what());
    return 1;
  }
  // A server's log may be lost: its answers went elsewhere.
  if (!app.got_subcommand("serve") && !can_write_output()) {
    std::fputs("larder: standard output: cannot be written\n", stderr);
    return 1;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return larder::run_with_stacks(kStackBytes, [&] { return run(argc, argv); });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "larder: %s\n", error.what());
    return 1;
  }
}
