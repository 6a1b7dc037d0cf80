// Attention over paged keys and values, with an online softmax (Milakov & Gimelshein 2018; Dao et
// al. 2022).
//
// A block takes a tile of rows of one sequence and KV head, and all keys or those of one split of
// kKeySplit, its warps the same keys of every split: straight from the device's memory (attention_kernel.h) or,
// where a few rows each are bound by that, with a warp that fetches keys ahead (attention_ring.h). A row's bits
// depend on that row alone as in cpu/attention.cc: a warp's sums start from nothing and run over dimensions and
// keys in the same steps of tensor cores, warps and then splits are merged in order, and what a row does not see
// changes at most a zero's sign, which the last step takes away.
#include "kernels/cuda/attention_tile.h"
#include "kernels/cuda/hadamard.h"

namespace larder::LARDER_CUDA_NAMESPACE {
namespace {

constexpr int kMergeSplits = 128;                 // whose factors are known at a time
constexpr int kMergeThreads = kMergeSplits + 32;  // a dimension each, and one adds up the weights
constexpr int kMergeAtOnce = 64;                  // loads of a thread

// Of up to kMergeSplits partials, what merging them in order multiplies: take < 0 where a row sees
// nothing of a split.
struct MergeFactors {
  float maxima[kMergeSplits];
  float keep[kMergeSplits];
  float take[kMergeSplits];

  // By all threads of the block: partial of the thread's split or null; max: of those before, and then of
  // these as well.
  LARDER_MEMBER void set(const float* partial, int dim, float& max) {
    const int i = thread_index();
    const float own = partial != nullptr ? partial[dim] : kNothing;
    if (i < kMergeSplits) maxima[i] = own;
    sync_block();
    float before = max;
    for (int j = 0; j < kMergeSplits; ++j) {
      before = fmaxf(before, j < i ? maxima[j] : before);
      max = fmaxf(max, maxima[j]);
    }
    const Merge merge(before, own);
    if (i < kMergeSplits) {
      keep[i] = merge.keep;
      take[i] = partial != nullptr ? merge.take : -1.0F;
    }
    sync_block();
  }
  LARDER_MEMBER float merged(int i, float into, float from) const {
    return take[i] < 0 ? into : fmaf(from, take[i], into * keep[i]);
  }
};

// Of one dimension, of some splits.
struct MergeValues {
  float value[kMergeAtOnce];

  // values: of the first split, those of the others `stride` apart.
  LARDER_MEMBER void load(const float* values, std::int64_t stride, int count) {
    LARDER_UNROLL
    for (int i = 0; i < kMergeAtOnce; ++i) value[i] = i < count ? values[i * stride] : 0.0F;
  }
};

// The next ones come while the last are added up.
LARDER_DEVICE float merge_values(const MergeFactors& factors, const float* values, std::int64_t stride,
                                 int count, float total) {
  MergeValues next;
  next.load(values, stride, count);
  LARDER_NO_UNROLL
  for (int first = 0; first < count; first += kMergeAtOnce) {
    const MergeValues these = next;
    next.load(values + (first + kMergeAtOnce) * stride, stride, count - first - kMergeAtOnce);
    LARDER_UNROLL
    for (int i = 0; i < kMergeAtOnce; ++i)
      if (first + i < count) total = factors.merged(first + i, total, these.value[i]);
  }
  return total;
}

// A block per row and head merges what its splits left.
LARDER_KERNEL_OF(kMergeThreads) merge_kernel(Work work) {
  LARDER_SHARED float totals[kCudaMaxHeadDim + 1];  // the last one is that of the weights
  LARDER_SHARED MergeFactors factors;
  const int row = static_cast<int>(blockIdx.x);
  const int head = static_cast<int>(blockIdx.y);
  // Sequences came with the step, before any of its kernels.
  const AttentionSequence sequence = find_sequence(work.args, &AttentionSequence::first_row, row);
  wait_for_kernels_before();
  if (sequence.num_splits == 1) return;
  const Sight sight = sight_of(work.args, sequence);
  const int query = row - sequence.first_row;
  if (query >= sequence.num_tokens) return;
  const int first_position = sequence.context_len - sequence.num_tokens;
  const int position = first_position + query;
  const int dim = work.args.kv.head_dim;
  float max = kNothing;
  for (int d = thread_index(); d <= dim; d += kMergeThreads) totals[d] = 0;
  for (int first = 0; first < sequence.num_splits; first += kMergeSplits) {
    const int own = first + thread_index();
    const bool has = thread_index() < kMergeSplits && own < sequence.num_splits &&
                     sight.has_split(sight.split_at(own, first_position), position, position);
    factors.set(has ? work.partial(sequence, query, own, head) : nullptr, dim, max);
    const float* partial = work.partial(sequence, query, first, head);
    for (int d = thread_index(); d <= dim; d += kMergeThreads)
      totals[d] = merge_values(factors, partial + (d < dim ? d : dim + 1),
                               std::int64_t{work.args.num_heads} * (dim + 2),
                               min_of(kMergeSplits, sequence.num_splits - first), totals[d]);
    sync_block();
  }
  if (work.args.kv.types.v == KvType::kInt4) hadamard_rows(totals, 1, 0, dim);  // back
  float* out = work.args.out + row * work.args.ldo + std::int64_t{head} * dim;
  for (int d = thread_index(); d < dim; d += kMergeThreads) out[d] = finish(totals[d], totals[dim]);
}

}  // namespace

void attention_batch(const AttentionArgs& args, std::byte* scratch) {
  require(args.kv.head_dim <= kCudaMaxHeadDim, "head_dim");
  if (has_codes(args.kv.types.k))
    attention_of_codes(args, scratch);
  else if (is_half(args.kv.types.k))
    attention_of_halves(args, scratch);
  else
    attention_of_fp8(args, scratch);
  launch(merge_kernel,
         dim3(rounded_grid(args.sharing.num_merged_rows),
              static_cast<unsigned>(args.num_heads)),
         kMergeThreads, work_of(args, scratch));
}

}  // namespace larder::LARDER_CUDA_NAMESPACE
