#!/usr/bin/env python3
"""Makes the seeds of gguf_fuzz: small models as they should be, and files that lie.

make_gguf_corpus.py CORPUS_FOLDER
"""
import pathlib
import struct
import sys

UINT8, INT32, UINT32, FLOAT32, BOOL, STRING, ARRAY, UINT64 = 0, 5, 4, 6, 7, 8, 9, 10
FORMATS = {UINT8: "<B", INT32: "<i", UINT32: "<I", FLOAT32: "<f", BOOL: "<B", UINT64: "<Q"}


def text(value):
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def payload(kind, value):
    if kind == STRING:
        return text(value)
    if kind == ARRAY:
        element, values = value
        return struct.pack("<IQ", element, len(values)) + b"".join(
            payload(element, item) for item in values)
    return struct.pack(FORMATS[kind], value)


def entry(key, kind, value):
    return text(key) + struct.pack("<I", kind) + payload(kind, value)


def tensor(name, dims, kind, offset):
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def gguf(entries, tensors, data=b"", version=3, num_entries=None, num_tensors=None):
    head = struct.pack("<4sIQQ", b"GGUF", version,
                       len(tensors) if num_tensors is None else num_tensors,
                       len(entries) if num_entries is None else num_entries)
    body = head + b"".join(entries) + b"".join(tensors)
    return body + b"\0" * (-len(body) % 32) + data


def model(arch, extra=(), numbers=()):
    """A complete model of one layer, 32 wide, with 4 tokens; all weights are zero."""
    entries = [entry("general.architecture", STRING, arch)]
    for key, value in [("block_count", 2 if arch == "glm4moe" else 1), ("context_length", 64), ("embedding_length", 32),
                       ("feed_forward_length", 32), ("attention.head_count", 1 if arch == "deepseek2" else 2),
                       ("attention.head_count_kv", 1), *extra]:
        entries.append(entry(f"{arch}.{key}", UINT32, value))
    entries += [entry(f"{arch}.{key}", FLOAT32, value) for key, value in numbers]
    entries += [
        entry(f"{arch}.attention.layer_norm_rms_epsilon", FLOAT32, 1e-5),
        entry(f"{arch}.rope.freq_base", FLOAT32, 10000.0),
        entry("tokenizer.ggml.model", STRING, "llama" if arch in ("gemma2", "gemma3", "phi3") else "gpt2"),
        entry("tokenizer.ggml.pre", STRING, "default"),
        entry("tokenizer.ggml.tokens", ARRAY, (STRING, ["<s>", "a", "b", "ab"])),
        entry("tokenizer.ggml.scores", ARRAY, (FLOAT32, [0.0, -1.0, -2.0, -3.0])),
        entry("tokenizer.ggml.token_type", ARRAY, (INT32, [3, 1, 1, 1])),
        entry("tokenizer.ggml.merges", ARRAY, (STRING, ["a b"])),
        entry("tokenizer.ggml.bos_token_id", UINT32, 0),
        entry("tokenizer.ggml.add_bos_token", BOOL, 1),
        entry("tokenizer.chat_template", STRING, "{{ messages[0].content }}"),
    ]
    f32, q8_0, q4_0, q4_1, mxfp4 = 0, 8, 2, 3, 39
    has_experts = dict(extra).get("expert_count", 0)
    shapes = [("token_embd.weight", (32, 4), q8_0, 136), ("blk.0.attn_norm.weight", (32,), f32, 128),
              ("blk.0.attn_q.weight", (32, 32), q4_0, 576),
              ("blk.0.attn_k.weight", (32, 16), q4_1, 320),
              ("blk.0.attn_v.weight", (32, 16), q4_1, 320),
              ("blk.0.attn_output.weight", (32, 32), q4_0, 576),
              ("blk.0.ffn_norm.weight", (32,), f32, 128),
              ("blk.0.ffn_gate.weight", (32, 32), q4_0, 576),
              ("blk.0.ffn_up.weight", (32, 32), q4_0, 576),
              ("blk.0.ffn_down.weight", (32, 32), q4_0, 576),
              ("output_norm.weight", (32,), f32, 128)]
    if arch in ("qwen2", "qwen2moe", "glm4moe"):
        shapes += [(f"blk.0.attn_{part}.bias", (size,), f32, size * 4)
                   for part, size in [("q", 32), ("k", 16), ("v", 16)]]
    if arch in ("qwen3", "qwen3moe", "glm4moe", "dots1"):
        shapes += [(f"blk.0.{name}.weight", (16,), f32, 64) for name in ("attn_q_norm", "attn_k_norm")]
    if arch == "gemma3":
        shapes += [(f"blk.0.{name}.weight", (size,), f32, size * 4)
                   for name, size in [("attn_q_norm", 16), ("attn_k_norm", 16),
                                      ("post_attention_norm", 32), ("post_ffw_norm", 32)]]
    if arch in ("qwen3moe", "deepseek2", "qwen2moe", "granitemoe", "glm4moe", "dots1", "ernie4_5-moe"):
        shapes = [shape for shape in shapes if ".ffn_" not in shape[0] or "norm" in shape[0]]
        shapes += [(f"blk.0.ffn_{part}_exps.weight", (32, 32, has_experts), q4_0, 576 * has_experts)
                   for part in ("gate", "up", "down")]
        shapes.append(("blk.0.ffn_gate_inp.weight", (32, has_experts), f32, 128 * has_experts))
    if arch == "gpt-oss":
        shapes = [shape for shape in shapes if ".ffn_" not in shape[0]] + [
            ("blk.0.post_attention_norm.weight", (32,), f32, 128), ("blk.0.attn_sinks.weight", (2,), f32, 8),
            ("blk.0.ffn_gate_inp.weight", (32, has_experts), f32, 128 * has_experts),
            ("blk.0.ffn_gate_inp.bias", (has_experts,), f32, 4 * has_experts)]
        shapes += [(f"blk.0.attn_{part}.bias", (size,), f32, size * 4)
                   for part, size in [("q", 32), ("k", 16), ("v", 16), ("output", 32)]]
        for part in ("gate", "up", "down"):
            shapes += [(f"blk.0.ffn_{part}_exps.weight", (32, 32, has_experts), mxfp4, 544 * has_experts),
                       (f"blk.0.ffn_{part}_exps.bias", (32, has_experts), f32, 128 * has_experts)]
    if arch == "glm4moe":
        shapes = [("blk.0.post_attention_norm.weight", *shape[1:]) if shape[0] == "blk.0.ffn_norm.weight" else shape
                  for shape in shapes]
        shapes += [("blk.1.attn_norm.weight", (32,), f32, 128), ("blk.1.nextn.eh_proj.weight", (64, 32), q4_0, 1152)]
    if arch in ("glm4moe", "dots1", "ernie4_5-moe"):
        shapes.append(("blk.0.exp_probs_b.bias", (has_experts,), f32, 4 * has_experts))
    if arch in ("qwen2moe", "glm4moe", "dots1", "ernie4_5-moe"):
        shapes += [(f"blk.0.ffn_{part}_shexp.weight", (32, 32), q4_0, 576) for part in ("gate", "up", "down")]
    if arch == "qwen2moe":
        shapes.append(("blk.0.ffn_gate_inp_shexp.weight", (32,), f32, 128))
    if arch == "deepseek2":
        shapes = [shape for shape in shapes if shape[0] not in ("blk.0.attn_k.weight", "blk.0.attn_v.weight")]
        shapes += [("blk.0.attn_kv_a_mqa.weight", (32, 48), q4_0, 864), ("blk.0.attn_kv_a_norm.weight", (32,), f32, 128),
                   ("blk.0.attn_k_b.weight", (32, 32, 1), q4_0, 576), ("blk.0.attn_v_b.weight", (32, 32, 1), q4_0, 576)]
        shapes = [(name, (32, 48), kind, 864) if name == "blk.0.attn_q.weight" else (name, dims, kind, size)
                  for name, dims, kind, size in shapes]
    if arch in ("olmo2", "glm4", "gemma2"):
        shapes += [(f"blk.0.{name}.weight", (32,), f32, 128) for name in ("post_attention_norm", "post_ffw_norm")]
    if arch == "olmo2":
        shapes = [shape for shape in shapes if shape[0] not in ("blk.0.attn_norm.weight", "blk.0.ffn_norm.weight")]
        shapes += [("blk.0.attn_q_norm.weight", (32,), f32, 128), ("blk.0.attn_k_norm.weight", (16,), f32, 64)]
    if arch == "glm4":
        shapes = [shape for shape in shapes if shape[0] not in ("blk.0.ffn_gate.weight", "blk.0.ffn_up.weight")]
        shapes += [("blk.0.ffn_up.weight", (32, 64), q4_0, 1152)]
    if arch == "phi3":
        shapes = [shape for shape in shapes if shape[0].removeprefix("blk.0.") not in (
            "attn_q.weight", "attn_k.weight", "attn_v.weight", "ffn_gate.weight", "ffn_up.weight")]
        shapes += [("blk.0.attn_qkv.weight", (32, 64), q4_0, 1152), ("blk.0.ffn_up.weight", (32, 64), q4_0, 1152),
                   ("rope_factors_long.weight", (8,), f32, 32), ("rope_factors_short.weight", (8,), f32, 32)]
    tensors, offset = [], 0
    for name, dims, kind, size in shapes:
        tensors.append(tensor(name, dims, kind, offset))
        offset += size + -size % 32
    data = bytearray(offset)
    if arch == "phi3":
        data[-64:] = struct.pack("<16f", *[1.5] * 16)
    return gguf(entries, tensors, bytes(data))


def nested(depth):
    value = struct.pack("<IQ", UINT8, 0)
    for _ in range(depth):
        value = struct.pack("<IQ", ARRAY, 1) + value
    return text("deep") + struct.pack("<I", ARRAY) + value


def seeds():
    yield "llama", model("llama")
    yield "qwen2", model("qwen2")
    yield "qwen3", model("qwen3")
    yield "gemma3", model("gemma3", [("attention.sliding_window", 8)])
    yield "gemma2", model("gemma2", [("attention.sliding_window", 8)],
                          [("attn_logit_softcapping", 50.0), ("final_logit_softcapping", 30.0)])
    yield "phi3", model("phi3", [("attention.sliding_window", 0), ("rope.scaling.original_context_length", 32)])
    yield "smollm3", model("smollm3")
    yield "olmo2", model("olmo2", [("attention.sliding_window", 8)])
    yield "glm4", model("glm4", [("rope.dimension_count", 8)])
    yield "granite", model("granite", numbers=[("logit_scale", 8.0), ("residual_scale", 0.22), ("embedding_scale", 12.0),
                                               ("attention.scale", 0.1)])
    yield "mistral3", model("mistral3", [("rope.scaling.original_context_length", 16)],
                            [("attention.temperature_scale", 0.1), ("rope.scaling.yarn_log_multiplier", 1.0)])
    experts = [("expert_count", 3), ("expert_used_count", 2)]
    latent = [("attention.key_length", 48), ("attention.value_length", 32), ("attention.key_length_mla", 48),
              ("attention.value_length_mla", 32), ("attention.kv_lora_rank", 32), ("rope.dimension_count", 16)]
    yield "qwen3moe", model("qwen3moe", experts)
    yield "granitemoe", model("granitemoe", experts, [("logit_scale", 8.0), ("residual_scale", 0.22)])
    yield "qwen2moe", model("qwen2moe", experts + [("expert_shared_feed_forward_length", 32)])
    yield "glm4moe", model("glm4moe", experts + [("expert_shared_count", 1), ("nextn_predict_layers", 1), ("rope.dimension_count", 8)])
    yield "dots1", model("dots1", experts + [("expert_shared_count", 1)])
    yield "ernie4_5-moe", model("ernie4_5-moe", experts + [("expert_shared_feed_forward_length", 32), ("interleave_moe_layer_step", 1)])
    yield "deepseek2", model("deepseek2", experts + latent)
    yield "gpt-oss", model("gpt-oss", experts + [("attention.sliding_window", 8)])
    yield "version2", gguf([entry("a", UINT32, 1)], [], version=2)
    yield "empty", b""
    yield "magic_only", b"GGUF"
    yield "big_endian", struct.pack(">4sIQQ", b"GGUF", 3, 0, 0)
    yield "huge_counts", gguf([], [], num_entries=2**63, num_tensors=2**63)
    yield "huge_string", gguf([struct.pack("<Q", 2**64 - 1) + b"k" * 32], [])
    yield "huge_array", gguf([text("a") + struct.pack("<IIQ", ARRAY, STRING, 2**61)], [])
    yield "nested", gguf([nested(3)], [])
    yield "nested_deep", gguf([nested(200)], [])
    yield "twice", gguf([entry("a", UINT32, 1)] * 2, [])
    yield "alignment_0", gguf([entry("general.alignment", UINT32, 0)], [])
    yield "alignment_huge", gguf([entry("general.alignment", UINT32, 2**31)],
                                 [tensor("t", (8,), 0, 2**31)])
    yield "dims_overflow", gguf([], [tensor("t", (2**32, 2**32, 1, 4), 0, 0)], b"\0" * 64)
    yield "bytes_overflow", gguf([], [tensor("t", (2**31, 2**31), 0, 0)], b"\0" * 64)
    yield "offset_overflow", gguf([], [tensor("t", (8,), 0, 2**64 - 32)], b"\0" * 64)
    yield "overlap", gguf([], [tensor("t", (16,), 0, 0), tensor("u", (8,), 0, 32)], b"\0" * 64)
    yield "truncated", model("llama")[:-64]
    yield "every_type", gguf([], [tensor(f"t{kind}", (256,), kind, i * 1024)
                                  for i, kind in enumerate([0, 1, 2, 3, 6, 7, 8, 10, 11, 12, 13, 14,
                                                            30, 39])], b"\x7f" * 1024 * 14)


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in seeds():
        (folder / name).write_bytes(data)


if __name__ == "__main__":
    main()
