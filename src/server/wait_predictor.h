// How long a request that comes now would wait for its turn.
#pragma once

#include <cstdint>
#include <mutex>
#include <utility>

namespace larder {

// By Little's law: the prompts' tokens that wait for their first token, over the rate at which such tokens went lately
// while there were any. What is cached or decoded beside them is in that rate. Thread: any.
class WaitPredictor {
 public:
  // A prompt's, from when the engine has it until its first token, or its end.
  class Place {
   public:
    Place(WaitPredictor& waits, std::int64_t num_tokens, std::int64_t now_ns);
    Place(Place&& other) noexcept
        : waits_(std::exchange(other.waits_, nullptr)), num_tokens_(other.num_tokens_), is_held_(other.is_held_) {}
    Place& operator=(Place&&) = delete;
    ~Place();

    // Its first token is there; again is the same.
    void begin(std::int64_t now_ns);
    // While it waits for its reader, it is in nobody's way.
    void hold(bool is_held, std::int64_t now_ns);

   private:
    WaitPredictor* waits_;  // nullptr: it waits no more
    std::int64_t num_tokens_;
    bool is_held_ = false;
  };

  // Until all that wait now have begun. Of those that have waited from the start, as long as they have.
  double predict_s(std::int64_t now_ns) const;

 private:
  void advance(std::int64_t now_ns);

  mutable std::mutex mutex_;
  std::int64_t num_waiting_ = 0;  // tokens
  std::int64_t last_ns_ = 0;
  // Of late: what is older counts less.
  double num_begun_ = 0;  // tokens
  double busy_s_ = 0;     // while any waited
};

}  // namespace larder
