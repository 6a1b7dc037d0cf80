// Tells routers over ZeroMQ which prompts this server has cached (docs/clusters.md).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "kv/kv_events.h"
#include "server/report/kv_event_codec.h"

namespace larder {

struct KvEventPublisherConfig {
  std::string endpoint;         // tcp://HOST:PORT or ipc://PATH; HOST may be *, PORT 0
  std::string replay_endpoint;  // empty: nothing is sent again
  std::string topic;
  std::uint64_t first_sequence = 0;  // the number of the first message
  KvEventFormat format = KvEventFormat::kMap;
  // Who subscribes later, and could ask for replays, is told of what came before, all subscribers with it.
  std::chrono::milliseconds greet_interval{10'000};
  std::string plain_salt{};  // that all prompts have which ask for none
  std::size_t buffer_bytes = std::size_t{16} << 20;  // of the latest messages, to be sent again
  // Who subscribes so soon may have known a former process, and has missed the first message: AllBlocksCleared comes again.
  std::chrono::milliseconds return_time{10'000};
};

// A message for every push: topic, sequence number, batch. The first of a process is AllBlocksCleared, for routers
// may still believe what a former process has told. Where there are replays, all that is kept is sent again, with new
// numbers, to who subscribes late.
class KvEventPublisher {
 public:
  // Events that wait to be sent. With more, all of them are dropped, and AllBlocksCleared is sent instead.
  static constexpr std::size_t kMaxQueuedEvents = std::size_t{64} << 10;
  static constexpr std::size_t kMaxBufferedMessages = 10'000;

  // What one takes: what waits, twice while it is taken over, and what is kept.
  static std::int64_t most_bytes(const KvEventPublisherConfig& config) {
    constexpr std::size_t kQueueBytes = kMaxQueuedEvents * (sizeof(KvEvent) + sizeof(KvEvents));
    return static_cast<std::int64_t>(2 * kQueueBytes + config.buffer_bytes);
  }

  // What is wrong with the addresses whatever the machine. Throws Error{kInvalidArgument}.
  static void check(const KvEventPublisherConfig& config);

  // Of messages, and of events in them.
  struct Stats {
    std::uint64_t num_messages = 0;
    std::uint64_t num_events_stored = 0;
    std::uint64_t num_events_removed = 0;
    std::uint64_t num_dropped = 0;  // events that nobody was told of
  };

  // Binds and starts the thread that sends. Throws Error: kInvalidArgument where an address is none of this
  // machine, kUnavailable where it is taken or there are too few threads.
  explicit KvEventPublisher(KvEventPublisherConfig config);
  // Sends what is queued, and gives subscribers 100 ms to take it.
  ~KvEventPublisher();

  // Thread: any. Waits for no network and allocates nothing.
  void push(KvEvents events);

  // Thread: any, as of what follows.
  Stats stats() const;
  // As bound, with the port that the system chose; a replay_endpoint() may be empty.
  const std::string& endpoint() const;
  const std::string& replay_endpoint() const;

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace larder
