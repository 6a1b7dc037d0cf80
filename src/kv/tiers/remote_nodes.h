// The server that an address names, and, where it is one of a cluster, the others that it names.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/tiers/remote_connection.h"
#include "kv/tiers/remote_host.h"
#include "kv/tiers/remote_request.h"
#include "kv/tiers/remote_url.h"

namespace larder {

struct RemoteTimeouts {
  int connect_ms;  // with TLS, AUTH, SELECT and PING
  int batch_ms;    // and the time for its bytes at 50 MB/s, of whatever nodes they come
  int max_idle_ms;  // of a connection; then it is opened anew before it is used
};

// Where a cluster's keys are is learnt from its own words: who is asked for a key that another one has says so (MOVED), and
// is asked no more for that slot. Whoever fails is forgotten, so that another one is asked who has its slots now: the one
// that the address names or, where that is who failed, the one that answered last.
// Thread: one at a time, but for leave().
class RemoteNodes {
 public:
  using OnReply = std::function<void(int command, const RemoteReply& reply)>;

  // tls: null = in the clear. It and stop, which ends whatever is under way, must outlive this.
  RemoteNodes(const RemoteUrl& url, const RemoteTls* tls, const RemoteTimeouts& timeouts, const std::atomic<bool>& stop);

  // Of the one that is asked first.
  RemoteOutcome open();
  // Sends each command to the one that has its key, to several of them one after the other. on_reply is called once for
  // each that was answered, in any order; those of whoever answered before another one failed count.
  // max_reply_bytes: for each command. A connection that the server closed since it was last used is opened again, once.
  RemoteOutcome exchange(const RemoteRequest& request, std::int64_t max_reply_bytes, const OnReply& on_reply);
  void close();
  // Names are looked up and connections opened anew before they are used. Thread: any.
  void leave() { is_left_ = true; }

  // Why the last call did not end well.
  const std::string& error() const { return error_; }
  // How long the last PING took.
  std::int64_t round_trip_ns() const { return nodes_[entry_]->connection.round_trip_ns(); }
  // What the last exchange() took once connections were open.
  std::int64_t exchange_ns() const { return exchange_ns_; }
  // More than one: a cluster.
  std::size_t num_nodes() const { return nodes_.size(); }

 private:
  static constexpr std::uint16_t kUnknown = 0xffff;
  struct Node {
    Node(const RemoteUrl& url, const RemoteTls* tls, const std::atomic<bool>& stop);

    const RemoteUrl url;
    RemoteHost host;
    RemoteConnection connection;
    std::int64_t answered_ns = 0;  // when it last did
    bool has_failed = false;
  };
  // What is left of an exchange's time. Connections have some of their own, all of them together.
  struct Patience {
    std::int64_t deadline_ns;
    std::int64_t connect_ns;
  };
  // A command, and whom to send it to. asks: as to a slot that is on its way there.
  struct Errand {
    int command;
    int slot;
    std::uint16_t node;
    bool asks;
  };

  std::uint16_t node_of(int slot) const {
    const std::uint16_t node = slots_[static_cast<std::size_t>(slot)];
    return node == kUnknown ? entry_ : node;
  }
  std::optional<Errand> redirected(const Errand& errand, const RemoteReply& reply);
  std::optional<std::uint16_t> node_at(std::string_view address, const Node& teller);
  RemoteExchange exchange_of(std::span<const Errand> errands, const RemoteRequest& request, std::int64_t max_reply_bytes,
                             const std::function<void(const Errand&, const RemoteReply&)>& answer) const;
  RemoteOutcome send(std::uint16_t node, RemoteExchange exchange, Patience& patience);
  RemoteOutcome open_connection(Node& node, Patience& patience);
  RemoteOutcome fail(std::uint16_t node, RemoteOutcome outcome);
  // Between exchanges, whose errands hold nodes' numbers.
  void settle();
  void forget_nodes();

  const RemoteUrl url_;
  const RemoteTls* const tls_;
  const RemoteTimeouts timeouts_;
  const std::atomic<bool>& stop_;
  std::atomic<bool> is_left_{false};
  std::vector<std::unique_ptr<Node>> nodes_;  // the first is url_'s
  std::vector<std::uint16_t> slots_;          // [kNumSlots], whose nodes; kUnknown = the entry is asked
  std::uint16_t entry_ = 0;
  bool is_full_ = false;  // of nodes: the next exchange begins with the first alone
  std::string error_;
  std::int64_t exchange_ns_ = 0;
};

}  // namespace larder
