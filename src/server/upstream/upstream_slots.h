// How many requests are at the upstream at once, and who waits.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

namespace larder {

// Slots go to those that wait in the order in which they came. Thread: any.
class UpstreamSlots {
 public:
  // Of a request: in line, and then with a slot, which its end gives to the next one. Outlived by the slots.
  class Place {
   public:
    Place(UpstreamSlots& slots, std::function<void()> wake) : slots_(slots), wake_(std::move(wake)) {}
    ~Place() { slots_.leave(has_slot_); }
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;

    bool has_slot() const { return has_slot_; }

   private:
    friend class UpstreamSlots;
    UpstreamSlots& slots_;
    const std::function<void()> wake_;
    std::atomic<bool> has_slot_ = false;
  };

  UpstreamSlots(int num_slots, std::size_t max_waiting) : num_free_(num_slots), max_waiting_(max_waiting) {}

  // nullptr: the line is full, a normal outcome. wake: called once a slot is there for who had to wait, by any thread;
  // must not throw.
  std::shared_ptr<Place> enter(std::function<void()> wake);

 private:
  void leave(bool had_slot);

  std::mutex mutex_;
  int num_free_;
  const std::size_t max_waiting_;
  std::deque<std::weak_ptr<Place>> line_;
};

}  // namespace larder
