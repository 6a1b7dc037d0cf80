#!/usr/bin/env python3
"""Makes the tiny random models of this folder and what transformers computes with them, in FP32.

make_tiny.py LLAMA_QUANTIZE

LLAMA_QUANTIZE is llama.cpp's llama-quantize: it makes the file of mixed types. Needs torch, transformers
5.x, numpy and gguf. Writes tiny_*.gguf and tiny_*.json beside this script.
"""
import json
import pathlib
import subprocess
import sys

import gguf
import numpy as np
import torch
import transformers

HERE = pathlib.Path(__file__).parent
NUM_TOKENS = 90
NUM_GREEDY = 24


def llama_config():
    return transformers.LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=256,
        rms_norm_eps=1e-5, tie_word_embeddings=False,
        rope_parameters={"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0,
                         "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                         "original_max_position_embeddings": 64})


def qwen2_config():
    return transformers.Qwen2Config(
        vocab_size=128, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=1, max_position_embeddings=256,
        rms_norm_eps=1e-6, tie_word_embeddings=True,
        rope_parameters={"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
                         "original_max_position_embeddings": 64})


def qwen3_config():
    return transformers.Qwen3Config(
        vocab_size=128, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=32, max_position_embeddings=256,
        rms_norm_eps=1e-6, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0})


def gemma3_config():
    return transformers.Gemma3TextConfig(
        vocab_size=128, hidden_size=32, intermediate_size=32, num_hidden_layers=6,
        num_attention_heads=2, num_key_value_heads=1, head_dim=32, query_pre_attn_scalar=32,
        max_position_embeddings=256, sliding_window=20, rms_norm_eps=1e-6,
        tie_word_embeddings=True,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}})


def mixed_config():
    return transformers.LlamaConfig(
        vocab_size=64, hidden_size=256, intermediate_size=256, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=2, head_dim=64, max_position_embeddings=256,
        rms_norm_eps=1e-5, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0})


MIXED_TYPES = {"attn_q": "q4_k", "attn_k": "q5_k", "attn_v": "q6_k", "attn_output": "q5_0",
               "ffn_gate": "q3_k", "ffn_up": "q2_k", "ffn_down": "q4_1"}


def make_model(config, seed):
    """A model whose logits depend on all of its weights: wide, so that attention is not flat."""
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation="eager").eval()
    is_gemma = config.model_type in ("gemma2", "gemma3_text")
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name.endswith("norm.weight"):
                value.copy_(torch.randn_like(value) * 0.2 + (0 if is_gemma else 1))
            elif name.endswith("bias"):
                value.copy_(torch.randn_like(value) * 0.5)
            elif "embed_tokens" in name:
                value.copy_(torch.randn_like(value) * (0.15 if config.tie_word_embeddings else 1.0))
            else:
                value.copy_(torch.randn_like(value) * 1.3 / value.shape[min(1, value.dim() - 1)] ** 0.5)
    return model


def interleave(weight, num_heads):
    """Rows of Q or K from the order of halves to that of pairs, as GGUF's llama has them."""
    rows, cols = weight.shape
    return weight.reshape(num_heads, 2, rows // num_heads // 2, cols).swapaxes(1, 2).reshape(
        rows, cols)


NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
}


def gguf_name(name, is_gemma):
    plain = name.removeprefix("model.")
    if plain == "embed_tokens.weight":
        return "token_embd.weight"
    if plain == "norm.weight":
        return "output_norm.weight"
    if plain == "lm_head.weight":
        return "output.weight"
    _, layer, rest = plain.split(".", 2)
    part, kind = rest.rsplit(".", 1)
    norms = {"post_attention_layernorm": "post_attention_norm" if is_gemma else "ffn_norm",
             "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm"}
    return f"blk.{layer}.{NAMES.get(part) or norms[part]}.{kind}"


def write_sizes(writer, config):
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)


def write_metadata(writer, arch, config):
    write_sizes(writer, config)
    rope = config.rope_parameters
    if arch in ("qwen3", "gemma3"):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if arch == "gemma3":
        writer.add_sliding_window(config.sliding_window)
        rope = rope["full_attention"]
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])


def rope_divisors(model, config):
    """What rope_freqs.weight has to hold: the plain frequency over the stretched one."""
    half = config.head_dim // 2
    plain = 1 / config.rope_parameters["rope_theta"] ** (torch.arange(half) / half)
    return (plain / model.model.rotary_emb.inv_freq).numpy().astype(np.float32)


def write_vocabulary(writer, size):
    """llama-quantize wants one; nothing here uses it."""
    writer.add_tokenizer_model("llama")
    writer.add_token_list([f"t{i}" for i in range(size)])
    writer.add_token_scores([0.0] * size)
    writer.add_token_types([1] * size)


def write_gguf(path, arch, model, config):
    writer = gguf.GGUFWriter(str(path), arch)
    writer.add_name(f"tiny random {arch}")
    write_metadata(writer, arch, config)
    write_vocabulary(writer, config.vocab_size)
    if config.model_type == "llama" and config.rope_parameters["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", rope_divisors(model, config))
    for name, value in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        weight = value.numpy()
        if arch == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            weight = interleave(weight, heads)
        if arch == "gemma3" and name.endswith("norm.weight"):
            weight = weight + 1
        writer.add_tensor(gguf_name(name, arch == "gemma3"), np.ascontiguousarray(weight))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def load_dequantised(path, model, config):
    """The model again, with the exact values that the quantised file stands for."""
    values = {t.name: gguf.quants.dequantize(t.data, t.tensor_type).reshape(
        tuple(reversed(t.shape.tolist()))) for t in gguf.GGUFReader(str(path)).tensors}
    state = {}
    for name in model.state_dict():
        key = gguf_name("model.embed_tokens.weight" if name == "lm_head.weight" else name, False)
        weight = values[key]
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            rows, cols = weight.shape
            weight = weight.reshape(heads, rows // heads // 2, 2, cols).swapaxes(1, 2).reshape(
                rows, cols)
        state[name] = torch.from_numpy(np.ascontiguousarray(weight).astype(np.float32))
    model.load_state_dict(state)


def write_golden(path, model, config, seed, num_tokens=NUM_TOKENS):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, config.vocab_size, (1, num_tokens), generator=generator)
    with torch.no_grad():
        logits = model(tokens).logits[0]
        logprobs = torch.log_softmax(logits, -1)[:-1].gather(1, tokens[0, 1:, None])[:, 0]
        greedy, margins, text = [], [], tokens
        for _ in range(NUM_GREEDY):
            best = model(text).logits[0, -1].topk(2)
            greedy.append(best.indices[0].item())
            margins.append((best.values[0] - best.values[1]).item())
            text = torch.cat([text, best.indices[:1][None]], 1)
    golden = {"tokens": tokens[0].tolist(),
              "logprobs": [round(x, 5) for x in logprobs.tolist()],
              "last_logits": [round(x, 5) for x in logits[-1].tolist()],
              "greedy": greedy, "margins": [round(x, 5) for x in margins]}
    path.write_text(json.dumps(golden) + "\n")


def main():
    for arch, make_config in [("llama", llama_config), ("qwen2", qwen2_config),
                              ("qwen3", qwen3_config), ("gemma3", gemma3_config)]:
        config = make_config()
        model = make_model(config, seed=7)
        write_gguf(HERE / f"tiny_{arch}.gguf", arch, model, config)
        write_golden(HERE / f"tiny_{arch}.json", model, config, seed=11)

    config = mixed_config()
    model = make_model(config, seed=9)
    plain, mixed = HERE / "tiny_f32.tmp", HERE / "tiny_mixed.gguf"
    write_gguf(plain, "llama", model, config)
    types = [word for name, kind in MIXED_TYPES.items()
             for word in ("--tensor-type", f"{name}={kind}")]
    subprocess.run([sys.argv[1], *types, "--token-embedding-type", "q8_0", plain, mixed, "Q4_0"],
                   check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    plain.unlink()
    load_dequantised(mixed, model, config)
    write_golden(HERE / "tiny_mixed.json", model, config, seed=13)


if __name__ == "__main__":
    main()
