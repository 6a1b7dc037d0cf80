#include "kernels/ops.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "kernels/matmul_tasks.h"

namespace larder {
namespace {

// Logits whose maxima are wanted: tasks begin where a run does, and look at so many bytes of logits
// at a time, which are still in the second-level cache.
constexpr int kPanelsOfRun = kLogitRun / kPanelRows;
static_assert(kLogitRun % kPanelRows == 0);
constexpr std::int64_t kMostWarmBytes = 256 * 1024;

// Of a thread's next weights: what its second-level cache holds beside what else is in use.
constexpr std::int64_t kMostFetchedBytes = 128 * 1024;

// Of a device's attention: room for the partials of 8,000 splits of a row of 32 heads of 128, four
// million keys, and for those of all that decode in a step, up to 32,000. Who finds no room has its keys read
// by one block, for which all others wait.
constexpr std::int64_t kDevicePartialBytes = 128 * 1024 * 1024;
constexpr std::int64_t kMostDevicePartialBytes = 512 * 1024 * 1024;

// Of a CPU's: room for the partials of a few queries; longer batches have tasks enough without
// splitting keys.
constexpr int kSplitQueries = 2;

// Sequences whose keys are read in common: as many as decode in a step. Bytes of a layer's keys and values
// that are read once less, at least: threads have to wait for each other once more.
constexpr int kMaxCommonSequences = 64;
constexpr std::int64_t kMinSavedBytes = 256 * 1024;

// Tasks of attention per thread, so that none waits long for the last.
constexpr int kTasksPerThread = 4;

int divide_up(std::int64_t value, std::int64_t by) {
  return static_cast<int>((value + by - 1) / by);
}

// Several products' panels in a row, one part for each thread, which reads it front to back, as
// memory is read fastest, and has what it fetched ahead. Parts are cut into tasks, so that all
// threads end together though none is sure to get its share of the machine: panel by panel for one
// row, else in pairs, since the kernels take two at a time. Tasks are of one size, but one row is
// bound by memory alone: a task of it is half of what is left of its part.
class MatmulTasks {
 public:
  static constexpr std::size_t kMaxProducts = 8;

  MatmulTasks(std::span<const MatmulArgs> products, int num_threads) : products_(products) {
    CHECK(products.size() <= kMaxProducts, products.size());
    std::int64_t bytes = 0;
    int most_rows = 0;
    int min_panels = kMinPanelsOfManyRows;
    for (const MatmulArgs& product : products) {
      bytes += product.w->num_panels() * product.w->panel_stride_bytes *
               std::max(product.num_rows, 1);
      if (product.num_rows > 1) unit_panels_ = std::max(unit_panels_, 2);
      if (product.maxima != nullptr) unit_panels_ = kPanelsOfRun;
      if (product.w->format == PackedFormat::kW8 && product.xq == nullptr) min_panels = kMinPanelsOfRoundedRows;
      most_rows = std::max(most_rows, product.num_rows);
    }
    for (std::size_t i = 0; i < products.size(); ++i)
      first_unit_[i + 1] = first_unit_[i] + divide_up(products[i].w->num_panels(), unit_panels_);
    const std::int64_t most =
        (most_rows >= kManyRows ? num_units() * unit_panels_ / min_panels
                                : std::min(num_units(), bytes / kMinTaskBytes)) /
        num_threads;
    num_parts_ = num_threads;
    halves_ = most_rows == 1;
    const auto per_part = halves_ ? std::bit_width(static_cast<std::uint64_t>(most))
                                  : std::min<std::int64_t>(most, kMatmulTasksPerThread);
    per_part_ = std::max(static_cast<int>(per_part), 1);
  }

  int count() const { return num_parts_ * per_part_; }

  // function(product, panel_begin, panel_end) for each product that the task has a part of.
  template <class Function>
  void for_parts(int task, Function&& function) const {
    const std::int64_t begin = first_unit_of(task);
    const std::int64_t end = first_unit_of(task + 1);
    for (std::size_t i = 0; i < products_.size(); ++i) {
      const std::int64_t from = std::max(begin, first_unit_[i]) - first_unit_[i];
      const std::int64_t to = std::min(end, first_unit_[i + 1]) - first_unit_[i];
      if (from >= to) continue;
      function(products_[i], static_cast<int>(unit_panels_ * from),
               std::min(static_cast<int>(unit_panels_ * to), products_[i].w->num_panels()));
    }
  }

 private:
  std::int64_t num_units() const { return first_unit_[products_.size()]; }

  std::int64_t first_unit_of(int task) const {
    if (!halves_) return num_units() * task / count();
    // Of a part, each as long as its last task.
    const std::int64_t pieces = std::int64_t{1} << (per_part_ - 1);
    const std::int64_t left = pieces >> (task % per_part_);
    return num_units() * ((task / per_part_ + 1) * pieces - left) / (num_parts_ * pieces);
  }

  std::span<const MatmulArgs> products_;
  int num_parts_ = 1;
  int per_part_ = 1;
  bool halves_ = false;
  int unit_panels_ = 1;
  std::int64_t first_unit_[kMaxProducts + 1] = {};
};

// Has every thread fetch the weights of its own first task, while it waits for that to begin.
void fetch_while_waiting(ThreadPool& pool, std::span<const MatmulArgs> products) {
  if (products.empty()) return;
  const MatmulTasks tasks(products, pool.num_threads());
  for (int thread = 0; thread < std::min(pool.num_threads(), tasks.count()); ++thread) {
    bool is_first = true;
    const int task = tasks.count() / pool.num_threads() * thread;
    tasks.for_parts(task, [&](const MatmulArgs& product, int panel_begin, int panel_end) {
      if (!is_first) return;
      is_first = false;
      const PackedMatrix& w = *product.w;
      pool.fetch_while_waiting(
          thread, w.data + panel_begin * w.panel_stride_bytes,
          std::min(kMostFetchedBytes, (panel_end - panel_begin) * w.panel_stride_bytes));
    });
  }
}

// A task's part, and its maxima.
void multiply(const KernelTable& kernels, const MatmulArgs& product, int panel_begin,
              int panel_end) {
  if (product.maxima == nullptr) return kernels.matmul(product, panel_begin, panel_end);
  const std::int64_t run_bytes = std::int64_t{kLogitRun} * sizeof(float) * product.num_rows;
  const int most_runs = static_cast<int>(std::max<std::int64_t>(1, kMostWarmBytes / run_bytes));
  const std::int64_t num_runs = num_logit_runs(product.w->num_rows);
  for (int begin = panel_begin; begin < panel_end; begin += most_runs * kPanelsOfRun) {
    const int end = std::min(begin + most_runs * kPanelsOfRun, panel_end);
    kernels.matmul(product, begin, end);
    const std::int64_t first = std::int64_t{begin} * kPanelRows;
    const std::int64_t count =
        std::min<std::int64_t>(std::int64_t{end} * kPanelRows, product.w->num_rows) - first;
    for (int row = 0; row < product.num_rows; ++row) {
      kernels.run_maxima(product.y + row * product.ldy + first, count,
                         product.maxima + row * num_runs + first / kLogitRun);
    }
  }
}

// Tiles of rows that are to be packed once for all tasks of a product.
int num_shared_tiles(const KernelTable& kernels, const MatmulArgs& product) {
  return kernels.pack_rows != nullptr && product.row_room != nullptr ? kernels.num_row_tiles(product) : 0;
}

// x, once for all products that have the same one; theirs is what the first of them has.
void pack_rows(const KernelTable& kernels, ThreadPool& pool, std::span<MatmulArgs> products) {
  const MatmulArgs* packed = nullptr;
  for (MatmulArgs& product : products) {
    const int num_tiles = num_shared_tiles(kernels, product);
    if (num_tiles == 0) continue;
    if (packed == nullptr) {
      packed = &product;
      pool.parallel_for_near(num_tiles, [&](int tile, int) { kernels.pack_rows(product, product.row_room, tile, tile + 1); });
    }
    const bool is_same = product.x == packed->x && product.ldx == packed->ldx && product.num_rows == packed->num_rows &&
                         product.w->num_cols == packed->w->num_cols;
    if (is_same) product.packed_rows = packed->row_room;
  }
}

void multiply_all(const KernelTable& kernels, ThreadPool& pool, std::span<const MatmulArgs> products,
                  std::span<const MatmulArgs> next) {
  fetch_while_waiting(pool, next);
  const MatmulTasks tasks(products, pool.num_threads());
  pool.parallel_for_near(tasks.count(), [&](int task, int) {
    tasks.for_parts(task, [&](const MatmulArgs& product, int panel_begin, int panel_end) {
      multiply(kernels, product, panel_begin, panel_end);
    });
  });
}

}  // namespace

void matmul(const KernelTable& kernels, ThreadPool& pool, std::span<const MatmulArgs> products,
            std::span<const MatmulArgs> next) {
  if (kernels.is_device())
    return kernels.matmul_group(products.data(), static_cast<int>(products.size()));
  const auto shares_rows = [&](const MatmulArgs& product) { return num_shared_tiles(kernels, product) > 0; };
  if (std::ranges::none_of(products, shares_rows)) return multiply_all(kernels, pool, products, next);
  std::array<MatmulArgs, MatmulTasks::kMaxProducts> copies;
  CHECK(products.size() <= copies.size(), products.size());
  const std::span<MatmulArgs> packed(copies.begin(), std::ranges::copy(products, copies.begin()).out);
  pack_rows(kernels, pool, packed);
  multiply_all(kernels, pool, packed, next);
}

int next_block(std::span<const std::int64_t> slots, int row) {
  const auto block_of = [&](int at) { return slots[static_cast<std::size_t>(at)] / kBlockSize; };
  while (row > 0 && row < static_cast<int>(slots.size()) && block_of(row) == block_of(row - 1)) ++row;
  return row;
}

SplitRange attention_splits(const AttentionArgs& args, const AttentionTask& task) {
  const AttentionSequence& sequence = args.sequences[task.sequence];
  const int first = sequence.context_len - sequence.num_tokens + task.query_begin;
  const int last = sequence.context_len - sequence.num_tokens + task.query_end - 1;
  const int window = seen_window(args, sequence);
  const int first_key = window > 0 ? std::max(0, first - window + 1) : 0;
  const int begin = first_key / kKeySplit;
  return {begin, last / kKeySplit + 1, begin > 0 && seen_sinks(args, sequence) > 0};
}

AttentionOp::ScratchSizes AttentionOp::scratch_sizes(int max_rows, int num_heads, int head_dim,
                                                     int max_context_len, const Device* device) {
  const std::int64_t max_splits = divide_up(max_context_len, kKeySplit);
  if (device != nullptr) {
    const std::int64_t row_bytes = max_splits * device_partial_size_bytes(num_heads, head_dim);
    const std::int64_t decoding = std::clamp(kMaxCommonSequences * row_bytes, kDevicePartialBytes, kMostDevicePartialBytes);
    return {.partial_bytes = std::min(decoding, max_rows * row_bytes)};
  }
  const std::int64_t row_bytes =
      num_heads * max_splits * attention_partial_size_bytes(1, head_dim);
  const int task_rows = std::max(kMaxAttentionRows, num_heads);
  return {.thread_bytes = attention_scratch_size_bytes(task_rows, head_dim),
          .partial_bytes = kSplitQueries * row_bytes,
          .state_bytes = kMaxCommonSequences * num_heads * attention_state_size_bytes(1, head_dim)};
}

std::size_t AttentionOp::scratch_size_bytes(const ThreadPool& pool, int max_rows, int num_heads,
                                            int head_dim, int max_context_len,
                                            const Device* device) {
  const ScratchSizes sizes = scratch_sizes(max_rows, num_heads, head_dim, max_context_len, device);
  return static_cast<std::size_t>(pool.num_threads() * sizes.thread_bytes + sizes.partial_bytes +
                                  sizes.state_bytes);
}

AttentionOp::AttentionOp(ThreadPool& pool, int max_rows, int num_heads, int head_dim,
                         int max_context_len, Device* device)
    : pool_(pool) {
  const ScratchSizes sizes = scratch_sizes(max_rows, num_heads, head_dim, max_context_len, device);
  thread_bytes_ = sizes.thread_bytes;
  partial_bytes_ = sizes.partial_bytes;
  scratch_ = DeviceBuffer(
      device, scratch_size_bytes(pool, max_rows, num_heads, head_dim, max_context_len, device),
      device == nullptr);
  if (device != nullptr) return;
  const std::int64_t max_splits = divide_up(max_context_len, kKeySplit);
  pieces_.reserve(static_cast<std::size_t>(max_rows) * static_cast<std::size_t>(num_heads));
  split_tasks_.reserve(static_cast<std::size_t>(std::int64_t{num_heads} * kSplitQueries *
                                                std::max<std::int64_t>(max_splits, 1)));
  common_tasks_.reserve(static_cast<std::size_t>(kMaxCommonSequences * num_heads));
}

void AttentionOp::list_pieces(const AttentionArgs& args) {
  const int group = args.num_heads / args.kv.num_kv_heads;
  std::int64_t rows = 0;
  for (int i = 0; i < args.num_sequences; ++i) {
    rows += std::int64_t{args.sequences[i].num_tokens} * args.num_heads;
  }
  // Fewer rows per task when the batch is too small to keep every thread busy.
  const std::int64_t wanted = rows / (std::int64_t{pool_.num_threads()} * kTasksPerThread);
  const int task_rows =
      static_cast<int>(std::clamp<std::int64_t>(wanted, kMaxAttentionRows / 4, kMaxAttentionRows));
  const int queries = std::max(1, task_rows / group);
  pieces_.clear();
  std::int64_t offset = 0;
  for (int i = 0; i < args.num_sequences; ++i) {
    const int num_tokens = args.sequences[i].num_tokens;
    for (int begin = 0; begin < num_tokens; begin += queries) {
      const int end = std::min(begin + queries, num_tokens);
      for (int head = 0; head < args.kv.num_kv_heads; ++head) {
        AttentionTask task{i, head, begin, end, -1};
        if (args.sequences[i].num_common > 0) task.state = state_of(args, args.sequences[i].common_state, head);
        const SplitRange splits = attention_splits(args, task);
        const std::int64_t stride =
            attention_partial_size_bytes((end - begin) * group, args.kv.head_dim);
        pieces_.push_back({task, splits, offset, stride});
        offset += num_splits(splits) * stride;
      }
    }
  }
  num_partial_bytes_ = offset;
}

std::byte* AttentionOp::state_of(const AttentionArgs& args, int state, int kv_head) {
  const std::int64_t size_bytes =
      attention_state_size_bytes(args.num_heads / args.kv.num_kv_heads, args.kv.head_dim);
  return scratch_.data() + pool_.num_threads() * thread_bytes_ + partial_bytes_ +
         (std::int64_t{state} * args.kv.num_kv_heads + kv_head) * size_bytes;
}

std::span<const CommonKeys> AttentionOp::find_common(const AttentionArgs& args,
                                                     std::span<AttentionSequence> sequences,
                                                     CommonKeyFinder& finder) const {
  const int num_kv_heads = args.kv.num_kv_heads;
  // A batch so small that run() shares out keys goes without.
  if (static_cast<std::int64_t>(sequences.size()) * num_kv_heads < std::int64_t{pool_.num_threads()} * kTasksPerThread)
    return {};
  const std::int64_t step_bytes =
      std::int64_t{num_kv_heads} * kCommonKeyStep / kBlockSize *
      (kv_key_size_bytes(args.kv.types.k, args.kv.head_dim) + kv_value_size_bytes(args.kv.types.v, args.kv.head_dim));
  const std::span<const CommonKeys> common =
      finder.find(sequences, {.window = args.window,
                              .max_states = kMaxCommonSequences,
                              .min_saved_steps = std::max(1, divide_up(kMinSavedBytes, step_bytes))});
  int num_pairs = 0;
  for (const CommonKeys& keys : common) num_pairs += keys.num_sequences / 2;
  if (num_pairs * num_kv_heads >= pool_.num_threads()) return common;
  // Threads without a task would be worth more.
  for (AttentionSequence& sequence : sequences) sequence.num_common = 0;
  return {};
}

// Into how many parts, of two sequences at least, threads had best share out common keys' sequences, for each
// KV head: by the rows that the busiest of them computes, and as many again as it takes to read a part's keys.
int AttentionOp::num_common_parts(const CommonKeys& common, int num_kv_heads, int group) const {
  constexpr int kReadRows = 3;
  const int rows = common.num_sequences * group;
  const int fewest = divide_up(rows, std::max(group, kMaxAttentionRows / group * group));
  const auto cost = [&](int parts) {
    return divide_up(parts * num_kv_heads, pool_.num_threads()) * (divide_up(rows, parts) + kReadRows);
  };
  int best = fewest;
  for (int parts = fewest + 1; parts <= common.num_sequences / 2; ++parts)
    if (cost(parts) < cost(best)) best = parts;
  return best;
}

void AttentionOp::run_common(const KernelTable& kernels, const AttentionArgs& args) {
  const int num_kv_heads = args.kv.num_kv_heads;
  const int group = args.num_heads / num_kv_heads;
  common_tasks_.clear();
  for (int i = 0; i < args.num_common; ++i) {
    const CommonKeys& common = args.common[i];
    const int num_parts = num_common_parts(common, num_kv_heads, group);
    for (int part = 0; part < num_parts; ++part) {
      const int begin = common.num_sequences * part / num_parts;
      const int end = common.num_sequences * (part + 1) / num_parts;
      const int state = args.sequences[common.sequences[begin]].common_state;
      for (int head = 0; head < num_kv_heads; ++head)
        common_tasks_.push_back({i, head, begin, end, state_of(args, state, head),
                                 state_of(args, 1, 0) - state_of(args, 0, 0)});
    }
  }
  pool_.parallel_for_near(static_cast<int>(common_tasks_.size()), [&](int i, int thread) {
    kernels.attention_common(args, common_tasks_[static_cast<std::size_t>(i)], thread_scratch(thread));
  });
}

void AttentionOp::run(const KernelTable& kernels, const AttentionArgs& args) {
  if (kernels.is_device()) return kernels.attention_batch(args, scratch_.data());
  if (args.num_common > 0) run_common(kernels, args);
  list_pieces(args);
  split_tasks_.clear();
  const int num_pieces = static_cast<int>(pieces_.size());
  if (args.num_common == 0 && pool_.num_threads() > 1 && num_pieces < pool_.num_threads() * kTasksPerThread &&
      num_partial_bytes_ <= partial_bytes_) {
    for (int i = 0; i < num_pieces; ++i) {
      const SplitRange splits = pieces_[static_cast<std::size_t>(i)].splits;
      for (int index = 0; index < num_splits(splits); ++index) split_tasks_.push_back({i, index});
    }
  }
  if (static_cast<int>(split_tasks_.size()) > num_pieces) return run_split(kernels, args);
  pool_.parallel_for_near(num_pieces, [&](int i, int thread) {
    kernels.attention(args, pieces_[static_cast<std::size_t>(i)].task, thread_scratch(thread));
  });
}

void AttentionOp::run_split(const KernelTable& kernels, const AttentionArgs& args) {
  std::byte* partials = scratch_.data() + pool_.num_threads() * thread_bytes_;
  pool_.parallel_for_near(static_cast<int>(split_tasks_.size()), [&](int i, int thread) {
    const SplitTask& split = split_tasks_[static_cast<std::size_t>(i)];
    const Piece& piece = pieces_[static_cast<std::size_t>(split.piece)];
    AttentionTask task = piece.task;
    task.split = split_at(piece.splits, split.index);
    kernels.attention(args, task, thread_scratch(thread));
    std::memcpy(partials + piece.offset_bytes + split.index * piece.stride_bytes,
                thread_scratch(thread), static_cast<std::size_t>(piece.stride_bytes));
  });
  pool_.parallel_for(static_cast<int>(pieces_.size()), [&](int i, int) {
    const Piece& piece = pieces_[static_cast<std::size_t>(i)];
    kernels.merge_attention(args, piece.task, partials + piece.offset_bytes, piece.stride_bytes);
  });
}

}  // namespace larder
