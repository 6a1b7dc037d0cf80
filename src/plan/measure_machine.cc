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
#include "plan/machines.h"

namespace larder {
namespace {

constexpr std::int64_t kReadBytes = std::int64_t{256} << 20;  // far beyond the caches
constexpr int kMatrixSize = 2048;
constexpr int kRows = 256;
constexpr int kTries = 4;

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

double read_rate(ThreadPool& pool) {
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

double product_rate(const KernelTable& kernels, ThreadPool& pool, GgmlType type) {
  PackedMatrix matrix = packed_layout(type, kMatrixSize, kMatrixSize);
  AlignedBuffer weights(static_cast<std::size_t>(packed_size_bytes(matrix)) + 64, true);
  std::memset(weights.data(), 0x2E, weights.size_bytes());  // an ordinary number in every type
  matrix.data = weights.data();
  const std::size_t count = std::size_t{kRows} * kMatrixSize;
  std::vector<float> x(count, 1), y(count);
  std::vector<std::int8_t> q(count + 64);
  std::vector<float> scale(count / kActivationGroup + 64);
  std::vector<std::int32_t> sum(count / 16 + 64);
  const QuantizedRows rows{q.data(), scale.data(), sum.data(), kMatrixSize};
  kernels.quantize_rows(x.data(), kMatrixSize, rows, 0, kRows);
  const bool has_codes = type == GgmlType::kQ8_0 || type == GgmlType::kQ4_0;
  const MatmulArgs args{.w = &matrix,
                        .x = x.data(),
                        .xq = has_codes ? &rows : nullptr,
                        .y = y.data(),
                        .num_rows = kRows,
                        .ldx = kMatrixSize,
                        .ldy = kMatrixSize};
  const double seconds = best_seconds([&] { matmul(kernels, pool, std::span(&args, 1)); });
  return 2.0 * kRows * kMatrixSize * kMatrixSize / seconds;
}

}  // namespace

Machine measure_machine(const KernelTable& kernels, ThreadPool& pool) {
  Machine machine;
  machine.name = "this machine";
  machine.is_measured = true;
  machine.read_bytes_per_s = read_rate(pool);
  machine.ops_per_s = {product_rate(kernels, pool, GgmlType::kF32),
                       product_rate(kernels, pool, GgmlType::kBF16),
                       product_rate(kernels, pool, GgmlType::kQ8_0),
                       product_rate(kernels, pool, GgmlType::kQ4_0)};
  return machine;
}

}  // namespace larder
