#!/usr/bin/env python3
"""Makes the tiny random models of gpt-oss and what transformers computes with them, in FP32.

make_gpt_oss.py [LLAMA_LOGPROBS]

Writes tiny_gpt_oss.gguf and, with experts in MXFP4 as published files have them, tiny_gpt_oss_mxfp4.gguf and
the folder tiny_hf_gpt_oss, with their .json, beside this script. LLAMA_LOGPROBS is llama_logprobs.cc, compiled: it says how far llama.cpp
is from transformers. YaRN's ramp lies between whole pairs there, and not with the authors of the model, so
that this is asked of models that differ in that alone. Needs torch, transformers 5.x, numpy and gguf.
"""
import itertools
import json
import subprocess
import sys
import tempfile

import gguf
import numpy as np
import safetensors.torch
import torch
import transformers

import make_hf
from make_tiny import HERE, gguf_name, make_model, write_golden, write_vocabulary

LEAST_EXPERT_MARGIN = 2e-3  # of a score of the router, as in make_experts.py
LEAST_TOKEN_MARGIN = 0.01
MXFP4 = gguf.GGMLQuantizationType.MXFP4
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def make_config(truncate=False):
    return transformers.GptOssConfig(
        vocab_size=128, hidden_size=64, intermediate_size=32, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, head_dim=32, max_position_embeddings=512,
        num_local_experts=8, num_experts_per_tok=3, sliding_window=20, rms_norm_eps=1e-5,
        tie_word_embeddings=False,
        rope_parameters={"rope_type": "yarn", "rope_theta": 150000.0, "factor": 8.0, "beta_fast": 32.0,
                         "beta_slow": 1.0, "truncate": truncate,
                         "original_max_position_embeddings": 64})


def widen(model):
    """What make_model() does not know of: sinks, the router's scores, and experts that meet their bounds."""
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name.endswith("sinks"):
                value.copy_(torch.randn_like(value) * 2)
            elif name.endswith("router.weight"):
                value.copy_(torch.randn_like(value) * 0.4)
            elif name.endswith("gate_up_proj"):
                value.copy_(torch.randn_like(value) * 3 / value.shape[1] ** 0.5)
            elif name.endswith("gate_up_proj_bias"):
                value.copy_(torch.randn_like(value) * 2)
            elif name.endswith("down_proj"):
                value.copy_(torch.randn_like(value) * 0.15 / value.shape[1] ** 0.5)
            elif name.endswith("down_proj_bias"):
                value.copy_(torch.randn_like(value) * 0.2)
    return model


PARTS = {
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "self_attn.sinks": "attn_sinks.weight",
    "mlp.router.weight": "ffn_gate_inp.weight",
    "mlp.router.bias": "ffn_gate_inp.bias",
    "mlp.experts.down_proj_bias": "ffn_down_exps.bias",
}


def gguf_tensors(name, weight):
    """What one weight of transformers is in the file: pairs of name and values."""
    block, _, part = name.removeprefix("model.layers.").partition(".")
    # Gate and up take turns, and a matrix is multiplied from the right.
    if part == "mlp.experts.gate_up_proj":
        return [(f"blk.{block}.ffn_{which}_exps.weight", weight[:, :, i::2].swapaxes(1, 2))
                for i, which in enumerate(["gate", "up"])]
    if part == "mlp.experts.gate_up_proj_bias":
        return [(f"blk.{block}.ffn_{which}_exps.bias", weight[:, i::2])
                for i, which in enumerate(["gate", "up"])]
    if part == "mlp.experts.down_proj":
        return [(f"blk.{block}.ffn_down_exps.weight", weight.swapaxes(1, 2))]
    return [(f"blk.{block}.{PARTS[part]}" if part in PARTS else gguf_name(name, False), weight)]


def write_metadata(writer, config):
    rope = config.rope_parameters
    writer.add_name("tiny random gpt-oss")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_sliding_window(config.sliding_window)
    writer.add_expert_count(config.num_local_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.intermediate_size)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(rope["factor"])
    writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])


def write_gguf(path, model, config, is_mxfp4):
    writer = gguf.GGUFWriter(str(path), "gpt-oss")
    write_metadata(writer, config)
    write_vocabulary(writer, config.vocab_size)
    for name, value in model.state_dict().items():
        for tensor, weight in gguf_tensors(name, value.numpy()):
            weight = np.ascontiguousarray(weight)
            if is_mxfp4 and tensor.endswith("_exps.weight"):
                writer.add_tensor(tensor, gguf.quants.quantize(weight, MXFP4), raw_dtype=MXFP4)
            else:
                writer.add_tensor(tensor, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def round_experts(model):
    """Experts' matrices to what MXFP4 makes of them."""
    def rounded(weight):  # [.., inputs, outputs]
        rows = np.ascontiguousarray(weight.numpy().swapaxes(1, 2))
        values = gguf.quants.dequantize(gguf.quants.quantize(rows, MXFP4), MXFP4)
        return torch.from_numpy(np.ascontiguousarray(values.reshape(rows.shape).swapaxes(1, 2)))
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name.endswith(("gate_up_proj", "down_proj")):
                value.copy_(rounded(value))


def watch(model, config, tokens):
    """The smallest margin of a choice of experts, and how many of the gates meet their bound."""
    margins, bounded = [], []

    def chosen(_, __, out):
        best = out[0].topk(config.num_experts_per_tok + 1).values
        margins.append((best[:, -2] - best[:, -1]).min().item())

    def gates(_, inputs, out):
        layer = _
        for expert in range(config.num_local_experts):
            both = inputs[0] @ layer.gate_up_proj[expert] + layer.gate_up_proj_bias[expert]
            bounded.append((both > config.swiglu_limit).float().mean().item())

    hooks = [module.register_forward_hook(chosen if name.endswith("router") else gates)
             for name, module in model.named_modules() if name.endswith(("mlp.router", "mlp.experts"))]
    with torch.no_grad():
        model(torch.tensor([tokens]))
    for hook in hooks:
        hook.remove()
    return min(margins), sum(bounded) / len(bounded)


def published_tensors(model):
    """As OpenAI's files have them: experts' matrices row by row, numbers and scales apart, two neighbours in a byte."""
    for name, value in model.state_dict().items():
        if not name.endswith(("gate_up_proj", "down_proj")):
            yield name, value.to(torch.bfloat16)
            continue
        rows = np.ascontiguousarray(value.numpy().swapaxes(1, 2))
        blocks = gguf.quants.quantize(rows, MXFP4).reshape(*rows.shape[:2], -1, 17)
        numbers = np.concatenate([blocks[..., 1:] & 15, blocks[..., 1:] >> 4], axis=-1)
        yield name + "_scales", torch.from_numpy(blocks[..., 0].copy())
        yield name + "_blocks", torch.from_numpy(numbers[..., 0::2] | numbers[..., 1::2] << 4)


def make_folder():
    tokenizer, named = make_hf.byte_level_tokenizer(O200K)
    config = make_config()
    config.num_hidden_layers, config.layer_types = 2, config.layer_types[:2]
    config.vocab_size = tokenizer.get_vocab_size() + 3
    golden = HERE / "tiny_hf_gpt_oss.json"
    model, seed, margins = find_model(config, True, golden, torch.bfloat16)
    folder = HERE / "tiny_hf_gpt_oss"
    folder.mkdir(exist_ok=True)
    safetensors.torch.save_file(dict(published_tensors(model)), folder / "model.safetensors", {"format": "pt"})
    described = {**config.to_dict(), "architectures": ["GptOssForCausalLM"], "attention_bias": True,
                 "experts_per_token": config.num_experts_per_tok,
                 "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.embed_tokens"]}}
    (folder / "config.json").write_text(json.dumps(described, indent=1) + "\n")
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named)
    fast.chat_template = make_hf.CHAT_TEMPLATE
    fast.save_pretrained(folder)
    texts = [[text, tokenizer.encode(text).ids] for text in make_hf.strings.texts(60, 3) if len(text) < 60]
    golden.write_text(json.dumps({**json.loads(golden.read_text()), "texts": texts}) + "\n")
    print("tiny_hf_gpt_oss, seed", seed, margins, sum(path.stat().st_size for path in folder.iterdir()))


def find_model(config, is_mxfp4, path, dtype=torch.float32):
    """One in which neither the choice of an expert nor that of a token is near a tie; its golden goes to path."""
    config._experts_implementation = "eager"
    for seed in itertools.count(7):
        model = widen(make_model(config, seed))
        if is_mxfp4:
            round_experts(model)
        with torch.no_grad():
            for name, value in model.named_parameters():
                if not name.endswith(("gate_up_proj", "down_proj")):
                    value.copy_(value.to(dtype))
        write_golden(path, model, config, seed=11)
        golden = json.loads(path.read_text())
        margin, bounded = watch(model, config, golden["tokens"] + golden["greedy"])
        token_margin = min(golden["margins"])
        if margin > LEAST_EXPERT_MARGIN and token_margin > LEAST_TOKEN_MARGIN:
            return model, seed, (f"margin of experts {margin:.2g}, of tokens {token_margin:.2g}, "
                                 f"{bounded:.1%} of the experts' inner values beyond the bound")


def make(name, is_mxfp4, llama, truncate, folder):
    config = make_config(truncate)
    path = folder / f"{name}.json"
    model, seed, margins = find_model(config, is_mxfp4, path)
    write_gguf(folder / f"{name}.gguf", model, config, is_mxfp4)
    print(f"{name}, seed {seed}: {margins}")
    if llama:
        golden = json.loads(path.read_text())
        text = " ".join(map(str, golden["tokens"]))
        out = subprocess.run([llama, folder / f"{name}.gguf"], input=text, capture_output=True, text=True, check=True)
        distances = np.abs(np.array(out.stdout.split(), dtype=float) - golden["logprobs"])
        print(f"  llama.cpp, ramp {'' if truncate else 'not '}between whole pairs: mean {distances.mean():.2g}, "
              f"largest {distances.max():.2g}")


def main():
    llama = sys.argv[1] if len(sys.argv) > 1 else None
    make_folder()
    for name, is_mxfp4 in [("tiny_gpt_oss", False), ("tiny_gpt_oss_mxfp4", True)]:
        make(name, is_mxfp4, None, False, HERE)
        if llama:
            with tempfile.TemporaryDirectory() as folder:
                make(name, is_mxfp4, llama, True, type(HERE)(folder))


if __name__ == "__main__":
    main()
