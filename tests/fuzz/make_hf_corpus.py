#!/usr/bin/env python3
"""Makes the seeds of safetensors_fuzz and hf_folder_fuzz: as files should be, and as they lie.

make_hf_corpus.py CORPUS_FOLDER
"""
import json
import pathlib
import struct
import sys

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def safetensors(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def tensor(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def safetensors_seeds():
    two = {"a": tensor("F32", [2, 2], 0, 16), "b": tensor("BF16", [3], 16, 22)}
    deep = b'{"__metadata__":' + b"[" * 100 + b"]" * 100 + b"}"
    return {
        "two": safetensors(two, bytes(22)),
        "metadata": safetensors({"__metadata__": {"format": "pt"}, "h": tensor("F16", [1], 0, 2)}, bytes(2)),
        "empty": safetensors({}),
        "no_header": b"\1",
        "long_header": safetensors(two, bytes(22), 2 ** 63),
        "overlap": safetensors({"a": tensor("U8", [9], 0, 9), "b": tensor("U8", [9], 7, 16)}, bytes(16)),
        "beyond": safetensors({"a": tensor("F32", [4], 8, 24)}, bytes(16)),
        "overflow": safetensors({"a": tensor("F64", [2 ** 62, 8], 0, 16)}, bytes(16)),
        "twice": safetensors(b'{"a":{"dtype":"U8","shape":[],"data_offsets":[0,1]},'
                             b'"a":{"dtype":"U8","shape":[],"data_offsets":[1,2]}}', bytes(2)),
        "deep": safetensors(deep),
        "list": safetensors([1, {"a": 2}]),
    }


def config(**more):
    return {"architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0, "tie_word_embeddings": False, **more}


def tokenizer(pre_tokenizer, normalizer, tokens, merges, **model):
    return {"added_tokens": [{"id": len(tokens), "content": "<end>", "special": True}], "normalizer": normalizer,
            "pre_tokenizer": pre_tokenizer, "post_processor": {
                "type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<end>"}}, {"Sequence": {"id": "A"}}]},
            "model": {"type": "BPE", "vocab": {token: i for i, token in enumerate(tokens)}, "merges": merges, **model}}


def folder_seeds():
    llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
              "original_max_position_embeddings": 64}
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 32, "mscale": 1.0}
    gemma3 = config(architectures=["Gemma3ForCausalLM"], head_dim=16, query_pre_attn_scalar=16, sliding_window=20,
                    layer_types=["sliding_attention", "full_attention"], rope_theta=None, rope_parameters={
                        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}})
    gemma2 = config(architectures=["Gemma2ForCausalLM"], head_dim=16, query_pre_attn_scalar=24, sliding_window=20,
                    attn_logit_softcapping=50.0, final_logit_softcapping=None)
    moe = config(architectures=["Qwen3MoeForCausalLM"], head_dim=16, num_experts=4, num_experts_per_tok=2,
                 moe_intermediate_size=32, norm_topk_prob=True)
    glm45 = config(architectures=["Glm4MoeForCausalLM"], head_dim=16, attention_bias=True, use_qk_norm=True, n_routed_experts=4,
                   num_experts_per_tok=2, n_shared_experts=1, moe_intermediate_size=32, n_group=2, topk_group=1,
                   norm_topk_prob=True, routed_scaling_factor=2.5, first_k_dense_replace=1, num_nextn_predict_layers=1,
                   partial_rotary_factor=0.5)
    phi3 = config(architectures=["Phi3ForCausalLM"], original_max_position_embeddings=64, partial_rotary_factor=0.75,
                  rope_scaling={"type": "longrope", "long_factor": [2.0] * 6, "short_factor": [1.0] * 6})
    granite = config(architectures=["GraniteForCausalLM"], attention_multiplier=0.5, embedding_multiplier=12.0,
                     residual_multiplier=0.22, logits_scaling=8.0)
    smollm3 = config(architectures=["SmolLM3ForCausalLM"], no_rope_layers=[1, 0], no_rope_layer_interval=2)
    olmo3 = config(architectures=["Olmo3ForCausalLM"], sliding_window=20, layer_types=["sliding_attention", "full_attention"],
                   rope_scaling=yarn)
    images = {"architectures": ["Gemma3ForConditionalGeneration"], "vision_config": {}, "text_config": {
        **gemma3, "architectures": None, "model_type": "gemma3_text"}}
    byte_level = {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": LLAMA3}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}]}
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    seeds = {
        "llama": config(rope_scaling=llama3), "yarn": config(rope_scaling=yarn), "gemma2": gemma2, "gemma3": gemma3, "qwen3moe": moe, "glm45": glm45, "phi3": phi3, "images": images, "granite": granite, "smollm3": smollm3, "olmo3": olmo3,
        "bytes": tokenizer(byte_level, None, ["a", "b", "ab"], ["a b"], ignore_merges=True),
        "pieces": tokenizer(None, spaces, ["<unk>", "\u2581", "a", "\u2581a"], [["\u2581", "a"]], unk_token="<unk>", fuse_unk=True),
        "unigram": tokenizer(None, spaces, [], []) | {"model": {"type": "Unigram", "vocab": [["a", -1.5], ["b", -2.5]]}},
        "vocab_list": tokenizer(byte_level, None, [], ["a b"]) | {"model": {"type": "BPE", "vocab": [1, 2, [3]], "merges": {"a": "b"}}},
        "wild_ids": tokenizer(byte_level, None, [], ["a b"]) | {"model": {"type": "BPE", "vocab": {"a": 2 ** 63, "b": -1}}},
    }
    return {name: json.dumps(seed).encode() for name, seed in seeds.items()} | {"nested": b"[" * 200, "huge_number": b'{"hidden_size":1e999}'}


def main():
    for folder, seeds in (("safetensors", safetensors_seeds()), ("hf_folder", folder_seeds())):
        target = pathlib.Path(sys.argv[1]) / folder
        target.mkdir(parents=True, exist_ok=True)
        for name, seed in seeds.items():
            (target / name).write_bytes(seed)


main()
