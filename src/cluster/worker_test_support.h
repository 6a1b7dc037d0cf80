// A worker on a thread of this process.
#pragma once

#include <memory>
#include <string>
#include <thread>

#include "base/thread_pool.h"
#include "cluster/worker_server.h"
#include "kernels/kernels.h"
#include "model/files/model_files.h"
#include "model/forward/transformer.h"

namespace larder {

class TestWorker {
 public:
  explicit TestWorker(const std::string& path, int port = 0, const std::string& key = "")
      : TestWorker(path, {.listen = {"127.0.0.1", port}, .key = key, .model = "m", .bytes_per_second = 1e9}) {}
  TestWorker(const std::string& path, const WorkerServerConfig& config)
      : files_(path),
        config_(read_model_config(files_.gguf())),
        server_(config, files_, config_, select_kernels(), pool_),
        thread_([this] { server_.run(); }) {}
  ~TestWorker() {
    server_.stop();
    thread_.join();
  }

  int port() const { return server_.port(); }

 private:
  ModelFiles files_;
  ModelConfig config_;
  ThreadPool pool_{1};
  WorkerServer server_;
  std::thread thread_;
};

}  // namespace larder
