#include "model/forward/weights.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/printable.h"
#include "kernels/packing.h"
#include "model/forward/mxfp4_parts.h"
#include "model/rope_config.h"

namespace larder {
namespace {

constexpr std::size_t kArenaAlignment = 64;

// One tensor's way into the arena: one of matrix and vector is set, to where its view goes, or none where another
// machine has it.
struct WeightEntry {
  std::string name;
  int first_row = 0;  // of a matrix, where the tensor has several one behind another
  int num_rows = 0;
  int num_cols = 0;
  PackedMatrix* matrix = nullptr;  // [num_matrices]
  int num_matrices = 1;            // that the tensor is made of, num_rows each
  const float** vector = nullptr;
  float scale = 1;  // of a vector
  const GgufTensor* tensor = nullptr;
  std::size_t offset = 0;  // in the arena
  std::size_t size_bytes = 0;
};

// From one of its matrices to the next, in the arena.
std::size_t matrix_stride(const WeightEntry& entry) {
  const auto size_bytes = static_cast<std::size_t>(
      packed_size_bytes(packed_layout(entry.tensor->type, entry.num_rows, entry.num_cols)));
  return (size_bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
}

// The list of all weights in the order in which a forward pass reads them, with their places.
class WeightPlan {
 public:
  WeightPlan(const ModelConfig& config, const GgufFile& gguf, const MachineShare& share)
      : config_(config), gguf_(gguf), share_(share) {}

  const std::vector<WeightEntry>& entries() const { return entries_; }
  std::size_t size_bytes() const { return size_bytes_; }
  std::size_t largest_size_bytes() const { return largest_size_bytes_; }  // of one of them

  // Of the server alone.
  void add_matrix(std::string name, int num_rows, int num_cols, PackedMatrix& matrix) {
    WeightEntry& entry = add({.name = std::move(name), .num_rows = num_rows, .num_cols = num_cols});
    if (!share_.is_server()) return;
    entry.matrix = &matrix;
    take(entry, matrix_stride(entry));
  }

  // Whose products machines share out.
  void add_shared(std::string name, int num_rows, int num_cols, PackedMatrix& matrix) {
    take_share(add({.name = std::move(name), .num_rows = num_rows, .num_cols = num_cols}), matrix);
  }

  // scale: on its values. count: so many, behind one another. Of the server alone.
  void add_vector(std::string name, int size, const float*& vector, float scale = 1, int count = 1) {
    WeightEntry& entry = add({.name = std::move(name), .num_rows = count, .num_cols = size, .scale = scale});
    if (!share_.is_server()) return;
    entry.vector = &vector;
    take(entry, static_cast<std::size_t>(count) * static_cast<std::size_t>(size) * sizeof(float));
  }

  // Of a matrix that is shared out: whole on every machine.
  void add_bias(std::string name, int size, const float*& vector) {
    WeightEntry& entry = add({.name = std::move(name), .num_rows = 1, .num_cols = size});
    entry.vector = &vector;
    take(entry, static_cast<std::size_t>(size) * sizeof(float));
  }

  void add_layer(int index, LayerWeights& layer) {
    const auto name = [&](const char* part) { return fmt::format("blk.{}.{}", index, part); };
    const int hidden = config_.hidden_size;
    if (config_.has_pre_norms) add_vector(name("attn_norm.weight"), hidden, layer.attention_norm);
    if (config_.latent.rank > 0) {
      add_latent_weights(index, layer);
    } else {
      add_attention_weights(index, layer);
    }
    if (config_.has_sink_scores) add_vector(name("attn_sinks.weight"), config_.num_heads, layer.sink_scores);
    add_shared(name("attn_output.weight"), hidden, config_.o_size(), layer.o);
    if (config_.has_output_bias) add_bias(name("attn_output.bias"), hidden, layer.o_bias);
    if (config_.has_post_norms)
      add_vector(name("post_attention_norm.weight"), hidden, layer.post_attention_norm);
    if (config_.has_pre_norms) add_vector(name(config_.ffn_norm_tensor), hidden, layer.ffn_norm);
    if (config_.layers[static_cast<std::size_t>(index)].has_experts) {
      add_expert_weights(index, layer);
    } else {
      if (config_.has_fused_gate) {
        add_joined(name("ffn_up.weight"), hidden, {{config_.ffn_size, &layer.gate}, {config_.ffn_size, &layer.up}});
      } else {
        add_shared(name("ffn_gate.weight"), config_.ffn_size, hidden, layer.gate);
        add_shared(name("ffn_up.weight"), config_.ffn_size, hidden, layer.up);
      }
      add_shared(name("ffn_down.weight"), hidden, config_.ffn_size, layer.down);
    }
    if (config_.has_post_norms)
      add_vector(name("post_ffw_norm.weight"), hidden, layer.post_ffn_norm);
  }

 private:
  void add_attention_weights(int index, LayerWeights& layer) {
    const auto name = [&](const char* part) { return fmt::format("blk.{}.{}", index, part); };
    const int hidden = config_.hidden_size;
    if (gguf_.find_tensor(name("attn_qkv.weight")) != nullptr) {
      add_joined(name("attn_qkv.weight"), hidden,
                 {{config_.q_size(), &layer.q}, {config_.kv_size(), &layer.k}, {config_.kv_size(), &layer.v}});
    } else {
      add_shared(name("attn_q.weight"), config_.q_size(), hidden, layer.q);
      add_shared(name("attn_k.weight"), config_.kv_size(), hidden, layer.k);
      add_shared(name("attn_v.weight"), config_.kv_size(), hidden, layer.v);
    }
    if (config_.has_qkv_bias) {
      add_bias(name("attn_q.bias"), config_.q_size(), layer.q_bias);
      add_bias(name("attn_k.bias"), config_.kv_size(), layer.k_bias);
      add_bias(name("attn_v.bias"), config_.kv_size(), layer.v_bias);
    }
    if (config_.has_qk_norm) {
      const bool is_wide = config_.norms_heads_together;
      add_vector(name("attn_q_norm.weight"), is_wide ? config_.q_size() : config_.head_dim, layer.q_norm);
      add_vector(name("attn_k_norm.weight"), is_wide ? config_.kv_size() : config_.head_dim, layer.k_norm);
    }
  }

  void add_latent_weights(int index, LayerWeights& layer) {
    const auto name = [&](const char* part) { return fmt::format("blk.{}.{}", index, part); };
    const LatentConfig& latent = config_.latent;
    const int hidden = config_.hidden_size;
    const int q_size = config_.num_heads * (latent.nope_dim + config_.rope_dim);
    if (latent.q_rank > 0) {
      add_matrix(name("attn_q_a.weight"), latent.q_rank, hidden, layer.q_a);
      add_vector(name("attn_q_a_norm.weight"), latent.q_rank, layer.q_a_norm);
      add_matrix(name("attn_q_b.weight"), q_size, latent.q_rank, layer.q);
    } else {
      add_matrix(name("attn_q.weight"), q_size, hidden, layer.q);
    }
    add_matrix(name("attn_kv_a_mqa.weight"), config_.head_dim, hidden, layer.kv_a);
    add_vector(name("attn_kv_a_norm.weight"), latent.rank, layer.kv_a_norm);
    add_matrices(name("attn_k_b.weight"), config_.num_heads, latent.rank, latent.nope_dim, layer.k_b);
    add_matrices(name("attn_v_b.weight"), config_.num_heads, latent.value_dim, latent.rank, layer.v_b);
  }

  void add_expert_weights(int index, LayerWeights& layer) {
    const auto name = [&](const char* part) { return fmt::format("blk.{}.{}", index, part); };
    const ExpertConfig& experts = config_.experts;
    const int hidden = config_.hidden_size;
    add_matrix(name("ffn_gate_inp.weight"), experts.num_experts, hidden, layer.router);
    if (gguf_.find_tensor(name("exp_probs_b.bias")) != nullptr)
      add_vector(name("exp_probs_b.bias"), experts.num_experts, layer.ranking_bias);
    add_matrices(name("ffn_gate_exps.weight"), experts.num_experts, experts.ffn_size, hidden, layer.expert_gate);
    add_matrices(name("ffn_up_exps.weight"), experts.num_experts, experts.ffn_size, hidden, layer.expert_up);
    add_matrices(name("ffn_down_exps.weight"), experts.num_experts, hidden, experts.ffn_size, layer.expert_down);
    if (experts.has_biases) add_expert_biases(index, layer);
    if (experts.shared_ffn_size == 0) return;
    if (experts.weighs_shared) add_matrix(name("ffn_gate_inp_shexp.weight"), 1, hidden, layer.shared_router);
    add_matrix(name("ffn_gate_shexp.weight"), experts.shared_ffn_size, hidden, layer.gate);
    add_matrix(name("ffn_up_shexp.weight"), experts.shared_ffn_size, hidden, layer.up);
    add_matrix(name("ffn_down_shexp.weight"), hidden, experts.shared_ffn_size, layer.down);
  }

  void add_expert_biases(int index, LayerWeights& layer) {
    const auto name = [&](const char* part) { return fmt::format("blk.{}.{}", index, part); };
    const ExpertConfig& experts = config_.experts;
    add_vector(name("ffn_gate_inp.bias"), experts.num_experts, layer.router_bias);
    add_vector(name("ffn_gate_exps.bias"), experts.ffn_size, layer.expert_gate_bias, 1, experts.num_experts);
    add_vector(name("ffn_up_exps.bias"), experts.ffn_size, layer.expert_up_bias, 1, experts.num_experts);
    add_vector(name("ffn_down_exps.bias"), config_.hidden_size, layer.expert_down_bias, 1, experts.num_experts);
  }

  // Several matrices of one input whose rows one tensor has, in order.
  void add_joined(const std::string& name, int num_cols, std::initializer_list<std::pair<int, PackedMatrix*>> parts) {
    int num_rows = 0;
    for (const auto& [rows, matrix] : parts) num_rows += rows;
    const GgufTensor& tensor = find(name, num_rows, num_cols);
    int first_row = 0;
    for (const auto& [rows, matrix] : parts) {
      take_share(place({.name = name, .first_row = first_row, .num_rows = rows, .num_cols = num_cols, .tensor = &tensor}),
                 *matrix);
      first_row += rows;
    }
  }

  // One of each expert, or head, behind one another in one tensor.
  void add_matrices(std::string name, int num_matrices, int num_rows, int num_cols,
                    std::vector<PackedMatrix>& matrices) {
    const GgufTensor& tensor = find(name, std::int64_t{num_rows} * num_matrices, num_cols);
    if (tensor.dims != std::array<std::int64_t, 4>{num_cols, num_rows, num_matrices, 1})
      throw_invalid("GGUF: tensor '{}': {} x {} x {} x {} values; {} x {} x {} are expected", name, tensor.dims[0],
                    tensor.dims[1], tensor.dims[2], tensor.dims[3], num_cols, num_rows, num_matrices);
    matrices.resize(static_cast<std::size_t>(num_matrices));
    WeightEntry& entry = place({.name = std::move(name), .num_rows = num_rows, .num_cols = num_cols, .tensor = &tensor});
    if (!share_.is_server()) return;
    entry.matrix = matrices.data();
    entry.num_matrices = num_matrices;
    take(entry, matrix_stride(entry) * matrices.size());
  }

  const GgufTensor& find(const std::string& name, std::int64_t num_rows, int num_cols) const {
    const GgufTensor* tensor = gguf_.find_tensor(name);
    if (!tensor) throw_invalid("GGUF: tensor '{}' is missing", name);
    if (tensor->num_cols() != num_cols || tensor->num_rows() != num_rows)
      throw_invalid("GGUF: tensor '{}': {} rows of {} values; {} of {} are expected", name,
                    tensor->num_rows(), tensor->num_cols(), num_rows, num_cols);
    return *tensor;
  }

  // Finds the tensor and gives it the next aligned place.
  WeightEntry& add(WeightEntry entry) {
    entry.tensor = &find(entry.name, entry.num_rows, entry.num_cols);
    return place(std::move(entry));
  }

  WeightEntry& place(WeightEntry entry) {
    size_bytes_ = (size_bytes_ + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
    entry.offset = size_bytes_;
    entries_.push_back(std::move(entry));
    return entries_.back();
  }

  void take_share(WeightEntry& entry, PackedMatrix& matrix) {
    const RowRange rows = share_.rows_of(entry.num_rows);
    entry.first_row += rows.begin;
    entry.num_rows = rows.size();
    entry.matrix = &matrix;
    take(entry, matrix_stride(entry));
  }

  void take(WeightEntry& entry, std::size_t size_bytes) {
    entry.size_bytes = size_bytes;
    size_bytes_ += size_bytes;
    largest_size_bytes_ = std::max(largest_size_bytes_, size_bytes);
  }

  const ModelConfig& config_;
  const GgufFile& gguf_;
  const MachineShare& share_;
  std::vector<WeightEntry> entries_;
  std::size_t size_bytes_ = 0;
  std::size_t largest_size_bytes_ = 0;
};

// Where the views of all weights go, apart from the class so that a plan can be made without one.
struct WeightViews {
  PackedMatrix embedding, output;
  const float* output_norm = nullptr;
  std::vector<LayerWeights> layers;
};

// A tensor that no rule knows would be left out of the computation in silence.
void refuse_unknown_tensors(const WeightPlan& plan, const ModelConfig& config, const GgufFile& gguf) {
  std::unordered_map<std::string_view, bool> known;
  for (const WeightEntry& entry : plan.entries()) known.emplace(entry.name, true);
  for (const GgufTensor& tensor : gguf.tensors())
    if (!known.contains(tensor.name) && !is_rope_tensor(tensor.name) && !is_left_out(config, tensor.name))
      throw_invalid("GGUF: tensor '{}' is not part of a model of this architecture",
                    printable(tensor.name));
}

// The embedding as the output matrix: of that the server has what is its own anyway, workers their rows.
void add_tied_output(WeightPlan& plan, const ModelConfig& config, const MachineShare& share, WeightViews& views) {
  if (!share.is_server()) plan.add_shared("token_embd.weight", config.vocab_size, config.hidden_size, views.output);
}

WeightPlan plan_weights(const ModelConfig& config, const GgufFile& gguf, int num_layers, const MachineShare& share,
                        WeightViews& views) {
  WeightPlan plan(config, gguf, share);
  num_layers = std::min(num_layers, config.num_layers());
  views.layers.resize(static_cast<std::size_t>(num_layers));
  plan.add_matrix("token_embd.weight", config.vocab_size, config.hidden_size, views.embedding);
  for (int i = 0; i < num_layers; ++i) plan.add_layer(i, views.layers[static_cast<std::size_t>(i)]);
  plan.add_vector("output_norm.weight", config.hidden_size, views.output_norm, config.output_norm_scale);
  if (config.tied_embeddings)
    add_tied_output(plan, config, share, views);
  else
    plan.add_shared("output.weight", config.vocab_size, config.hidden_size, views.output);
  if (num_layers == config.num_layers()) refuse_unknown_tensors(plan, config, gguf);
  return plan;
}

void pack(const WeightEntry& entry, std::byte* place, ThreadPool& pool, const PackProgress& progress) {
  const std::size_t stride = matrix_stride(entry);
  const auto count = static_cast<std::size_t>(entry.num_matrices);
  const GgufTensor& tensor = *entry.tensor;
  const std::size_t row_bytes = tensor.data.size() / static_cast<std::size_t>(tensor.num_rows());
  const std::size_t part_bytes = row_bytes * static_cast<std::size_t>(entry.num_rows);
  std::vector<std::byte> joined;  // the matrix in turn
  const auto bytes_of = [&](std::size_t i) -> std::span<const std::byte> {
    if (tensor.parts.empty())
      return tensor.data.subspan(row_bytes * static_cast<std::size_t>(entry.first_row) + i * part_bytes, part_bytes);
    if (tensor.parts.size() == count) return tensor.parts[i];
    joined.resize(mxfp4_size_bytes(entry.num_rows, entry.num_cols));
    join_mxfp4({tensor.parts[2 * i], tensor.parts[2 * i + 1]}, entry.num_rows, entry.num_cols, joined.data(), pool);
    return joined;
  };
  try {
    for (std::size_t i = 0; i < count; ++i)
      entry.matrix[i] = pack_matrix(tensor.type, bytes_of(i), entry.num_rows, entry.num_cols, place + i * stride, pool,
                                    [&](std::int64_t bytes) { progress(static_cast<std::int64_t>(i * stride) + bytes); });
  } catch (const Error& error) {
    throw_invalid("GGUF: tensor '{}': {}", entry.name, error.what());
  }
}

// A vector, to FP32, times its scale.
void widen(const WeightEntry& entry, float* values) {
  const std::int64_t count = std::int64_t{entry.num_rows} * entry.num_cols;
  dequantize_row(entry.tensor->type, entry.tensor->data.data(), values, count);
  if (entry.scale != 1) {
    for (std::int64_t i = 0; i < count; ++i) values[i] *= entry.scale;
  }
  const float* odd = std::find_if_not(values, values + count, [](float x) { return std::isfinite(x); });
  if (odd < values + count)
    throw_invalid("GGUF: tensor '{}': value {} is not a finite number", entry.name, odd - values);
}

}  // namespace

bool takes_codes(const KernelTable& kernels, const PackedMatrix& matrix) {
  switch (matrix.format) {
    case PackedFormat::kF32:
    case PackedFormat::kF16:
    case PackedFormat::kBF16:
      return false;
    case PackedFormat::kW4:
    case PackedFormat::kW4K:
    case PackedFormat::kW4Fine:
    case PackedFormat::kW5:
    case PackedFormat::kW5K:
    case PackedFormat::kW6Fine:
    case PackedFormat::kMxFp4:
    case PackedFormat::kIq4:
    case PackedFormat::kIq4K:
      return true;
    case PackedFormat::kW8:
      return !kernels.rounds_w8;
  }
  return false;
}

std::size_t weights_size_bytes(const ModelConfig& config, const GgufFile& gguf, const MachineShare& share) {
  WeightViews views;
  return plan_weights(config, gguf, config.num_layers(), share, views).size_bytes();
}

std::vector<PackedMatrix> list_matrices(const ModelConfig& config, const GgufFile& gguf) {
  WeightViews views;
  const MachineShare all;
  std::vector<PackedMatrix> matrices;
  const WeightPlan plan = plan_weights(config, gguf, config.num_layers(), all, views);
  for (const WeightEntry& entry : plan.entries())
    if (entry.matrix != nullptr) matrices.push_back(packed_layout(entry.tensor->type, entry.num_rows, entry.num_cols));
  return matrices;
}

Weights::Weights(const ModelConfig& config, const GgufFile& gguf, ThreadPool& pool, const LoadProgress& progress,
                 Device* device, int num_layers, const MachineShare& share) {
  WeightViews views;
  const WeightPlan plan = plan_weights(config, gguf, num_layers, share, views);
  arena_ = DeviceBuffer(device, plan.size_bytes());
  const HostBuffer window = device != nullptr ? host_buffer(*device, plan.largest_size_bytes()) : HostBuffer();
  for (const WeightEntry& entry : plan.entries()) {
    std::byte* place = arena_.data() + entry.offset;
    std::byte* packed = device != nullptr ? window.get() : place;
    if (entry.matrix) {
      pack(entry, packed, pool, [&](std::int64_t packed_bytes) {
        if (progress) progress(entry.offset + static_cast<std::size_t>(packed_bytes), plan.size_bytes());
      });
      for (int i = 0; i < entry.num_matrices; ++i)
        entry.matrix[i].data = place + static_cast<std::size_t>(i) * matrix_stride(entry);
    } else if (entry.vector) {
      widen(entry, reinterpret_cast<float*>(packed));
      *entry.vector = reinterpret_cast<const float*>(place);
    }
    if (device != nullptr) device->copy_in(place, packed, entry.size_bytes);
  }
  if (progress) progress(plan.size_bytes(), plan.size_bytes());
  embedding_ = views.embedding;
  output_ = views.output;
  if (config.tied_embeddings && share.is_server()) {
    output_ = views.embedding;
    output_.num_rows = share.rows_of(config.vocab_size).size();
  }
  output_norm_ = views.output_norm;
  layers_ = std::move(views.layers);
}

}  // namespace larder
