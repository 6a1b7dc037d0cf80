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

from make_tiny import HERE, gguf_name, interleave, make_model, write_golden, write_vocabulary

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


# Name: the architecture in GGUF, the configuration.
FAMILIES = {"phi3": ("phi3", phi3_config), "phi3_window": ("phi3", phi3_window_config)}

# Architectures whose files have the rows of Q and K in pairs.
INTERLEAVED = ()
FUSED = {"self_attn.qkv_proj.weight": "attn_qkv.weight", "mlp.gate_up_proj.weight": "ffn_up.weight"}


def head_dim_of(config):
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def write_metadata(writer, config):
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    rope = config.rope_parameters
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


ADD = {"phi3": add_phi3}


def tensor_of(name, weight, arch, config):
    block, _, part = name.removeprefix("model.layers.").partition(".")
    if part in FUSED:
        return f"blk.{block}.{FUSED[part]}", weight
    if arch in INTERLEAVED and part.endswith(("q_proj.weight", "k_proj.weight")):
        weight = interleave(weight, config.num_attention_heads if "q_proj" in part
                            else config.num_key_value_heads)
    return gguf_name(name, False), weight


def write_gguf(path, arch, model, config):
    writer = gguf.GGUFWriter(str(path), arch)
    writer.add_name(f"tiny random {config.model_type.replace('phi3', 'phi 3')}")  # llama.cpp knows tokens of phi3 by its name
    write_metadata(writer, config)
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
