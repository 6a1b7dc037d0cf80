#!/usr/bin/env python3
"""Makes the tiny random models with experts, two of them with latent attention, and what transformers
computes with them, in FP32.

make_experts.py [NAME...]

Needs torch, transformers 5.x, numpy and gguf. Writes tiny_{qwen3moe,qwen2moe,mixtral,granitemoe,deepseek2,deepseek3,glm4moe,dots1,
ernie4_5_moe}.gguf and
.json beside this script, with the tensors and keys that llama.cpp's conversion of such a model writes. Prints
how near to a tie the choices of experts come. (llama.cpp reads tiny_deepseek2 only with a q_lora_rank of 0
added: it does without that key only at the numbers of layers of models it knows, as 26 and 27.)
"""
import copy
import itertools
import json
import sys

import gguf
import numpy as np
import torch
import transformers

from make_tiny import (HERE, gguf_name, interleave, make_model, write_golden, write_metadata,
                       write_vocabulary)

# Sums in another order differ by 1e-6 or so; a choice of experts or of a token must not turn on that.
LEAST_EXPERT_MARGIN = 2e-3  # relative
LEAST_TOKEN_MARGIN = 0.01


def qwen3moe_config():
    return transformers.Qwen3MoeConfig(
        vocab_size=128, hidden_size=32, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=32, max_position_embeddings=256,
        num_experts=8, num_experts_per_tok=3, moe_intermediate_size=32, norm_topk_prob=True,
        rms_norm_eps=1e-6, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0})


def qwen2moe_config():
    """As Qwen1.5 MoE: biases, weights that do not come to 1, and a shared expert with a gate of its own."""
    return transformers.Qwen2MoeConfig(
        vocab_size=128, hidden_size=32, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
        num_experts=8, num_experts_per_tok=3, moe_intermediate_size=32, shared_expert_intermediate_size=64,
        rms_norm_eps=1e-6, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0})


def granitemoe_config():
    return transformers.GraniteMoeConfig(
        vocab_size=128, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
        num_local_experts=8, num_experts_per_tok=3, rms_norm_eps=1e-5, tie_word_embeddings=True,
        embedding_multiplier=12.0, residual_multiplier=0.22, attention_multiplier=0.3, logits_scaling=0.7,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0})


def mixtral_config():
    return transformers.MixtralConfig(
        vocab_size=128, hidden_size=64, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
        num_local_experts=4, num_experts_per_tok=2, rms_norm_eps=1e-5, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0})


def yarn(mscale):
    return {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0,
            "original_max_position_embeddings": 64, "beta_fast": 32.0, "beta_slow": 1.0,
            "mscale": mscale, "mscale_all_dim": mscale}


def deepseek2_config():
    """As V2-Lite: no low rank for the queries, softmax, no groups, weights not normalised."""
    return transformers.DeepseekV2Config(
        vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=512,
        q_lora_rank=None, kv_lora_rank=64, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=32,
        first_k_dense_replace=1, n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=2,
        moe_intermediate_size=32, n_group=1, topk_group=1, topk_method="greedy",
        norm_topk_prob=False, routed_scaling_factor=1.5, rms_norm_eps=1e-6,
        tie_word_embeddings=False, rope_parameters=yarn(0.707))


def deepseek3_config():
    """As V3. Three experts to a group, since a group is judged by its best two."""
    return transformers.DeepseekV3Config(
        vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=512,
        q_lora_rank=32, kv_lora_rank=64, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=16,
        first_k_dense_replace=1, n_routed_experts=12, num_experts_per_tok=3, n_shared_experts=1,
        moe_intermediate_size=32, n_group=4, topk_group=2, norm_topk_prob=True,
        routed_scaling_factor=2.5, rms_norm_eps=1e-6, tie_word_embeddings=False,
        rope_parameters=yarn(1.0))


def glm4moe_config(**more):
    """As GLM 4.5 and 4.6: biases, normed heads of which a half rotates, and experts as DeepSeek V3's."""
    return transformers.Glm4MoeConfig(**{
        "vocab_size": 128, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256,
        "first_k_dense_replace": 1, "n_routed_experts": 12, "num_experts_per_tok": 3, "n_shared_experts": 1,
        "moe_intermediate_size": 32, "n_group": 4, "topk_group": 2, "norm_topk_prob": True, "routed_scaling_factor": 2.5,
        "attention_bias": True, "use_qk_norm": True, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
        "num_mtp_layers": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}, **more})


def glm4moe_air_config():
    """As GLM 4.5 Air: heads are not normed, experts not in groups."""
    return glm4moe_config(use_qk_norm=False, n_group=1, topk_group=1, n_routed_experts=8, routed_scaling_factor=1.0)


def dots1_config():
    """As dots.llm1: attention as Qwen 3's, experts as DeepSeek V3's."""
    return transformers.Dots1Config(
        vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=256, sliding_window=None,
        first_k_dense_replace=1, n_routed_experts=12, num_experts_per_tok=3, n_shared_experts=2,
        moe_intermediate_size=32, n_group=1, topk_group=1, norm_topk_prob=True, routed_scaling_factor=2.5,
        rms_norm_eps=1e-5, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0})


def ernie4_5_moe_config():
    """As ERNIE 4.5 21B-A3B: a softmax with a bias that only ranks."""
    return transformers.Ernie4_5_MoeConfig(
        vocab_size=128, hidden_size=32, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=256,
        moe_layer_start_index=1, moe_num_experts=8, moe_k=3, moe_num_shared_experts=2, moe_intermediate_size=32,
        rms_norm_eps=1e-5, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0})


def make_expert_model(config, seed):
    model = make_model(config, seed)
    with torch.no_grad():
        for value in model.parameters():
            if value.dim() == 3:  # make_model takes the second dimension for what a row sums over
                value.mul_((value.shape[1] / value.shape[2]) ** 0.5)
        for name, value in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                value.copy_(torch.randn_like(value) * 0.2)
        for name, value in model.named_parameters():
            if name.endswith("e_score_correction_bias"):  # of a softmax, which is less than that
                value.copy_(torch.randn_like(value) * 0.05)
    return model


def is_deepseek(config):
    return config.model_type.startswith("deepseek")


def add_expert_metadata(writer, config):
    writer.add_expert_used_count(config.num_experts_per_tok)
    if config.model_type == "mixtral":
        writer.add_expert_count(config.num_local_experts)
        writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    if config.model_type == "granitemoe":
        writer.add_expert_count(config.num_local_experts)
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
    if config.model_type == "qwen2_moe":
        writer.add_expert_count(config.num_experts)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    if config.model_type == "glm4_moe":
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
        writer.add_rope_dimension_count(int(config.head_dim * config.rope_parameters["partial_rotary_factor"]))
        writer.add_leading_dense_block_count(config.first_k_dense_replace)
        writer.add_nextn_predict_layers(config.num_mtp_layers)
        add_sigmoid_metadata(writer, config)
    if config.model_type == "dots1":
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
        writer.add_leading_dense_block_count(config.first_k_dense_replace)
        add_sigmoid_metadata(writer, config)
    if config.model_type == "ernie4_5_moe":
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
        writer.add_expert_count(config.moe_num_experts)
        writer.add_interleave_moe_layer_step(config.moe_layer_interval)
        writer.add_leading_dense_block_count(config.moe_layer_start_index)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        writer.add_expert_shared_count(config.moe_num_shared_experts)
        writer.add_expert_shared_feed_forward_length(config.intermediate_size // config.num_key_value_heads)
    if config.model_type == "qwen3_moe":
        writer.add_expert_count(config.num_experts)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)


def add_deepseek_metadata(writer, config):
    writer.add_leading_dense_block_count(config.first_k_dense_replace)
    if config.q_lora_rank:
        writer.add_q_lora_rank(config.q_lora_rank)
    writer.add_kv_lora_rank(config.kv_lora_rank)
    # What a cached token holds: its latent and the rotated part of its key, for all heads at once.
    writer.add_key_length(config.kv_lora_rank + config.qk_rope_head_dim)
    writer.add_value_length(config.kv_lora_rank)
    writer.add_key_length_mla(config.qk_nope_head_dim + config.qk_rope_head_dim)
    writer.add_value_length_mla(config.v_head_dim)
    writer.add_rope_dimension_count(config.qk_rope_head_dim)
    rope = config.rope_parameters
    writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
    writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
    writer.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])
    add_sigmoid_metadata(writer, config)


def add_sigmoid_metadata(writer, config):
    writer.add_expert_count(config.n_routed_experts)
    writer.add_expert_group_count(config.n_group)
    writer.add_expert_group_used_count(config.topk_group)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID if uses_sigmoid(config)
                                  else gguf.ExpertGatingFuncType.SOFTMAX)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_shared_count(config.n_shared_experts)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    if config.norm_topk_prob:
        writer.add_expert_weights_norm(True)


def uses_sigmoid(config):
    return config.model_type in ("deepseek_v3", "glm4_moe", "dots1")


def next_token_tensors(config, layer):
    """What GLM 4.5 has behind its layers to predict what comes after the next token, which nobody computes here: pairs
    of name behind "model.layers.N." and values."""
    hidden, heads = config.hidden_size, config.num_attention_heads * config.head_dim
    values = np.random.default_rng(layer)
    return [(name, values.standard_normal(shape).astype(np.float32)) for name, shape in [
        ("eh_proj.weight", (hidden, 2 * hidden)), ("enorm.weight", (hidden,)), ("hnorm.weight", (hidden,)),
        ("shared_head.norm.weight", (hidden,)), ("shared_head.head.weight", (config.vocab_size, hidden)),
        ("embed_tokens.weight", (config.vocab_size, hidden)), ("input_layernorm.weight", (hidden,)),
        ("self_attn.q_proj.weight", (heads, hidden)), ("mlp.gate.weight", (config.n_routed_experts, hidden))]]


PARTS = {
    "eh_proj.weight": "nextn.eh_proj.weight",
    "enorm.weight": "nextn.enorm.weight",
    "hnorm.weight": "nextn.hnorm.weight",
    "shared_head.norm.weight": "nextn.shared_head_norm.weight",
    "shared_head.head.weight": "nextn.shared_head_head.weight",
    "embed_tokens.weight": "nextn.embed_tokens.weight",
    "mlp.shared_expert.gate_proj.weight": "ffn_gate_shexp.weight",
    "mlp.shared_expert.up_proj.weight": "ffn_up_shexp.weight",
    "mlp.shared_expert.down_proj.weight": "ffn_down_shexp.weight",
    "block_sparse_moe.router.weight": "ffn_gate_inp.weight",
    "block_sparse_moe.experts.down_proj": "ffn_down_exps.weight",
    "self_attn.q_a_proj.weight": "attn_q_a.weight",
    "self_attn.q_a_layernorm.weight": "attn_q_a_norm.weight",
    "self_attn.q_b_proj.weight": "attn_q_b.weight",
    "self_attn.kv_a_proj_with_mqa.weight": "attn_kv_a_mqa.weight",
    "self_attn.kv_a_layernorm.weight": "attn_kv_a_norm.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.gate.moe_statics.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.experts.down_proj": "ffn_down_exps.weight",
    "mlp.shared_experts.gate_proj.weight": "ffn_gate_shexp.weight",
    "mlp.shared_experts.up_proj.weight": "ffn_up_shexp.weight",
    "mlp.shared_experts.down_proj.weight": "ffn_down_shexp.weight",
}


def gguf_tensors(name, weight, config):
    """What one weight of transformers is in the file: pairs of name and values."""
    block, _, part = name.removeprefix("model.layers.").partition(".")
    if part == "mlp.gate.moe_statics.e_score_correction_bias":
        weight = weight[0]
    if part == "mlp.shared_expert_gate.weight":
        return [(f"blk.{block}.ffn_gate_inp_shexp.weight", weight[0])]
    if part in ("mlp.experts.gate_up_proj", "block_sparse_moe.experts.gate_up_proj"):
        gate, up = np.split(weight, 2, axis=1)
        return [(f"blk.{block}.ffn_gate_exps.weight", gate), (f"blk.{block}.ffn_up_exps.weight", up)]
    if part == "self_attn.kv_b_proj.weight":
        # Keys' half transposed: it is multiplied with the query, to meet the cached latent as it is.
        heads = weight.reshape(config.num_attention_heads, -1, config.kv_lora_rank)
        keys, values = np.split(heads, [config.qk_nope_head_dim], axis=1)
        return [(f"blk.{block}.attn_k_b.weight", keys.swapaxes(1, 2)),
                (f"blk.{block}.attn_v_b.weight", values)]
    if config.model_type in ("mixtral", "granitemoe") and part.endswith(("q_proj.weight", "k_proj.weight")):
        weight = interleave(weight, config.num_attention_heads if "q_proj" in part
                            else config.num_key_value_heads)
    if config.model_type == "glm4_moe" and part == "post_attention_layernorm.weight":
        return [(f"blk.{block}.post_attention_norm.weight", weight)]
    return [(f"blk.{block}.{PARTS[part]}" if part in PARTS and block != "model" else gguf_name(name, False), weight)]


def write_gguf(path, arch, model, config):
    writer = gguf.GGUFWriter(str(path), arch)
    writer.add_name(f"tiny random {config.model_type}")
    shown = copy.copy(config)
    if is_deepseek(config):
        shown.num_key_value_heads = 1  # the latent is one key and value to all heads
    weights = {name: value.numpy() for name, value in model.state_dict().items()}
    if config.model_type == "glm4_moe":
        layer = config.num_hidden_layers
        shown.num_hidden_layers += config.num_mtp_layers
        weights |= {f"model.layers.{layer}.{name}": weight for name, weight in next_token_tensors(config, layer)}
    write_metadata(writer, arch, shown)
    add_expert_metadata(writer, config)
    if is_deepseek(config):
        add_deepseek_metadata(writer, config)
    write_vocabulary(writer, config.vocab_size)
    for name, value in weights.items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        for tensor, weight in gguf_tensors(name, value, config):
            writer.add_tensor(tensor, np.ascontiguousarray(weight))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def last_margin(scores, count):
    """How far the least of the chosen is above the best of the others, in parts of the larger."""
    best = scores.topk(count + 1).values
    last, other = best[:, count - 1], best[:, count]
    return ((last - other) / torch.maximum(last.abs(), other.abs())).min().item()


def choice_margin(gate, logits, config):
    """The smallest margin of the choices of one layer, of groups and of experts."""
    if config.model_type == "ernie4_5_moe":
        return last_margin(gate.moe_statics(logits.softmax(-1)), config.num_experts_per_tok)
    if not uses_sigmoid(config):
        return last_margin(logits.softmax(-1), config.num_experts_per_tok)
    scores = logits.sigmoid() + gate.e_score_correction_bias
    groups = scores.reshape(len(scores), config.n_group, -1)
    sums = groups.topk(2).values.sum(-1)
    chosen = torch.zeros_like(sums).scatter_(1, sums.topk(config.topk_group).indices, 1).bool()
    scores = groups.masked_fill(~chosen[:, :, None], float("-inf")).flatten(1)
    margin = last_margin(scores, config.num_experts_per_tok)
    return margin if config.topk_group == config.n_group else min(margin, last_margin(sums, config.topk_group))


def smallest_margin(model, config, tokens):
    margins = []
    hooks = [gate.register_forward_hook(
        lambda gate, _, out: margins.append(choice_margin(gate, out[0], config)))
        for name, gate in model.named_modules() if name.endswith(("mlp.gate", "block_sparse_moe.router"))]
    with torch.no_grad():
        model(torch.tensor([tokens]))
    for hook in hooks:
        hook.remove()
    return min(margins)


def main():
    for name, arch, config in [("qwen3moe", "qwen3moe", qwen3moe_config()),
                               ("qwen2moe", "qwen2moe", qwen2moe_config()),
                               ("granitemoe", "granitemoe", granitemoe_config()),
                               ("mixtral", "llama", mixtral_config()),
                               ("deepseek2", "deepseek2", deepseek2_config()),
                               ("deepseek3", "deepseek2", deepseek3_config()),
                               ("glm4moe", "glm4moe", glm4moe_config()),
                               ("dots1", "dots1", dots1_config()),
                               ("ernie4_5_moe", "ernie4_5-moe", ernie4_5_moe_config())]:
        if len(sys.argv) > 1 and name not in sys.argv[1:]:
            continue
        for seed in itertools.count(7):
            model = make_expert_model(config, seed)
            path = HERE / f"tiny_{name}.json"
            write_golden(path, model, config, seed=11)
            golden = json.loads(path.read_text())
            margin = smallest_margin(model, config, golden["tokens"] + golden["greedy"])
            token_margin = min(golden["margins"])
            if margin > LEAST_EXPERT_MARGIN and token_margin > LEAST_TOKEN_MARGIN:
                break
        print(f"{name}, seed {seed}: margin of experts {margin:.2g}, of tokens {token_margin:.2g}")
        write_gguf(HERE / f"tiny_{name}.gguf", arch, model, config)


if __name__ == "__main__":
    main()
