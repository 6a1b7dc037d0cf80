// The other end of WorkerLinks: a machine that computes a part of a model's products for one server at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/thread_pool.h"
#include "cluster/message_stream.h"
#include "cluster/worker_address.h"
#include "cluster/worker_protocol.h"
#include "kernels/kernels.h"
#include "model/model_config.h"
#include "model/model_files.h"

namespace larder {

struct WorkerServerConfig {
  WorkerAddress listen;
  std::string key;    // that a server has to have; "" = none
  std::string model;  // content_hash()
  double bytes_per_second = 0;  // that its threads read from memory
};

// It keeps nothing of a request: a stage's input comes, its outputs go. Its weights it keeps when a server goes, for
// when that comes back.
// Thread: run() one; stop() any.
class WorkerServer {
 public:
  // References must outlive it. Listens from here on. Throws Error{kUnavailable}.
  WorkerServer(const WorkerServerConfig& config, const ModelFiles& files, const ModelConfig& model,
               const KernelTable& kernels, ThreadPool& pool);
  ~WorkerServer();

  int port() const;
  // Serves one server after the other, and refuses those that come meanwhile, until stop().
  void run();
  void stop() { stops_ = true; }

 private:
  struct Share;

  bool is_free_soon() const;
  void take(int fd);
  void serve(MessageStream& stream);
  Hello greet(MessageStream& stream);
  Assign read_assignment(MessageStream& stream);
  void load(MessageStream& stream, const Hello& hello, const Assign& assign);
  void require_room(const Assign& assign) const;
  void compute_stages(MessageStream& stream);

  const WorkerServerConfig config_;
  const ModelFiles& files_;
  const ModelConfig& model_;
  const KernelTable& kernels_;
  ThreadPool& pool_;
  const int listener_;
  std::atomic<bool> stops_{false};
  std::atomic<bool> is_busy_{false};
  std::thread session_;
  std::unique_ptr<Share> share_;  // of the session; null = none yet
};

}  // namespace larder
