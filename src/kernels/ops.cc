#include "kernels/ops.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace larder {
namespace {

// A task of matrix work takes at least this many bytes of weights times rows, so that handing it
// out costs nothing beside it, and there are several per thread, so that none waits long for the
// last.
constexpr std::int64_t kMinTaskBytes = 64 * 1024;
constexpr int kTasksPerThread = 4;

int divide_up(std::int64_t value, std::int64_t by) {
  return static_cast<int>((value + by - 1) / by);
}

// Panels per task; even, since the kernels take two panels at a time.
int task_panels(const MatmulArgs& product, int num_threads) {
  const int panels = product.w->num_panels();
  const std::int64_t work = product.w->panel_stride_bytes * std::max(product.num_rows, 1);
  const int for_balance = divide_up(panels, std::int64_t{num_threads} * kTasksPerThread);
  const int for_size =
      static_cast<int>(std::min<std::int64_t>(divide_up(kMinTaskBytes, work), panels));
  return (std::max({2, for_balance, for_size}) + 1) / 2 * 2;
}

}  // namespace

void matmul(const KernelTable& kernels, ThreadPool& pool, std::span<const MatmulArgs> products) {
  constexpr std::size_t kMaxProducts = 8;
  CHECK(products.size() <= kMaxProducts, products.size());
  int first_task[kMaxProducts + 1] = {};
  int panels_per_task[kMaxProducts] = {};
  for (std::size_t i = 0; i < products.size(); ++i) {
    panels_per_task[i] = task_panels(products[i], pool.num_threads());
    first_task[i + 1] = first_task[i] + divide_up(products[i].w->num_panels(), panels_per_task[i]);
  }
  pool.parallel_for(first_task[products.size()], [&](int task, int) {
    std::size_t i = 0;
    while (task >= first_task[i + 1]) ++i;
    const int begin = (task - first_task[i]) * panels_per_task[i];
    const int end = std::min(begin + panels_per_task[i], products[i].w->num_panels());
    kernels.matmul(products[i], begin, end);
  });
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

AttentionOp::AttentionOp(ThreadPool& pool, int max_rows, int num_heads, int head_dim,
                         int max_context_len)
    : pool_(pool) {
  const int task_rows = std::max(kMaxAttentionRows, num_heads);
  thread_bytes_ = attention_scratch_size_bytes(task_rows, head_dim);
  // Room for the partials of a few queries; longer batches have tasks enough without splitting
  // keys.
  constexpr int kSplitQueries = 2;
  const std::int64_t max_splits = divide_up(max_context_len, kKeySplit);
  partial_bytes_ =
      kSplitQueries * num_heads * max_splits * attention_partial_size_bytes(1, head_dim);
  scratch_ = AlignedBuffer(
      static_cast<std::size_t>(pool.num_threads() * thread_bytes_ + partial_bytes_), true);
  pieces_.reserve(static_cast<std::size_t>(max_rows) * static_cast<std::size_t>(num_heads));
  split_tasks_.reserve(static_cast<std::size_t>(std::int64_t{num_heads} * kSplitQueries *
                                                std::max<std::int64_t>(max_splits, 1)));
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
        const AttentionTask task{i, head, begin, end, -1};
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

void AttentionOp::run(const KernelTable& kernels, const AttentionArgs& args) {
  list_pieces(args);
  split_tasks_.clear();
  const int num_pieces = static_cast<int>(pieces_.size());
  if (pool_.num_threads() > 1 && num_pieces < pool_.num_threads() * kTasksPerThread &&
      num_partial_bytes_ <= partial_bytes_) {
    for (int i = 0; i < num_pieces; ++i) {
      const SplitRange splits = pieces_[static_cast<std::size_t>(i)].splits;
      for (int index = 0; index < num_splits(splits); ++index) split_tasks_.push_back({i, index});
    }
  }
  if (static_cast<int>(split_tasks_.size()) > num_pieces) return run_split(kernels, args);
  pool_.parallel_for(num_pieces, [&](int i, int thread) {
    kernels.attention(args, pieces_[static_cast<std::size_t>(i)].task, thread_scratch(thread));
  });
}

void AttentionOp::run_split(const KernelTable& kernels, const AttentionArgs& args) {
  std::byte* partials = scratch_.data() + pool_.num_threads() * thread_bytes_;
  pool_.parallel_for(static_cast<int>(split_tasks_.size()), [&](int i, int thread) {
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
