// The way of a request's updates from the engine thread to the connection that waits for them.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <utility>

#include "engine/request.h"

namespace larder {

// The engine thread pushes and goes on; the connection's strand pops. Pushing wakes the strand once
// per drain, not once per update.
class Mailbox {
 public:
  using Wake = std::function<void()>;  // posts to the strand: must not block, must not throw

  struct Item {
    int prompt = 0;  // which of the request's prompts
    RequestUpdate update;
  };

  // Going over max_bytes wakes once more, so that the strand can look at size_bytes() even while it
  // waits for a client to read.
  Mailbox(Wake wake, std::size_t max_bytes) : wake_(std::move(wake)), max_bytes_(max_bytes) {}

  // Where there is no memory for it, it is lost, and so is what follows. Thread: engine.
  void push(int prompt, RequestUpdate&& update);
  // nullopt = empty: the next push wakes again. Thread: the strand.
  std::optional<Item> pop();
  // Once it is empty, nothing else will come. Thread: the strand.
  bool has_lost() const;
  // Drops everything; no wake begins after this. Thread: any but the engine's.
  void close();
  // Memory of what waits, without prompt_logprobs (which come at once, however slow the reader is, and count from the
  // beginning, see Generation).
  std::size_t size_bytes() const;

 private:
  mutable std::mutex mutex_;
  Wake wake_;
  const std::size_t max_bytes_;
  std::deque<Item> items_;
  std::size_t size_bytes_ = 0;
  bool woken_ = false;
  bool closed_ = false;
  bool has_lost_ = false;
};

}  // namespace larder
