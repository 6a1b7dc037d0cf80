// Kernels over a ThreadPool: how work is shared out, and nothing else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/device.h"
#include "kernels/common_keys.h"
#include "kernels/kernels.h"

namespace larder {

// Several products that do not depend on one another, in one fork and join (Q, K and V; gate and
// up). next: of the products that will come after these, only w and num_rows; threads that wait
// fetch their weights.
void matmul(const KernelTable& kernels, ThreadPool& pool, std::span<const MatmulArgs> products,
            std::span<const MatmulArgs> next = {});

// The first row from this one on that lies in another block than the row before it. Who shares rows
// out begins tasks there, or the lines of a block go to and fro between the cores that store into
// it. slots as in StoreKvArgs; for row 0 and for the end they are not read, so they may be a device's.
int next_block(std::span<const std::int64_t> slots, int row);

// Before attention_batch(), of sequences that the host can still read: says what each leaves out of
// its block table, gives it its place in the grid and has those share out their keys that would keep a few blocks busy for long, in their
// order as far as the scratch lasts; the other sequences of the batch do not matter to that. Whole splits of keys that
// are common to sequences which share out theirs are read once for as many of them as a tile has rows for. args says
// what the layer is; the result goes into it. common: what a CommonKeyFinder says of the sequences under
// device_common_rule(), or nothing. Decides no bit.
KeySharing share_keys(const AttentionArgs& args, std::span<AttentionSequence> sequences,
                      std::span<const CommonKeys> common, std::int64_t scratch_bytes);
CommonKeyRule device_common_rule(const AttentionArgs& args);

// Attention of a whole batch. Scratch is sized at construction; args.num_heads and the heads'
// dimension may be smaller than what it was sized for.
class AttentionOp {
 public:
  // max_rows: query rows of a batch; max_context_len: the longest sequence. device: whose kernels
  // run() will be given, null = a CPU's.
  AttentionOp(ThreadPool& pool, int max_rows, int num_heads, int head_dim, int max_context_len,
              Device* device = nullptr);
  void run(const KernelTable& kernels, const AttentionArgs& args);
  // Before run(), on a CPU: what may be its AttentionArgs::common, where that pays. args says what the layer is.
  std::span<const CommonKeys> find_common(const AttentionArgs& args, std::span<AttentionSequence> sequences,
                                          CommonKeyFinder& finder) const;
  // Of a device's.
  std::int64_t partial_bytes() const { return partial_bytes_; }
  std::size_t scratch_size_bytes() const { return scratch_.size_bytes(); }
  // What it will say of one made with these, for the planner: takes no memory.
  static std::size_t scratch_size_bytes(const ThreadPool& pool, int max_rows, int num_heads,
                                        int head_dim, int max_context_len, const Device* device);

 private:
  struct ScratchSizes {
    std::int64_t thread_bytes = 0;  // per thread
    std::int64_t partial_bytes = 0;
    std::int64_t state_bytes = 0;  // of kMaxCommonSequences
  };
  // A task and its place among the partials, should its keys be shared out.
  struct Piece {
    AttentionTask task;
    SplitRange splits;
    std::int64_t offset_bytes = 0;
    std::int64_t stride_bytes = 0;  // from one split's partial to the next
  };
  struct SplitTask {
    int piece = 0;
    int index = 0;  // within the piece's splits
  };

  static ScratchSizes scratch_sizes(int max_rows, int num_heads, int head_dim, int max_context_len,
                                    const Device* device);
  void list_pieces(const AttentionArgs& args);
  int num_common_parts(const CommonKeys& common, int num_kv_heads, int group) const;
  void run_common(const KernelTable& kernels, const AttentionArgs& args);
  std::byte* state_of(const AttentionArgs& args, int state, int kv_head);
  void run_split(const KernelTable& kernels, const AttentionArgs& args);
  std::byte* thread_scratch(int thread) { return scratch_.data() + thread * thread_bytes_; }

  ThreadPool& pool_;
  std::int64_t thread_bytes_ = 0;
  std::int64_t partial_bytes_ = 0;
  DeviceBuffer scratch_;  // one part per thread, then partials, then states
  std::int64_t num_partial_bytes_ = 0;  // that this batch would need
  std::vector<Piece> pieces_;
  std::vector<SplitTask> split_tasks_;
  std::vector<CommonTask> common_tasks_;
};

}  // namespace larder
