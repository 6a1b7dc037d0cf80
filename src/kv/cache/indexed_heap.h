// The smallest of keys that belong to numbered items, some of which are absent.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/check.h"

namespace larder {

// A binary heap that knows where each item is. top() is O(1), the rest O(log n); equal keys go by
// item. No allocation after construction.
class IndexedHeap {
 public:
  explicit IndexedHeap(int num_items) : places_(static_cast<std::size_t>(num_items), kAbsent) {
    heap_.reserve(places_.size());
  }

  bool empty() const { return heap_.empty(); }
  bool contains(int item) const { return places_[index_of(item)] != kAbsent; }
  int top() const { return heap_.front().second; }

  void push(int item, double key) {
    CHECK(!contains(item), item);
    heap_.emplace_back(key, item);
    rise(heap_.size() - 1);
  }

  void remove(int item) {
    CHECK(contains(item), item);
    const auto place = static_cast<std::size_t>(places_[index_of(item)]);
    places_[index_of(item)] = kAbsent;
    const Entry last = heap_.back();
    heap_.pop_back();
    if (place == heap_.size()) return;
    heap_[place] = last;
    rise(place);
    sink(static_cast<std::size_t>(places_[index_of(last.second)]));
  }

  // New keys for all that are present: key(item).
  template <class Function>
  void update(Function key) {
    for (Entry& entry : heap_) entry.first = key(entry.second);
    for (std::size_t place = heap_.size(); place-- > 0;) sink(place);
  }

 private:
  using Entry = std::pair<double, int>;
  static constexpr std::int32_t kAbsent = -1;

  static std::size_t index_of(int item) { return static_cast<std::size_t>(item); }
  void put(std::size_t place, const Entry& entry) {
    heap_[place] = entry;
    places_[index_of(entry.second)] = static_cast<std::int32_t>(place);
  }

  void rise(std::size_t place) {
    const Entry entry = heap_[place];
    for (; place > 0 && entry < heap_[(place - 1) / 2]; place = (place - 1) / 2) {
      put(place, heap_[(place - 1) / 2]);
    }
    put(place, entry);
  }

  void sink(std::size_t place) {
    const Entry entry = heap_[place];
    for (;;) {
      std::size_t child = 2 * place + 1;
      if (child + 1 < heap_.size() && heap_[child + 1] < heap_[child]) ++child;
      if (child >= heap_.size() || !(heap_[child] < entry)) break;
      put(place, heap_[child]);
      place = child;
    }
    put(place, entry);
  }

  std::vector<Entry> heap_;
  std::vector<std::int32_t> places_;
};

}  // namespace larder
