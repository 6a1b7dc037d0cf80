#include "server/wait_predictor.h"

#include <algorithm>
#include <cmath>

#include "base/clock.h"

namespace larder {
namespace {

constexpr double kHalfLifeS = 10;  // of what is known of the rate, while any wait

double seconds_between(std::int64_t from_ns, std::int64_t to_ns) {
  return static_cast<double>(std::max<std::int64_t>(to_ns - from_ns, 0)) / static_cast<double>(kNsPerSecond);
}

}  // namespace

WaitPredictor::Place::Place(WaitPredictor& waits, std::int64_t num_tokens, std::int64_t now_ns)
    : waits_(&waits), num_tokens_(num_tokens) {
  const std::lock_guard lock(waits.mutex_);
  waits.advance(now_ns);
  waits.num_waiting_ += num_tokens_;
}

WaitPredictor::Place::~Place() { hold(true, steady_now_ns()); }

void WaitPredictor::Place::hold(bool is_held, std::int64_t now_ns) {
  if (waits_ == nullptr || std::exchange(is_held_, is_held) == is_held) return;
  const std::lock_guard lock(waits_->mutex_);
  waits_->advance(now_ns);
  waits_->num_waiting_ += is_held ? -num_tokens_ : num_tokens_;
}

void WaitPredictor::Place::begin(std::int64_t now_ns) {
  if (waits_ == nullptr) return;
  const std::lock_guard lock(waits_->mutex_);
  waits_->advance(now_ns);
  if (!is_held_) waits_->num_waiting_ -= num_tokens_;
  waits_->num_begun_ += static_cast<double>(num_tokens_);
  waits_ = nullptr;
}

double WaitPredictor::predict_s(std::int64_t now_ns) const {
  const std::lock_guard lock(mutex_);
  if (num_waiting_ == 0) return 0;
  const double busy_s = busy_s_ + seconds_between(last_ns_, now_ns);
  return num_begun_ > 0 ? static_cast<double>(num_waiting_) * busy_s / num_begun_ : busy_s;
}

void WaitPredictor::advance(std::int64_t now_ns) {
  const double elapsed_s = seconds_between(last_ns_, now_ns);
  last_ns_ = std::max(last_ns_, now_ns);
  if (num_waiting_ == 0) return;
  const double kept = std::exp2(-elapsed_s / kHalfLifeS);
  num_begun_ *= kept;
  busy_s_ = busy_s_ * kept + elapsed_s;
}

}  // namespace larder
