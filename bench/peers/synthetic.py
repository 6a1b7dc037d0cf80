"""GGUF files for measuring: random weights in a real model's shape, and a real model in another type.

    python -m peers.synthetic --like SmolLM2.gguf --type Q4_0 out.gguf
    python -m peers.synthetic --like SmolLM2.gguf --type Q4_0 --shape kv-heavy out.gguf    64 KiB of KV a token, in FP16
"""
import argparse
import dataclasses
import functools

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

LIBRARY_BLOCKS = 1 << 15


@dataclasses.dataclass(frozen=True)
class Shape:
    num_layers: int
    hidden: int
    ffn: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context: int
    rope_base: float
    num_experts: int = 0  # of each layer; ffn is one expert's
    num_chosen: int = 0
    # Of DeepSeek: head_dim is that of a query, of which rope_dim rotate, and of the values value_dim.
    latent: int = 0
    rope_dim: int = 0
    value_dim: int = 0
    num_shared: int = 0  # experts that every token takes
    dense_ffn: int = 0   # of the first layer, which has no experts
    window: int = 0      # of gpt-oss, whose every other layer has one

    @property
    def architecture(self):
        if self.window:
            return "gpt-oss"
        return "deepseek2" if self.latent else "qwen3moe" if self.num_experts else "llama"

    @property
    def key_size(self):
        """Of what a KV head stores."""
        return self.latent + self.rope_dim if self.latent else self.head_dim


LLAMA_1B = Shape(num_layers=16, hidden=2048, ffn=8192, num_heads=32, num_kv_heads=8, head_dim=64, context=131072,
                 rope_base=500000.0)
KV_HEAVY = Shape(num_layers=4, hidden=256, ffn=512, num_heads=32, num_kv_heads=32, head_dim=128, context=8192,
                 rope_base=10000.0)
# Qwen3 30B-A3B, but 6 of its 48 layers.
EXPERTS = Shape(num_layers=6, hidden=2048, ffn=768, num_heads=32, num_kv_heads=4, head_dim=128, context=32768,
                rope_base=1000000.0, num_experts=128, num_chosen=8)
# DeepSeek V2 Lite, but 4 of its 27 layers.
LATENT = Shape(num_layers=4, hidden=2048, ffn=1408, num_heads=16, num_kv_heads=1, head_dim=192, context=163840,
               rope_base=10000.0, num_experts=64, num_chosen=6, latent=512, rope_dim=64, value_dim=128, num_shared=2,
               dense_ffn=10944)
# gpt-oss 20b, but 4 of its 24 layers.
GPT_OSS = Shape(num_layers=4, hidden=2880, ffn=2880, num_heads=64, num_kv_heads=8, head_dim=64, context=131072,
                rope_base=150000.0, num_experts=32, num_chosen=4, window=128)
SHAPES = {"1b": LLAMA_1B, "kv-heavy": KV_HEAVY, "experts": EXPERTS, "latent": LATENT, "gpt_oss": GPT_OSS}


@functools.cache
def library(qtype, deviation):
    """Many blocks of the type whose weights have that standard deviation; tensors are drawn from them."""
    rng = np.random.default_rng(1)
    if qtype != Type.Q4_K:
        weights = rng.standard_normal((LIBRARY_BLOCKS, 32), dtype=np.float32) * np.float32(deviation)
        return gguf.quants.quantize(weights, qtype).view(np.uint8).reshape(LIBRARY_BLOCKS, -1)
    # The package does not quantise to Q4_K. A block is the halves d and dmin, 12 bytes with sixteen numbers of 6 bits, and
    # 256 numbers q of 4 bits; a weight is d * scale * q - dmin * min. With equal d and dmin = 7.5 d it has no bias.
    block = rng.integers(0, 256, (LIBRARY_BLOCKS, 144), dtype=np.uint8)
    spread = np.std(rng.integers(0, 64, 100000) * rng.integers(0, 16, 100000) -
                    7.5 * rng.integers(0, 64, 100000))
    d = np.float16(deviation / spread)
    block[:, 0:4] = np.array([d, d * np.float16(7.5)], dtype=np.float16).view(np.uint8)
    return block


def random_weights(rng, qtype, shape, deviation):
    blocks = library(qtype, deviation)
    weights_per_block = 256 if qtype == Type.Q4_K else 32
    drawn = blocks[rng.integers(0, len(blocks), int(np.prod(shape)) // weights_per_block)]
    return drawn.reshape(*shape[:-1], -1)


def add_description(writer, shape, title):
    writer.add_name(title)
    writer.add_block_count(shape.num_layers)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.dense_ffn or shape.ffn)
    writer.add_head_count(shape.num_heads)
    writer.add_head_count_kv(shape.num_kv_heads)
    writer.add_key_length(shape.key_size)
    writer.add_value_length(shape.latent or shape.head_dim)
    writer.add_rope_dimension_count(shape.rope_dim or shape.head_dim)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_layer_norm_rms_eps(1e-5)
    if shape.num_experts:
        writer.add_expert_count(shape.num_experts)
        writer.add_expert_used_count(shape.num_chosen)
        writer.add_expert_feed_forward_length(shape.ffn)
    if shape.window:
        writer.add_sliding_window(shape.window)
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(32.0)
        writer.add_rope_scaling_orig_ctx_len(4096)
    if shape.latent:
        writer.add_q_lora_rank(0)
        writer.add_kv_lora_rank(shape.latent)
        writer.add_key_length_mla(shape.head_dim)
        writer.add_value_length_mla(shape.value_dim)
        writer.add_expert_shared_count(shape.num_shared)
        writer.add_expert_weights_scale(1.0)
        writer.add_leading_dense_block_count(1)


def copy_fields(writer, reader, is_wanted):
    for name, field in reader.fields.items():
        if is_wanted(name):
            writer.add_key_value(name, field.contents(), field.types[0],
                                 sub_type=field.types[-1] if len(field.types) > 1 else None)


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def attention_matrices(shape):
    """Name, rows and columns, those of several heads together, and whether it adds to the stream."""
    q_size = shape.num_heads * shape.head_dim
    yield "attn_q", (q_size, shape.hidden), False
    if not shape.latent:
        kv_size = shape.num_kv_heads * shape.head_dim
        yield "attn_k", (kv_size, shape.hidden), False
        yield "attn_v", (kv_size, shape.hidden), False
        yield "attn_output", (shape.hidden, q_size), True
        return
    yield "attn_kv_a_mqa", (shape.key_size, shape.hidden), False
    yield "attn_k_b", (shape.num_heads, shape.latent, shape.head_dim - shape.rope_dim), False
    yield "attn_v_b", (shape.num_heads, shape.value_dim, shape.latent), False
    yield "attn_output", (shape.hidden, shape.num_heads * shape.value_dim), True


def mlp_matrices(shape, layer):
    """The same; of experts all together."""
    is_dense = not shape.num_experts or (shape.dense_ffn and layer == 0)
    for name, size in (("ffn_gate", lambda ffn: (ffn, shape.hidden)), ("ffn_up", lambda ffn: (ffn, shape.hidden)),
                       ("ffn_down", lambda ffn: (shape.hidden, ffn))):
        is_last = name == "ffn_down"
        if is_dense:
            yield name, size(shape.dense_ffn or shape.ffn), is_last
            continue
        yield name + "_exps", (shape.num_experts, *size(shape.ffn)), is_last
        if shape.num_shared:
            yield name + "_shexp", size(shape.num_shared * shape.ffn), is_last


def matrices_of(shape, vocab_size):
    """Name, size and deviation; what is added to the stream is kept small, so that layers do not blow it up."""
    into = shape.hidden ** -0.5
    back = into / (2 * shape.num_layers) ** 0.5
    yield "token_embd", (vocab_size, shape.hidden), into
    for i in range(shape.num_layers):
        for name, size, is_added in (*attention_matrices(shape), *mlp_matrices(shape, i)):
            yield f"blk.{i}.{name}", size, back if is_added else into


def vectors_of(shape, rng):
    """Of each layer what is no matrix, and the routers, which are FP32."""
    for i in range(shape.num_layers):
        ones = {"attn_norm": shape.hidden, "post_attention_norm" if shape.window else "ffn_norm": shape.hidden}
        if shape.window:
            pass
        elif shape.latent:
            ones["attn_kv_a_norm"] = shape.latent
        elif shape.num_experts:
            ones |= {"attn_q_norm": shape.head_dim, "attn_k_norm": shape.head_dim}
        for name, size in ones.items():
            yield f"blk.{i}.{name}", np.ones(size, dtype=np.float32)
        if shape.num_experts and not (shape.dense_ffn and i == 0):
            router = rng.standard_normal((shape.num_experts, shape.hidden), dtype=np.float32)
            yield f"blk.{i}.ffn_gate_inp", router * np.float32(shape.hidden ** -0.5)
        if shape.window:
            yield f"blk.{i}.attn_sinks", rng.standard_normal(shape.num_heads, dtype=np.float32)


def biases_of(shape):
    """Of gpt-oss: name and size of each layer's."""
    q_size, kv_size = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    sizes = {"attn_q": q_size, "attn_k": kv_size, "attn_v": kv_size, "attn_output": shape.hidden,
             "ffn_gate_inp": shape.num_experts, "ffn_gate_exps": (shape.num_experts, shape.ffn),
             "ffn_up_exps": (shape.num_experts, shape.ffn), "ffn_down_exps": (shape.num_experts, shape.hidden)}
    for i in range(shape.num_layers if shape.window else 0):
        for name, size in sizes.items():
            yield f"blk.{i}.{name}", size


def write_synthetic(path, like, type_name, shape=LLAMA_1B):
    """A Llama, Qwen3 with experts, DeepSeek V2 or gpt-oss of that shape with random weights, and the vocabulary of the file `like`."""
    reader = gguf.GGUFReader(like)
    qtype = Type[type_name]
    rng = np.random.default_rng(2)
    writer = gguf.GGUFWriter(path, shape.architecture)
    add_description(writer, shape, f"random {type_name}")
    suffix = {"Q4_K": "_M", "MXFP4": "_MOE"}.get(type_name, "")
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{type_name}{suffix}"])
    copy_fields(writer, reader, lambda name: name.startswith("tokenizer."))
    vocab_size = len(reader.fields["tokenizer.ggml.tokens"].data)
    writer.add_vocab_size(vocab_size)
    for name, size, deviation in matrices_of(shape, vocab_size):
        # As published files of gpt-oss have it, its experts alone are in 4 bits.
        own = qtype if qtype != Type.MXFP4 or name.endswith("_exps") else Type.Q8_0
        writer.add_tensor(name + ".weight", random_weights(rng, own, size, deviation), raw_dtype=own)
    if shape.window:  # llama.cpp wants an output matrix of its own
        output = random_weights(rng, Type.Q8_0, (vocab_size, shape.hidden), shape.hidden ** -0.5)
        writer.add_tensor("output.weight", output, raw_dtype=Type.Q8_0)
    for name, size in biases_of(shape):
        writer.add_tensor(name + ".bias", rng.standard_normal(size, dtype=np.float32) * np.float32(0.1))
    writer.add_tensor("output_norm.weight", np.ones(shape.hidden, dtype=np.float32))
    for name, values in vectors_of(shape, rng):
        writer.add_tensor(name + ".weight", values)
    finish(writer)


def write_retyped(path, source, type_name):
    """The same model with every matrix in another type."""
    reader = gguf.GGUFReader(source)
    qtype = Type[type_name]
    writer = gguf.GGUFWriter(path, reader.fields["general.architecture"].contents())
    written_otherwise = ("general.architecture", "general.file_type")
    copy_fields(writer, reader, lambda name: not name.startswith("GGUF.") and name not in written_otherwise)
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{type_name}"])
    for tensor in reader.tensors:
        weights = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if weights.ndim < 2:
            writer.add_tensor(tensor.name, weights)
        else:
            writer.add_tensor(tensor.name, gguf.quants.quantize(weights, qtype), raw_dtype=qtype)
    finish(writer)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("out")
    p.add_argument("--like", required=True, help="a GGUF file whose vocabulary is taken")
    p.add_argument("--type", default="Q4_0", choices=["Q4_0", "Q4_1", "Q8_0", "Q4_K", "MXFP4", "BF16", "F16"])
    p.add_argument("--shape", default="1b", choices=SHAPES)
    a = p.parse_args()
    write_synthetic(a.out, a.like, a.type, SHAPES[a.shape])


if __name__ == "__main__":
    main()
