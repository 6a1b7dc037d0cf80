"""A model of architecture gpt-oss whose next token follows from the last one alone, as Speech says: so small, it writes
harmony all the same, or what else a test has it write. Its layers add nothing."""
import array
import dataclasses
import pathlib
import struct

from gguf_parts import key, write_piece

HIDDEN, HEAD, HEADS, EXPERTS, FFN = 288, 32, 2, 2, 32
UINT32, FLOAT32, STRING, ARRAY, INT32 = 4, 6, 8, 9, 5
F32, MXFP4 = 0, 39


def letters():
    """How byte-level BPE writes each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


@dataclasses.dataclass(frozen=True)
class Speech:
    """Beside bytes its tokens are words and special ones, of which the first ends an answer. following: of each token the
    one it prefers, and the one that comes next where the first may not, or a bias says so."""
    words: list
    special: list
    following: dict
    template: str

    @property
    def tokens(self):
        return letters() + self.words + self.special

    def token(self, text):
        return self.tokens.index(text)


# The prompt ends with the last letter of "assistant".
HARMONY = Speech(
    ["analysis", "final", "commentary", "assistant"],
    ["<|return|>", "<|call|>", "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|startoftext|>",
     "<|endoftext|>"],
    {"t": ["<|channel|>"], "assistant": ["<|channel|>"], "<|start|>": ["assistant"],
     "<|channel|>": ["analysis", "final"], "analysis": ["<|message|>"], "final": ["<|message|>"],
     "<|message|>": ["H"], "H": ["m"], "m": ["<|end|>", "<|return|>"], "<|end|>": ["<|start|>"]},
    (pathlib.Path(__file__).parents[1] / "golden/chat_template/templates/gpt-oss.jinja").read_text())


def string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def text_key(name, text):
    return string(name) + struct.pack("<I", STRING) + string(text)


def list_key(name, kind, count, data):
    return string(name) + struct.pack("<IIQ", ARRAY, kind, count) + data


def tensor(name, dims, data=None, kind=F32):
    count = 1
    for dim in dims:
        count *= dim
    if data is None:
        data = bytes(count // 32 * 17 if kind == MXFP4 else 4 * count)
    return (string(name) + struct.pack(f"<I{len(dims)}QI", len(dims), *dims, kind), data + bytes(-len(data) % 32))


def embedding(num_tokens):
    rows = array.array("f", bytes(4 * HIDDEN * num_tokens))
    for i in range(num_tokens):
        rows[i * HIDDEN + i] = 1
    return rows.tobytes()


def output(speech):
    """Logits of 10 and 5, whatever the last token: the norm makes 17 of its 1."""
    rows = array.array("f", bytes(4 * HIDDEN * len(speech.tokens)))
    for last, nexts in speech.following.items():
        for place, following in enumerate(nexts):
            rows[speech.token(following) * HIDDEN + speech.token(last)] = (10 - 5 * place) / HIDDEN ** 0.5
    return rows.tobytes()


def layer(i):
    name = f"blk.{i}.".__add__
    ones = array.array("f", [1] * HIDDEN).tobytes()
    q = HEADS * HEAD
    return [
        tensor(name("attn_norm.weight"), [HIDDEN], ones),
        tensor(name("attn_q.weight"), [HIDDEN, q]), tensor(name("attn_q.bias"), [q]),
        tensor(name("attn_k.weight"), [HIDDEN, HEAD]), tensor(name("attn_k.bias"), [HEAD]),
        tensor(name("attn_v.weight"), [HIDDEN, HEAD]), tensor(name("attn_v.bias"), [HEAD]),
        tensor(name("attn_sinks.weight"), [HEADS]),
        tensor(name("attn_output.weight"), [q, HIDDEN]), tensor(name("attn_output.bias"), [HIDDEN]),
        tensor(name("post_attention_norm.weight"), [HIDDEN], ones),
        tensor(name("ffn_gate_inp.weight"), [HIDDEN, EXPERTS]), tensor(name("ffn_gate_inp.bias"), [EXPERTS]),
        tensor(name("ffn_gate_exps.weight"), [HIDDEN, FFN, EXPERTS], kind=MXFP4),
        tensor(name("ffn_gate_exps.bias"), [FFN, EXPERTS]),
        tensor(name("ffn_up_exps.weight"), [HIDDEN, FFN, EXPERTS], kind=MXFP4),
        tensor(name("ffn_up_exps.bias"), [FFN, EXPERTS]),
        tensor(name("ffn_down_exps.weight"), [FFN, HIDDEN, EXPERTS], kind=MXFP4),
        tensor(name("ffn_down_exps.bias"), [HIDDEN, EXPERTS]),
    ]


def write_model(path, speech=HARMONY):
    tokens = speech.tokens
    sizes = {"block_count": 2, "context_length": 4096, "embedding_length": HIDDEN, "feed_forward_length": FFN,
             "attention.head_count": HEADS, "attention.head_count_kv": 1, "attention.key_length": HEAD,
             "attention.value_length": HEAD, "attention.sliding_window": 128, "expert_count": EXPERTS,
             "expert_used_count": 1, "expert_feed_forward_length": FFN}
    kinds = [1] * (256 + len(speech.words)) + [3] * len(speech.special)
    values = [text_key("general.architecture", "gpt-oss"), text_key("tokenizer.ggml.model", "gpt2"),
              text_key("tokenizer.ggml.pre", "gpt-4o"),
              list_key("tokenizer.ggml.tokens", STRING, len(tokens), b"".join(map(string, tokens))),
              list_key("tokenizer.ggml.token_type", INT32, len(kinds), struct.pack(f"<{len(kinds)}i", *kinds)),
              list_key("tokenizer.ggml.merges", STRING, 0, b""),
              key(b"tokenizer.ggml.eos_token_id", UINT32, "I", 256 + len(speech.words)),
              text_key("tokenizer.chat_template", speech.template),
              key(b"gpt-oss.attention.layer_norm_rms_epsilon", FLOAT32, "f", 1e-5),
              key(b"gpt-oss.rope.freq_base", FLOAT32, "f", 150000.0)]
    values += [key(f"gpt-oss.{name}".encode(), UINT32, "I", size) for name, size in sizes.items()]
    ones = array.array("f", [1] * HIDDEN).tobytes()
    tensors = [tensor("token_embd.weight", [HIDDEN, len(tokens)], embedding(len(tokens))), *layer(0), *layer(1),
               tensor("output_norm.weight", [HIDDEN], ones),
               tensor("output.weight", [HIDDEN, len(tokens)], output(speech))]
    write_piece(path, b"".join(values), len(values), tensors)
