// Attention over paged keys and values, with an online softmax (Milakov & Gimelshein 2018; Dao et
// al. 2022).
//
// A block takes a tile of rows of one sequence and KV head, and all keys or those of one split of
// kKeySplit, its warps the same keys of every split. A row's bits depend on that row alone as in
// cpu/attention.cc: a warp's sums start from nothing and run over dimensions and keys in the same steps
// of tensor cores, warps and then splits are merged in order, and what a row does not see changes at
// most a zero's sign, which the last step takes away.
#include "kernels/cuda/attention_tile.h"
#include "kernels/cuda/hadamard.h"

namespace larder::LARDER_CUDA_NAMESPACE {
namespace {

constexpr int kMergeThreads = 128;

// A block per row and head merges what its splits left.
LARDER_KERNEL_OF(kMergeThreads) merge_kernel(Work work) {
  LARDER_SHARED float totals[kCudaMaxHeadDim];
  wait_for_kernels_before();
  const int row = static_cast<int>(blockIdx.x);
  const int head = static_cast<int>(blockIdx.y);
  const AttentionSequence& sequence =
      find_sequence(work.args, &AttentionSequence::first_row, row);
  if (sequence.num_splits == 1) return;
  const Sight sight = sight_of(work.args, sequence);
  const int query = row - sequence.first_row;
  const int first_position = sequence.context_len - sequence.num_tokens;
  const int position = first_position + query;
  const int dim = work.args.kv.head_dim;
  float sum = 0;  // the same for every dimension
  for (int d = thread_index(); d < dim; d += kMergeThreads) {
    float max = kNothing;
    float total = 0;
    sum = 0;
    for (int index = 0; index < sequence.num_splits; ++index) {
      if (!sight.has_split(sight.split_at(index, first_position), position, position)) continue;
      const float* partial = work.partial(sequence, query, index, head);
      const Merge merge(max, partial[dim]);
      total = merge.of(total, partial[d]);
      sum = merge.of(sum, partial[dim + 1]);
      max = merge.max;
    }
    totals[d] = total;
  }
  if (work.args.kv.types.v == KvType::kInt4) hadamard_rows(totals, 1, 0, dim);  // back
  float* out = work.args.out + row * work.args.ldo + std::int64_t{head} * dim;
  for (int d = thread_index(); d < dim; d += kMergeThreads) out[d] = finish(totals[d], sum);
}

}  // namespace

void attention_batch(const AttentionArgs& args, std::byte* scratch) {
  require(args.kv.head_dim <= kCudaMaxHeadDim, "head_dim");
  has_codes(args.kv.types.k) ? attention_of_codes(args, scratch)
                             : attention_of_halves(args, scratch);
  launch(merge_kernel,
         dim3(static_cast<unsigned>(args.sharing.num_merged_rows),
              static_cast<unsigned>(args.num_heads)),
         kMergeThreads, work_of(args, scratch));
}

}  // namespace larder::LARDER_CUDA_NAMESPACE
