#!/usr/bin/env python3
"""Makes the tiny random models of the smaller families and what transformers computes with them, in FP32.

make_families.py [NAME...]

Needs torch, transformers 5.x, numpy and gguf. Writes tiny_NAME.gguf and .json beside this script, with the tensors and
keys that llama.cpp's conversion of such a model writes. llama.cpp computes them alike, but for windows of phi3, which it
leaves out.
"""
import itertools
import json
import sys

import gguf
import numpy as np
import transformers

from make_tiny import HERE, gguf_name, interleave, make_model, write_golden, write_sizes, write_vocabulary

LEAST_TOKEN_MARGIN = 0.01
SHAPE = {"vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
         "rms_norm_eps": 1e-5, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def phi3_config():
    """As Phi 3.5 mini: LongRoPE; as Phi 4 mini: a part of each head rotates."""
    return transformers.Phi3Config(
        **SHAPE, tie_word_embeddings=False, original_max_position_embeddings=64,
        rope_parameters={"rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.75,
                         "short_factor": [1.0, 1.05, 1.1, 1.3, 1.7, 2.0],
                         "long_factor": [1.1, 1.5, 2.3, 3.1, 4.0, 6.5]})


def phi3_window_config():
    """As Phi 3 mini: every layer sees a window."""
    return transformers.Phi3Config(
        **SHAPE, tie_word_embeddings=True, sliding_window=20, original_max_position_embeddings=256,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0})


def small(**more):
    return {**SHAPE, "hidden_size": 32, "intermediate_size": 64, "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, **more}


def smollm3_config():
    """Every fourth layer does not turn."""
    return transformers.SmolLM3Config(**small(num_hidden_layers=4))


def granite_config():
    return transformers.GraniteConfig(
        **small(embedding_multiplier=12.0, residual_multiplier=0.22, attention_multiplier=0.3, logits_scaling=0.7))


def mistral3_config():
    """As Ministral 3: queries grow with their position."""
    return transformers.Ministral3Config(**small(
        head_dim=16, tie_word_embeddings=False,
        rope_parameters={"rope_type": "yarn", "rope_theta": 10000.0, "factor": 16.0, "beta_fast": 32.0, "beta_slow": 1.0,
                         "original_max_position_embeddings": 16, "mscale": 1.0, "mscale_all_dim": 1.0,
                         "llama_4_scaling_beta": 0.5}))


def olmo2_config():
    return transformers.Olmo2Config(**small(tie_word_embeddings=False))


def olmo3_config():
    """As OLMo 3: windows, and YaRN in the layers that have none."""
    return transformers.Olmo3Config(**small(
        num_hidden_layers=4, sliding_window=20, tie_word_embeddings=False, rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0,
                               "original_max_position_embeddings": 32, "attention_factor": 1.2079441541679836,
                               "beta_fast": 32.0, "beta_slow": 1.0}}))


def exaone4_config():
    """As EXAONE 4.0 32B: layers without a window do not turn."""
    return transformers.Exaone4Config(**small(num_hidden_layers=4, sliding_window=20, sliding_window_pattern=4))


def seed_oss_config():
    return transformers.SeedOssConfig(**small(head_dim=16, attention_dropout=0.0, residual_dropout=0.0))


def ernie4_5_config():
    return transformers.Ernie4_5Config(**small(head_dim=16))


def glm4_config():
    return transformers.Glm4Config(**small(
        head_dim=16, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}))


def gemma2_config():
    """Caps that scores and logits come near to."""
    return transformers.Gemma2Config(**small(
        num_hidden_layers=4, head_dim=16, query_pre_attn_scalar=16, sliding_window=20, attn_logit_softcapping=2.0,
        final_logit_softcapping=3.0, rms_norm_eps=1e-6))


# Name: the architecture in GGUF, the configuration.
FAMILIES = {"phi3": ("phi3", phi3_config), "phi3_window": ("phi3", phi3_window_config),
            "smollm3": ("smollm3", smollm3_config), "granite": ("granite", granite_config),
            "mistral3": ("mistral3", mistral3_config), "olmo2": ("olmo2", olmo2_config),
            "olmo3": ("olmo2", olmo3_config), "exaone4": ("exaone4", exaone4_config),
            "seed_oss": ("seed_oss", seed_oss_config), "ernie4_5": ("ernie4_5", ernie4_5_config),
            "glm4": ("glm4", glm4_config), "gemma2": ("gemma2", gemma2_config)}

# Architectures whose files have the rows of Q and K in pairs, where transformers has halves.
INTERLEAVED = ("smollm3", "granite", "mistral3")
FUSED = {"self_attn.qkv_proj.weight": "attn_qkv.weight", "mlp.gate_up_proj.weight": "ffn_up.weight"}
# Norms that files name otherwise than llama's.
NORMS = {"olmo2": {"post_attention_layernorm.weight": "post_attention_norm.weight",
                   "post_feedforward_layernorm.weight": "post_ffw_norm.weight"},
         "seed_oss": {"post_attention_layernorm.weight": "post_attention_norm.weight"},
         "glm4": {"post_self_attn_layernorm.weight": "post_attention_norm.weight",
                  "post_attention_layernorm.weight": "ffn_norm.weight",
                  "post_mlp_layernorm.weight": "post_ffw_norm.weight"}}
NORMS["exaone4"] = NORMS["olmo2"]


def head_dim_of(config):
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def write_metadata(writer, config):
    write_sizes(writer, config)
    rope = config.rope_parameters
    rope = rope.get("full_attention", rope)
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if getattr(config, "head_dim", None):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(int(head_dim_of(config) * rope.get("partial_rotary_factor", 1.0)))


def add_phi3(writer, model, config):
    rope = config.rope_parameters
    writer.add_rope_scaling_orig_ctx_len(config.original_max_position_embeddings)
    writer.add_sliding_window(config.sliding_window or 0)
    if rope["rope_type"] == "longrope":
        writer.add_rope_scaling_attn_factors(model.model.rotary_emb.attention_scaling)
        for part in ("long", "short"):
            writer.add_tensor(f"rope_factors_{part}.weight", np.array(rope[f"{part}_factor"], np.float32))


def add_granite(writer, model, config):
    writer.add_attention_scale(config.attention_multiplier)
    writer.add_embedding_scale(config.embedding_multiplier)
    writer.add_residual_scale(config.residual_multiplier)
    writer.add_logit_scale(config.logits_scaling)


def add_mistral3(writer, model, config):
    rope = config.rope_parameters
    writer.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"])
    writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])


def add_windows(writer, model, config):
    if getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])


def add_gemma2(writer, model, config):
    writer.add_sliding_window(config.sliding_window)
    writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
    writer.add_final_logit_softcapping(config.final_logit_softcapping)


ADD = {"phi3": add_phi3, "granite": add_granite, "mistral3": add_mistral3, "olmo2": add_windows, "exaone4": add_windows,
       "gemma2": add_gemma2}


def tensor_of(name, weight, arch, config):
    block, _, part = name.removeprefix("model.layers.").partition(".")
    for names in (FUSED, NORMS.get(arch, {})):
        if part in names:
            return f"blk.{block}.{names[part]}", weight
    if arch in INTERLEAVED and part.endswith(("q_proj.weight", "k_proj.weight")):
        weight = interleave(weight, config.num_attention_heads if "q_proj" in part
                            else config.num_key_value_heads)
    if arch == "gemma2" and name.endswith("norm.weight"):
        weight = weight + 1
    return gguf_name(name, arch == "gemma2"), weight


def write_gguf(path, arch, model, config):
    writer = gguf.GGUFWriter(str(path), arch)
    writer.add_name(f"tiny random {config.model_type.replace('phi3', 'phi 3')}")  # llama.cpp knows tokens of phi3 by its name
    write_metadata(writer, config)
    if arch in ADD:
        ADD[arch](writer, model, config)
    write_vocabulary(writer, config.vocab_size)
    for name, value in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        tensor, weight = tensor_of(name, value.numpy(), arch, config)
        writer.add_tensor(tensor, np.ascontiguousarray(weight))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make_one(name):
    arch, make_config = FAMILIES[name]
    config = make_config()
    path = HERE / f"tiny_{name}.json"
    for seed in itertools.count(7):
        model = make_model(config, seed)
        write_golden(path, model, config, seed=11)
        if min(json.loads(path.read_text())["margins"]) > LEAST_TOKEN_MARGIN:
            break
    write_gguf(HERE / f"tiny_{name}.gguf", arch, model, config)
    if name == "phi3":  # within the original context, of which the divisors are others
        write_golden(HERE / "tiny_phi3_short.json", model, config, seed=11, num_tokens=40)
    print(f"{name}, seed {seed}")


def main():
    for name in sys.argv[1:] or FAMILIES:
        make_one(name)


if __name__ == "__main__":
    main()
