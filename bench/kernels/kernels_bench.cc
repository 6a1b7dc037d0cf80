// Kernels against the machine: GB/s of weights beside the read bandwidth, GOP/s beside the peak.
//
//   kernels_bench --benchmark_filter=Matmul.*W4    LARDER_ISA and LARDER_THREADS (2) choose the
//   rest
#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <time.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/ops.h"
#include "kernels/packing.h"
#include "machine_limits.h"

namespace larder {
namespace {

int num_threads() {
  const char* value = std::getenv("LARDER_THREADS");
  return value == nullptr ? 2 : std::max(1, std::atoi(value));
}

ThreadPool& pool() {
  static ThreadPool threads(num_threads());
  return threads;
}

double seconds_now() {
  if (num_threads() == 1) {
    timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The best of several runs on all threads, in units per second.
template <class Work>
double best_rate(const Work& work) {
  double best = 0;
  for (int run = 0; run < 10; ++run) {
    const double start = seconds_now();
    std::vector<std::int64_t> done(static_cast<std::size_t>(num_threads()));
    pool().parallel_for(num_threads(),
                        [&](int task, int) { done[static_cast<std::size_t>(task)] = work(task); });
    const double seconds = seconds_now() - start;
    double total = 0;
    for (const std::int64_t units : done) total += static_cast<double>(units);
    best = std::max(best, total / seconds);
  }
  return best;
}

struct Peaks {
  double bytes = 0;
  double int4_ops = 0;
  double int8_ops = 0;
  double float_ops = 0;
  double bf16_ops = 0;

  Peaks() {
    constexpr std::int64_t kBytes = 256 << 20;
    AlignedBuffer memory(kBytes, true);
    const std::int64_t part = kBytes / num_threads() / 64 * 64;
    bytes = best_rate([&](int task) {
      const std::int64_t sum = machine_limits().read(memory.data() + task * part, part);
      return part + (sum == 1 ? 1 : 0);
    });
    int4_ops = best_rate([](int) { return machine_limits().multiply_int4(200000); });
    int8_ops = best_rate([](int) { return machine_limits().multiply_int8(200000); });
    float_ops = best_rate([](int) { return machine_limits().multiply_float(200000); });
    bf16_ops = best_rate([](int) { return multiply_bf16(200000); });
  }
};

const Peaks& peaks() {
  static const Peaks measured;
  return measured;
}

void report(benchmark::State& state, double bytes, double ops, double peak_ops) {
  const auto rate = [&](double units) {
    return benchmark::Counter(units, benchmark::Counter::kIsIterationInvariantRate);
  };
  state.counters["GB/s"] = rate(bytes / 1e9);
  state.counters["GOP/s"] = rate(ops / 1e9);
  state.counters["of_bandwidth"] = rate(bytes / peaks().bytes);
  state.counters["of_peak"] = rate(ops / peak_ops);
}

struct Weights {
  const char* name;
  GgmlType type;
};
constexpr Weights kWeights[] = {{"W4_Q4_0", GgmlType::kQ4_0},     {"W4_Q4_1", GgmlType::kQ4_1},
                                {"W4K_Q4_K", GgmlType::kQ4_K},    {"W5_Q5_0", GgmlType::kQ5_0},
                                {"W5K_Q5_K", GgmlType::kQ5_K},    {"W8_Q8_0", GgmlType::kQ8_0},     {"W6Fine_Q6_K", GgmlType::kQ6_K},
                                {"MxFp4_MXFP4", GgmlType::kMXFP4},
                                {"F16", GgmlType::kF16},          {"BF16", GgmlType::kBF16}};

std::vector<float> random_values(std::size_t count) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

// As many copies of one matrix as the caches cannot hold: each product reads its weights from
// memory.
struct Matrices {
  Matrices(GgmlType type, int rows, int cols, std::int64_t total_bytes) {
    const GgmlTypeTraits traits = *ggml_type_traits(static_cast<std::uint32_t>(type));
    std::vector<std::byte> source(static_cast<std::size_t>(
        std::int64_t{rows} * cols / traits.block_size * traits.block_size_bytes));
    const PackedMatrix layout = packed_layout(type, rows, cols);
    const std::int64_t size = packed_size_bytes(layout);
    const std::int64_t copies = std::max<std::int64_t>(1, total_bytes / size);
    memory = AlignedBuffer(static_cast<std::size_t>(copies * size), true);
    const PackedMatrix first = pack_matrix(type, source, rows, cols, memory.data(), pool());
    for (std::int64_t i = 0; i < copies; ++i) {
      std::byte* copy = memory.data() + i * size;
      if (i > 0) std::memcpy(copy, memory.data(), static_cast<std::size_t>(size));
      packed.push_back(first);
      packed.back().data = copy;
    }
  }
  AlignedBuffer memory;
  std::vector<PackedMatrix> packed;
};

double code_ops(GgmlType type) {
  const PackedFormat format = packed_layout(type, kPanelRows, 256).format;
  return format == PackedFormat::kW8 ? peaks().int8_ops : peaks().int4_ops;
}

void matmul_benchmark(benchmark::State& state, GgmlType type, int outputs, int inputs, int rows,
                      bool int8) {
  const KernelTable& kernels = select_kernels();
  const Matrices w(type, outputs, inputs, 256 << 20);
  const auto count = static_cast<std::size_t>(rows) * static_cast<std::size_t>(inputs);
  const std::vector<float> x = random_values(count);
  std::vector<std::int8_t> q(count);
  std::vector<float> scale(count / 32);
  std::vector<std::int32_t> sum(count / 16);
  const QuantizedRows xq{q.data(), scale.data(), sum.data(), inputs};
  kernels.quantize_rows(x.data(), inputs, xq, 0, rows);
  std::vector<float> y(static_cast<std::size_t>(rows) * static_cast<std::size_t>(outputs));
  std::size_t next = 0;
  for (auto _ : state) {
    MatmulArgs args;
    args.w = &w.packed[next++ % w.packed.size()];
    args.x = x.data();
    args.xq = int8 ? &xq : nullptr;
    args.rounds_to_bf16 = true;
    args.y = y.data();
    args.num_rows = rows;
    args.ldx = inputs;
    args.ldy = outputs;
    matmul(kernels, pool(), {&args, 1});
    benchmark::DoNotOptimize(y.data());
  }
  report(state, static_cast<double>(packed_size_bytes(w.packed[0])), 2.0 * rows * outputs * inputs,
         int8                                                  ? code_ops(type)
         : type == GgmlType::kBF16 || type == GgmlType::kQ8_0 ? peaks().bf16_ops
                                                               : peaks().float_ops);
}

struct Heads {
  const char* name;
  int num_heads, num_kv_heads, head_dim;
};
constexpr Heads kHeads[] = {{"1B", 32, 8, 64}, {"SmolLM2", 9, 3, 64}, {"Gemma3", 4, 1, 256}};

struct Types {
  const char* name;
  KvTypes types;
};
constexpr Types kTypes[] = {{"f16", {KvType::kF16, KvType::kF16}},
                            {"bf16", {KvType::kBF16, KvType::kBF16}},
                            {"fp8", {KvType::kFp8, KvType::kFp8}},
                            {"int8", {KvType::kInt8, KvType::kInt8}},
                            {"int4", {KvType::kInt4, KvType::kInt4}}};

// Blocks of one sequence after another, with random tokens.
struct KvBlocks {
  KvBlocks(const Heads& heads, KvTypes types, int num_blocks) {
    const std::int64_t k_bytes = heads.num_kv_heads * kv_key_size_bytes(types.k, heads.head_dim);
    const std::int64_t v_bytes = heads.num_kv_heads * kv_value_size_bytes(types.v, heads.head_dim);
    memory = AlignedBuffer(static_cast<std::size_t>(num_blocks * (k_bytes + v_bytes)), true);
    view = {.base = memory.data(),
            .block_stride_bytes = k_bytes + v_bytes,
            .k_offset_bytes = 0,
            .v_offset_bytes = k_bytes,
            .num_kv_heads = heads.num_kv_heads,
            .head_dim = heads.head_dim,
            .types = types};
    for (int i = 0; i < num_blocks; ++i) table.push_back(static_cast<BlockId>(i));
    const std::int64_t width = std::int64_t{heads.num_kv_heads} * heads.head_dim;
    const auto k = random_values(static_cast<std::size_t>(kBlockSize * width));
    std::vector<std::int64_t> slots(kBlockSize);
    for (int i = 0; i < kBlockSize; ++i) slots[static_cast<std::size_t>(i)] = i;
    select_kernels().store_kv({view, k.data(), k.data(), width, width, slots.data()}, 0,
                              kBlockSize);
    for (int block = 1; block < num_blocks; ++block)
      std::memcpy(memory.data() + block * view.block_stride_bytes, memory.data(),
                  static_cast<std::size_t>(view.block_stride_bytes));
  }
  AlignedBuffer memory;
  PagedKvView view;
  std::vector<BlockId> table;
};

struct AttentionCase {
  Heads heads;
  KvTypes types;
  int num_tokens, context;
};

void attention_benchmark(benchmark::State& state, const AttentionCase& test) {
  const auto& [heads, types, num_tokens, context] = test;
  const KernelTable& kernels = select_kernels();
  const int blocks = (context + kBlockSize - 1) / kBlockSize;
  const std::int64_t bytes = std::int64_t{blocks} * heads.num_kv_heads *
                             (kv_key_size_bytes(types.k, heads.head_dim) +
                              kv_value_size_bytes(types.v, heads.head_dim));
  // Decode goes round several sequences, as a model goes round its layers.
  const int copies = num_tokens == 1 ? static_cast<int>(1 + (128 << 20) / bytes) : 1;
  const KvBlocks kv(heads, types, copies * blocks);
  const int width = heads.num_heads * heads.head_dim;
  const auto q =
      random_values(static_cast<std::size_t>(num_tokens) * static_cast<std::size_t>(width));
  std::vector<float> out(q.size());
  AttentionOp op(pool(), num_tokens, heads.num_heads, heads.head_dim, context);
  std::size_t next = 0;
  for (auto _ : state) {
    AttentionSequence sequence;
    sequence.num_tokens = num_tokens;
    sequence.context_len = context;
    sequence.block_table = kv.table.data() + (next++ % static_cast<std::size_t>(copies)) *
                                                 static_cast<std::size_t>(blocks);
    AttentionArgs args;
    args.kv = kv.view;
    args.q = q.data();
    args.out = out.data();
    args.ldq = args.ldo = width;
    args.num_heads = heads.num_heads;
    args.scale = 1 / std::sqrt(static_cast<float>(heads.head_dim));
    args.sequences = &sequence;
    args.num_sequences = 1;
    args.rounds_to_bf16 = true;
    op.run(kernels, args);
    benchmark::DoNotOptimize(out.data());
  }
  const double pairs = num_tokens * (context - (num_tokens - 1) / 2.0);
  report(state, static_cast<double>(bytes), pairs * width * 4,
         has_codes(types.k) ? peaks().float_ops : peaks().bf16_ops);
}

// A step's keys, values and queries of one layer on one thread: with one sequence nobody shares them.
void store_benchmark(benchmark::State& state, const Heads& heads, KvTypes types) {
  const KernelTable& kernels = select_kernels();
  KvBlocks kv(heads, types, 1);
  const auto balance = std::vector<float>(
      static_cast<std::size_t>(heads.num_kv_heads) * static_cast<std::size_t>(heads.head_dim), 1.5F);
  std::vector<std::int16_t> order(balance.size());
  for (std::size_t i = 0; i < order.size(); ++i)
    order[i] = static_cast<std::int16_t>(i * 7 % static_cast<std::size_t>(heads.head_dim));
  kv.view.key_balance = balance.data();
  kv.view.key_order = order.data();
  const std::int64_t width = std::int64_t{heads.num_kv_heads} * heads.head_dim;
  const std::int64_t q_width = std::int64_t{heads.num_heads} * heads.head_dim;
  const auto k = random_values(static_cast<std::size_t>(width));
  auto q = random_values(static_cast<std::size_t>(q_width));
  const std::vector<float> first = q;
  std::int64_t slot = 0;
  for (auto _ : state) {
    kernels.store_kv({kv.view, k.data(), k.data(), width, width, &slot}, 0, 1);
    std::ranges::copy(first, q.begin());
    kernels.to_key_basis(kv.view, heads.num_heads, q.data(), q_width, 0, 1);
    slot = (slot + 1) % kBlockSize;
    benchmark::DoNotOptimize(q.data());
    benchmark::ClobberMemory();
  }
}

void add(benchmark::internal::Benchmark* benchmark) {
  if (num_threads() > 1) benchmark->UseRealTime();
}

void register_matmul(const char* model, int outputs, int inputs) {
  for (const Weights& weights : kWeights) {
    const bool quantised =
        ggml_type_traits(static_cast<std::uint32_t>(weights.type))->block_size > 1;
    if (inputs % ggml_type_traits(static_cast<std::uint32_t>(weights.type))->block_size != 0)
      continue;
    for (const int rows : {1, 3, 4, 5, 8, 12, 16, 64, 128, 512}) {
      const bool int8 = quantised && !(weights.type == GgmlType::kQ8_0 && select_kernels().rounds_w8);
      add(benchmark::RegisterBenchmark(
          fmt::format("Matmul/{}/{}/{}x{}/rows:{}", model, weights.name, outputs, inputs, rows)
              .c_str(),
          [=](benchmark::State& state) {
            matmul_benchmark(state, weights.type, outputs, inputs, rows, int8);
          }));
    }
  }
}

void register_attention(const Heads& heads, const Types& types) {
  benchmark::RegisterBenchmark(
      fmt::format("StoreKv/{}/{}", heads.name, types.name).c_str(),
      [=](benchmark::State& state) { store_benchmark(state, heads, types.types); });
  for (const auto& [tokens, context] :
       {std::pair{1, 512}, {1, 4096}, {1, 32768}, {512, 512}, {512, 4096}}) {
    const AttentionCase test = {heads, types.types, tokens, context};
    add(benchmark::RegisterBenchmark(
        fmt::format("Attention/{}/{}/tokens:{}/context:{}", heads.name, types.name, tokens, context)
            .c_str(),
        [test](benchmark::State& state) { attention_benchmark(state, test); }));
  }
}

void register_all() {
  register_matmul("1B", 8192, 2048);
  register_matmul("1B", 2048, 8192);
  register_matmul("1B", 2048, 2048);
  register_matmul("SmolLM2", 1536, 576);
  register_matmul("SmolLM2", 576, 1536);
  register_matmul("SmolLM2", 576, 576);
  for (const Heads& heads : kHeads) {
    for (const Types& types : kTypes) register_attention(heads, types);
  }
}

}  // namespace
}  // namespace larder

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  const larder::Peaks& peaks = larder::peaks();
  benchmark::AddCustomContext("isa", larder::select_kernels().name);
  benchmark::AddCustomContext("threads", fmt::format("{}", larder::num_threads()));
  benchmark::AddCustomContext("read", fmt::format("{:.1f} GB/s", peaks.bytes / 1e9));
  benchmark::AddCustomContext("int4", fmt::format("{:.0f} GOP/s", peaks.int4_ops / 1e9));
  benchmark::AddCustomContext("int8", fmt::format("{:.0f} GOP/s", peaks.int8_ops / 1e9));
  benchmark::AddCustomContext("fp32", fmt::format("{:.0f} GFLOP/s", peaks.float_ops / 1e9));
  benchmark::AddCustomContext("bf16", fmt::format("{:.0f} GFLOP/s", peaks.bf16_ops / 1e9));
  larder::register_all();
  benchmark::RunSpecifiedBenchmarks();
}
