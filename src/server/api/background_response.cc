#include "server/api/background_response.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <exception>
#include <iterator>

#include "base/error.h"

namespace larder {
namespace {

constexpr std::size_t kAdvanceBytes = std::size_t{64} << 10;    // of events at a time

}  // namespace

BackgroundResponse::BackgroundResponse(Origin origin, BackgroundResponses& all, std::shared_ptr<EventLog> events)
    : origin_(std::move(origin)), all_(all), events_(std::move(events)), share_(*all.host().replies, all.max_reply_bytes()) {}

BackgroundResponse::~BackgroundResponse() = default;

Mailbox::Wake BackgroundResponse::make_wake() {
  return [weak = weak_from_this(), &host = all_.host()] { host.wake_later(weak); };
}

void BackgroundResponse::start(std::unique_ptr<Generation> generation) {
  {
    const std::lock_guard lock(mutex_);
    generation_ = std::move(generation);
    ++*all_.host().num_generations;
  }
  wake();
}

std::optional<HttpResponse> BackgroundResponse::state() const {
  const std::lock_guard lock(mutex_);
  if (generation_ == nullptr) return std::nullopt;
  return json_response(generation_->state());
}

template <class Work>
bool BackgroundResponse::work(const Work& what) {
  const auto self = shared_from_this();  // that the table lets go of at the end
  bool has_ended = false;
  std::unique_ptr<NextTurn> turn;
  {
    const std::lock_guard lock(mutex_);
    if (generation_ == nullptr) return false;
    try {
      has_ended = what();
    } catch (const std::exception& error) {  // of memory, most likely: it costs this response, and no other
      spdlog::error("response {}: {}", id(), error.what());
      has_ended = true;
      give_up();
    }
    if (has_ended) turn = finish();
  }
  all_.host().wake_now();
  if (turn != nullptr) all_.host().prepare(std::move(turn));
  return true;
}

void BackgroundResponse::wake() {
  work([&] {
    advance();
    return generation_->done();
  });
}

bool BackgroundResponse::cancel() {
  return work([&] {
    tell(generation_->cancel());
    return true;
  });
}

void BackgroundResponse::interrupt() {
  work([&] {
    tell(generation_->interrupt());
    return true;
  });
}

void BackgroundResponse::drop() {
  work([] { return true; });
}

void BackgroundResponse::advance() {
  while (!generation_->done()) {
    std::string events = generation_->advance(kAdvanceBytes);
    if (generation_->has_large_reply()) events += generation_->write_reply();
    const bool is_all = events.empty();
    tell(events);
    if (!generation_->done() && !share_.may_hold(generation_->held_bytes()))
      tell(generation_->break_off({.status = 503,
                                   .code = "reply_memory",
                                   .message = "there is no room for the answer beside others that are not complete, or that "
                                              "their clients have not read yet; try again"}));
    if (is_all) return;
  }
}

void BackgroundResponse::give_up() noexcept {
  try {
    tell(generation_->break_off(Generation::no_memory()));
  } catch (const std::exception&) {
    // Then it is as if it had never been.
  }
}

void BackgroundResponse::tell(std::string_view events) {
  if (events_ != nullptr) events_->append(events);
}

std::unique_ptr<NextTurn> BackgroundResponse::finish() noexcept {
  all_.end(*this);  // first: who finds it in the table no more finds it stored
  std::unique_ptr<NextTurn> turn;
  try {
    turn = generation_->take_next_turn();
  } catch (const std::exception&) {
    // Without memory nothing is done ahead.
  }
  generation_.reset();
  share_.release();
  --*all_.host().num_generations;
  try {
    if (events_ != nullptr) events_->close();
  } catch (const std::exception&) {
    // Its readers look again by themselves.
  }
  return turn;
}

BackgroundResponses::BackgroundResponses(const ServerLimits& limits)
    : limits_(limits), event_budget_(limits.max_background_event_bytes) {}

BackgroundResponses::~BackgroundResponses() = default;

void BackgroundResponses::require_room() const {
  const std::lock_guard lock(mutex_);
  require_place();
}

void BackgroundResponses::require_place() const {
  if (is_over_) throw Error(ErrorKind::kStopped, "the server ends");
  if (under_way_.size() < limits_.max_background_responses) return;
  throw Error(ErrorKind::kUnavailable,
              fmt::format("background: {} responses are generated in the background, as many as may be at once; try again, "
                          "or leave it out",
                          under_way_.size()),
              "background");
}

std::shared_ptr<BackgroundResponse> BackgroundResponses::make(BackgroundResponse::Origin origin) {
  std::shared_ptr<EventLog> events;
  if (origin.keeps_events) events = std::make_shared<EventLog>(event_budget_, [this] { return drop_events(); });
  return std::make_shared<BackgroundResponse>(std::move(origin), *this, std::move(events));
}

void BackgroundResponses::start(const std::shared_ptr<BackgroundResponse>& response,
                                std::unique_ptr<Generation> generation) {
  {
    const std::lock_guard lock(mutex_);
    require_place();
    under_way_.emplace(response->id(), response);
  }
  response->start(std::move(generation));
}

std::shared_ptr<BackgroundResponse> BackgroundResponses::find(const std::string& owner, const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const auto found = under_way_.find(id);
  return found != under_way_.end() && found->second->owner() == owner ? found->second : nullptr;
}

std::shared_ptr<EventLog> BackgroundResponses::find_events(const std::string& owner, const std::string& id) {
  if (const auto response = find(owner, id)) return response->events();
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find_if(ended_, [&](const Ended& one) { return one.id == id && one.owner == owner; });
  if (found == ended_.end()) return nullptr;
  ended_.splice(ended_.begin(), ended_, found);
  return found->events;
}

void BackgroundResponses::forget_events(const std::string& owner, const std::string& id) {
  std::list<Ended> forgotten;  // which go once the lock is open
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find_if(ended_, [&](const Ended& one) { return one.id == id && one.owner == owner; });
  if (found != ended_.end()) forgotten.splice(forgotten.end(), ended_, found);
}

std::size_t BackgroundResponses::num_under_way() const {
  const std::lock_guard lock(mutex_);
  return under_way_.size();
}

void BackgroundResponses::end(BackgroundResponse& response) noexcept {
  std::list<Ended> dropped;  // which go once the lock is open
  const std::lock_guard lock(mutex_);
  under_way_.erase(response.id());
  if (response.events() == nullptr) return;
  try {
    ended_.push_front({response.id(), response.owner(), response.events()});
  } catch (const std::exception&) {
    return;  // without memory they are not kept
  }
  if (ended_.size() > limits_.max_sessions) dropped.splice(dropped.end(), ended_, std::prev(ended_.end()));
}

bool BackgroundResponses::drop_events() {
  std::list<Ended> dropped;
  const std::lock_guard lock(mutex_);
  // What is being read would free nothing.
  const auto last = std::find_if(ended_.rbegin(), ended_.rend(), [](const Ended& one) { return one.events.use_count() == 1; });
  if (last == ended_.rend()) return false;
  dropped.splice(dropped.end(), ended_, std::prev(last.base()));
  return true;
}

std::vector<std::shared_ptr<BackgroundResponse>> BackgroundResponses::all() const {
  std::vector<std::shared_ptr<BackgroundResponse>> result;
  const std::lock_guard lock(mutex_);
  result.reserve(under_way_.size());
  for (const auto& [id, response] : under_way_) result.push_back(response);
  return result;
}

void BackgroundResponses::look_again() {
  for (const auto& response : all()) response->wake();
}

void BackgroundResponses::interrupt() {
  for (const auto& response : all()) response->interrupt();
}

void BackgroundResponses::drop() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  for (const auto& response : all()) response->drop();
}

}  // namespace larder
