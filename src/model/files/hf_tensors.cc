#include "model/files/hf_tensors.h"

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "base/printable.h"

namespace larder {
namespace {

struct NamePair {
  const char* from;  // Hugging Face's, behind "model.layers.N."
  const char* to;    // GGUF's, behind "blk.N."
};
using Names = std::span<const NamePair>;

constexpr const char* kEmbedding = "model.embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";

constexpr NamePair kJoinedAttention[] = {{"self_attn.qkv_proj.weight", "attn_qkv.weight"},
                                         {"self_attn.o_proj.weight", "attn_output.weight"}};
constexpr NamePair kAttention[] = {{"self_attn.q_proj.weight", "attn_q.weight"},
                                   {"self_attn.k_proj.weight", "attn_k.weight"},
                                   {"self_attn.v_proj.weight", "attn_v.weight"},
                                   {"self_attn.o_proj.weight", "attn_output.weight"}};
constexpr NamePair kBiases[] = {{"self_attn.q_proj.bias", "attn_q.bias"},
                                {"self_attn.k_proj.bias", "attn_k.bias"},
                                {"self_attn.v_proj.bias", "attn_v.bias"}};
constexpr NamePair kHeadNorms[] = {{"self_attn.q_norm.weight", "attn_q_norm.weight"},
                                   {"self_attn.k_norm.weight", "attn_k_norm.weight"}};
constexpr NamePair kThreeNorms[] = {{"post_attention_layernorm.weight", "post_attention_norm.weight"},
                                    {"pre_feedforward_layernorm.weight", "ffn_norm.weight"},
                                    {"post_feedforward_layernorm.weight", "post_ffw_norm.weight"}};
constexpr NamePair kPostNorms[] = {{"post_attention_layernorm.weight", "post_attention_norm.weight"},
                                   {"post_feedforward_layernorm.weight", "post_ffw_norm.weight"}};
constexpr NamePair kGlmNorms[] = {{"post_self_attn_layernorm.weight", "post_attention_norm.weight"},
                                  {"post_attention_layernorm.weight", "ffn_norm.weight"},
                                  {"post_mlp_layernorm.weight", "post_ffw_norm.weight"}};
constexpr NamePair kJoinedMlp[] = {{"mlp.gate_up_proj.weight", "ffn_up.weight"},
                                   {"mlp.down_proj.weight", "ffn_down.weight"}};
constexpr NamePair kMlp[] = {{"mlp.gate_proj.weight", "ffn_gate.weight"},
                             {"mlp.up_proj.weight", "ffn_up.weight"},
                             {"mlp.down_proj.weight", "ffn_down.weight"}};
constexpr NamePair kQwenRouter[] = {{"mlp.gate.weight", "ffn_gate_inp.weight"}};
constexpr NamePair kSharedExpert[] = {{"mlp.shared_expert.gate_proj.weight", "ffn_gate_shexp.weight"},
                                      {"mlp.shared_expert.up_proj.weight", "ffn_up_shexp.weight"},
                                      {"mlp.shared_expert.down_proj.weight", "ffn_down_shexp.weight"},
                                      {"mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight"}};
constexpr NamePair kDeepSeekRouter[] = {{"mlp.gate.weight", "ffn_gate_inp.weight"},
                                        {"mlp.gate.e_score_correction_bias", "exp_probs_b.bias"},
                                        {"mlp.shared_experts.gate_proj.weight", "ffn_gate_shexp.weight"},
                                        {"mlp.shared_experts.up_proj.weight", "ffn_up_shexp.weight"},
                                        {"mlp.shared_experts.down_proj.weight", "ffn_down_shexp.weight"}};
constexpr NamePair kQwenExperts[] = {{"mlp.experts.{}.gate_proj.weight", "ffn_gate_exps.weight"},
                                     {"mlp.experts.{}.up_proj.weight", "ffn_up_exps.weight"},
                                     {"mlp.experts.{}.down_proj.weight", "ffn_down_exps.weight"}};
constexpr NamePair kMixtralRouter[] = {{"block_sparse_moe.gate.weight", "ffn_gate_inp.weight"}};
constexpr NamePair kMixtralExperts[] = {{"block_sparse_moe.experts.{}.w1.weight", "ffn_gate_exps.weight"},
                                        {"block_sparse_moe.experts.{}.w3.weight", "ffn_up_exps.weight"},
                                        {"block_sparse_moe.experts.{}.w2.weight", "ffn_down_exps.weight"}};

constexpr NamePair kGptOssRouter[] = {{"mlp.router.weight", "ffn_gate_inp.weight"},
                                      {"mlp.router.bias", "ffn_gate_inp.bias"},
                                      {"mlp.experts.down_proj_bias", "ffn_down_exps.bias"}};

class TensorAdder {
 public:
  TensorAdder(const HfConfig& config, std::span<const SafetensorsTensor> tensors, HfOwned& owned, GgufFile& gguf)
      : config_(config), class_(*config.hf_class), family_(class_.family()), owned_(owned), gguf_(gguf) {
    for (const SafetensorsTensor& tensor : tensors)
      if (!by_name_.emplace(tensor.name, &tensor).second)
        throw_invalid("tensor '{}': two files have it", printable(tensor.name));
  }

  void add_all() {
    add(kEmbedding, "token_embd.weight");
    for (int i = 0; i < config_.num_layers; ++i) add_layer(i);
    add("model.norm.weight", "output_norm.weight");
    if (has_own_head()) add(kHead, "output.weight");
    const HfRope& rope = config_.rope;
    if (!rope.divisors.empty()) add_owned("rope_freqs.weight", rope.divisors);
    if (!rope.long_divisors.empty()) add_owned("rope_factors_long.weight", rope.long_divisors);
    if (!rope.short_divisors.empty()) add_owned("rope_factors_short.weight", rope.short_divisors);
    refuse_others();
  }

 private:
  // As transformers has it since 5.8: where config.json ties the two, but a file has both and they differ (of a model that was
  // trained further), each counts.
  bool has_own_head() const {
    if (!config_.tied_embeddings) return true;
    const auto head = by_name_.find(kHead), embedding = by_name_.find(kEmbedding);
    if (head == by_name_.end() || embedding == by_name_.end()) return false;
    const SafetensorsTensor &a = *head->second, &b = *embedding->second;
    return a.dtype != b.dtype || a.shape != b.shape || !std::ranges::equal(a.data, b.data);
  }

  void add_layer(int layer) {
    if (family_.has_pre_norms) add_pair(layer, {"input_layernorm.weight", "attn_norm.weight"});
    add_pairs(layer, class_.joins_qkv ? Names(kJoinedAttention) : Names(kAttention));
    if (config_.has_qkv_bias) add_pairs(layer, kBiases);
    if (family_.has_output_bias) add_pair(layer, {"self_attn.o_proj.bias", "attn_output.bias"});
    if (family_.has_sink_scores) add_pair(layer, {"self_attn.sinks", "attn_sinks.weight"});
    if (config_.has_qk_norm) add_pairs(layer, kHeadNorms);
    add_norms(layer);
    if (config_.num_experts > 0 && layer >= config_.num_dense)
      add_router_and_experts(layer);
    else
      add_pairs(layer, family_.has_fused_gate ? Names(kJoinedMlp) : Names(kMlp));
  }

  // But for the one before attention.
  void add_norms(int layer) {
    if (!family_.has_post_norms)
      add_pair(layer, {"post_attention_layernorm.weight", family_.ffn_norm_tensor});
    else if (!family_.has_pre_norms)
      add_pairs(layer, kPostNorms);
    else
      add_pairs(layer, class_.has_glm_norms ? Names(kGlmNorms) : Names(kThreeNorms));
  }

  void add_router_and_experts(int layer) {
    switch (class_.experts) {
      case HfExperts::kNone:
        return;
      case HfExperts::kMixtral:
        add_pairs(layer, kMixtralRouter);
        return add_experts(layer, kMixtralExperts);
      case HfExperts::kQwen:
        if (family_.usual_experts.weighs_shared) add_pairs(layer, kSharedExpert);
        add_pairs(layer, kQwenRouter);
        return add_experts(layer, kQwenExperts);
      case HfExperts::kDeepSeek:
        add_pairs(layer, kDeepSeekRouter);
        return add_experts(layer, kQwenExperts);
      case HfExperts::kGptOss:
        return add_gpt_oss_experts(layer);
    }
  }

  // Rows of gate and up take turns.
  void add_gpt_oss_experts(int layer) {
    add_pairs(layer, kGptOssRouter);
    const std::string both = layer_name(layer, "mlp.experts.gate_up_proj");
    const SafetensorsTensor& biases = take(both + "_bias");
    const bool is_even = biases.shape.size() == 2 && biases.shape[0] > 0 && biases.shape[1] % 2 == 0;
    if (!is_even) throw_invalid("tensor '{}_bias': experts' pairs of values are expected", both);
    std::vector<float> values(static_cast<std::size_t>(biases.shape[0] * biases.shape[1]));
    dequantize_row(*biases.type, biases.data.data(), values.data(), static_cast<std::int64_t>(values.size()));
    for (std::size_t which = 0; which < 2; ++which) {
      const char* name = which == 0 ? "gate" : "up";
      std::vector<float> own;
      for (std::size_t i = which; i < values.size(); i += 2) own.push_back(values[i]);
      add_owned(fmt::format("blk.{}.ffn_{}_exps.bias", layer, name), std::move(own), biases.shape[0]);
      add_mxfp4(both, fmt::format("blk.{}.ffn_{}_exps.weight", layer, name), {which, 2});
    }
    add_mxfp4(layer_name(layer, "mlp.experts.down_proj"), fmt::format("blk.{}.ffn_down_exps.weight", layer), {0, 1});
  }

  // [experts, rows, columns / 32, 16] numbers and as many scales but for the last dimension.
  const SafetensorsTensor& take_bytes(const std::string& name, std::size_t num_dims) {
    const auto found = by_name_.find(name);
    if (found == by_name_.end())
      throw_invalid("tensor '{}' is missing; of folders of gpt-oss, those with experts in MXFP4 are read, others from GGUF", name);
    taken_.insert(found->first);
    const SafetensorsTensor& tensor = *found->second;
    if (tensor.dtype != "U8" || tensor.shape.size() != num_dims || tensor.data.empty())
      throw_invalid("tensor '{}': {} of {} dimensions; U8 of {} is expected", name, printable(tensor.dtype),
                    tensor.shape.size(), num_dims);
    return tensor;
  }

  struct RowsOf {
    std::size_t first, step;
  };
  // See Mxfp4Parts.
  void add_mxfp4(const std::string& from, const std::string& to, const RowsOf& rows) {
    const SafetensorsTensor& numbers = take_bytes(from + "_blocks", 4);
    const SafetensorsTensor& scales = take_bytes(from + "_scales", 3);
    const std::vector<std::int64_t>& shape = numbers.shape;
    const bool agree = shape[3] == 16 && std::equal(scales.shape.begin(), scales.shape.end(), shape.begin()) &&
                       shape[1] % static_cast<std::int64_t>(rows.step) == 0;
    if (!agree) throw_invalid("tensor '{}_blocks': its shape and that of '{}_scales' do not go together", from, from);
    GgufTensor all;
    all.type = GgmlType::kMXFP4;
    all.num_dims = 3;
    all.dims = {shape[2] * 32, shape[1] / static_cast<std::int64_t>(rows.step), shape[0], 1};
    const auto num_experts = static_cast<std::size_t>(shape[0]), num_rows = static_cast<std::size_t>(shape[1]);
    for (std::size_t expert = 0; expert < num_experts; ++expert)
      for (const SafetensorsTensor* tensor : {&numbers, &scales}) {
        const std::size_t row_bytes = tensor->data.size() / (num_experts * num_rows);
        all.parts.push_back(tensor->data.subspan((expert * num_rows + rows.first) * row_bytes,
                                                 (num_rows - rows.step + 1) * row_bytes));
      }
    all.name = owned_.names.emplace_back(to);
    gguf_.add_tensor(std::move(all));
  }

  void add_pairs(int layer, Names pairs) {
    for (const NamePair& pair : pairs) add_pair(layer, pair);
  }

  void add_pair(int layer, const NamePair& pair) {
    add(layer_name(layer, pair.from), fmt::format("blk.{}.{}", layer, pair.to));
  }

  static std::string layer_name(int layer, std::string_view part) { return fmt::format("model.layers.{}.{}", layer, part); }

  const SafetensorsTensor& take(const std::string& name) {
    const auto found = by_name_.find(name);
    if (found == by_name_.end()) throw_invalid("tensor '{}' is missing", name);
    taken_.insert(found->first);
    const SafetensorsTensor& tensor = *found->second;
    if (!tensor.type)
      throw_invalid("tensor '{}': {} is not supported; F32, F16 and BF16 are", name, printable(tensor.dtype));
    if (tensor.shape.empty() || tensor.shape.size() > 2 || tensor.data.empty())
      throw_invalid("tensor '{}': {} dimensions with {} bytes; a vector or a matrix is expected", name,
                    tensor.shape.size(), tensor.data.size());
    return tensor;
  }

  // GGUF has the innermost dimension first.
  static GgufTensor view_of(const SafetensorsTensor& tensor) {
    GgufTensor view;
    view.type = *tensor.type;
    view.num_dims = static_cast<int>(tensor.shape.size());
    for (std::size_t i = 0; i < tensor.shape.size(); ++i) view.dims[i] = tensor.shape[tensor.shape.size() - 1 - i];
    view.data = tensor.data;
    return view;
  }

  void add(const std::string& from, const std::string& to) {
    const SafetensorsTensor& tensor = take(from);
    if (class_.norms_add_one && from.ends_with("norm.weight")) {
      std::vector<float> values(static_cast<std::size_t>(tensor.shape.back()));
      if (tensor.shape.size() != 1) throw_invalid("tensor '{}': {} dimensions; 1 is expected", from, tensor.shape.size());
      dequantize_row(*tensor.type, tensor.data.data(), values.data(), tensor.shape.back());
      for (float& value : values) value += 1;
      return add_owned(to, std::move(values));
    }
    GgufTensor view = view_of(tensor);
    view.name = owned_.names.emplace_back(to);
    gguf_.add_tensor(std::move(view));
  }

  // count: vectors, behind one another.
  void add_owned(const std::string& name, std::vector<float> values, std::int64_t count = 1) {
    const std::vector<float>& kept = owned_.values.emplace_back(std::move(values));
    GgufTensor view;
    view.name = owned_.names.emplace_back(name);
    view.num_dims = count == 1 ? 1 : 2;
    view.dims[0] = static_cast<std::int64_t>(kept.size()) / count;
    view.dims[1] = count;
    view.data = std::as_bytes(std::span(kept));
    gguf_.add_tensor(std::move(view));
  }

  // from: with the expert's number to be put in.
  void add_experts(int layer, Names pairs) {
    for (const NamePair& pair : pairs) add_matrices(layer, pair);
  }

  // One of each expert.
  void add_matrices(int layer, const NamePair& pair) {
    GgufTensor all;
    for (int expert = 0; expert < config_.num_experts; ++expert) {
      const std::string name = layer_name(layer, fmt::format(fmt::runtime(pair.from), expert));
      const SafetensorsTensor& tensor = take(name);
      const GgufTensor view = view_of(tensor);
      if (expert == 0) all = view;
      if (view.num_dims != 2 || view.type != all.type || view.dims != all.dims)
        throw_invalid("tensor '{}': its type or shape is not that of the layer's first expert", name);
      all.parts.push_back(view.data);
    }
    all.num_dims = 3;
    all.dims[2] = config_.num_experts;
    all.data = {};
    all.name = owned_.names.emplace_back(fmt::format("blk.{}.{}", layer, pair.to));
    gguf_.add_tensor(std::move(all));
  }

  // Of a layer behind the model's own.
  bool is_left_out(std::string_view name) const {
    for (int layer = config_.num_layers; layer < config_.num_layers + config_.num_left_out; ++layer)
      if (name.starts_with(layer_name(layer, ""))) return true;
    return false;
  }

  // Something left out would change what is computed. Older files keep the rotation's frequencies, which follow from
  // the configuration, and the output's matrix where it is the embedding's.
  void refuse_others() const {
    for (const auto& [name, tensor] : by_name_) {
      const bool is_known = taken_.contains(name) || name.ends_with(".rotary_emb.inv_freq") || is_left_out(name) ||
                            (name == kHead && config_.tied_embeddings);
      if (!is_known) throw_invalid("tensor '{}' is not part of a model of this architecture", printable(name));
    }
  }

  const HfConfig& config_;
  const HfClass& class_;
  const Family& family_;
  HfOwned& owned_;
  GgufFile& gguf_;
  std::unordered_map<std::string_view, const SafetensorsTensor*> by_name_;
  std::unordered_set<std::string_view> taken_;
};

}  // namespace

void add_hf_tensors(const HfConfig& config, std::span<const SafetensorsTensor> tensors, HfOwned& owned, GgufFile& gguf) {
  TensorAdder(config, tensors, owned, gguf).add_all();
}

}  // namespace larder
