// The other end of WorkerLinks: a machine that computes a part of a model's products for one server at a time.
#pragma once

#include <poll.h>

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/thread_pool.h"
#include "cluster/message_stream.h"
#include "cluster/worker_address.h"
#include "cluster/worker_protocol.h"
#include "kernels/kernels.h"
#include "model/files/model_files.h"
#include "model/model_config.h"

namespace larder {

struct WorkerServerConfig {
  WorkerAddress listen;
  std::string key;    // that a server has to have; "" = none
  std::string model;  // content_hash()
  double bytes_per_second = 0;  // that its threads read from memory
  std::int64_t handshake_ns = 10'000'000'000;  // that somebody has to show that it is a server that may
};

// It keeps nothing of a request: a stage's input comes, its outputs go. Its weights it keeps when a server goes, for
// when that comes back. Who has not shown that it has the key costs a server nothing: it is attended to beside others, by
// the thread that listens, and gives way where many come.
// Thread: run() one; stop() any.
class WorkerServer {
 public:
  // Connections of which nobody knows yet whose they are. The oldest gives way to the next.
  static constexpr std::size_t kMaxGuests = 32;

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
  struct Guest;

  bool has_waiting() const;
  bool wait_for_guests();
  void admit(int fd);
  bool attend(Guest& guest);
  void check_hello(const Guest& guest, const Hello& hello) const;
  void begin_session(Guest& guest);
  void serve(MessageStream& stream, const Hello& hello);
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
  std::list<Guest> guests_;  // of run(); in the order in which they came
  std::vector<pollfd> polled_;
  std::atomic<bool> is_busy_{false};
  std::thread session_;
  std::unique_ptr<Share> share_;  // of the session; null = none yet
};

}  // namespace larder
