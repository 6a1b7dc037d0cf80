// Draws of tokens.
//
// What a token weighs is an integer, and so is its depth, how far below the best it lies: sums of integers have no
// order, so whichever thread adds what, and when, a draw's bits are the same. One block makes a draw, in passes
// over the row: one sums what is kept and finds the token; top-k and top-p come before it, each with one to three
// that narrow down, 11 bits of depth at a time, where what is kept ends.
#include "kernels/cuda/functions.h"
#include "kernels/cuda/rows.h"

namespace larder::LARDER_CUDA_NAMESPACE {
namespace {

constexpr int kDrawThreads = 1024;
constexpr int kWarps = kDrawThreads / 32;
constexpr int kAtOnce = 4;            // loads of 16 bytes that a thread has under way
constexpr int kWarpTokens = 4 * 32;   // of one load
constexpr int kBlockTokens = 4 * kDrawThreads;

// The best weighs 2^40: what is less than a trillionth of that weighs nothing.
constexpr int kDoublings = 40;
constexpr std::int64_t kMostLogits = std::int64_t{1} << (63 - kDoublings);
// Of a doubling of the weight, so that all of them are just within 32 bits.
constexpr float kDepthOfDoubling = 1e8F;
constexpr float kLog2E = 1.44269504088896341F;

constexpr int kBinBits = 11;
constexpr int kBins = 1 << kBinBits;
static_assert(kBins == 2 * kDrawThreads, "a thread looks at two bins");
static_assert(3 * kBinBits >= 32, "three times narrowed down, a depth is told");
constexpr std::uint32_t kDeepest = 0xFFFFFFFF;
constexpr int kLastToken = 0x7FFFFFFF;

// What a token is beside the best. Equal logits have equal depths.
struct Weighed {
  std::uint32_t depth;
  float share;           // of the best's weight
  std::uint64_t weight;  // 0: none, and no depth either
};

struct Row {
  const float* logits;
  int num_logits;
  bool aligned;
  float best;   // finite
  float scale;  // of the logits, to doublings

  LARDER_MEMBER Weighed weigh(float logit) const {
    const float doublings = (best - logit) * scale;
    if (!(doublings < kDoublings)) return {kDeepest, 0, 0};  // nor where it is NaN
    const float share = power_of_2(-doublings);
    constexpr auto kUnits = static_cast<float>(std::uint64_t{1} << kDoublings);
    return {static_cast<std::uint32_t>(doublings * kDepthOfDoubling), share,
            static_cast<std::uint64_t>(share * kUnits)};
  }
};

// The last token that is kept, in the order of depths, equal ones by token; and the least share.
struct Cut {
  std::uint32_t depth = kDeepest;
  int token = kLastToken;
  float least = 0;

  LARDER_MEMBER bool keeps(int at, const Weighed& weighed) const {
    const bool is_before = weighed.depth < depth || (weighed.depth == depth && at <= token);
    return is_before && weighed.weight > 0 && weighed.share >= least;
  }
};

struct Scratch {
  std::uint64_t warp_sums[kWarps];
  std::uint64_t weights[kBins];
  std::uint32_t counts[kBins];
  // What one thread has found for all.
  int bin;
  std::uint64_t before;
  TokenId token;
};

// Tokens [begin, end) of a warp: the warps' follow each other.
struct WarpRange {
  int begin;
  int end;
};
LARDER_DEVICE WarpRange range_of(int warp, int num_logits) {
  constexpr int kStep = kWarps * kWarpTokens;
  const int width = (num_logits + kStep - 1) / kStep * kWarpTokens;
  const int begin = min_of(warp * width, num_logits);
  return {begin, min_of(begin + width, num_logits)};
}

// function(token, what it weighs) for the thread's of its warp's tokens.
template <class Function>
LARDER_DEVICE void for_tokens(const Row& row, const Function& function) {
  const WarpRange range = range_of(thread_index() / 32, row.num_logits);
  for (int first = range.begin + thread_index() % 32 * 4; first < range.end; first += kAtOnce * kWarpTokens) {
    Floats4 fours[kAtOnce];
    LARDER_UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      const int token = first + i * kWarpTokens;
      fours[i] = load_x(row.logits + token, range.end - token, row.aligned, -INFINITY);
    }
    LARDER_UNROLL
    for (int i = 0; i < kAtOnce; ++i)
      LARDER_UNROLL
      for (int j = 0; j < 4; ++j) function(first + i * kWarpTokens + j, row.weigh(fours[i].value[j]));
  }
}

// Over the threads before this one; total: over all.
LARDER_DEVICE std::uint64_t block_prefix(std::uint64_t value, Scratch& scratch, std::uint64_t& total) {
  const int lane = thread_index() % 32;
  const int warp = thread_index() / 32;
  const std::uint64_t prefix = warp_prefix(value);
  sync_block();
  if (lane == 31) scratch.warp_sums[warp] = prefix;
  sync_block();
  const std::uint64_t of_lane = scratch.warp_sums[lane];
  total = warp_sum(of_lane);
  return warp_sum(lane < warp ? of_lane : 0) + prefix - value;
}

// What the tokens come to, by amount(token, what it weighs).
template <class Amount>
LARDER_DEVICE std::uint64_t thread_sum(const Row& row, const Amount& amount) {
  std::uint64_t sum = 0;
  for_tokens(row, [&](int token, const Weighed& weighed) { sum += amount(token, weighed); });
  return sum;
}

// The first token, in order of tokens, up to which they come to more than target, which all of them do. sum: the
// thread's thread_sum().
template <class Amount>
LARDER_DEVICE TokenId find_token(const Row& row, std::uint64_t sum, std::uint64_t target, const Amount& amount,
                                 Scratch& scratch) {
  // Whose range it is in.
  const int lane = thread_index() % 32;
  const std::uint64_t of_warp = warp_sum(sum);
  sync_block();
  if (lane == 0) scratch.warp_sums[thread_index() / 32] = of_warp;
  sync_block();
  const std::uint64_t up_to = warp_prefix(scratch.warp_sums[lane]);
  const bool is_before = up_to <= target;
  const WarpRange range = range_of(warp_sum(is_before ? 1 : 0), row.num_logits);
  std::uint64_t before = warp_reduce<32>(is_before ? up_to : 0, [](std::uint64_t a, std::uint64_t b) {
    return a > b ? a : b;
  });
  // There, four tokens a thread.
  for (int begin = range.begin; begin < range.end && before <= target; begin += kBlockTokens) {
    const int first = begin + thread_index() * 4;
    const Floats4 logits = load_x(row.logits + first, range.end - first, row.aligned, -INFINITY);
    std::uint64_t own[4];
    LARDER_UNROLL
    for (int j = 0; j < 4; ++j) own[j] = amount(first + j, row.weigh(logits.value[j]));
    std::uint64_t total = 0;
    std::uint64_t running = before + block_prefix(own[0] + own[1] + own[2] + own[3], scratch, total);
    LARDER_UNROLL
    for (int j = 0; j < 4; ++j) {
      if (running <= target && target - running < own[j]) scratch.token = first + j;
      running += own[j];
    }
    before += total;
  }
  sync_block();
  return scratch.token;
}

// What falls into one bin after the other: a flat row has few bins, which its threads would wait for.
struct Tally {
  int bin = 0;
  std::uint32_t count = 0;
  std::uint64_t weight = 0;

  LARDER_MEMBER void flush(Scratch& scratch) {
    if (count == 0) return;
    add_in_block(&scratch.counts[bin], count);
    add_in_block(&scratch.weights[bin], weight);
    count = 0;
    weight = 0;
  }
};

// Counts and weights of what the cut keeps, weighs at least `least` and has `upper` as its depth's bits from shift +
// kBinBits on: by the kBinBits below those.
LARDER_DEVICE void fill_bins(const Row& row, const Cut& cut, std::uint64_t least, std::uint32_t upper, int shift,
                             Scratch& scratch) {
  sync_block();
  for (int bin = thread_index(); bin < kBins; bin += kDrawThreads) {
    scratch.counts[bin] = 0;
    scratch.weights[bin] = 0;
  }
  sync_block();
  Tally tally;
  for_tokens(row, [&](int token, const Weighed& weighed) {
    if (weighed.weight < least || !cut.keeps(token, weighed)) return;
    const std::uint32_t place = weighed.depth >> shift;
    if (place >> kBinBits != upper) return;
    const int bin = static_cast<int>(place % kBins);
    if (bin != tally.bin) tally.flush(scratch);
    tally.bin = bin;
    ++tally.count;
    tally.weight += weighed.weight;
  });
  tally.flush(scratch);
  sync_block();
}

// Cuts behind the fewest of the best tokens that come to `wanted`, at least 1: in weight, or by their number. Those
// that weigh less than `least` are not among them. Leaves the cut where all come to less.
template <bool kByCount>
LARDER_DEVICE void cut_behind(const Row& row, std::uint64_t wanted, std::uint64_t least, Cut& cut, Scratch& scratch) {
  std::uint32_t upper = 0;  // of the depth where it ends
  LARDER_NO_UNROLL
  for (int shift = 2 * kBinBits; shift >= 0; shift -= kBinBits) {
    fill_bins(row, cut, least, upper, shift, scratch);
    const auto amount_of = [&](int bin) -> std::uint64_t {
      return kByCount ? scratch.counts[bin] : scratch.weights[bin];
    };
    const int bin = 2 * thread_index();
    const std::uint64_t first = amount_of(bin);
    const std::uint64_t both = first + amount_of(bin + 1);
    std::uint64_t total = 0;
    const std::uint64_t before = block_prefix(both, scratch, total);
    if (total < wanted) return;
    if (before < wanted && wanted - before <= both) {
      const bool is_first = wanted - before <= first;
      scratch.bin = is_first ? bin : bin + 1;
      scratch.before = is_first ? before : before + first;
    }
    sync_block();
    wanted -= scratch.before;
    upper = upper << kBinBits | static_cast<std::uint32_t>(scratch.bin);
    // The whole bin.
    if (amount_of(scratch.bin) != wanted && scratch.counts[scratch.bin] != 1) continue;
    const std::uint32_t last = upper << shift | ((std::uint32_t{1} << shift) - 1);
    if (last < cut.depth) cut = {last, kLastToken, cut.least};
    return;
  }
  // Some of those that are as deep.
  const auto amount = [&](int token, const Weighed& weighed) -> std::uint64_t {
    if (weighed.depth != upper || !cut.keeps(token, weighed)) return 0;
    return kByCount ? 1 : weighed.weight;
  };
  const TokenId last = find_token(row, thread_sum(row, amount), wanted - 1, amount, scratch);
  cut = {upper, last, cut.least};
}

LARDER_DEVICE TokenId drawn(const Row& row, const TokenDraw& draw, TokenId best, Scratch& scratch) {
  Cut cut;
  const auto kept = [&](int token, const Weighed& weighed) -> std::uint64_t {
    return cut.keeps(token, weighed) ? weighed.weight : 0;
  };
  std::uint64_t total = 0;
  if (draw.top_k > 0 && draw.top_k < row.num_logits)
    cut_behind<true>(row, static_cast<std::uint64_t>(draw.top_k), 0, cut, scratch);
  if (draw.top_p < 1) {
    static_cast<void>(block_prefix(thread_sum(row, kept), scratch, total));
    const double exact = double{draw.top_p} * static_cast<double>(total);
    auto wanted = static_cast<std::uint64_t>(exact);
    if (static_cast<double>(wanted) < exact || wanted == 0) ++wanted;
    if (wanted > total) wanted = total;
    // All that weigh less do not make up half of what top_p leaves out.
    const std::uint64_t least = (total - wanted) / (2 * static_cast<std::uint64_t>(row.num_logits));
    cut_behind<false>(row, wanted, least, cut, scratch);
  }
  cut.least = draw.min_p;
  const std::uint64_t sum = thread_sum(row, kept);
  static_cast<void>(block_prefix(sum, scratch, total));
  if (total == 0) return best;  // power_of_2() may round what is as good as the best below a min_p of 1
  const auto uniform = static_cast<std::uint64_t>(draw.uniform * 0x1p53) << 11;  // of 2^64
  return find_token(row, sum, multiply_high(uniform, total), kept, scratch);
}

// A block per draw.
LARDER_KERNEL_OF(kDrawThreads) draw_kernel(DrawArgs args, bool aligned) {
  LARDER_SHARED Scratch scratch;
  wait_for_kernels_before();
  const TokenDraw draw = args.draws[blockIdx.x];
  const float* logits = args.logits + draw.row * args.num_logits;
  TokenId token = args.best[draw.row];
  const Row row = {logits, static_cast<int>(args.num_logits), aligned, logits[token], draw.scale * kLog2E};
  // Nothing is above -infinity, or is beside infinity.
  if (fabsf(row.best) < INFINITY && draw.top_k != 1) token = drawn(row, draw, token, scratch);
  if (thread_index() == 0) args.tokens[blockIdx.x] = token;
}

}  // namespace

void draw_tokens(const DrawArgs& args) {
  require(args.num_logits <= kMostLogits, "logits whose weights have a sum");
  launch(draw_kernel, dim3(static_cast<unsigned>(args.num_draws)), kDrawThreads, args,
         are_aligned(args.logits, args.num_logits));
}

}  // namespace larder::LARDER_CUDA_NAMESPACE
