#include "model/forward/shared_products.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/ops.h"
#include "model/forward/activation.h"
#include "model/forward/quantized_rows.h"
#include "model/forward/row_tasks.h"
#include "model/forward/scratch_placer.h"

namespace larder {
namespace {

std::size_t product_of(std::int64_t rows, std::int64_t cols) {
  return static_cast<std::size_t>(rows) * static_cast<std::size_t>(cols);
}

std::size_t values_bytes(std::int64_t rows, std::int64_t cols) { return product_of(rows, cols) * sizeof(float); }

std::size_t codes_bytes(std::int64_t rows, std::int64_t cols) {
  return product_of(rows, cols) + values_bytes(rows, cols / kActivationGroup);
}

int input_rows(const SharedStage& stage, int num_rows) { return stage.takes_rests ? 2 * num_rows : num_rows; }

int widest_input(const ModelConfig& config) {
  return std::max({config.hidden_size, config.o_size(), config.ffn_size});
}

// The sums over each 16 codes, which a sender leaves out.
void sum_codes(const std::int8_t* q, std::int64_t count, std::int32_t* sums) {
  for (std::int64_t i = 0; i < count; i += 16) {
    std::int32_t sum = 0;
    for (int k = 0; k < 16; ++k) sum += q[i + k];
    sums[i / 16] = sum;
  }
}

template <class T>
T* at(std::byte* bytes, std::size_t offset) {
  return reinterpret_cast<T*>(bytes + offset);
}

}  // namespace

bool SharedModel::is_shared(const ModelConfig& config, StageId id) {
  const bool has_experts =
      id.stage != Stage::kLogits && config.layers[static_cast<std::size_t>(id.layer)].has_experts;
  switch (id.stage) {
    case Stage::kHeads:
      return config.latent.rank == 0;
    case Stage::kGate:
    case Stage::kDown:
      return !has_experts;
    case Stage::kOutput:
    case Stage::kLogits:
      break;
  }
  return true;
}

SharedStage SharedModel::make_heads(int layer, bool has_queries) const {
  const LayerWeights& w = weights_.layer(layer);
  SharedStage stage;
  stage.takes_rests = wants_int8(w.v);
  // V's bias comes between its products and those of the rests, see Transformer::refine_input().
  SharedProduct v = product(w.v, config_.kv_size(), stage.takes_rests ? nullptr : w.v_bias);
  v.has_rests = stage.takes_rests;
  stage.products = {product(w.k, config_.kv_size(), w.k_bias), v, product(w.q, config_.q_size(), w.q_bias)};
  stage.num_products = has_queries ? 3 : 2;
  stage.num_cols = config_.hidden_size;
  return stage;
}

SharedStage SharedModel::make_gate(int layer) const {
  const LayerWeights& w = weights_.layer(layer);
  SharedStage stage;
  stage.products = {product(w.gate, config_.ffn_size), product(w.up, config_.ffn_size)};
  stage.num_products = 2;
  stage.num_cols = config_.hidden_size;
  stage.activates = true;
  stage.gives_codes = wants_int8(w.down);
  return stage;
}

SharedStage SharedModel::stage(StageId id) const {
  CHECK(is_shared(config_, id));
  SharedStage stage;
  stage.num_products = 1;
  switch (id.stage) {
    case Stage::kHeads:
      stage = make_heads(id.layer, id.has_queries);
      break;
    case Stage::kOutput:
      stage.products = {product(weights_.layer(id.layer).o, config_.hidden_size, weights_.layer(id.layer).o_bias)};
      stage.num_cols = config_.o_size();
      break;
    case Stage::kGate:
      stage = make_gate(id.layer);
      break;
    case Stage::kDown:
      stage.products = {product(weights_.layer(id.layer).down, config_.hidden_size)};
      stage.num_cols = config_.ffn_size;
      break;
    case Stage::kLogits:
      stage.products = {product(weights_.output(), config_.vocab_size)};
      stage.num_cols = config_.hidden_size;
      break;
  }
  for (int i = 0; i < stage.num_products; ++i) {
    const bool int8 = wants_int8(*stage.products[static_cast<std::size_t>(i)].w);
    (int8 ? stage.takes_codes : stage.takes_values) = true;
  }
  return stage;
}

std::size_t stage_input_bytes(const SharedStage& stage, int num_rows) {
  return (stage.takes_codes ? codes_bytes(input_rows(stage, num_rows), stage.num_cols) : 0) +
         (stage.takes_values ? values_bytes(num_rows, stage.num_cols) : 0);
}

std::size_t stage_reply_bytes(const SharedStage& stage, const MachineShare& share, int num_rows) {
  if (stage.activates) {
    const int num_cols = share.rows_of(stage.products[0].num_outputs).size();
    return stage.gives_codes ? codes_bytes(num_rows, num_cols) : values_bytes(num_rows, num_cols);
  }
  std::size_t bytes = 0;
  for (int i = 0; i < stage.num_products; ++i) {
    const SharedProduct& product = stage.products[static_cast<std::size_t>(i)];
    bytes += values_bytes(product.has_rests ? 2 * num_rows : num_rows, share.rows_of(product.num_outputs).size());
  }
  return bytes;
}

std::size_t max_stage_input_bytes(const ModelConfig& config, const StageLimits& limits) {
  const int cols = widest_input(config);
  const int whole_groups = (cols + kActivationGroup - 1) / kActivationGroup * kActivationGroup;
  return codes_bytes(std::int64_t{2} * limits.max_rows, whole_groups) + values_bytes(limits.max_rows, cols);
}

std::size_t max_stage_reply_bytes(const ModelConfig& config, const StageLimits& limits, const MachineShare& share) {
  const auto rows_of = [&](int num_outputs) { return std::int64_t{share.rows_of(num_outputs).size()}; };
  const std::int64_t heads = rows_of(config.q_size()) + 3 * rows_of(config.kv_size());
  const std::int64_t widest = std::max({heads, rows_of(config.hidden_size), rows_of(config.ffn_size)});
  return std::max(values_bytes(limits.max_rows, widest),
                  values_bytes(limits.max_logit_rows, rows_of(config.vocab_size)));
}

void write_stage_input(const SharedStage& stage, const float* x, const QuantizedRows& codes, int num_rows,
                       std::byte* out) {
  if (stage.takes_codes) {
    const std::size_t count = product_of(input_rows(stage, num_rows), stage.num_cols);
    std::memcpy(out, codes.q, count);
    std::memcpy(out + count, codes.scale, count / kActivationGroup * sizeof(float));
    out += count + count / kActivationGroup * sizeof(float);
  }
  if (stage.takes_values) std::memcpy(out, x, values_bytes(num_rows, stage.num_cols));
}

void read_codes(const std::byte* from, int num_rows, int num_cols, const QuantizedRows& to, int first_col) {
  const auto* q = reinterpret_cast<const std::int8_t*>(from);
  const std::byte* scales = from + product_of(num_rows, num_cols);
  const std::size_t scale_bytes = static_cast<std::size_t>(num_cols / kActivationGroup) * sizeof(float);
  for (std::int64_t row = 0; row < num_rows; ++row) {
    const std::int64_t first = row * to.num_cols + first_col;
    std::memcpy(to.q + first, q + row * num_cols, static_cast<std::size_t>(num_cols));
    std::memcpy(to.scale + first / kActivationGroup, scales + static_cast<std::size_t>(row) * scale_bytes, scale_bytes);
    sum_codes(q + row * num_cols, num_cols, to.sum + first / 16);
  }
}

struct StageScratchPlan {
  StageComputer::Buffers buffers;
  std::size_t size_bytes = 0;

  StageScratchPlan(const ModelConfig& config, const StageLimits& limits, const MachineShare& share, std::byte* base) {
    const auto rows = static_cast<std::size_t>(limits.max_rows);
    const auto inputs = static_cast<std::size_t>(widest_input(config));
    const auto ffn = static_cast<std::size_t>(share.rows_of(config.ffn_size).size());
    ScratchPlacer placer(base);
    buffers.reply = placer.place<std::byte>(max_stage_reply_bytes(config, limits, share));
    buffers.input.sum = placer.place<std::int32_t>(2 * rows * (inputs / 16 + 2));
    buffers.gate = placer.place<float>(rows * ffn);
    buffers.up = placer.place<float>(rows * ffn);
    buffers.sums = placer.place<std::int32_t>(rows * (ffn / 16 + 2));
    size_bytes = placer.size_bytes();
  }
};

std::size_t StageComputer::size_bytes(const ModelConfig& config, const StageLimits& limits, const MachineShare& share) {
  return StageScratchPlan(config, limits, share, nullptr).size_bytes;
}

StageComputer::StageComputer(const SharedModel& model, const MachineShare& share, const KernelTable& kernels,
                             ThreadPool& pool, const StageLimits& limits)
    : model_(model),
      share_(share),
      kernels_(kernels),
      pool_(pool),
      scratch_(size_bytes(model.config(), limits, share), true),
      buffers_(StageScratchPlan(model.config(), limits, share, scratch_.data()).buffers) {}

// Where the codes lie goes to buffers_.input, which kernels do not write; the values are returned, if there are any.
const float* StageComputer::take_input(const SharedStage& stage, int num_rows, std::span<const std::byte> input) {
  auto* bytes = const_cast<std::byte*>(input.data());
  std::size_t offset = 0;
  if (stage.takes_codes) {
    const std::size_t count = product_of(input_rows(stage, num_rows), stage.num_cols);
    buffers_.input.q = at<std::int8_t>(bytes, 0);
    buffers_.input.scale = at<float>(bytes, count);
    buffers_.input.num_cols = stage.num_cols;
    offset = count + count / kActivationGroup * sizeof(float);
    for_row_tasks(pool_, input_rows(stage, num_rows), [&](int begin, int end) {
      const std::int64_t first = std::int64_t{begin} * stage.num_cols;
      sum_codes(buffers_.input.q + first, std::int64_t{end - begin} * stage.num_cols, buffers_.input.sum + first / 16);
    });
  }
  return stage.takes_values ? at<float>(bytes, offset) : nullptr;
}

// gate and up, [num_rows, num_cols], to the reply.
void StageComputer::activate(const SharedStage& stage, int num_rows, int num_cols) {
  const auto function = activation_kernel(kernels_, model_.config().activation);
  float* out = stage.gives_codes ? buffers_.gate : at<float>(buffers_.reply, 0);
  const std::size_t count = product_of(num_rows, num_cols);
  const QuantizedRows codes{.q = at<std::int8_t>(buffers_.reply, 0),
                            .scale = at<float>(buffers_.reply, count),
                            .sum = buffers_.sums,
                            .num_cols = num_cols};
  for_row_tasks(pool_, num_rows, [&](int begin, int end) {
    const std::int64_t first = std::int64_t{begin} * num_cols;
    function(buffers_.gate + first, buffers_.up + first, out + first, std::int64_t{end - begin} * num_cols);
    if (stage.gives_codes) kernels_.quantize_rows(out, num_cols, codes, begin, end);
  });
}

std::span<const std::byte> StageComputer::compute(StageId id, int num_rows, std::span<const std::byte> input) {
  const SharedStage stage = model_.stage(id);
  CHECK(input.size() == stage_input_bytes(stage, num_rows), input.size());
  const float* x = take_input(stage, num_rows, input);
  std::array<MatmulArgs, 3> args;
  std::size_t count = 0, offset = 0;
  for (int i = 0; i < stage.num_products; ++i) {
    const SharedProduct& product = stage.products[static_cast<std::size_t>(i)];
    const RowRange rows = share_.rows_of(product.num_outputs);
    if (rows.size() == 0) continue;
    const int product_rows = product.has_rests ? 2 * num_rows : num_rows;
    float* y = at<float>(buffers_.reply, offset);
    if (stage.activates) y = i == 0 ? buffers_.gate : buffers_.up;
    args[count++] = {.w = product.w,
                     .x = x,
                     .xq = model_.wants_int8(*product.w) ? &buffers_.input : nullptr,
                     .rounds_to_bf16 = model_.int8(),
                     .bias = product.bias != nullptr ? product.bias + rows.begin : nullptr,
                     .y = y,
                     .num_rows = product_rows,
                     .ldx = stage.num_cols,
                     .ldy = rows.size()};
    offset += values_bytes(product_rows, rows.size());
  }
  if (count > 0) matmul(kernels_, pool_, std::span(args).first(count));
  if (stage.activates && count > 0) activate(stage, num_rows, share_.rows_of(stage.products[0].num_outputs).size());
  return {buffers_.reply, stage_reply_bytes(stage, share_, num_rows)};
}

}  // namespace larder
