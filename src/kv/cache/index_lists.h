// Numbered items in numbered lists.
#pragma once

#include <cstdint>
#include <vector>


namespace larder {

// Each item is in at most one list, at a place that its caller knows the list of. All O(1), no
// allocation after construction.
class IndexLists {
 public:
  static constexpr int kNone = -1;

  IndexLists(int num_lists, int num_items)
      : ends_(static_cast<std::size_t>(num_lists)), links_(static_cast<std::size_t>(num_items)) {}

  bool empty(int list) const { return end_of(list).first == kNone; }
  int front(int list) const { return end_of(list).first; }

  void push_back(int list, int item) { insert(list, item, end_of(list).last, kNone); }
  void push_front(int list, int item) { insert(list, item, kNone, end_of(list).first); }

  void remove(int list, int item) {
    const Link link = link_of(item);
    set_next(list, link.previous, link.next);
    set_previous(list, link.next, link.previous);
  }
  // other, in no list, takes the place of item.
  void replace(int list, int item, int other) {
    const Link link = link_of(item);
    insert(list, other, link.previous, link.next);
  }

 private:
  struct End {
    std::int32_t first = kNone, last = kNone;
  };
  struct Link {
    std::int32_t previous = kNone, next = kNone;
  };

  End& end_of(int list) { return ends_[static_cast<std::size_t>(list)]; }
  const End& end_of(int list) const { return ends_[static_cast<std::size_t>(list)]; }
  Link& link_of(int item) { return links_[static_cast<std::size_t>(item)]; }

  void insert(int list, int item, int previous, int next) {
    link_of(item) = {previous, next};
    set_next(list, previous, item);
    set_previous(list, next, item);
  }
  void set_next(int list, int item, int next) {
    (item == kNone ? end_of(list).first : link_of(item).next) = next;
  }
  void set_previous(int list, int item, int previous) {
    (item == kNone ? end_of(list).last : link_of(item).previous) = previous;
  }

  std::vector<End> ends_;
  std::vector<Link> links_;
};

}  // namespace larder
