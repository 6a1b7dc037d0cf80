// A server's connections to its workers, the machines that compute a part of its model's products.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cluster/message_stream.h"
#include "cluster/worker_address.h"
#include "cluster/worker_protocol.h"
#include "kv/tiers/remote_host.h"
#include "model/forward/output_split.h"
#include "model/forward/product_partners.h"

namespace larder {

struct WorkerLinksConfig {
  std::vector<WorkerAddress> workers;  // one at least
  std::string key;                     // that they ask for; "" = none
  Hello hello;                         // what must be the same on all machines
  // How long a step waits for a worker that has gone or does not answer, before its requests fail. What takes
  // longer than half of it is no answer.
  std::int64_t patience_ns = 60'000'000'000;
  // Parts of the server and of each worker, in order; empty = by how fast they read their memory.
  std::vector<std::uint32_t> shares = {};
  double own_bytes_per_second = 0;  // of the server, for that
};

// Of one worker.
struct WorkerStats {
  std::string address;
  bool is_up = false;
  std::uint64_t num_losses = 0;  // times that it was lost, and looked for again
  std::uint64_t sent_bytes = 0;  // inputs of stages
  std::uint64_t received_bytes = 0;
  std::int64_t wait_ns = 0;      // for it, when the server's own part was done
};

// Workers keep nothing but weights, so what one has not answered is sent again, to itself when it is back: nothing is
// lost, and no bit changes. Where it does not come back in time the step fails (PartnerLost), and the next one looks for
// it again, shortly.
// Thread: one at a time, but stop() and stats(), which may be called by any. No allocation while all goes well.
class WorkerLinks final : public ProductPartners {
 public:
  // Connects to all, and knows their shares. Throws Error{kUnavailable} naming the worker and why it cannot be had.
  explicit WorkerLinks(const WorkerLinksConfig& config);
  ~WorkerLinks() override;

  const OutputSplit& split() const { return split_; }
  std::span<const WorkerAddress> addresses() const { return config_.workers; }

  // Has them load their shares, for stages within the limits.
  void assign(const StageLimits& limits);
  // Until all have. Throws as the constructor does.
  void await_ready();

  void send(StageId stage, int num_rows, std::span<const std::byte> input) override;
  void receive(int machine, std::span<std::byte> reply) override;

  // Whoever waits for a worker, now or later, is told PartnerLost.
  void stop() { stops_ = true; }
  std::vector<WorkerStats> stats() const;

 private:
  struct Link;

  bool open_first(Link& link);
  bool open(Link& link, std::int64_t deadline_ns);
  bool await_ready(Link& link, std::int64_t patience_ns);
  bool reconnect(Link& link, std::int64_t deadline_ns);
  bool send_stage(Link& link);
  bool receive_outputs(Link& link, std::span<std::byte> reply);
  void note_lost(Link& link);
  void note_back(Link& link);
  [[noreturn]] void give_up(Link& link);
  void wait_before_next_try();
  void share_out();

  const WorkerLinksConfig config_;
  std::atomic<bool> stops_{false};
  std::vector<std::unique_ptr<Link>> links_;
  OutputSplit split_;
  StageLimits limits_;
  // Of this stage.
  MessageHeader header_;
  std::span<const std::byte> input_;
};

}  // namespace larder
