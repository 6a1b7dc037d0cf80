#include "server/api/event_log.h"

#include <algorithm>
#include <utility>

namespace larder {
namespace {

constexpr std::string_view kEnd = "\n\n";  // of an event: JSON has none
constexpr std::size_t kPlaceBytes = 64;    // of a chunk in the list
constexpr std::size_t kChunkBytes = std::size_t{4} << 10;  // of events that go together, if not one alone has more

int count_events(std::string_view events) {
  int count = 0;
  for (std::size_t at = 0; (at = events.find(kEnd, at)) != events.npos; at += kEnd.size()) ++count;
  return count;
}

// Without so many at its beginning.
std::string_view skip_events(std::string_view events, int count) {
  for (; count > 0; --count) events.remove_prefix(events.find(kEnd) + kEnd.size());
  return events;
}

}  // namespace

bool EventLog::has_room() {
  const std::size_t num_free = is_closed_ && readers_.empty() ? 0 : kFreeBytes;
  return num_bytes_ <= num_free || share_.grow_to(num_bytes_ - num_free);
}

void EventLog::trim() {
  while (!chunks_.empty() && !has_room()) {
    if (make_room_()) continue;
    num_bytes_ -= chunks_.front().events.size() + kPlaceBytes;
    chunks_.pop_front();
  }
  first_ = chunks_.empty() ? num_events_ : chunks_.front().first;
}

void EventLog::append(std::string_view events) {
  if (events.empty()) return;
  {
    const std::lock_guard lock(mutex_);
    while (!events.empty()) {
      const auto end = events.find(kEnd, std::min(kChunkBytes, events.size() - kEnd.size()));
      const std::string_view chunk = events.substr(0, end + kEnd.size());
      events.remove_prefix(chunk.size());
      const int count = count_events(chunk);
      num_bytes_ += chunk.size() + kPlaceBytes;
      chunks_.push_back({.first = num_events_, .count = count, .events = std::string(chunk)});
      num_events_ += count;
    }
    trim();
  }
  wake_readers();
}

void EventLog::close() {
  {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
    trim();
  }
  wake_readers();
}

void EventLog::leave(const EventReader& reader) noexcept {
  const std::lock_guard lock(mutex_);
  std::erase_if(readers_, [&](const Follower& one) { return one.reader == &reader; });
  if (is_closed_ && readers_.empty()) trim();
}

int EventLog::first() const {
  const std::lock_guard lock(mutex_);
  return first_;
}

void EventLog::wake_readers() {
  std::vector<Mailbox::Wake> wakes;  // whose readers may go meanwhile
  {
    const std::lock_guard lock(mutex_);
    for (const Follower& one : readers_) wakes.push_back(one.wake);
  }
  for (const Mailbox::Wake& wake : wakes) wake();
}

std::shared_ptr<EventReader> EventReader::begin(std::shared_ptr<EventLog> log, int next, Mailbox::Wake wake) {
  // Not make_shared: the constructor is private.
  std::shared_ptr<EventReader> reader(new EventReader(log, next));
  const std::lock_guard lock(log->mutex_);
  log->readers_.push_back({reader.get(), std::move(wake)});
  return reader;
}

std::string EventReader::read(std::size_t max_bytes) {
  const std::lock_guard lock(log_->mutex_);
  std::string events;
  if (next_ < log_->first_) return events;
  const auto& chunks = log_->chunks_;
  auto chunk = std::ranges::partition_point(chunks, [&](const EventLog::Chunk& one) { return one.first + one.count <= next_; });
  for (; chunk != chunks.end() && events.size() < max_bytes; ++chunk) {
    events += skip_events(chunk->events, std::max(next_ - chunk->first, 0));
    next_ = chunk->first + chunk->count;
  }
  return events;
}

bool EventReader::done() const {
  const std::lock_guard lock(log_->mutex_);
  return log_->is_closed_ && next_ >= log_->num_events_;
}

bool EventReader::has_lost() const {
  const std::lock_guard lock(log_->mutex_);
  return next_ < log_->first_;
}

}  // namespace larder
