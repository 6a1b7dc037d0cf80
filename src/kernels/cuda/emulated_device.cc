// The emulated GPU as a device, whose memory is the host's.
#include <cstdlib>
#include <cstring>

#include "base/check.h"
#include "kernels/cuda/functions.h"
#include "kernels/cuda/test_device.h"

namespace larder {
namespace {

class EmulatedDevice : public Device {
 public:
  const KernelTable& kernels() const override { return cuda_emulated::kTable; }
  std::string describe() const override { return "emulated GPU"; }
  std::string arch() const override { return "emulated"; }
  int max_head_dim() const override { return kCudaMaxHeadDim; }
  std::size_t free_bytes() const override { return std::size_t{1} << 30; }

  std::byte* allocate(std::size_t size_bytes) override {
    constexpr std::size_t kAlignment = 256;
    const std::size_t rounded = (size_bytes + kAlignment - 1) / kAlignment * kAlignment;
    void* memory = std::aligned_alloc(kAlignment, rounded);
    CHECK(memory != nullptr, size_bytes);
    std::memset(memory, 0, rounded);
    return static_cast<std::byte*>(memory);
  }
  void release(std::byte* memory) noexcept override { std::free(memory); }
  std::byte* allocate_host(std::size_t size_bytes) override { return allocate(size_bytes); }
  void release_host(std::byte* memory) noexcept override { std::free(memory); }

  void copy_in(std::byte* to, const std::byte* from, std::size_t size_bytes) override {
    check_no_step();
    std::memcpy(to, from, size_bytes);
  }
  void copy_out(std::byte* to, const std::byte* from, std::size_t size_bytes) override {
    check_no_step();
    std::memcpy(to, from, size_bytes);
  }
  void copy_within(std::byte* to, const std::byte* from, std::size_t size_bytes) override {
    check_no_step();
    std::memcpy(to, from, size_bytes);
  }
  void synchronize() override { check_no_step(); }

  void begin_step() override {
    check_no_step();
    in_step_ = true;
  }
  void end_step() override { in_step_ = false; }

 private:
  void check_no_step() const { CHECK(!in_step_, "the device is used within a step"); }

  bool in_step_ = false;
};

}  // namespace

std::unique_ptr<Device> open_test_device() { return std::make_unique<EmulatedDevice>(); }

}  // namespace larder
