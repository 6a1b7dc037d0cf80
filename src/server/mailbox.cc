#include "server/mailbox.h"

#include <new>
#include <utility>

namespace larder {
namespace {

std::size_t size_of(const RequestUpdate& update) {
  std::size_t bytes = sizeof(Mailbox::Item);
  for (const OutputToken& token : update.tokens) {
    bytes += sizeof(OutputToken) + token.best.size() * sizeof(TokenLogprob);
  }
  return bytes;
}

}  // namespace

void Mailbox::push(int prompt, RequestUpdate&& update) {
  const std::lock_guard lock(mutex_);
  if (closed_ || has_lost_) return;
  const std::size_t bytes = size_of(update);
  const bool overflows = size_bytes_ <= max_bytes_ && size_bytes_ + bytes > max_bytes_;
  try {
    items_.push_back({.prompt = prompt, .update = std::move(update)});
    size_bytes_ += bytes;
  } catch (const std::bad_alloc&) {
    has_lost_ = true;
  }
  if (woken_ && !overflows) return;
  woken_ = true;
  wake_();
}

std::optional<Mailbox::Item> Mailbox::pop() {
  const std::lock_guard lock(mutex_);
  if (items_.empty()) {
    woken_ = false;
    return std::nullopt;
  }
  Item item = std::move(items_.front());
  items_.pop_front();
  size_bytes_ -= size_of(item.update);
  return item;
}

bool Mailbox::has_lost() const {
  const std::lock_guard lock(mutex_);
  return has_lost_;
}

void Mailbox::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  items_.clear();
  size_bytes_ = 0;
  wake_ = nullptr;
}

std::size_t Mailbox::size_bytes() const {
  const std::lock_guard lock(mutex_);
  return size_bytes_;
}

}  // namespace larder
