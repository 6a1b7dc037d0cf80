// Operations on rows and on flat arrays of values.
#include "kernels/cpu/functions.h"
#if defined(LARDER_ISA_AVX512)
#include "kernels/cpu/quantize_avx512.h"
#endif

namespace larder::LARDER_ISA_NAMESPACE {

// Lines that are written lie in other cores' caches, which read them last: stores would wait for one
// after the other, in order. So far ahead they are fetched to be written.
static constexpr int kWriteAhead = 128;  // floats
static constexpr int kGroupsWriteAhead = 16;
static constexpr int kGroupsAtOnce = 4;

// Sum of squares: lane i of the vectors takes columns i, i + 16, ...; then the lanes are folded.
static float sum_of_squares(const float* x, int num_cols) {
  V16 sum = zero();
  int col = 0;
  for (; col + 16 <= num_cols; col += 16) {
    const V16 v = load(x + col);
    sum = fma(v, v, sum);
  }
  if (col < num_cols) {
    const V16 v = load_partial(x + col, num_cols - col);
    sum = fma(v, v, sum);
  }
  return reduce_add(sum);
}

void rms_norm_row(const float* x, const float* weight, float epsilon, float* out, int num_cols) {
  const float mean = sum_of_squares(x, num_cols) / static_cast<float>(num_cols);
  const V16 scale = set1(1.0F / __builtin_sqrtf(mean + epsilon));
  int col = 0;
  for (; col + 16 <= num_cols; col += 16) {
    store(out + col, mul(mul(load(x + col), scale), load(weight + col)));
  }
  const int rest = num_cols - col;
  if (rest > 0) {
    const V16 v = mul(mul(load_partial(x + col, rest), scale), load_partial(weight + col, rest));
    store_partial(out + col, v, rest);
  }
}

void rms_norm(const RmsNormArgs& args, int row_begin, int row_end) {
  const int num_cols = args.num_cols;
  for (int row = row_begin; row < row_end; ++row) {
    const int64_t first = int64_t{row} * num_cols;
    float* x = args.x + first;
    float* out = args.out + first;
    if (args.added != nullptr) {
      const float* added = args.added + first;
      if (args.added_weight != nullptr) {
        rms_norm_row(added, args.added_weight, args.epsilon, out, num_cols);
        added = out;
      }
      add_values(x, added, num_cols);
    }
    if (args.weight != nullptr)
      rms_norm_row(x, args.weight, args.epsilon, out, num_cols);
    else if (out != x)
      memcpy(out, x, sizeof(float) * static_cast<size_t>(num_cols));
  }
}

// One group of 32 columns. Division and rounding are IEEE's: the same bits on every instruction
// set. A NaN or an infinity has no code, so that products of its group are NaN by its scale: the
// one that x86 makes itself, since of two NaN a sum keeps either.
static void quantize_group(const float* x, int8_t* q, float* scale, int32_t* sum) {
  const V16 low = load(x);
  const V16 high = load(x + 16);
  const float largest = largest_magnitude(low, high);
  if (!(largest < __builtin_inff())) {
    memset(q, 0, kActivationGroup);
    *scale = -__builtin_nanf("");
    sum[0] = sum[1] = 0;
    return;
  }
  // Below this 127 / largest would be infinite; such a group is nothing beside any other.
  const bool tiny = !(largest > 1e-30F);
  const V16 inverse = set1(tiny ? 0.0F : 127.0F / largest);
  const I16 q_low = to_int(mul(low, inverse));
  const I16 q_high = to_int(mul(high, inverse));
  store_int8(q, q_low);
  store_int8(q + 16, q_high);
  *scale = tiny ? 0.0F : largest / 127.0F;
  sum[0] = reduce_add_int(q_low);
  sum[1] = reduce_add_int(q_high);
}

// [group, group + count) of one row; out's are from the row's first group on.
static void quantize_groups(const float* x, int8_t* q, float* scale, int32_t* sum, int group,
                            int count) {
#if defined(LARDER_ISA_AVX512)
  if (count == kGroupsAtOnce &&
      quantize_four_groups(x + group * kActivationGroup, q + group * kActivationGroup,
                           scale + group, sum + 2 * group))
    return;
#endif
  for (int g = group; g < group + count; ++g)
    quantize_group(x + g * kActivationGroup, q + g * kActivationGroup, scale + g, sum + 2 * g);
}

void quantize_rows(const float* x, int64_t ldx, const QuantizedRows& out, int row_begin,
                   int row_end) {
  const int groups = out.num_cols / kActivationGroup;
  for (int row = row_begin; row < row_end; ++row) {
    const int64_t first = int64_t{row} * groups;
    int8_t* q = out.q + first * kActivationGroup;
    float* scale = out.scale + first;
    int32_t* sum = out.sum + 2 * first;
    for (int group = 0; group < groups; group += kGroupsAtOnce) {
      const int ahead = group + kGroupsWriteAhead;
      prefetch_to_write(q + ahead * kActivationGroup);
      prefetch_to_write(q + ahead * kActivationGroup + 64);
      prefetch_to_write(scale + ahead);
      prefetch_to_write(sum + 2 * ahead);
      quantize_groups(x + row * ldx, q, scale, sum, group, min_of(kGroupsAtOnce, groups - group));
    }
  }
}

void quantization_rests(const float* x, const QuantizedRows& q, float* rests, int row_begin,
                        int row_end) {
  const int64_t groups = q.num_cols / kActivationGroup;
  for (int64_t group = row_begin * groups; group < row_end * groups; ++group) {
    for (int64_t i = group * kActivationGroup; i < (group + 1) * kActivationGroup; ++i) {
      rests[i] = x[i] - q.scale[group] * static_cast<float>(q.q[i]);
    }
  }
}

void embed(const EmbedArgs& args, int row_begin, int row_end) {
  const int num_cols = args.w->num_cols;
  for (int row = row_begin; row < row_end; ++row) {
    float* values = args.out + int64_t{row} * num_cols;
    unpack_row(*args.w, args.tokens[row], values);
    if (args.scale == 1) continue;
    for (int i = 0; i < num_cols; ++i) values[i] *= args.scale;
  }
}

void rotations(const RotationArgs& args, int row_begin, int row_end) {
  for (int row = row_begin; row < row_end; ++row) {
    const double position = args.positions[row];
    float* cos = args.cos + int64_t{row} * args.num_pairs;
    float* sin = args.sin + int64_t{row} * args.num_pairs;
    for (int i = 0; i < args.num_pairs; ++i) {
      const double angle = position * args.frequencies[i];
      cos[i] = static_cast<float>(__builtin_cos(angle) * args.magnitude);
      sin[i] = static_cast<float>(__builtin_sin(angle) * args.magnitude);
    }
  }
}

// x / (1 + e^u); 0 where e^u leaves FP32's range.
LARDER_INLINE V16 sigmoid_product(V16 x, V16 u) {
  const V16 y = div(x, add(set1(1.0F), exp(u)));
  return select_ge(u, set1(88.0F), zero(), y);
}

LARDER_INLINE V16 silu(V16 x) { return sigmoid_product(x, sub(zero(), x)); }

// 0.5 x (1 + tanh u) = x / (1 + e^-2u), u = sqrt(2 / pi) (x + 0.044715 x^3).
LARDER_INLINE V16 gelu(V16 x) {
  const V16 cubic = fma(mul(x, x), set1(0.044715F), set1(1.0F));
  const V16 minus_2u = mul(mul(set1(-2.0F * 0.7978845608028654F), x), cubic);
  return sigmoid_product(x, minus_2u);
}

// out = function(gate, up).
template <class Function>
LARDER_INLINE void combine(const float* gate, const float* up, float* out, int64_t num_values, const Function& function) {
  int64_t i = 0;
  for (; i + 16 <= num_values; i += 16) {
    prefetch_to_write(out + i + kWriteAhead);
    store(out + i, function(load(gate + i), load(up + i)));
  }
  const int rest = static_cast<int>(num_values - i);
  if (rest > 0) store_partial(out + i, function(load_partial(gate + i, rest), load_partial(up + i, rest)), rest);
}

void silu_mul(const float* gate, const float* up, float* out, int64_t num_values) {
  combine(gate, up, out, num_values, [](V16 g, V16 u) LARDER_INLINE_LAMBDA { return mul(silu(g), u); });
}

void gelu_mul(const float* gate, const float* up, float* out, int64_t num_values) {
  combine(gate, up, out, num_values, [](V16 g, V16 u) LARDER_INLINE_LAMBDA { return mul(gelu(g), u); });
}

void clamped_swiglu(const float* gate, const float* up, float* out, int64_t num_values) {
  combine(gate, up, out, num_values, [](V16 g, V16 u) LARDER_INLINE_LAMBDA {
    // The bounds come first: what is NaN stays so.
    const V16 bounded = min(set1(7.0F), g);
    const V16 linear = add(min(set1(7.0F), max(set1(-7.0F), u)), set1(1.0F));
    return mul(sigmoid_product(bounded, mul(bounded, set1(-1.702F))), linear);
  });
}

void soft_cap(float* x, int64_t num_values, float cap) {
  const V16 caps = set1(cap);
  const V16 inverse = set1(1.0F / cap);
  int64_t i = 0;
  for (; i + 16 <= num_values; i += 16) store(x + i, soft_capped(load(x + i), caps, inverse));
  const int rest = static_cast<int>(num_values - i);
  if (rest > 0) store_partial(x + i, soft_capped(load_partial(x + i, rest), caps, inverse), rest);
}

void add_values(float* x, const float* y, int64_t num_values) {
  int64_t i = 0;
  for (; i + 16 <= num_values; i += 16) {
    prefetch_to_write(x + i + kWriteAhead);
    store(x + i, add(load(x + i), load(y + i)));
  }
  const int rest = static_cast<int>(num_values - i);
  if (rest > 0)
    store_partial(x + i, add(load_partial(x + i, rest), load_partial(y + i, rest)), rest);
}

void add_bias(float* x, const float* bias, int num_cols, int row_begin, int row_end) {
  for (int row = row_begin; row < row_end; ++row)
    add_values(x + int64_t{row} * num_cols, bias, num_cols);
}

void gather_rows(float* values, int num_cols, const int32_t* rows, int num_rows) {
  const size_t row_bytes = static_cast<size_t>(num_cols) * sizeof(float);
  for (int i = 0; i < num_rows; ++i)
    memmove(values + int64_t{i} * num_cols, values + int64_t{rows[i]} * num_cols, row_bytes);
}

// Two multiplications and one addition each, rounded apart on every instruction set.
static void rotate_halves(float* x, int half, const float* cos, const float* sin) {
  float* second = x + half;
  int i = 0;
  for (; i + 16 <= half; i += 16) {
    const V16 a = load(x + i);
    const V16 b = load(second + i);
    const V16 c = load(cos + i);
    const V16 s = load(sin + i);
    store(x + i, sub(mul(a, c), mul(b, s)));
    store(second + i, add(mul(a, s), mul(b, c)));
  }
  for (; i < half; ++i) {
    const float a = x[i];
    const float b = second[i];
    x[i] = a * cos[i] - b * sin[i];
    second[i] = a * sin[i] + b * cos[i];
  }
}

static void rotate_neighbours(float* x, int half, const float* cos, const float* sin) {
  int i = 0;
  for (; i + 8 <= half; i += 8) store(x + 2 * i, rotate_pairs(load(x + 2 * i), cos + i, sin + i));
  for (; i < half; ++i) {
    const float a = x[2 * i];
    const float b = x[2 * i + 1];
    x[2 * i] = a * cos[i] - b * sin[i];
    x[2 * i + 1] = a * sin[i] + b * cos[i];
  }
}

void rotate(float* x, int rope_dim, const float* cos, const float* sin, bool interleaved) {
  (interleaved ? rotate_neighbours : rotate_halves)(x, rope_dim / 2, cos, sin);
}

}  // namespace larder::LARDER_ISA_NAMESPACE
