// Operations on rows and on flat arrays of values.
#include "kernels/cuda/functions.h"
#include "kernels/cuda/packed.h"
#include "kernels/cuda/rows.h"

namespace larder::LARDER_CUDA_NAMESPACE {
namespace {

constexpr int kRowThreads = 256;
constexpr int kAtOnce = 4;  // loads of 16 bytes that a thread has under way
constexpr int kBestThreads = 1024;
constexpr int kThreads = 256;

// Runs function(i) for i in [0, count), a thread each. Function: copied to the device, so it may
// hold pointers and numbers.
template <class Function>
LARDER_KERNEL for_each_kernel(Function function, std::int64_t count) {
  wait_for_kernels_before();
  const std::int64_t i = grid_index();
  if (i < count) function(i);
}
template <class Function>
void for_each(std::int64_t count, const Function& function) {
  launch(for_each_kernel<Function>, blocks_for(count, kThreads), kThreads, function, count);
}

// A thread's columns of a row that a block has, kAtOnce times four of them: all of its columns unless the row
// is long.
struct Columns {
  static constexpr int kStride = 4 * kRowThreads;
  const float* row;
  int num_cols;
  bool aligned;  // to be loaded by four, of which all are there
  int first = -1;
  Floats4 fours[kAtOnce] = {};

  // Those from col on, unless it has them. Past the end they are 0.
  LARDER_MEMBER void load(int col) {
    if (col == first) return;
    first = col;
    if (!aligned) {
      LARDER_UNROLL
      for (int i = 0; i < kAtOnce; ++i, col += kStride) fours[i] = load_x(row + col, num_cols - col, false);
      return;
    }
    LARDER_UNROLL
    for (int i = 0; i < kAtOnce; ++i, col += kStride)
      fours[i] = col < num_cols ? *reinterpret_cast<const Floats4*>(row + col) : Floats4{};
  }
  LARDER_MEMBER void write(float* to) const {
    int col = first;
    LARDER_UNROLL
    for (int i = 0; i < kAtOnce; ++i, col += kStride) {
      if (aligned && col < num_cols) *reinterpret_cast<Floats4*>(to + col) = fours[i];
      LARDER_UNROLL
      for (int j = 0; j < 4; ++j)
        if (!aligned && col + j < num_cols) to[col + j] = fours[i].value[j];
    }
  }
  LARDER_MEMBER float add_squares_to(float sum) const {
    LARDER_UNROLL
    for (const Floats4& four : fours) sum = add_squares(four, sum);
    return sum;
  }
  LARDER_MEMBER void multiply(float scale, const Columns& weight) {
    LARDER_UNROLL
    for (int i = 0; i < kAtOnce; ++i)
      LARDER_UNROLL
      for (int j = 0; j < 4; ++j)
        fours[i].value[j] = fours[i].value[j] * scale * weight.fours[i].value[j];
  }
  LARDER_MEMBER void add(const Columns& other) {
    LARDER_UNROLL
    for (int i = 0; i < kAtOnce; ++i)
      LARDER_UNROLL
      for (int j = 0; j < 4; ++j) fours[i].value[j] += other.fours[i].value[j];
  }
};

// Calls function(col) for the thread's columns, kAtOnce times four at a time.
template <class Function>
LARDER_DEVICE void for_columns(int num_cols, const Function& function) {
  for (int col = thread_index() * 4; col < num_cols; col += kAtOnce * Columns::kStride) function(col);
}

// Of the threads of a block: by halves of a warp; then the warps in order.
LARDER_DEVICE float block_sum(float sum, float (&warp_sums)[kRowThreads / 32]) {
  sum = warp_sum(sum);
  if (thread_index() % 32 == 0) warp_sums[thread_index() / 32] = sum;
  sync_block();
  sum = 0;
  for (const float of_warp : warp_sums) sum += of_warp;
  return sum;
}

// A block per row. A thread sums its columns in order.
LARDER_KERNEL_OF(kRowThreads) rms_norm_kernel(RmsNormArgs args, bool aligned, int row_begin) {
  LARDER_SHARED float warp_sums[2][kRowThreads / 32];
  const int num_cols = args.num_cols;
  const std::int64_t begin = (row_begin + std::int64_t{blockIdx.x}) * num_cols;
  const bool adds = args.added != nullptr;
  const bool norms_added = args.added_weight != nullptr;
  Columns x = {args.x + begin, num_cols, aligned};
  Columns added = {adds ? args.added + begin : nullptr, num_cols, aligned};
  Columns weight = {args.weight, num_cols, aligned};
  Columns added_weight = {args.added_weight, num_cols, aligned};
  const bool norms = args.weight != nullptr;
  if (norms) weight.load(thread_index() * 4);
  if (norms_added) added_weight.load(thread_index() * 4);
  wait_for_kernels_before();  // weights are nobody's result
  float added_scale = 1;
  if (norms_added) {
    float squares = 0;
    for_columns(num_cols, [&](int col) {
      added.load(col);
      squares = added.add_squares_to(squares);
    });
    added_scale = norm_scale(block_sum(squares, warp_sums[0]), num_cols, args.epsilon);
  }
  float squares = 0;
  for_columns(num_cols, [&](int col) {
    x.load(col);
    if (adds) {
      added.load(col);
      if (norms_added) {
        added_weight.load(col);
        added.multiply(added_scale, added_weight);
      }
      x.add(added);
      x.write(args.x + begin);
    }
    squares = x.add_squares_to(squares);
  });
  const float scale = norm_scale(block_sum(squares, warp_sums[1]), num_cols, args.epsilon);
  for_columns(num_cols, [&](int col) {
    x.load(col);
    if (norms) {
      weight.load(col);
      x.multiply(scale, weight);
    }
    x.write(args.out + begin);
  });
}

// What comes first of two logits' places: the larger one's, of equal ones the lower.
struct Best {
  float logit;
  int place;
  LARDER_MEMBER Best or_other(const Best& other) const {
    const bool is_other = other.logit > logit || (other.logit == logit && other.place < place);
    return is_other ? other : *this;
  }
};

// A block per row.
LARDER_KERNEL_OF(kBestThreads)
first_of_best_kernel(const float* logits, std::int64_t num_logits, bool aligned, TokenId* to) {
  LARDER_SHARED Best bests[kBestThreads / 32];
  wait_for_kernels_before();
  const float* row = logits + std::int64_t{blockIdx.x} * num_logits;
  constexpr float kLowest = -INFINITY;
  constexpr int kStride = 4 * kBestThreads;
  Best best = {kLowest, 0};
  const auto count = static_cast<int>(num_logits);
  for (int first = thread_index() * 4; first < count; first += kAtOnce * kStride) {
    Floats4 fours[kAtOnce];
    LARDER_UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      const int col = first + i * kStride;
      fours[i] = load_x(row + col, count - col, aligned, kLowest);
    }
    LARDER_UNROLL
    for (int i = 0; i < kAtOnce; ++i)
      LARDER_UNROLL
      for (int j = 0; j < 4; ++j)
        if (fours[i].value[j] > best.logit) best = {fours[i].value[j], first + i * kStride + j};
  }
  const float largest = warp_max(best.logit);
  // Of those with the largest; a lane without one has a place that is never the lowest.
  constexpr int kNowhere = 1 << 30;
  best.place = warp_reduce<32>(best.logit == largest ? best.place : kNowhere,
                               [](int a, int b) { return a < b ? a : b; });
  if (thread_index() % 32 == 0) bests[thread_index() / 32] = {largest, best.place};
  sync_block();
  if (thread_index() != 0) return;
  best = bests[0];
  for (int warp = 1; warp < kBestThreads / 32; ++warp) best = best.or_other(bests[warp]);
  to[blockIdx.x] = best.logit == kLowest ? 0 : best.place;
}

struct Quantize {
  const float* x;
  std::int64_t ldx;
  QuantizedRows out;
};

// A warp per group of 32 columns: its lane is the column. The same bits as the CPU's.
LARDER_KERNEL quantize_kernel(Quantize args, std::int64_t group_begin, std::int64_t group_end) {
  wait_for_kernels_before();
  const std::int64_t index = group_begin + grid_index() / kActivationGroup;
  if (index >= group_end) return;  // the whole warp
  const int lane = thread_index() % kActivationGroup;
  const int groups = args.out.num_cols / kActivationGroup;
  const float x =
      args.x[index / groups * args.ldx + index % groups * kActivationGroup + lane];
  // Without signs, the bits of floats have their order, those of NaN at the end.
  const float largest = as_float(warp_reduce<kActivationGroup>(
      as_bits(fabsf(x)), [](std::uint32_t a, std::uint32_t b) { return a > b ? a : b; }));
  const bool has_codes = largest < INFINITY;
  // Below this 127 / largest would be infinite; such a group is nothing beside any other.
  const bool tiny = !(largest > 1e-30F);
  const int q = has_codes ? nearest_int(x * (tiny ? 0.0F : 127.0F / largest)) : 0;
  const int half_sum = warp_sum<16>(q);
  args.out.q[index * kActivationGroup + lane] = static_cast<std::int8_t>(q);
  constexpr std::uint32_t kNan = 0xFFC00000;  // the CPU's
  const float scale = tiny ? 0.0F : largest / 127.0F;
  if (lane == 0) args.out.scale[index] = has_codes ? scale : as_float(kNan);
  if (lane % 16 == 0) args.out.sum[2 * index + lane / 16] = half_sum;
}

// x / (1 + e^u); 0 where e^u leaves FP32's range.
LARDER_DEVICE float sigmoid_product(float x, float u) {
  return u >= 88.0F ? 0.0F : x / (1.0F + expf(u));
}

struct SiluMul {
  const float* gate;
  const float* up;
  float* out;
  LARDER_MEMBER void operator()(std::int64_t i) const {
    out[i] = sigmoid_product(gate[i], -gate[i]) * up[i];
  }
};

// 0.5 x (1 + tanh u) = x / (1 + e^-2u), u = sqrt(2 / pi) (x + 0.044715 x^3).
struct GeluMul {
  const float* gate;
  const float* up;
  float* out;
  LARDER_MEMBER void operator()(std::int64_t i) const {
    const float x = gate[i];
    const float cubic = fmaf(x * x, 0.044715F, 1.0F);
    out[i] = sigmoid_product(x, -2.0F * 0.7978845608028654F * x * cubic) * up[i];
  }
};

struct SoftCap {
  float* x;
  float cap;
  LARDER_MEMBER void operator()(std::int64_t i) const { x[i] = soft_capped(x[i], cap); }
};

struct Add {
  float* x;
  const float* y;
  LARDER_MEMBER void operator()(std::int64_t i) const { x[i] += y[i]; }
};

struct AddBias {
  float* x;
  const float* bias;
  int num_cols;
  LARDER_MEMBER void operator()(std::int64_t i) const { x[i] += bias[i % num_cols]; }
};

// A column each, so that no row is overwritten before it was read.
struct GatherRows {
  float* values;
  std::int64_t num_cols;
  const std::int32_t* rows;
  int num_rows;
  LARDER_MEMBER void operator()(std::int64_t col) const {
    for (int i = 0; i < num_rows; ++i)
      values[i * num_cols + col] = values[rows[i] * num_cols + col];
  }
};

struct Rests {
  const float* x;
  QuantizedRows q;
  float* rests;
  std::int64_t first;
  LARDER_MEMBER void operator()(std::int64_t index) const {
    const std::int64_t i = first + index;
    rests[i] = x[i] - q.scale[i / kActivationGroup] * static_cast<float>(q.q[i]);
  }
};

template <class Format>
struct Embed {
  PackedMatrix w;
  const TokenId* tokens;
  float scale;
  float* out;
  LARDER_MEMBER void operator()(std::int64_t i) const {
    const int token = tokens[i / w.num_cols];
    const std::byte* panel = w.data + token / kPanelRows * w.panel_stride_bytes;
    const float value =
        weight_at<Format>(panel, static_cast<int>(i % w.num_cols), token % kPanelRows);
    out[i] = scale == 1 ? value : value * scale;
  }
};

struct Rotations {
  RotationArgs args;
  std::int64_t first;
  LARDER_MEMBER void operator()(std::int64_t index) const {
    const std::int64_t i = first + index;
    const double angle = double(args.positions[i / args.num_pairs]) *
                         args.frequencies[i % args.num_pairs];
    args.cos[i] = static_cast<float>(cos(angle) * args.magnitude);
    args.sin[i] = static_cast<float>(sin(angle) * args.magnitude);
  }
};

}  // namespace

void rms_norm(const RmsNormArgs& args, int row_begin, int row_end) {
  // What is not there is aligned.
  const bool aligned = are_aligned(args.x, args.num_cols) && are_aligned(args.added, 0) &&
                       are_aligned(args.added_weight, 0) && are_aligned(args.weight, 0) &&
                       are_aligned(args.out, 0);
  launch(rms_norm_kernel, dim3(static_cast<unsigned>(row_end - row_begin)), kRowThreads, args, aligned,
         row_begin);
}

void first_of_best(const float* logits, int num_rows, std::int64_t num_logits, TokenId* best) {
  launch(first_of_best_kernel, dim3(static_cast<unsigned>(num_rows)), kBestThreads, logits, num_logits,
         are_aligned(logits, num_logits), best);
}

void quantize_rows(const float* x, std::int64_t ldx, const QuantizedRows& out, int row_begin,
                   int row_end) {
  const std::int64_t groups = out.num_cols / kActivationGroup;
  launch(quantize_kernel, blocks_for((row_end - row_begin) * groups * kActivationGroup, kThreads),
         kThreads, Quantize{x, ldx, out}, row_begin * groups, row_end * groups);
}

void quantization_rests(const float* x, const QuantizedRows& q, float* rests, int row_begin,
                        int row_end) {
  const std::int64_t num_cols = q.num_cols;
  for_each((row_end - row_begin) * num_cols, Rests{x, q, rests, row_begin * num_cols});
}

void embed(const EmbedArgs& args, int row_begin, int row_end) {
  const std::int64_t num_cols = args.w->num_cols;
  with_format(*args.w, [&]<class Format>() {
    for_each((row_end - row_begin) * num_cols,
             Embed<Format>{*args.w, args.tokens + row_begin, args.scale,
                           args.out + row_begin * num_cols});
  });
}

void rotations(const RotationArgs& args, int row_begin, int row_end) {
  const std::int64_t num_pairs = args.num_pairs;
  for_each((row_end - row_begin) * num_pairs, Rotations{args, row_begin * num_pairs});
}

void silu_mul(const float* gate, const float* up, float* out, std::int64_t num_values) {
  for_each(num_values, SiluMul{gate, up, out});
}
void gelu_mul(const float* gate, const float* up, float* out, std::int64_t num_values) {
  for_each(num_values, GeluMul{gate, up, out});
}
void soft_cap(float* x, std::int64_t num_values, float cap) {
  for_each(num_values, SoftCap{x, cap});
}
void add_values(float* x, const float* y, std::int64_t num_values) {
  for_each(num_values, Add{x, y});
}
void add_bias(float* x, const float* bias, int num_cols, int row_begin, int row_end) {
  for_each(std::int64_t{row_end - row_begin} * num_cols,
           AddBias{x + std::int64_t{row_begin} * num_cols, bias, num_cols});
}
void gather_rows(float* values, int num_cols, const std::int32_t* rows, int num_rows) {
  for_each(num_cols, GatherRows{values, num_cols, rows, num_rows});
}

}  // namespace larder::LARDER_CUDA_NAMESPACE
