#include "server/upstream/upstream_slots.h"

#include <algorithm>
#include <utility>

namespace larder {

std::shared_ptr<UpstreamSlots::Place> UpstreamSlots::enter(std::function<void()> wake) {
  auto place = std::make_shared<Place>(*this, std::move(wake));
  bool is_full = false;
  {
    const std::lock_guard lock(mutex_);
    if (num_free_ > 0) {
      --num_free_;
      place->has_slot_ = true;
    } else if (!(is_full = line_.size() >= max_waiting_)) {
      line_.push_back(place);
    }
  }
  // Behind the lock, which its end takes again.
  if (is_full) place.reset();
  return place;
}

void UpstreamSlots::leave(bool had_slot) {
  std::shared_ptr<Place> next;
  {
    const std::lock_guard lock(mutex_);
    if (!had_slot) {
      std::erase_if(line_, [](const std::weak_ptr<Place>& place) { return place.expired(); });
      return;
    }
    while (next == nullptr && !line_.empty()) {
      next = line_.front().lock();
      line_.pop_front();
    }
    if (next == nullptr) {
      ++num_free_;
      return;
    }
    next->has_slot_ = true;
  }
  next->wake_();
}

}  // namespace larder
