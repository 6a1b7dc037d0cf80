// Responses that are generated whether or not their clients stay.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/api/event_log.h"
#include "server/api/generation.h"
#include "server/chat/session_store.h"
#include "server/memory_budget.h"
#include "server/reply_share.h"
#include "server/server_limits.h"
#include "server/wakeable.h"

namespace larder {

class BackgroundResponses;

// What the server around them does for them.
struct BackgroundHost {
  MemoryBudget* replies = nullptr;                          // that what is held for an answer counts in, as a connection's does
  std::atomic<int>* num_generations = nullptr;
  std::function<void(std::weak_ptr<Wakeable>)> wake_later;  // from the engine's thread: must not block
  std::function<void()> wake_now;                           // those that were to be woken later
  std::function<void(std::unique_ptr<NextTurn>)> prepare;   // once an answer is there; must not throw
};

// One of them, in the place that a connection has for others: it takes what the engine leaves, at once, as no reader is
// waited for. Its writer puts it into the store, however it ends. Thread: any.
class BackgroundResponse final : public Wakeable, public std::enable_shared_from_this<BackgroundResponse> {
 public:
  struct Origin {
    std::string id = {}, owner = {};
    std::vector<ItemPtr> input = {};
    bool keeps_events = false;  // for who reads them as they come, or again
  };
  // Both outlive it. Events may be null.
  BackgroundResponse(Origin origin, BackgroundResponses& all, std::shared_ptr<EventLog> events);
  ~BackgroundResponse() override;

  const std::string& id() const { return origin_.id; }
  const std::string& owner() const { return origin_.owner; }
  const std::vector<ItemPtr>& input() const { return origin_.input; }
  const std::shared_ptr<EventLog>& events() const { return events_; }
  // For the generation's.
  Mailbox::Wake make_wake();

  // Its own thing, from here on.
  void start(std::unique_ptr<Generation> generation);
  // As it is told to who asks for it now. nullopt: it has ended.
  std::optional<HttpResponse> state() const;
  // Has it end as cancelled. false: it had ended.
  bool cancel();
  // Has it end as failed, for a server that ends.
  void interrupt();
  // Gives it up, with no word to anybody.
  void drop();
  // Works off what the engine has left.
  void wake() override;

 private:
  // All under the mutex.
  void advance();
  void give_up() noexcept;
  void tell(std::string_view events);
  std::unique_ptr<NextTurn> finish() noexcept;
  // Has work done on the generation, if it is under way, and what its end wants done.
  template <class Work>
  bool work(const Work& what);

  const Origin origin_;
  BackgroundResponses& all_;
  const std::shared_ptr<EventLog> events_;
  mutable std::mutex mutex_;
  std::unique_ptr<Generation> generation_;  // null: not begun, or ended
  ReplyShare share_;                        // of what it holds
};

// Those under way, and the events of those that have ended, as far as there is room. Thread: any.
class BackgroundResponses {
 public:
  explicit BackgroundResponses(const ServerLimits& limits);
  ~BackgroundResponses();

  // Before the first one is made.
  void serve_by(BackgroundHost host) { host_ = std::move(host); }
  const BackgroundHost& host() const { return host_; }
  std::size_t max_reply_bytes() const { return limits_.max_total_reply_bytes; }

  // Throws Error{kUnavailable} where there are as many as there may be, kStopped after drop().
  void require_room() const;
  std::shared_ptr<BackgroundResponse> make(BackgroundResponse::Origin origin);
  // Likewise; the generation is cancelled then.
  void start(const std::shared_ptr<BackgroundResponse>& response, std::unique_ptr<Generation> generation);

  // One under way; nullptr: there is none, or it is another's.
  std::shared_ptr<BackgroundResponse> find(const std::string& owner, const std::string& id) const;
  // Of one under way, or that has ended; nullptr: there are none, or they are kept no more.
  std::shared_ptr<EventLog> find_events(const std::string& owner, const std::string& id);
  void forget_events(const std::string& owner, const std::string& id);

  std::size_t num_under_way() const;
  std::size_t event_bytes() const { return event_budget_.used(); }
  // Has each do what it can: a wake can be lost where there is no memory for it, and the engine may have ended.
  void look_again();
  void interrupt();
  void drop();

 private:
  friend class BackgroundResponse;
  struct Ended {
    std::string id, owner;
    std::shared_ptr<EventLog> events;
  };

  void require_place() const;  // under the mutex
  void end(BackgroundResponse& response) noexcept;
  // Drops the events that were longest unused, of those that nobody reads. false: there are none.
  bool drop_events();
  std::vector<std::shared_ptr<BackgroundResponse>> all() const;

  const ServerLimits& limits_;
  BackgroundHost host_;
  MemoryBudget event_budget_;
  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<BackgroundResponse>> under_way_;
  std::list<Ended> ended_;  // the one last used first
  bool is_over_ = false;    // none is begun any more
};

}  // namespace larder
