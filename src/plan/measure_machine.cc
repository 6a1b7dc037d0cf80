// The peaks of this machine, by the kernels that serve.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <numeric>
#include <vector>

#include "base/aligned_buffer.h"
#include "kernels/ops.h"
#include "kernels/packing.h"
#include "model/forward/weights.h"
#include "plan/machines.h"

namespace larder {
namespace {

constexpr std::int64_t kReadBytes = std::int64_t{256} << 20;  // far beyond the caches
constexpr int kMatrixSize = 2048;
constexpr int kRows = 256;
constexpr int kTries = 4;
constexpr int kCallsOnDevice = 8;  // between two waits, beside which a launch counts little

double best_seconds(const std::function<void()>& function) {
  double best = 1e30;
  for (int i = 0; i < kTries; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    function();
    best = std::min(
        best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return best;
}

// Of one call; device: null = the host, which has done it when the call returns.
double best_seconds(Device* device, const std::function<void()>& function) {
  if (device == nullptr) return best_seconds(function);
  return best_seconds([&] {
           for (int i = 0; i < kCallsOnDevice; ++i) function();
           device->synchronize();
         }) /
         kCallsOnDevice;
}

double copy_rate(Device& device, std::int64_t size_bytes) {
  const auto size = static_cast<std::size_t>(size_bytes);
  DeviceBuffer from(&device, size), to(&device, size);
  const double seconds =
      best_seconds(&device, [&] { device.copy_within(to.data(), from.data(), size); });
  return 2.0 * static_cast<double>(size_bytes) / seconds;
}

// Bytes of `value` where kernels read them.
DeviceBuffer filled(Device* device, std::size_t size_bytes, const void* value,
                    std::size_t value_bytes) {
  DeviceBuffer buffer(device, size_bytes, device == nullptr);
  std::vector<std::byte> bytes(size_bytes);
  for (std::size_t i = 0; i < size_bytes; i += value_bytes)
    std::memcpy(bytes.data() + i, value, std::min(value_bytes, size_bytes - i));
  if (device != nullptr)
    device->copy_in(buffer.data(), bytes.data(), size_bytes);
  else
    std::memcpy(buffer.data(), bytes.data(), size_bytes);
  return buffer;
}

struct ProductShape {
  int matrix_size = 0;
  int num_rows = 0;
  ActivationType activations = ActivationType::kInt8;
};

double product_rate(const KernelTable& kernels, ThreadPool& pool, GgmlType type,
                    const ProductShape& shape, Device* device) {
  const bool is_fast = shape.activations == ActivationType::kInt8;
  const int size = shape.matrix_size;
  PackedMatrix matrix = packed_layout(type, size, size);
  constexpr std::byte kOrdinary{0x2E};  // with it, a number is one in every type
  constexpr float kOne = 1;
  DeviceBuffer weights =
      filled(device, static_cast<std::size_t>(packed_size_bytes(matrix)) + 64, &kOrdinary, 1);
  matrix.data = weights.data();
  const std::size_t count = static_cast<std::size_t>(shape.num_rows) * static_cast<std::size_t>(size);
  DeviceBuffer x = filled(device, count * sizeof(float), &kOne, sizeof(float));
  DeviceBuffer y(device, count * sizeof(float)), codes(device, count + 64);
  DeviceBuffer scales(device, (count / kActivationGroup + 64) * sizeof(float));
  DeviceBuffer sums(device, (count / 16 + 64) * sizeof(std::int32_t));
  auto* values = reinterpret_cast<float*>(x.data());
  const QuantizedRows rows{reinterpret_cast<std::int8_t*>(codes.data()),
                           reinterpret_cast<float*>(scales.data()),
                           reinterpret_cast<std::int32_t*>(sums.data()), size};
  kernels.quantize_rows(values, size, rows, 0, shape.num_rows);
  DeviceBuffer scratch(device, device != nullptr
                                   ? static_cast<std::size_t>(device_product_bytes(shape.num_rows, size))
                                   : 0);
  const MatmulArgs args{.w = &matrix,
                        .x = values,
                        .xq = is_fast && takes_codes(kernels, matrix) ? &rows : nullptr,
                        .rounds_to_bf16 = is_fast,
                        .y = reinterpret_cast<float*>(y.data()),
                        .num_rows = shape.num_rows,
                        .ldx = size,
                        .ldy = size,
                        .device_scratch = scratch.data()};
  const double seconds =
      best_seconds(device, [&] { matmul(kernels, pool, std::span(&args, 1)); });
  return 2.0 * shape.num_rows * size * size / seconds;
}

std::array<double, kNumOpsKinds> product_rates(const KernelTable& kernels, ThreadPool& pool,
                                               const ProductShape& shape, Device* device = nullptr) {
  std::array<double, kNumOpsKinds> rates{};
  constexpr GgmlType kTypes[kNumOpsKinds] = {GgmlType::kF32, GgmlType::kBF16, GgmlType::kQ8_0, GgmlType::kQ4_0,
                                             GgmlType::kF16};
  for (std::size_t kind = 0; kind < rates.size(); ++kind)
    rates[kind] = product_rate(kernels, pool, kTypes[kind], shape, device);
  return rates;
}

}  // namespace

double measure_read_rate(ThreadPool& pool) {
  AlignedBuffer buffer(kReadBytes, true);
  constexpr int kTasks = 64;
  constexpr std::int64_t kWords = kReadBytes / 8 / kTasks;
  std::vector<std::uint64_t> sums(kTasks);
  const auto* words = buffer.as<std::uint64_t>();
  const double seconds = best_seconds([&] {
    pool.parallel_for(kTasks, [&](int task, int) {
      // Four sums, so that no addition waits for the one before.
      std::uint64_t sum[4] = {};
      const std::uint64_t* from = words + task * kWords;
      for (std::int64_t i = 0; i < kWords; i += 4)
        for (int k = 0; k < 4; ++k) sum[k] += from[i + k];
      sums[static_cast<std::size_t>(task)] += sum[0] + sum[1] + sum[2] + sum[3];
    });
  });
  // The sums are looked at, so that the loads cannot be left out.
  const bool is_zero = std::accumulate(sums.begin(), sums.end(), std::uint64_t{0}) == 0;
  return is_zero ? static_cast<double>(kReadBytes) / seconds : 0;
}

Machine measure_machine(const KernelTable& kernels, ThreadPool& pool, ActivationType activations) {
  Machine machine;
  machine.name = "this machine";
  machine.is_measured = true;
  machine.read_bytes_per_s = measure_read_rate(pool);
  machine.ops_per_s = product_rates(kernels, pool, {kMatrixSize, kRows, activations});
  return machine;
}

Machine measure_device(Device& device, ThreadPool& pool, ActivationType activations,
                       const DeviceProbe& probe) {
  Machine machine;
  machine.name = device.describe();
  machine.is_measured = true;
  machine.read_bytes_per_s = copy_rate(device, probe.copied_bytes);
  machine.ops_per_s =
      product_rates(device.kernels(), pool, {probe.matrix_size, probe.num_rows, activations}, &device);
  return machine;
}

}  // namespace larder
