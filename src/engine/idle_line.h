// Prompts that may come, to be computed while there is nothing else to do.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/request.h"

namespace larder {

// A prompt that may come.
struct Anticipated {
  std::vector<TokenId> prompt;
  std::string salt = {};
  int priority = 0;  // of the request that was answered, and so of what it leaves in the cache
  // The tokens of a request that has ended, as the cache has them, with its answer. As far as they are the prompt's, the
  // prompt is expected to find them there; those behind nobody is expected to ask for again.
  std::vector<TokenId> answered = {};
};

struct IdleWork {
  Request request;
  int num_known = 0;              // of its prompt's tokens: those that were in the cache when it came
  std::vector<TokenId> replaced;  // those that stood behind them, which its own take the place of

  std::size_t num_tokens() const { return request.prompt.size() + replaced.size(); }
};

// The latest is the likeliest to come, and the oldest go for it where there is no room. Thread: one.
class IdleLine {
 public:
  static constexpr std::size_t kMostRequests = 16;
  static constexpr std::size_t kMostTokens = std::size_t{1} << 19;  // of all of it; one alone may have more
  static constexpr std::size_t kMostBytes = 2 * kMostTokens * sizeof(TokenId);  // with those on the way to it

  void push(IdleWork work) {
    num_tokens_ += work.num_tokens();
    line_.push_back(std::move(work));
    while (line_.size() > kMostRequests || (line_.size() > 1 && num_tokens_ > kMostTokens)) drop(line_.begin());
  }
  bool empty() const { return line_.empty(); }
  const IdleWork& latest() const { return line_.back(); }
  IdleWork take_oldest() {
    num_tokens_ -= line_.front().num_tokens();
    IdleWork oldest = std::move(line_.front());
    line_.erase(line_.begin());
    return oldest;
  }
  // One that is not there any more is passed over.
  void erase(std::uint64_t id) {
    const auto found = std::ranges::find(line_, id, [](const IdleWork& work) { return work.request.id; });
    if (found != line_.end()) drop(found);
  }
  void clear() {
    line_.clear();
    num_tokens_ = 0;
  }

 private:
  void drop(std::vector<IdleWork>::iterator place) {
    num_tokens_ -= place->num_tokens();
    line_.erase(place);
  }

  std::vector<IdleWork> line_;  // few; an empty one takes no memory, and each step has one
  std::size_t num_tokens_ = 0;
};

}  // namespace larder
