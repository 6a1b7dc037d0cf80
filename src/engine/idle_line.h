// Prompts that may come, to be computed while there is nothing else to do.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "engine/request.h"

namespace larder {

// The latest is the likeliest to come, and the oldest go for it where there is no room. Thread: one.
class IdleLine {
 public:
  static constexpr std::size_t kMostRequests = 16;
  static constexpr std::size_t kMostTokens = std::size_t{1} << 19;  // of all prompts; one alone may have more
  static constexpr std::size_t kMostBytes = 2 * kMostTokens * sizeof(TokenId);  // with those on the way to it

  void push(Request request) {
    num_tokens_ += request.prompt.size();
    requests_.push_back(std::move(request));
    while (requests_.size() > kMostRequests || (requests_.size() > 1 && num_tokens_ > kMostTokens)) drop(requests_.begin());
  }
  bool empty() const { return requests_.empty(); }
  const Request& latest() const { return requests_.back(); }
  Request take_oldest() {
    Request oldest = std::move(requests_.front());
    num_tokens_ -= oldest.prompt.size();
    requests_.erase(requests_.begin());
    return oldest;
  }
  // One that is not there any more is passed over.
  void erase(std::uint64_t id) {
    const auto found = std::ranges::find(requests_, id, &Request::id);
    if (found != requests_.end()) drop(found);
  }
  void clear() {
    requests_.clear();
    num_tokens_ = 0;
  }

 private:
  void drop(std::vector<Request>::iterator place) {
    num_tokens_ -= place->prompt.size();
    requests_.erase(place);
  }

  std::vector<Request> requests_;  // few; an empty one takes no memory, and each step has one
  std::size_t num_tokens_ = 0;
};

}  // namespace larder
