// The events of a stream that may be read again, each under the number that it was sent under first.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/mailbox.h"
#include "server/memory_budget.h"

namespace larder {

class EventReader;

// Written by one, read by any number. Thread: any.
class EventLog {
 public:
  // Of a log that is written or read, which count nowhere: so that its readers hear of what is new however full the budget
  // is.
  static constexpr std::size_t kFreeBytes = std::size_t{16} << 10;

  // make_room: frees some of the budget; false = nothing more can be. Both outlive it.
  EventLog(MemoryBudget& budget, std::function<bool()> make_room) : share_(budget), make_room_(std::move(make_room)) {}

  // Whole events, as sse.h writes them. Where there is no room for all, the oldest go.
  void append(std::string_view events);
  // Nothing will follow. Once nobody reads it any more, what it holds counts to its last byte.
  void close();

  // The number of the first event that is there.
  int first() const;

 private:
  friend class EventReader;
  struct Chunk {
    int first = 0;
    int count = 0;
    std::string events;
  };
  struct Follower {
    const EventReader* reader = nullptr;
    Mailbox::Wake wake;
  };

  // All under the mutex.
  bool has_room();
  void trim();
  void wake_readers();
  // The reader goes.
  void leave(const EventReader& reader) noexcept;

  mutable std::mutex mutex_;
  BudgetShare share_;
  const std::function<bool()> make_room_;
  std::deque<Chunk> chunks_;
  std::size_t num_bytes_ = 0;
  int num_events_ = 0;  // so many were written
  int first_ = 0;
  bool is_closed_ = false;
  std::vector<Follower> readers_;
};

// One of those who read a log, at a place of its own. Thread: one at a time.
class EventReader {
 public:
  // From the event of that number on. wake: called whenever there is something to read.
  static std::shared_ptr<EventReader> begin(std::shared_ptr<EventLog> log, int next, Mailbox::Wake wake);
  ~EventReader() { log_->leave(*this); }
  EventReader(const EventReader&) = delete;
  EventReader& operator=(const EventReader&) = delete;

  // About max_bytes of what has come; "" = nothing, as yet or at all.
  std::string read(std::size_t max_bytes);
  // Everything was read, and nothing will follow.
  bool done() const;
  // What comes next is not kept any more.
  bool has_lost() const;

 private:
  friend class EventLog;
  EventReader(std::shared_ptr<EventLog> log, int next) : log_(std::move(log)), next_(next) {}

  const std::shared_ptr<EventLog> log_;
  int next_;
};

}  // namespace larder
