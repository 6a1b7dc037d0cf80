#include "tests/gpu/bench.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <vector>

#include "kernels/ops.h"
#include "kernels/test_util.h"
#include "model/exactness.h"
#include "kernels/cuda/test_device.h"

namespace larder {
namespace {

// Beyond what a second-level cache holds.
constexpr std::int64_t kColdBytes = 400LL << 20;

// Median seconds of one call among batches of calls; warm before.
double median_seconds(Device& device, bool quick, const std::function<void()>& call) {
  const int batches = quick ? 1 : 9;
  const int calls = quick ? 1 : 20;
  for (int i = 0; i < (quick ? 0 : calls); ++i) call();
  std::vector<double> seconds;
  for (int batch = 0; batch < batches; ++batch) {
    device.synchronize();
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) call();
    device.synchronize();
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / calls);
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

void bench_copy(Device& device, bool quick) {
  const std::size_t size = quick ? 1 << 16 : std::size_t{1} << 30;
  DeviceBuffer from(&device, size), to(&device, size);
  const double seconds =
      median_seconds(device, quick, [&] { device.copy_within(to.data(), from.data(), size); });
  std::printf("copy %zu MiB: %.0f GB/s (read and written)\n", size >> 20,
              2.0 * static_cast<double>(size) / seconds * 1e-9);
}

// One matrix many times over, so that no call finds it in a cache.
void bench_products(Device& device, bool quick, GgmlType type, const char* name) {
  const int rows = quick ? 64 : 14336;
  const int cols = quick ? 256 : 4096;
  const PackedMatrix layout = packed_layout(type, rows, cols);
  const std::int64_t size = packed_size_bytes(layout);
  std::vector<PackedMatrix> matrices;
  DeviceBuffer memory;
  {
    ThreadPool pool(8);
    AlignedBuffer packed(static_cast<std::size_t>(size));
    pack_matrix(type, test::random_rows(type, rows, cols, 1), rows, cols, packed.data(), pool);
    const std::int64_t copies = quick ? 2 : std::max<std::int64_t>(2, kColdBytes / size);
    memory = DeviceBuffer(&device, static_cast<std::size_t>(copies * size));
    for (std::int64_t i = 0; i < copies; ++i) {
      device.copy_in(memory.data() + i * size, packed.data(), static_cast<std::size_t>(size));
      matrices.push_back(layout);
      matrices.back().data = memory.data() + i * size;
    }
  }
  const bool int8 = test::is_quantised(type);
  const int max_rows = quick ? 20 : 512;
  const auto x = test::random_values(static_cast<std::size_t>(max_rows * cols), 1);
  test::OnDevice<float> device_x(device, x);
  test::OnDevice<std::int8_t> q(device, std::vector<std::int8_t>(x.size()));
  test::OnDevice<float> scale(device, std::vector<float>(x.size() / 32));
  test::OnDevice<std::int32_t> sum(device, std::vector<std::int32_t>(x.size() / 16));
  const QuantizedRows xq{q.data(), scale.data(), sum.data(), cols};
  device.kernels().quantize_rows(device_x.data(), cols, xq, 0, max_rows);
  DeviceBuffer y(&device, static_cast<std::size_t>(max_rows * rows) * sizeof(float));
  for (const int n : {1, 4, 8, 16, 64, 512}) {
    if (n > max_rows) break;
    std::size_t next = 0;
    const double seconds = median_seconds(device, quick, [&] {
      device.kernels().matmul({.w = &matrices[next++ % matrices.size()],
                               .x = device_x.data(),
                               .xq = int8 ? &xq : nullptr,
                               .y = reinterpret_cast<float*>(y.data()),
                               .num_rows = n,
                               .ldx = cols,
                               .ldy = rows},
                              0, layout.num_panels());
    });
    std::printf("product %-5s %dx%d, %3d rows: %8.1f us, weights %5.0f GB/s, %6.2f TFLOP/s\n", name,
                rows, cols, n, seconds * 1e6, static_cast<double>(size) / seconds * 1e-9,
                2.0 * n * rows * cols / seconds * 1e-12);
  }
}

// num_sequences of context_len tokens, of which the last num_queries ask. 8 KV heads of 128, 32
// heads, FP16.
void bench_attention(Device& device, bool quick, int num_sequences, int num_queries,
                     int context_len) {
  const int heads = quick ? 4 : 32;
  const int kv_heads = quick ? 1 : 8;
  const int dim = 128;
  const std::int64_t half = kv_heads * kv_key_size_bytes(KvType::kF16, dim);
  const int blocks = context_len / kBlockSize;
  DeviceBuffer storage(&device, static_cast<std::size_t>(num_sequences * blocks * 2 * half));
  std::vector<BlockId> ids;
  for (int i = 0; i < num_sequences * blocks; ++i) ids.push_back(BlockId{i});
  test::OnDevice<BlockId> tables(device, ids);
  std::vector<AttentionSequence> sequences;
  for (int i = 0; i < num_sequences; ++i)
    sequences.push_back({.first_row = i * num_queries,
                         .num_tokens = num_queries,
                         .context_len = context_len,
                         .block_table = tables.data() + i * blocks});
  test::OnDevice<AttentionSequence> on_device(device, sequences);
  const int num_rows = num_sequences * num_queries;
  const auto q = test::random_values(static_cast<std::size_t>(num_rows * heads * dim), 1);
  test::OnDevice<float> device_q(device, q), out(device, q);
  ThreadPool pool(1);
  AttentionOp op(pool, num_rows, heads, dim, context_len, &device);
  AttentionArgs args;
  args.kv = {.base = storage.data(),
             .block_stride_bytes = 2 * half,
             .k_offset_bytes = 0,
             .v_offset_bytes = half,
             .num_kv_heads = kv_heads,
             .head_dim = dim,
             .types = {}};
  args.q = device_q.data();
  args.out = out.data();
  args.ldq = args.ldo = heads * dim;
  args.num_heads = heads;
  args.scale = 0.09F;
  args.sequences = on_device.data();
  args.num_sequences = num_sequences;
  args.num_rows = num_rows;
  args.max_context_len = context_len;
  const double seconds =
      median_seconds(device, quick, [&] { op.run(device.kernels(), args); });
  std::printf("attention %2d x %3d queries, context %6d: %8.1f us, keys and values %5.0f GB/s, "
              "%6.2f TFLOP/s\n",
              num_sequences, num_queries, context_len, seconds * 1e6,
              static_cast<double>(storage.size_bytes()) / seconds * 1e-9,
              4.0 * num_rows * heads * dim * context_len / seconds * 1e-12);
}

// What launches alone cost: a step of a model that computes next to nothing.
void bench_step(Device& device, bool quick) {
  const TestModel model(LARDER_SOURCE_DIR "/tests/golden/model/tiny_llama.gguf", 2, &device);
  TestRunner runner(model, device.kernels(), 1,
                    {.max_batch_tokens = 64, .max_logit_rows = 16, .max_context_len = 512},
                    blocks_for(model, 512, 1), &device);
  TestSequence sequence{.tokens = arbitrary_tokens(512, model.config.vocab_size, 1),
                        .num_computed = 0,
                        .tables = {}};
  const TestStep step{&sequence, 1};
  const double seconds =
      median_seconds(device, quick, [&] { static_cast<void>(runner.run({&step, 1}, true)); });
  std::printf("step of one token, %d layers of nothing: %.1f us, %.1f a layer\n",
              model.config.num_layers(), seconds * 1e6,
              seconds * 1e6 / model.config.num_layers());
}

}  // namespace

void run_gpu_bench(Device& device, bool quick) {
  bench_copy(device, quick);
  for (const auto& [type, name] :
       {std::pair{GgmlType::kQ4_0, "Q4_0"}, {GgmlType::kQ4_K, "Q4_K"}, {GgmlType::kQ6_K, "Q6_K"},
        {GgmlType::kQ8_0, "Q8_0"}, {GgmlType::kBF16, "BF16"}})
    bench_products(device, quick, type, name);
  for (const auto& [sequences, queries, context] :
       {std::tuple{1, 1, 1024}, {1, 1, 8192}, {1, 1, 65536}, {16, 1, 8192}, {64, 1, 4096},
        {1, 512, 8192}})
    bench_attention(device, quick, quick ? 2 : sequences, std::min(queries, quick ? 4 : 512),
                    quick ? 1024 : context);
  bench_step(device, quick);
}

}  // namespace larder
