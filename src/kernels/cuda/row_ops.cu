// Operations on rows and on flat arrays of values.
#include "kernels/cuda/float_product.h"

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

// Calls function(col, four columns of each row) for a thread's part of the columns, in order; past the end
// they are `past`. Loads kAtOnce times before it calls.
template <int kThreadsOfRow, int kRows, class Function>
LARDER_DEVICE void for_columns(const float* const (&rows)[kRows], int num_cols, bool aligned,
                               float past, const Function& function) {
  constexpr int kStride = 4 * kThreadsOfRow;
  for (int first = thread_index() * 4; first < num_cols; first += kAtOnce * kStride) {
    Floats4 fours[kAtOnce][kRows];
    LARDER_UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      const int col = first + i * kStride;
      LARDER_UNROLL
      for (int r = 0; r < kRows; ++r) fours[i][r] = load_x(rows[r] + col, num_cols - col, aligned, past);
    }
    LARDER_UNROLL
    for (int i = 0; i < kAtOnce; ++i)
      if (first + i * kStride < num_cols) function(first + i * kStride, fours[i]);
  }
}

struct RmsNorm {
  const float* x;
  const float* weight;
  float epsilon;
  float* out;
  int num_cols;
  bool aligned;
};

// A block per row. A thread sums its columns in order; then by halves of a warp; then the warps in order.
LARDER_KERNEL rms_norm_kernel(RmsNorm norm, int row_begin) {
  LARDER_SHARED float warp_sums[kRowThreads / 32];
  wait_for_kernels_before();
  const std::int64_t row = row_begin + static_cast<int>(blockIdx.x);
  const float* x = norm.x + row * norm.num_cols;
  float sum = 0;
  for_columns<kRowThreads>({x}, norm.num_cols, norm.aligned, 0, [&](int, const Floats4 (&of)[1]) {
    LARDER_UNROLL
    for (const float value : of[0].value) sum = fmaf(value, value, sum);
  });
  sum = warp_sum(sum);
  if (thread_index() % 32 == 0) warp_sums[thread_index() / 32] = sum;
  sync_block();
  sum = 0;
  for (int warp = 0; warp < kRowThreads / 32; ++warp) sum += warp_sums[warp];
  const float scale = 1.0F / sqrtf(sum / static_cast<float>(norm.num_cols) + norm.epsilon);
  float* out = norm.out + row * norm.num_cols;
  for_columns<kRowThreads>(
      {x, norm.weight}, norm.num_cols, norm.aligned, 0, [&](int col, const Floats4 (&of)[2]) {
        LARDER_UNROLL
        for (int j = 0; j < 4; ++j)
          if (col + j < norm.num_cols) out[col + j] = of[0].value[j] * scale * of[1].value[j];
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
  Best best = {kLowest, 0};
  for_columns<kBestThreads>({row}, static_cast<int>(num_logits), aligned, kLowest,
                            [&](int col, const Floats4 (&of)[1]) {
                              LARDER_UNROLL
                              for (int j = 0; j < 4; ++j)
                                if (of[0].value[j] > best.logit) best = {of[0].value[j], col + j};
                            });
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
  const float largest = warp_max(fabsf(x));
  // Below this 127 / largest would be infinite; such a group is nothing beside any other.
  const bool tiny = !(largest > 1e-30F);
  const int q = nearest_int(x * (tiny ? 0.0F : 127.0F / largest));
  const int half_sum = warp_sum<16>(q);
  args.out.q[index * kActivationGroup + lane] = static_cast<std::int8_t>(q);
  if (lane == 0) args.out.scale[index] = tiny ? 0.0F : largest / 127.0F;
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

struct Copy {
  float* to;
  const float* from;
  LARDER_MEMBER void operator()(std::int64_t i) const { to[i] = from[i]; }
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

struct Rope {
  float* x;
  std::int64_t ldx;
  int num_heads;
  int head_dim;
  int half;  // pairs
  const float* cos;
  const float* sin;
  bool interleaved;
  std::int64_t first;

  LARDER_MEMBER void operator()(std::int64_t index) const {
    const std::int64_t i = first + index;
    const std::int64_t row = i / half / num_heads;
    const int pair = static_cast<int>(i % half);
    float* head = x + row * ldx + i / half % num_heads * head_dim;
    float* to_a = interleaved ? head + 2 * pair : head + pair;
    float* to_b = interleaved ? to_a + 1 : to_a + half;
    const float c = cos[row * half + pair];
    const float s = sin[row * half + pair];
    const float a = *to_a;
    const float b = *to_b;
    *to_a = a * c - b * s;
    *to_b = a * s + b * c;
  }
};

}  // namespace

void rms_norm(const float* x, const float* weight, float epsilon, float* out, int num_cols,
              int row_begin, int row_end) {
  launch(rms_norm_kernel, dim3(static_cast<unsigned>(row_end - row_begin)), kRowThreads,
         RmsNorm{x, weight, epsilon, out, num_cols, are_aligned(x, num_cols) && are_aligned(weight, 0)},
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
void add_values(float* x, const float* y, std::int64_t num_values) {
  for_each(num_values, Add{x, y});
}
void add_bias(float* x, const float* bias, int num_cols, int row_begin, int row_end) {
  for_each(std::int64_t{row_end - row_begin} * num_cols,
           AddBias{x + std::int64_t{row_begin} * num_cols, bias, num_cols});
}
void copy_values(float* to, const float* from, std::int64_t num_values) {
  for_each(num_values, Copy{to, from});
}
void gather_rows(float* values, int num_cols, const std::int32_t* rows, int num_rows) {
  for_each(num_cols, GatherRows{values, num_cols, rows, num_rows});
}

void rope(float* x, std::int64_t ldx, int num_heads, int head_dim, int rope_dim, const float* cos,
          const float* sin, bool interleaved, int row_begin, int row_end) {
  const std::int64_t pairs_per_row = std::int64_t{num_heads} * (rope_dim / 2);
  for_each((row_end - row_begin) * pairs_per_row,
           Rope{x, ldx, num_heads, head_dim, rope_dim / 2, cos, sin, interleaved,
                row_begin * pairs_per_row});
}

}  // namespace larder::LARDER_CUDA_NAMESPACE
