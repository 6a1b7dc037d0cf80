// larder worker: a part of a model's products, for a server on another machine.
#include <spdlog/spdlog.h>

#include <csignal>
#include <cstdio>
#include <memory>
#include <string>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/process_1.h"
#include "cli/pull.h"
#include "cli/runtime.h"
#include "cli/workers.h"
#include "cluster/worker_server.h"
#include "model/files/content_hash.h"
#include "plan/machines.h"

namespace larder {
namespace {

struct WorkerCommandOptions {
  std::string model = "smollm2-135m";
  std::string listen = "127.0.0.1:7070";
  std::string key_file;
  int num_threads = 0;
  bool is_open = false;
};

WorkerAddress listen_address(const WorkerCommandOptions& options) {
  WorkerAddress address;
  try {
    address = parse_worker_address(options.listen, /*any_port=*/true);
  } catch (const Error& error) {
    throw_invalid("--listen: {}", error.what());
  }
  const bool is_local = address.host == "localhost" || address.host == "::1" || address.host.starts_with("127.");
  if (!is_local && options.key_file.empty() && !options.is_open)
    throw_invalid("--listen: {} can be reached by others and there is no key; give --worker-key-file, or --open to let "
                  "everyone in",
                  address.host);
  return address;
}

void work(const WorkerCommandOptions& options) {
  let_process_1_end();
  std::signal(SIGPIPE, SIG_IGN);
  WorkerServerConfig config;
  config.listen = listen_address(options);
  config.key = read_worker_key(options.key_file);
  RuntimeOptions runtime;
  runtime.num_threads = options.num_threads;
  ThreadPool pool(num_threads_of(runtime));
  const KernelTable& kernels = select_kernels();
  const std::string path = find_model(options.model);
  const ModelFiles files(path);
  ModelConfig model;
  try {
    model = read_model_config(files.gguf());
    (void)weights_size_bytes(model, files.gguf());  // that all is there
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("{}: {}", path, error.what()));
  }
  config.model = content_hash(files);
  config.bytes_per_second = measure_read_rate(pool);
  WorkerServer server(config, files, model, kernels, pool);
  std::fprintf(stderr, "Machine: %s kernels, %d threads, %.1f GB/s\n", kernels.name, pool.num_threads(),
               config.bytes_per_second / 1e9);
  std::fprintf(stderr, "Model: %s (%d layers, hidden %d)\n", model.name.empty() ? path.c_str() : model.name.c_str(),
               model.num_layers(), model.hidden_size);
  config.listen.port = server.port();
  std::fprintf(stderr, "Ready: a worker at %s (Ctrl-C to stop)\n", config.listen.display().c_str());
  server.run();
}

}  // namespace

void add_worker_command(CLI::App& app) {
  auto options = std::make_shared<WorkerCommandOptions>();
  CLI::App* command = app.add_subcommand(
      "worker", "Compute a part of a model for a server on another machine, which was given --workers");
  command->add_option("-m,--model", options->model,
                      "The model that the server has: its own copy of the file or folder, or a name that `larder pull` "
                      "knows (default smollm2-135m)");
  command
      ->add_option("--listen", options->listen,
                   "Address and port to listen on (default 127.0.0.1:7070; port 0 = any free one); one that others can "
                   "reach needs a key or --open")
      ->check(not_empty());
  command->add_option("-t,--threads", options->num_threads, "Threads (default: the cores)")->check(CLI::Range(1, 1024));
  command
      ->add_option("--worker-key-file", options->key_file,
                   "A file with a key, one line, that the server has to have, too")
      ->check(not_empty());
  command->add_flag("--open", options->is_open, "Take a --listen that others can reach although there is no key");
  command->callback([options] { work(*options); });
}

}  // namespace larder
