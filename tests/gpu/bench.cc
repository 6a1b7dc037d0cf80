#include "tests/gpu/bench.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/test_device.h"
#include "kernels/ops.h"
#include "kernels/test_util.h"
#include "model/forward/exactness.h"
#include "tests/gpu/blas.h"

namespace larder {
namespace {

// Beyond what a second-level cache holds.
constexpr std::int64_t kColdBytes = 400LL << 20;

constexpr int kHeadDim = 128;  // of attention

// What a figure may take.
constexpr double kMostSeconds = 0.3;
constexpr int kBatches = 9;
constexpr int kMostCalls = 20;  // of a batch

const char* name_of(KvType type) {
  return type == KvType::kInt8   ? "int8"
         : type == KvType::kInt4 ? "int4"
         : type == KvType::kFp8  ? "fp8 "
                                 : "f16 ";
}

// Of one layer, base to be set.
PagedKvView single_layer(int num_kv_heads, int head_dim, KvType type) {
  const std::int64_t k_bytes = num_kv_heads * kv_key_size_bytes(type, head_dim);
  return {.block_stride_bytes = k_bytes + num_kv_heads * kv_value_size_bytes(type, head_dim),
          .k_offset_bytes = 0,
          .v_offset_bytes = k_bytes,
          .num_kv_heads = num_kv_heads,
          .head_dim = head_dim,
          .types = {type, type}};
}

class Bench {
 public:
  // Of what has a name with `only` in it.
  Bench(Device& device, bool quick, std::string only)
      : device_(device), quick_(quick), only_(std::move(only)) {}

  void copies();
  void logits(int num_rows, int vocab_size);
  // A draw of each of so many rows: of all tokens, of the likeliest that make up 0.9, of the 50 best.
  void draws(int num_rows, int vocab_size);
  void products(GgmlType type, const char* name, int rows = 14336, int cols = 4096,
                const std::vector<int>& counts = {1, 4, 8, 16, 32, 64, 128, 512});
  // Contexts of sequences, of which the last num_queries tokens ask. 32 heads, 8 of keys and values,
  // of 128.
  // num_common: tokens that all sequences begin with.
  void attention(const std::string& what, const std::vector<int>& contexts, int num_queries,
                 KvType type = KvType::kF16, int num_common = 0);
  // One token each of so many sequences.
  void decode(int num_sequences, int context_k, KvType type);
  // What a prompt's tokens wait for before their attention. The same heads.
  void store(int num_rows, KvType type);
  // What launches alone cost: a step of a model that computes next to nothing.
  void step();

 private:
  struct Batch;  // of attention

  bool wants(const std::string& name) const { return name.find(only_) != std::string::npos; }
  double seconds_of(const std::function<void()>& call);
  double seconds_of_calls(int calls, const std::function<void()>& call);
  std::vector<PackedMatrix> matrices(GgmlType type, int rows, int cols, DeviceBuffer& memory);
  void fill_with_keys(DeviceBuffer& memory, KvType type);
  std::string share(double bytes_per_second) const {
    char text[32];
    std::snprintf(text, sizeof(text), "%5.0f GB/s (%3.0f %%)", bytes_per_second * 1e-9,
                  100 * bytes_per_second / copied_per_second_);
    return text;
  }

  Device& device_;
  bool quick_;
  std::string only_;
  double copied_per_second_ = 1;  // bytes read and written
};

double Bench::seconds_of_calls(int calls, const std::function<void()>& call) {
  device_.synchronize();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) call();
  device_.synchronize();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / calls;
}

// Median of one call among batches of calls; warm before.
double Bench::seconds_of(const std::function<void()>& call) {
  if (quick_) return seconds_of_calls(1, call);
  call();
  const double about = seconds_of_calls(1, call);
  const int calls = std::clamp(static_cast<int>(kMostSeconds / kBatches / about), 1, kMostCalls);
  std::vector<double> seconds;
  double sum = 0;
  while (seconds.size() < kBatches && sum < kMostSeconds) {
    seconds.push_back(seconds_of_calls(calls, call));
    sum += seconds.back() * calls;
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

void Bench::copies() {
  const std::size_t size = quick_ ? 1 << 16 : std::size_t{1} << 30;
  DeviceBuffer from(&device_, size), to(&device_, size);
  const double seconds =
      seconds_of([&] { device_.copy_within(to.data(), from.data(), size); });
  copied_per_second_ = 2.0 * static_cast<double>(size) / seconds;
  std::printf("copy %zu MiB: %.0f GB/s (read and written), the 100 %% below\n", size >> 20,
              copied_per_second_ * 1e-9);
}

// Into memory that the device may write itself, as a step's logits are, and into any.
void Bench::logits(int num_rows, int vocab_size) {
  const std::size_t size = sizeof(float) * static_cast<std::size_t>(num_rows * vocab_size);
  DeviceBuffer from(&device_, size);
  const HostBuffer own = host_buffer(device_, size);
  std::vector<std::byte> any(size);
  for (const auto& [to, where] : {std::pair{own.get(), "pinned"}, {any.data(), "any memory"}}) {
    const double seconds = seconds_of([&] { device_.copy_out(to, from.data(), size); });
    std::printf("logits of %d rows of %d to %s: %.2f ms, %.1f GB/s\n", num_rows, vocab_size, where,
                seconds * 1e3, static_cast<double>(size) / seconds * 1e-9);
  }
}

void Bench::draws(int num_rows, int vocab_size) {
  if (!wants("draws")) return;
  test::OnDevice<float> logits(device_, test::random_values(static_cast<std::size_t>(num_rows * vocab_size), 1, 3));
  test::OnDevice<TokenId> best(device_, std::vector<TokenId>(static_cast<std::size_t>(num_rows)));
  test::OnDevice<TokenId> tokens(device_, best.read());
  device_.kernels().first_of_best(logits.data(), num_rows, vocab_size, best.data());
  for (const auto& [params, what] : {std::pair{TokenDraw{}, "temperature"},
                                     {TokenDraw{.top_p = 0.9F}, "top_p 0.9"},
                                     {TokenDraw{.top_k = 50}, "top_k 50"}}) {
    std::vector<TokenDraw> each(static_cast<std::size_t>(num_rows), params);
    for (int row = 0; row < num_rows; ++row) {
      each[static_cast<std::size_t>(row)].row = row;
      each[static_cast<std::size_t>(row)].uniform = (row + 0.5) / num_rows;
    }
    test::OnDevice<TokenDraw> on_device(device_, each);
    const double seconds = seconds_of([&] {
      device_.kernels().draw_tokens({.logits = logits.data(),
                                     .best = best.data(),
                                     .num_logits = vocab_size,
                                     .draws = on_device.data(),
                                     .num_draws = num_rows,
                                     .tokens = tokens.data()});
    });
    std::printf("draws of %2d rows of %d, %-11s: %8.1f us\n", num_rows, vocab_size, what, seconds * 1e6);
  }
}

// One matrix many times over, so that no call finds it in a cache.
std::vector<PackedMatrix> Bench::matrices(GgmlType type, int rows, int cols, DeviceBuffer& memory) {
  const PackedMatrix layout = packed_layout(type, rows, cols);
  const std::int64_t size = packed_size_bytes(layout);
  ThreadPool pool(8);
  AlignedBuffer packed(static_cast<std::size_t>(size));
  pack_matrix(type, test::random_rows(type, rows, cols, 1), rows, cols, packed.data(), pool);
  const std::int64_t copies = quick_ ? 2 : std::max<std::int64_t>(2, kColdBytes / size);
  memory = DeviceBuffer(&device_, static_cast<std::size_t>(copies * size));
  std::vector<PackedMatrix> matrices(static_cast<std::size_t>(copies), layout);
  std::byte* at = memory.data();
  for (PackedMatrix& matrix : matrices) {
    device_.copy_in(at, packed.data(), static_cast<std::size_t>(size));
    matrix.data = at;
    at += size;
  }
  return matrices;
}

void Bench::products(GgmlType type, const char* name, int rows, int cols, const std::vector<int>& counts) {
  if (!wants(std::string("product ") + name)) return;
  if (quick_) rows = 64, cols = 256;
  DeviceBuffer memory;
  const std::vector<PackedMatrix> weights = matrices(type, rows, cols, memory);
  const auto size = static_cast<double>(packed_size_bytes(weights[0]));
  const bool int8 = test::is_quantised(type);
  const int max_rows = quick_ ? 20 : 512;
  const auto x = test::random_values(static_cast<std::size_t>(max_rows * cols), 1);
  test::OnDevice<float> device_x(device_, x);
  test::OnDevice<std::int8_t> q(device_, std::vector<std::int8_t>(x.size()));
  test::OnDevice<float> scale(device_, std::vector<float>(x.size() / 32));
  test::OnDevice<std::int32_t> sum(device_, std::vector<std::int32_t>(x.size() / 16));
  const QuantizedRows xq{q.data(), scale.data(), sum.data(), cols};
  device_.kernels().quantize_rows(device_x.data(), cols, xq, 0, max_rows);
  DeviceBuffer y(&device_, static_cast<std::size_t>(max_rows * rows) * sizeof(float));
  DeviceBuffer scratch(&device_, static_cast<std::size_t>(device_product_bytes(max_rows, cols)));
  for (const int n : counts) {
    if (n > max_rows) break;
    std::size_t next = 0;
    const double seconds = seconds_of([&] {
      device_.kernels().matmul({.w = &weights[next++ % weights.size()],
                                .x = device_x.data(),
                                .xq = int8 ? &xq : nullptr,
                                .rounds_to_bf16 = true,  // as what it is compared with
                                .y = reinterpret_cast<float*>(y.data()),
                                .num_rows = n,
                                .ldx = cols,
                                .ldy = rows,
                                .device_scratch = scratch.data()},
                               0, weights[0].num_panels());
    });
    const double operations = 2.0 * n * rows * cols;
    std::printf("product %-5s %dx%d, %3d rows: %8.1f us, weights %s, %6.2f TFLOP/s\n", name, rows,
                cols, n, seconds * 1e6, share(size / seconds).c_str(), operations / seconds * 1e-12);
    if (type != GgmlType::kBF16 || quick_) continue;
    BlasProduct blas(device_, weights.size(), rows, cols, n);
    if (!blas.error().empty()) {
      std::printf("  no cuBLASLt to compare with: %s\n", blas.error().c_str());
      continue;
    }
    const double theirs = seconds_of([&] { blas.run(); });
    std::printf("  cuBLASLt: %8.1f us, %6.2f TFLOP/s; ours takes %.1f times as long\n", theirs * 1e6,
                operations / theirs * 1e-12, seconds / theirs);
  }
}

// FP16 between 1/8 and 1 of either sign, which as bytes are codes and scales of any size as well:
// BF16 scales of 1e-9 to 1e-3.
void Bench::fill_with_keys(DeviceBuffer& memory, KvType type) {
  const std::size_t size = memory.size_bytes();
  std::vector<std::uint16_t> halves(std::min<std::size_t>(size, 64 << 20) / 2);
  std::mt19937 random(1);
  const unsigned mask = type == KvType::kF16 ? 0x8BFFU : 0x0BFFU;
  for (std::uint16_t& half : halves) half = static_cast<std::uint16_t>((random() & mask) | 0x3000U);
  std::size_t filled = halves.size() * 2;
  device_.copy_in(memory.data(), reinterpret_cast<const std::byte*>(halves.data()), filled);
  while (filled < size) {
    const std::size_t more = std::min(filled, size - filled);
    device_.copy_within(memory.data() + filled, memory.data(), more);
    filled += more;
  }
}

// Sequences of these contexts, several times over, their blocks shuffled.
struct Bench::Batch {
  std::vector<AttentionSequence> sequences;  // of the first copy
  std::int64_t num_blocks = 0;               // of one copy
  std::int64_t copies = 1;

  Batch(const std::vector<int>& contexts, int num_queries, std::int64_t block_bytes, bool quick) {
    for (const int context : contexts) {
      sequences.push_back({.first_row = static_cast<int>(sequences.size()) * num_queries,
                           .num_tokens = num_queries,
                           .context_len = context});
      num_blocks += context / kBlockSize;
    }
    if (!quick) copies = std::max<std::int64_t>(1, kColdBytes / (num_blocks * block_bytes));
  }
  std::vector<BlockId> table(int num_common) const {
    std::vector<BlockId> ids(static_cast<std::size_t>(copies * num_blocks));
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = BlockId{static_cast<int>(i)};
    std::shuffle(ids.begin(), ids.end(), std::mt19937(1));
    const BlockId* first = nullptr;  // of the copy
    for (std::size_t copy = 0, at = 0; copy < static_cast<std::size_t>(copies); ++copy, first = nullptr)
      for (const AttentionSequence& sequence : sequences) {
        BlockId* own = ids.data() + at;
        if (first == nullptr) first = own;
        std::copy_n(first, num_common / kBlockSize, own);
        at += static_cast<std::size_t>(sequence.context_len / kBlockSize);
      }
    return ids;
  }
  // All copies', one behind the other.
  std::vector<AttentionSequence> placed(const BlockId* table) const {
    std::vector<AttentionSequence> all;
    for (std::int64_t copy = 0; copy < copies; ++copy) {
      for (const AttentionSequence& sequence : sequences) {
        all.push_back(sequence);
        all.back().block_table = table;
        table += sequence.context_len / kBlockSize;
      }
    }
    return all;
  }
};

void Bench::attention(const std::string& what, const std::vector<int>& contexts, int num_queries,
                      KvType type, int num_common) {
  if (!wants("attention " + what + ", " + name_of(type))) return;
  const int kv_heads = quick_ ? 1 : 8;
  const int heads = 4 * kv_heads;
  const int dim = kHeadDim;
  AttentionArgs args;
  args.kv = single_layer(kv_heads, dim, type);
  Batch batch(contexts, num_queries, args.kv.block_stride_bytes, quick_);
  const std::int64_t copy_bytes = batch.num_blocks * args.kv.block_stride_bytes;
  const auto size = static_cast<std::size_t>(batch.copies * copy_bytes);
  constexpr std::size_t kBeside = std::size_t{1} << 30;  // queries, tables, partials
  if (!quick_ && size + kBeside > device_.free_bytes()) {
    std::printf("attention %s: more than the free memory\n", what.c_str());
    return;
  }
  DeviceBuffer storage(&device_, size);
  fill_with_keys(storage, type);
  const std::vector<BlockId> ids = batch.table(num_common);
  test::OnDevice<BlockId> tables(device_, ids);
  const int num_rows = static_cast<int>(contexts.size()) * num_queries;
  const auto q = test::random_values(static_cast<std::size_t>(num_rows * heads * dim), 1);
  test::OnDevice<float> device_q(device_, q), out(device_, q);
  ThreadPool pool(1);
  AttentionOp op(pool, num_rows, heads, dim, *std::max_element(contexts.begin(), contexts.end()),
                 &device_);
  args.kv.base = storage.data();
  args.q = device_q.data();
  args.out = out.data();
  args.ldq = args.ldo = heads * dim;
  args.num_heads = heads;
  args.scale = 0.09F;
  args.num_sequences = static_cast<int>(contexts.size());
  CommonKeyFinder finder;
  std::int64_t num_before = 0;
  for (AttentionSequence& sequence : batch.sequences) {
    sequence.block_table = ids.data() + num_before;
    num_before += sequence.context_len / kBlockSize;
  }
  args.sharing = share_keys(args, batch.sequences, finder.find(batch.sequences, device_common_rule(args)),
                            op.partial_bytes());
  test::OnDevice<AttentionSequence> sequences(device_, batch.placed(tables.data()));
  std::int64_t next = 0;
  const double seconds = seconds_of([&] {
    args.sequences = sequences.data() + next++ % batch.copies * args.num_sequences;
    op.run(device_.kernels(), args);
  });
  std::printf("attention %s, %s: %8.1f us, keys and values %s, %6.2f TFLOP/s\n", what.c_str(),
              name_of(type), seconds * 1e6, share(static_cast<double>(copy_bytes) / seconds).c_str(),
              4.0 * num_queries * heads * dim *
                  static_cast<double>(batch.num_blocks * kBlockSize) / seconds * 1e-12);
}

void Bench::decode(int num_sequences, int context_k, KvType type) {
  char what[64];
  std::snprintf(what, sizeof(what), "%3d x %3dK", num_sequences, context_k);
  attention(what, std::vector<int>(static_cast<std::size_t>(num_sequences), context_k << 10), 1,
            type);
}

void Bench::store(int num_rows, KvType type) {
  if (!wants(std::string("store ") + name_of(type))) return;
  const int kv_heads = quick_ ? 1 : 8;
  StoreKvArgs args;
  args.kv = single_layer(kv_heads, kHeadDim, type);
  DeviceBuffer storage(&device_, static_cast<std::size_t>(num_rows * args.kv.block_stride_bytes));
  const auto x = test::random_values(static_cast<std::size_t>(num_rows * kv_heads * kHeadDim), 1);
  std::vector<std::int64_t> slots(static_cast<std::size_t>(num_rows));
  std::iota(slots.begin(), slots.end(), 0);
  test::OnDevice<float> rows(device_, x);
  test::OnDevice<std::int64_t> device_slots(device_, slots);
  args.kv.base = storage.data();
  args.k = args.v = rows.data();
  args.ldk = args.ldv = kv_heads * kHeadDim;
  args.slots = device_slots.data();
  const double seconds = seconds_of([&] { device_.kernels().store_kv(args, 0, num_rows); });
  std::printf("keys and values of %3d tokens stored, %s: %8.1f us\n", num_rows, name_of(type),
              seconds * 1e6);
}

void Bench::step() {
  const TestModel model(LARDER_SOURCE_DIR "/tests/golden/model/tiny_llama.gguf", 2, &device_);
  TestRunner runner(model, device_.kernels(), 1,
                    {.max_batch_tokens = 64, .max_logit_rows = 16, .max_context_len = 512},
                    blocks_for(model, 512, 1), &device_);
  TestSequence sequence{.tokens = arbitrary_tokens(512, model.config.vocab_size, 1),
                        .num_computed = 0,
                        .tables = {}};
  const TestStep step{&sequence, 1};
  const double seconds = seconds_of([&] { static_cast<void>(runner.run({&step, 1}, true)); });
  std::printf("step of one token, %d layers of nothing: %.1f us, %.1f a layer\n",
              model.config.num_layers(), seconds * 1e6,
              seconds * 1e6 / model.config.num_layers());
}

}  // namespace

void run_gpu_bench(Device& device, bool quick, const std::string& only) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // what was measured stays told if a later call ends it
  Bench bench(device, quick, only);
  bench.copies();
  if (only.empty()) {
    bench.logits(64, quick ? 100 : 151936);
    bench.step();
  }
  for (const int num_rows : quick ? std::vector{2} : std::vector{1, 64})
    bench.draws(num_rows, quick ? 100 : 128256);
  const std::vector<int> decoding = quick ? std::vector{2} : std::vector{1, 4, 16, 64, 128};
  const std::vector<int> contexts = quick ? std::vector{1} : std::vector{8, 16, 32, 64, 128};
  for (const int count : decoding)
    for (const int context : contexts) bench.decode(count, context, KvType::kF16);
  std::vector<int> mixed(quick ? 2 : 16, quick ? 32 : 1 << 10);
  mixed[0] = quick ? 1 << 10 : 1 << 17;
  bench.attention("a long one beside short ones", mixed, 1);
  const std::vector<int> alike(quick ? 2 : 64, quick ? 1 << 10 : 2112);
  bench.attention("64 x 2112", alike, 1);
  bench.attention("64 x 2112, 2000 of them in common", alike, 1, KvType::kF16, quick ? 512 : 2000);
  for (const KvType type : {KvType::kF16, KvType::kFp8, KvType::kInt8, KvType::kInt4}) {
    bench.attention("of a prompt's tokens", {quick ? 1 << 10 : 1 << 13}, quick ? 4 : 512, type);
    for (const int num_rows : quick ? std::vector{2} : std::vector{1, 512})
      bench.store(num_rows, type);
  }
  const std::vector<std::pair<int, int>> few =
      quick ? std::vector{std::pair{2, 1}}
            : std::vector{std::pair{1, 8}, {1, 32}, {1, 128}, {16, 8}, {16, 32}, {16, 128}, {128, 8}};
  for (const KvType type : {KvType::kFp8, KvType::kInt8, KvType::kInt4})
    for (const auto& [count, context] : few) bench.decode(count, context, type);
  for (const auto& [type, name] :
       {std::pair{GgmlType::kQ4_0, "Q4_0"}, {GgmlType::kQ4_K, "Q4_K"}, {GgmlType::kQ6_K, "Q6_K"},
        {GgmlType::kQ8_0, "Q8_0"}, {GgmlType::kBF16, "BF16"}, {GgmlType::kF16, "F16"}})
    bench.products(type, name);
  bench.products(GgmlType::kBF16, "BF16", 4096, 14336);
  for (const int outputs : {4096, 6144}) bench.products(GgmlType::kBF16, "BF16", outputs, 4096, {16, 32, 64});
}

void run_gpu_step(Device& device, bool quick) { Bench(device, quick, "").step(); }

}  // namespace larder
