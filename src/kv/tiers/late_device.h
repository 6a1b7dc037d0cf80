// A device in the host's memory, for tests.
#pragma once

#include <cstddef>
#include <cstring>
#include <deque>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/device.h"

namespace larder {

// Whose copies beside the kernels wait until they are told to run.
class LateDevice final : public Device {
 public:
  const KernelTable& kernels() const override { return select_kernels(); }
  std::string describe() const override { return "late"; }
  std::string arch() const override { return "late"; }
  int max_head_dim() const override { return 64; }
  std::size_t free_bytes() const override { return 0; }
  std::byte* allocate(std::size_t size_bytes) override { return new std::byte[size_bytes]{}; }
  void release(std::byte* memory) noexcept override { delete[] memory; }
  std::byte* allocate_host(std::size_t size_bytes) override { return allocate(size_bytes); }
  void release_host(std::byte* memory) noexcept override { release(memory); }
  void copy_in(std::byte* to, const std::byte* from, std::size_t size_bytes) override {
    std::memcpy(to, from, size_bytes);
  }
  void copy_out(std::byte* to, const std::byte* from, std::size_t size_bytes) override {
    std::memcpy(to, from, size_bytes);
  }
  void copy_within(std::byte* to, const std::byte* from, std::size_t size_bytes) override {
    std::memcpy(to, from, size_bytes);
  }
  void synchronize() override {}

  void copy_in_beside(std::span<const HostCopy> copies, std::function<void()> done) override {
    late_.emplace_back(std::vector(copies.begin(), copies.end()), std::move(done));
  }
  void copy_out_beside(std::span<const HostCopy> copies, std::function<void()> done) override {
    copy_in_beside(copies, std::move(done));
  }
  void finish_copies_beside() override {
    while (num_late() > 0) copy_next();
  }

  std::size_t num_late() const { return late_.size(); }
  void copy_next() {
    const auto [copies, done] = std::move(late_.front());
    late_.pop_front();
    for (const HostCopy& copy : copies) std::memcpy(copy.to, copy.from, copy.size_bytes);
    done();
  }

 private:
  std::deque<std::pair<std::vector<HostCopy>, std::function<void()>>> late_;
};

}  // namespace larder
