#include "model/forward/transformer.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "model/forward/activation.h"
#include "model/forward/key_calibration.h"
#include "model/forward/quantized_rows.h"
#include "model/forward/row_tasks.h"
#include "model/forward/scratch_plan.h"

namespace larder {

namespace {

StagingLimits staging_limits(const TransformerLimits& limits, int num_groups) {
  return {.max_tokens = limits.max_batch_tokens,
          .max_logit_rows = limits.max_logit_rows,
          .max_draws = limits.max_sequences,
          .max_sequences = std::min(limits.max_sequences, limits.max_batch_tokens),
          .max_context_len = limits.max_context_len,
          .num_groups = num_groups};
}

// Of one of the ropes.
std::size_t frequencies_size_bytes(const ModelConfig& config) {
  return static_cast<std::size_t>(config.rope_dim) / 2 * sizeof(double);
}

}  // namespace

Transformer::Transformer(const ModelConfig& config, const Weights& weights, const KvLayout& layout,
                         const KernelTable& kernels, ThreadPool& pool,
                         const TransformerLimits& limits, Device* device, ProductPartners* partners)
    : config_(config),
      weights_(weights),
      layout_(layout),
      kernels_(kernels),
      pool_(pool),
      limits_(limits),
      attention_op_(pool, limits.max_batch_tokens, config.num_heads, config.head_dim,
                    limits.max_context_len, device),
      scratch_(device, ScratchPlan(config, limits, device != nullptr, nullptr).size_bytes, true),
      buffers_(ScratchPlan(config, limits, device != nullptr, scratch_.data()).buffers),
      partners_(partners),
      shared_(config, weights, kernels, limits.activations == ActivationType::kInt8),
      device_(device) {
  CHECK(limits.split.is_shared() == (partners != nullptr) && (partners == nullptr || device == nullptr),
        limits.split.num_machines());
  CHECK(kernels.is_device() == (device != nullptr), kernels.name);
  CHECK(limits.max_batch_tokens > 0 && limits.max_logit_rows > 0, limits.max_batch_tokens,
        limits.max_logit_rows);
  CHECK(limits.max_logit_rows <= limits.max_batch_tokens, limits.max_logit_rows);
  CHECK(layout.num_layers() == config.num_layers(), layout.num_layers());
  if (config.experts.num_experts > 0) {
    CHECK(device == nullptr, kernels.name);
    expert_layers_.emplace(config, kernels, pool, limits.max_batch_tokens,
                           limits.activations == ActivationType::kInt8);
  }
  if (config.latent.rank > 0) {
    CHECK(device == nullptr, kernels.name);
    latent_.emplace(config, kernels, pool, limits.max_batch_tokens, limits.activations == ActivationType::kInt8);
  }
  if (config.temperature.scale != 0) CHECK(device == nullptr, kernels.name);
  for (const RopeConfig& rope : config.ropes) rope_frequencies_.push_back(rope.frequencies.data());
  reserve_sharing();
  if (device != nullptr) prepare_device();
}

void Transformer::prepare_device() {
  CHECK(config_.head_dim <= device_->max_head_dim(), config_.head_dim);
  staging_.emplace(*device_, staging_limits(limits_, layout_.num_groups()));
  logits_ = host_buffer(*device_, sizeof(float) * static_cast<std::size_t>(limits_.max_logit_rows) *
                                      static_cast<std::size_t>(config_.vocab_size));
  best_ = host_buffer(*device_, sizeof(TokenId) * ScratchPlan::num_tokens_back(limits_));
  const std::size_t table_bytes = frequencies_size_bytes(config_);
  device_frequencies_ = DeviceBuffer(device_, table_bytes * config_.ropes.size());
  for (std::size_t i = 0; i < config_.ropes.size(); ++i) {
    std::byte* table = device_frequencies_.data() + i * table_bytes;
    device_->copy_in(table, reinterpret_cast<const std::byte*>(rope_frequencies_[i]), table_bytes);
    rope_frequencies_[i] = reinterpret_cast<const double*>(table);
  }
}

bool Transformer::shares_rows(int num_rows) const {
  return device_ == nullptr && num_rows >= kMinSharedRows && pool_.num_threads() > 1;
}

template <class Function>
void Transformer::for_rows(int num_rows, Function&& function) {
  if (device_ != nullptr) return function(0, num_rows);
  for_row_tasks(pool_, num_rows, function);
}

std::size_t Transformer::scratch_size_bytes() const {
  return scratch_.size_bytes() + attention_op_.scratch_size_bytes() +
         (expert_layers_ ? expert_layers_->size_bytes() : 0) + (latent_ ? latent_->size_bytes() : 0) +
         (staging_ ? staging_->size_bytes() : 0) + device_frequencies_.size_bytes();
}

std::size_t transformer_scratch_size_bytes(const ModelConfig& config,
                                           const TransformerLimits& limits, const ThreadPool& pool,
                                           const Device* device) {
  const int num_groups = KvLayout(kv_layer_shapes(config)).num_groups();
  return ScratchPlan(config, limits, device != nullptr, nullptr).size_bytes +
         (config.experts.num_experts > 0 ? ExpertLayers::size_bytes(config, limits.max_batch_tokens) : 0) +
         (config.latent.rank > 0 ? LatentAttention::size_bytes(config, limits.max_batch_tokens) : 0) +
         (device ? BatchStaging::size_bytes(staging_limits(limits, num_groups)) +
                       config.ropes.size() * frequencies_size_bytes(config)
                 : 0) +
         AttentionOp::scratch_size_bytes(pool, limits.max_batch_tokens, config.num_heads,
                                         config.head_dim, limits.max_context_len, device);
}

void Transformer::check(const ForwardBatch& batch) const {
  const auto num_tokens = static_cast<int>(batch.tokens.size());
  CHECK(num_tokens > 0 && num_tokens <= limits_.max_batch_tokens, num_tokens);
  CHECK(batch.positions.size() == batch.tokens.size(), batch.positions.size());
  CHECK(static_cast<int>(batch.groups.size()) == layout_.num_groups(), batch.groups.size());
  CHECK(static_cast<int>(batch.logit_rows.size()) <= limits_.max_logit_rows,
        batch.logit_rows.size());
  for (const TokenId token : batch.tokens) CHECK(token >= 0 && token < config_.vocab_size, token);
  for (const GroupBatch& group : batch.groups)
    CHECK(group.slots.size() == batch.tokens.size(), group.slots.size());
  for (std::size_t i = 0; i < batch.logit_rows.size(); ++i)
    CHECK(batch.logit_rows[i] < num_tokens &&
              batch.logit_rows[i] > (i == 0 ? -1 : batch.logit_rows[i - 1]),
          batch.logit_rows[i]);
  CHECK(batch.sink_positions.empty() || batch.sink_positions.size() == batch.tokens.size(),
        batch.sink_positions.size());
  CHECK(device_ == nullptr || static_cast<int>(batch.draws.size()) <= limits_.max_sequences, batch.draws.size());
  const auto is_place = [&](std::int32_t row) { return row >= 0 && row < std::ssize(batch.logit_rows); };
  for (const TokenDraw& draw : batch.draws) CHECK(is_place(draw.row), draw.row);
  if (batch.read_logits)
    for (const std::int32_t row : *batch.read_logits) CHECK(is_place(row), row);
}

Logits Transformer::forward(const ForwardBatch& batch, const KvStorage& storage) {
  return run_layers(batch, storage, 0, config_.num_layers());
}

Logits Transformer::forward_layers(const ForwardBatch& batch, const KvStorage& storage, int begin,
                                   int end) {
  CHECK(0 <= begin && begin < end && end <= config_.num_layers(), begin, end);
  CHECK(static_cast<int>(batch.tokens.size()) <= ScratchPlan::chunk_rows(limits_),
        batch.tokens.size());
  const auto exchange = [this] { std::swap(static_cast<Stream&>(buffers_), buffers_.chunk); };
  exchange();
  try {
    const Logits logits = run_layers(batch, storage, begin, end);
    exchange();
    return logits;
  } catch (const PartnerLost&) {
    exchange();
    throw;
  }
}

Logits Transformer::run_layers(const ForwardBatch& given, const KvStorage& storage, int begin,
                               int end) {
  check(given);
  ForwardBatch batch = given;
  batch.logit_sequences = list_logit_sequences(given);
  share_keys(batch);
  if (staging_) batch = staging_->stage(batch);

  const int num_rows = end < config_.num_layers() ? 0 : static_cast<int>(batch.logit_rows.size());
  {
    // Statistics are read between two layers. A part of the layers hardly comes again with the same arguments.
    const bool all_layers = begin == 0 && end == config_.num_layers();
    const DeviceStep step(all_layers && key_statistics_ == nullptr ? device_ : nullptr);
    compute_layers(batch, storage, begin, end);
    if (num_rows > 0) compute_logits(batch);
  }
  return take_logits(given, num_rows);
}

void Transformer::compute_layers(const ForwardBatch& batch, const KvStorage& storage, int begin,
                                 int end) {
  if (begin == 0) {
    embed(batch);
    compute_rotations(batch.positions, 0);
    if (!batch.sink_positions.empty())
      compute_rotations(batch.sink_positions, static_cast<std::int64_t>(config_.ropes.size()));
  }
  auto num_rows = static_cast<int>(batch.tokens.size());
  for (int layer = begin; layer < end; ++layer) {
    // Behind the last layer's keys and values nobody reads the rows that want no logits.
    const bool has_queries =
        !is_last(layer) || !batch.logit_rows.empty() || key_statistics_ != nullptr;
    project_input(batch, storage, layer, has_queries);
    if (is_last(layer)) num_rows = static_cast<int>(batch.logit_rows.size());
    if (num_rows == 0) break;
    if (is_last(layer)) gather_rows(batch.logit_rows, has_sinks(batch, layer));
    attend(batch, storage, layer);
    project_attention(num_rows, layer);
    run_mlp(num_rows, layer);
  }
}

std::span<const AttentionSequence> Transformer::list_logit_sequences(const ForwardBatch& batch) {
  logit_sequences_.clear();
  const int group = layout_.group_of(config_.num_layers() - 1);
  std::size_t next = 0;
  for (const AttentionSequence& sequence : batch.groups[static_cast<std::size_t>(group)].sequences) {
    const int end_row = sequence.first_row + sequence.num_tokens;
    int row_before = -1;
    for (; next < batch.logit_rows.size() && batch.logit_rows[next] < end_row; ++next) {
      const int row = batch.logit_rows[next];
      if (row_before < 0 || row != row_before + 1) {
        logit_sequences_.push_back(sequence);
        logit_sequences_.back().first_row = static_cast<int>(next);
        logit_sequences_.back().num_tokens = 0;
      }
      ++logit_sequences_.back().num_tokens;
      logit_sequences_.back().context_len = sequence.context_len - (end_row - row) + 1;
      row_before = row;
    }
  }
  return logit_sequences_;
}

// Moves the rows that want logits to the front.
void Transformer::gather_rows(std::span<const std::int32_t> rows, bool has_sinks) {
  const auto num_rows = static_cast<int>(rows.size());
  kernels_.gather_rows(buffers_.hidden, config_.hidden_size, rows.data(), num_rows);
  kernels_.gather_rows(buffers_.q, config_.q_size(), rows.data(), num_rows);
  if (has_sinks) kernels_.gather_rows(buffers_.q_sinks, config_.q_size(), rows.data(), num_rows);
}

void Transformer::embed(const ForwardBatch& batch) {
  const EmbedArgs args{.w = &weights_.embedding(),
                       .tokens = batch.tokens.data(),
                       .scale = config_.embedding_scale,
                       .out = buffers_.hidden};
  for_rows(static_cast<int>(batch.tokens.size()),
           [&](int begin, int end) { kernels_.embed(args, begin, end); });
}

void Transformer::compute_rotations(std::span<const std::int32_t> positions,
                                    std::int64_t first_table) {
  const int num_pairs = config_.rope_dim / 2;
  for (std::size_t rope = 0; rope < config_.ropes.size(); ++rope) {
    const RopeConfig& constants = config_.ropes[rope];
    const std::int64_t first =
        (first_table + static_cast<std::int64_t>(rope)) * limits_.max_batch_tokens;
    const RotationArgs args{.positions = positions.data(),
                            .frequencies = rope_frequencies_[rope],
                            .num_pairs = num_pairs,
                            .magnitude = constants.magnitude,
                            .cos = buffers_.cos + first * num_pairs,
                            .sin = buffers_.sin + first * num_pairs};
    for_rows(static_cast<int>(positions.size()),
             [&](int begin, int end) { kernels_.rotations(args, begin, end); });
  }
}

Transformer::Products Transformer::input_products(int layer, bool has_queries) {
  const LayerWeights& w = weights_.layer(layer);
  if (latent_) return {{Product{&w.kv_a}}, 1};
  const bool twice = wants_int8(w.v);
  const int kv_size = config_.kv_size();
  return {{Product{.w = &w.k, .bias = w.k_bias, .y = buffers_.k, .num_outputs = kv_size},
           Product{.w = &w.v, .bias = twice ? nullptr : w.v_bias, .y = buffers_.v, .twice = twice, .num_outputs = kv_size},
           Product{.w = &w.q, .bias = w.q_bias, .y = buffers_.q, .num_outputs = config_.q_size()}},
          has_queries ? 3U : 2U,
          {Stage::kHeads, has_queries, layer}};
}

Transformer::Products Transformer::output_products(int layer) {
  const LayerWeights& w = weights_.layer(layer);
  return {{Product{.w = &w.o, .bias = w.o_bias, .y = buffers_.normed, .num_outputs = config_.hidden_size}},
          1,
          {.stage = Stage::kOutput, .layer = layer}};
}

// Behind attention: the choice of experts begins with one, too, but its scores go elsewhere.
Transformer::Products Transformer::gate_products(int layer) {
  const LayerWeights& w = weights_.layer(layer);
  if (has_experts(layer)) return {{Product{&w.router}}, 1};
  return {{Product{.w = &w.gate, .y = buffers_.gate, .num_outputs = config_.ffn_size},
           Product{.w = &w.up, .y = buffers_.up, .num_outputs = config_.ffn_size}},
          2,
          {.stage = Stage::kGate, .layer = layer}};
}

Transformer::Products Transformer::down_products(int layer) {
  return {{Product{.w = &weights_.layer(layer).down, .y = buffers_.normed, .num_outputs = config_.hidden_size}},
          1,
          {.stage = Stage::kDown, .layer = layer}};
}

// The next layer's, or the logits.
Transformer::Products Transformer::products_behind(int layer) {
  if (layer + 1 < config_.num_layers()) return input_products(layer + 1);
  return {{Product{.w = &weights_.output(),
                   .y = buffers_.logits,
                   .maxima = finds_maxima_late() ? nullptr : buffers_.maxima,
                   .num_outputs = config_.vocab_size}},
          1,
          {.stage = Stage::kLogits}};
}

std::size_t Transformer::to_args(const float* x, int num_rows, const Products& products,
                                 std::span<MatmulArgs> args) const {
  for (std::size_t i = 0; i < products.count; ++i) {
    const Product& product = products.of[i];
    args[i] = {.w = product.w,
               .x = x,
               .xq = wants_int8(*product.w) ? &buffers_.quantized : nullptr,
               .rounds_to_bf16 = limits_.activations == ActivationType::kInt8,
               .bias = product.bias,
               .y = product.y,
               .num_rows = product.twice ? 2 * num_rows : num_rows,
               .ldx = product.w->num_cols,
               .ldy = product.num_outputs > 0 ? product.num_outputs : product.w->num_rows,
               .device_scratch = buffers_.product,
               .row_room = buffers_.row_room,
               .maxima = product.maxima};
  }
  return products.count;
}

template <class Prepare>
void Transformer::multiply(const float* x, int num_rows, const Products& products,
                           const Products& next, const Prepare& prepare) {
  std::array<MatmulArgs, 3> args, next_args;
  const std::size_t count = to_args(x, num_rows, products, args);
  // Many rows compute longer on what they have read than a fetch takes.
  const bool is_shared = shares_rows(num_rows);
  const std::size_t next_count = is_shared ? 0 : to_args(x, num_rows, next, next_args);
  for_rows(num_rows, prepare);
  if (partners_ != nullptr) send_stage(x, num_rows, products);
  matmul(kernels_, pool_, std::span(args).first(count), std::span(next_args).first(next_count));
  if (partners_ != nullptr) receive_stage(num_rows, products);
}

bool Transformer::wants_int8(const PackedMatrix& matrix) const {
  return limits_.activations == ActivationType::kInt8 && takes_codes(kernels_, matrix);
}

void Transformer::quantize_input(const float* x, int num_cols, int row_begin, int row_end) {
  kernels_.quantize_rows(x, num_cols, buffers_.quantized, row_begin, row_end);
}

// V takes its input in 16 bits, as two terms of 8: the matrix is small, and an error in V stays in
// the cache, where every later token reads it. The second terms are num_rows rows more behind the
// first, and so are their products.
void Transformer::refine_input(int num_rows, int row_begin, int row_end) {
  quantize_rests(kernels_, buffers_.normed, buffers_.quantized, num_rows, buffers_.rest, row_begin, row_end);
}

void Transformer::add_rests_of_v(int num_rows, const float* bias, int row_begin, int row_end) {
  const std::int64_t kv_size = config_.kv_size();
  if (bias != nullptr)
    kernels_.add_bias(buffers_.v, bias, config_.kv_size(), row_begin, row_end);
  float* v = buffers_.v + row_begin * kv_size;
  kernels_.add(v, v + num_rows * kv_size, (row_end - row_begin) * kv_size);
}

bool Transformer::has_sinks(const ForwardBatch& batch, int layer) const {
  return !batch.sink_positions.empty() &&
         config_.layers[static_cast<std::size_t>(layer)].window == 0;
}

void Transformer::project_heads(int num_rows, int layer, bool has_queries) {
  const LayerWeights& w = weights_.layer(layer);
  const int hidden_size = config_.hidden_size;
  const bool twice = wants_int8(w.v);
  const bool int8_input = wants_int8(w.q) || wants_int8(w.k) || twice;
  buffers_.quantized.num_cols = hidden_size;
  multiply(buffers_.normed, num_rows, input_products(layer, has_queries), output_products(layer),
           [&](int begin, int end) {
             norm_behind(layer, w.attention_norm, begin, end);
             if (int8_input) quantize_input(buffers_.normed, hidden_size, begin, end);
             if (twice) refine_input(num_rows, begin, end);
           });
}

void Transformer::project_latent(int num_rows, int layer, bool has_queries) {
  const LayerWeights& w = weights_.layer(layer);
  for_rows(num_rows, [&](int begin, int end) { norm_behind(layer, w.attention_norm, begin, end); });
  latent_->project(w, buffers_.normed, num_rows, buffers_.k, has_queries ? buffers_.q : nullptr);
}

void Transformer::project_input(const ForwardBatch& batch, const KvStorage& storage, int layer,
                                bool has_queries) {
  const LayerWeights& w = weights_.layer(layer);
  const int num_rows = static_cast<int>(batch.tokens.size());
  const bool twice = wants_int8(w.v);
  if (latent_)
    project_latent(num_rows, layer, has_queries);
  else
    project_heads(num_rows, layer, has_queries);

  const GroupBatch& group = batch.groups[static_cast<std::size_t>(layout_.group_of(layer))];
  const PagedKvView kv = storage.view(layer);
  const std::int64_t q_size = config_.q_size();
  const bool sinks = has_sinks(batch, layer);
  for_rows(num_rows, [&](int begin, int end) {
    begin = next_block(group.slots, begin);
    end = next_block(group.slots, end);
    if (twice) add_rests_of_v(num_rows, w.v_bias, begin, end);
    if (config_.norms_heads_together) norm_heads_together(layer, has_queries, begin, end);
    kernels_.store_kv({.kv = kv,
                       .k = buffers_.k,
                       .v = buffers_.v,
                       .ldk = config_.kv_size(),
                       .ldv = config_.kv_size(),
                       .slots = group.slots.data(),
                       .rope = rope_args(layer, has_queries, sinks)},
                      begin, end);
    if (!has_queries) return;
    if (config_.temperature.scale != 0) apply_temperature(batch, sinks, begin, end);
    kernels_.to_key_basis(kv, config_.num_heads, buffers_.q, q_size, begin, end);
    if (sinks) kernels_.to_key_basis(kv, config_.num_heads, buffers_.q_sinks, q_size, begin, end);
  });
  if (key_statistics_ != nullptr)
    key_statistics_->add(layer, buffers_.q, buffers_.k, batch.positions, device_);
}

void Transformer::attend(const ForwardBatch& batch, const KvStorage& storage, int layer) {
  const GroupBatch& group = batch.groups[static_cast<std::size_t>(layout_.group_of(layer))];
  const std::span<const AttentionSequence> sequences =
      is_last(layer) ? batch.logit_sequences : group.sequences;
  const std::span<const CommonKeys> common = is_last(layer) ? batch.logit_common : group.common;
  attention_op_.run(kernels_, {.kv = storage.view(layer),
                               .q = buffers_.q,
                               .ldq = config_.q_size(),
                               .out = buffers_.attention,
                               .ldo = config_.q_size(),
                               .num_heads = config_.num_heads,
                               .scale = config_.attention_scale,
                               .score_cap = config_.score_cap,
                               .window = config_.layers[static_cast<std::size_t>(layer)].window,
                               .sequences = sequences.data(),
                               .num_sequences = static_cast<int>(sequences.size()),
                               .q_sinks = has_sinks(batch, layer) ? buffers_.q_sinks : nullptr,
                               .rounds_to_bf16 = limits_.activations == ActivationType::kInt8,
                               .sink_scores = weights_.layer(layer).sink_scores,
                               .sharing = is_last(layer) ? batch.logit_sharing : group.sharing,
                               .common = common.data(),
                               .num_common = static_cast<int>(common.size())});
}

void Transformer::project_attention(int num_rows, int layer) {
  const LayerWeights& w = weights_.layer(layer);
  if (latent_) latent_->make_values(w, buffers_.attention, num_rows, buffers_.values);
  const float* values = latent_ ? buffers_.values : buffers_.attention;
  buffers_.quantized.num_cols = config_.o_size();
  multiply(values, num_rows, output_products(layer), gate_products(layer), [&](int begin, int end) {
    if (wants_int8(w.o)) quantize_input(values, config_.o_size(), begin, end);
  });
}

RopeArgs Transformer::rope_args(int layer, bool has_queries, bool has_sinks) const {
  const LayerWeights& w = weights_.layer(layer);
  const std::int64_t table = rotation_table(layer);
  const std::int64_t of_sinks =
      table + rotation_table_size() * static_cast<std::int64_t>(config_.ropes.size());
  return {.rope_dim = config_.rope_dim,
          .interleaved = config_.rope_interleaved,
          .cos = buffers_.cos + table,
          .sin = buffers_.sin + table,
          .k = buffers_.k,
          .k_norm = config_.norms_heads_together ? nullptr : w.k_norm,
          .q = buffers_.q,
          .ldq = config_.q_size(),
          .num_heads = has_queries ? config_.num_heads : 0,
          .q_norm = config_.norms_heads_together ? nullptr : w.q_norm,
          .epsilon = config_.rms_epsilon,
          .q_sinks = has_sinks ? buffers_.q_sinks : nullptr,
          .cos_sinks = buffers_.cos + of_sinks,
          .sin_sinks = buffers_.sin + of_sinks};
}

// normed = the norm of hidden, to which comes first what the layer before this one left to be added.
void Transformer::norm_behind(int layer, const float* weight, int row_begin, int row_end) {
  norm(layer > 0 ? buffers_.normed : nullptr,
       layer > 0 ? weights_.layer(layer - 1).post_ffn_norm : nullptr, weight, row_begin, row_end);
}

// normed = the norm of hidden, or hidden itself where weight is null, after hidden += added, if any; post_norm: of that, or null.
void Transformer::norm(const float* added, const float* post_norm, const float* weight, int row_begin,
                       int row_end) {
  kernels_.rms_norm({.x = buffers_.hidden,
                     .added = added,
                     .added_weight = post_norm,
                     .weight = weight,
                     .epsilon = config_.rms_epsilon,
                     .out = buffers_.normed,
                     .num_cols = config_.hidden_size},
                    row_begin, row_end);
}

void Transformer::run_mlp(int num_rows, int layer) {
  const LayerWeights& w = weights_.layer(layer);
  if (has_experts(layer)) {
    for_rows(num_rows, [&](int begin, int end) {
      norm(buffers_.normed, w.post_attention_norm, w.ffn_norm, begin, end);
    });
    return expert_layers_->run(w, buffers_.normed, num_rows);
  }
  const int hidden_size = config_.hidden_size;
  const std::int64_t ffn_size = config_.ffn_size;
  const bool int8_input = wants_int8(w.gate) || wants_int8(w.up);
  buffers_.quantized.num_cols = hidden_size;
  multiply(buffers_.normed, num_rows, gate_products(layer), down_products(layer),
           [&](int begin, int end) {
             norm(buffers_.normed, w.post_attention_norm, w.ffn_norm, begin, end);
             if (int8_input) quantize_input(buffers_.normed, hidden_size, begin, end);
           });

  const auto activate = activation_kernel(kernels_, config_.activation);
  buffers_.quantized.num_cols = config_.ffn_size;
  multiply(buffers_.gate, num_rows, down_products(layer), products_behind(layer),
           [&](int begin, int end) {
             if (partners_ != nullptr) return;  // all machines have, each its part
             activate(buffers_.gate + begin * ffn_size, buffers_.up + begin * ffn_size,
                      buffers_.gate + begin * ffn_size, (end - begin) * ffn_size);
             if (wants_int8(w.down)) quantize_input(buffers_.gate, config_.ffn_size, begin, end);
           });
}

void Transformer::compute_logits(const ForwardBatch& batch) {
  const auto num_rows = static_cast<int>(batch.logit_rows.size());
  buffers_.quantized.num_cols = config_.hidden_size;
  multiply(buffers_.normed, num_rows, products_behind(config_.num_layers() - 1),
           input_products(0),  // of the next step
           [&](int begin, int end) {
             norm_behind(config_.num_layers(), weights_.output_norm(), begin, end);
             if (wants_int8(weights_.output()))
               quantize_input(buffers_.normed, config_.hidden_size, begin, end);
           });
  if (config_.logit_cap > 0) cap_logits(num_rows);
  if (device_ == nullptr && finds_maxima_late()) find_maxima(num_rows);
  if (device_ == nullptr) return;
  kernels_.first_of_best(buffers_.logits, num_rows, config_.vocab_size, buffers_.best);
  if (!batch.draws.empty())
    kernels_.draw_tokens({.logits = buffers_.logits,
                          .best = buffers_.best,
                          .num_logits = config_.vocab_size,
                          .draws = batch.draws.data(),
                          .num_draws = static_cast<int>(batch.draws.size()),
                          .tokens = buffers_.best + num_rows});
}

Logits Transformer::take_logits(const ForwardBatch& given, int num_rows) {
  if (device_ != nullptr) return take_from_device(given, num_rows);
  const auto rows = static_cast<std::size_t>(num_rows);
  return {{buffers_.logits, rows * static_cast<std::size_t>(config_.vocab_size)},
          {buffers_.maxima, rows * static_cast<std::size_t>(num_logit_runs(config_.vocab_size))}};
}

}  // namespace larder
