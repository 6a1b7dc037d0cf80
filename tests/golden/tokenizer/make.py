#!/usr/bin/env python3
"""Makes the tokenizer's golden files, with the reference implementations.

    make.py tiny                        small vocabularies, trained here, one per way of encoding
    make.py words                       where byte-level pre-tokenizers cut texts
    make.py real SMOLLM2.gguf GEMMA3.gguf   what two published vocabularies make of 2,000 texts

Byte-level BPE: the `tokenizers` package, set up as the published tokenizer.json of each family.
SentencePiece: the `sentencepiece` package; a GGUF's vocabulary is put back into its model format.
A file holds {vocabulary, cases: [[text, ids]...], trusted: [[text, ids]...],
decodes: [[ids, text]...]}; cases have their special tokens as plain text, trusted has them
recognised. words.json holds {texts: [text...], name: [[the end of each word in bytes...]...]...}.
"""

import io
import json
import pathlib
import random
import re
import sys

import strings

HERE = pathlib.Path(__file__).parent
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace("{1,3}", "")
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CASED_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
    "\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5"
    "\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba"
    "\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45"
    "\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe"
    "\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102"
    "\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3"
    "\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06"
    "\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df"
    "\U0001e900-\U0001e943"
)
DEEPSEEK_LLM = [
    "[\r\n]",
    r"\s?[" + CASED_LETTERS + "]+",
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+$",
    "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
]
DEEPSEEK_CODER = ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", DEEPSEEK_LLM[-1]]
DEEPSEEK_V3 = [
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
]
SEED = LLAMA3.replace("{1,3}", "{1}").replace(r"\p{N}]+[\r\n]*", r"\p{N}\r\n]+")
DEFAULT = [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"]


# --- byte-level BPE


def pre_tokenizer(name):
    from tokenizers import Regex, pre_tokenizers as pre

    split = lambda pattern: pre.Split(Regex(pattern), behavior="isolated")
    byte_level = pre.ByteLevel(add_prefix_space=False, use_regex=False)
    with_gpt2 = pre.ByteLevel(add_prefix_space=False, use_regex=True)
    digits = pre.Digits(individual_digits=True)
    return {
        "gpt-2": with_gpt2,
        "smollm": pre.Sequence([digits, with_gpt2]),
        "qwen2": pre.Sequence([split(QWEN2), byte_level]),
        "llama-bpe": pre.Sequence([split(LLAMA3), byte_level]),
        "gpt-4o": pre.Sequence([split(O200K), byte_level]),
        "tekken": pre.Sequence([split(TEKKEN), byte_level]),
        "dbrx": pre.Sequence([split(LLAMA3), byte_level]),
        "glm4": pre.Sequence([split(LLAMA3), byte_level]),
        "seed-coder": pre.Sequence([split(SEED), byte_level]),
        "deepseek-llm": pre.Sequence([split(p) for p in DEEPSEEK_LLM] + [digits, byte_level]),
        "deepseek-coder": pre.Sequence([split(p) for p in DEEPSEEK_CODER] + [digits, byte_level]),
        "deepseek-v3": pre.Sequence([split(p) for p in DEEPSEEK_V3] + [byte_level]),
        "default": pre.Sequence([split(p) for p in DEFAULT] + [byte_level]),
    }[name]


def bpe(vocabulary, with_special):
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

    name = vocabulary["pre_tokenizer"]
    ids = {token: i for i, token in enumerate(vocabulary["tokens"])}
    merges = [tuple(merge.split(" ")) for merge in vocabulary["merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges, ignore_merges=name in ("llama-bpe", "tekken")))
    if name == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizer(name)
    tokenizer.decoder = decoders.ByteLevel()
    kinds = list(zip(vocabulary["tokens"], vocabulary["kinds"]))
    tokenizer.add_tokens(
        [AddedToken(t, normalized=False) for t, kind in kinds if kind == USER_DEFINED]
    )
    if with_special:
        tokenizer.add_special_tokens(
            [AddedToken(t, normalized=False, special=True) for t, kind in kinds if kind == CONTROL]
        )
    return (
        lambda text: tokenizer.encode(text, add_special_tokens=False).ids,
        lambda some: tokenizer.decode(some, skip_special_tokens=False),
    )


def train_bpe(name, corpus):
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    if name == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizer(name)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    if name == "smollm":
        alphabet = [c for c in alphabet if c not in "ĀĄµ"]  # bytes that no token stands for
    trainer = trainers.BpeTrainer(
        vocab_size=700, initial_alphabet=alphabet, limit_alphabet=len(alphabet), show_progress=False
    )
    tokenizer.train_from_iterator(corpus, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    tokens = (
        ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
        + sorted(model["vocab"], key=model["vocab"].get)
        + ["<b>", "</b>", "\n\n\n"]
    )
    merges = [" ".join(merge) for merge in model["merges"]]
    if name == "smollm":
        tokens = [t for t in tokens if not set(t) & set("ĀĄµ")]
        merges = [m for m in merges if not set(m) & set("ĀĄµ")]
    if name in ("llama-bpe", "dbrx"):
        merges = merges[:-40] + merges[-20:]  # words that only taking them whole reaches, which dbrx does not
        made = {m.replace(" ", "") for m in merges}
        known = made | set(alphabet)
        merges = [m for m in merges if set(m.split(" ")) <= known]
    kinds = [CONTROL] * 3 + [NORMAL] * (len(tokens) - 6) + [USER_DEFINED] * 3
    return {
        "model": "gpt2",
        "pre_tokenizer": name,
        "tokens": tokens,
        "merges": merges,
        "kinds": kinds,
        "add_space_prefix": False,
    }


def words():
    names = ["gpt-2", "smollm", "qwen2", "llama-bpe", "dbrx", "glm4", "gpt-4o", "tekken", "seed-coder", "deepseek-llm",
             "deepseek-coder", "deepseek-v3", "default"]
    texts = strings.texts(400, 6)
    made = {"texts": texts}
    for name in names:
        step = pre_tokenizer(name)
        made[name] = [[len(text[:end].encode()) for _, (_, end) in step.pre_tokenize_str(text)] for text in texts]
    return made


# --- SentencePiece


def sentence_piece(vocabulary, with_special):
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2 as pb

    proto = pb.ModelProto()
    for text, score, kind in zip(vocabulary["tokens"], vocabulary["scores"], vocabulary["kinds"]):
        if kind == USER_DEFINED:
            text = text.replace(" ", "▁")
        proto.pieces.add(piece=text, score=score, type=kind)
    proto.trainer_spec.model_type = pb.TrainerSpec.BPE
    proto.trainer_spec.byte_fallback = BYTE in vocabulary["kinds"]
    proto.normalizer_spec.name = "identity"
    proto.normalizer_spec.add_dummy_prefix = vocabulary["add_space_prefix"]
    proto.normalizer_spec.remove_extra_whitespaces = False
    proto.normalizer_spec.escape_whitespaces = True
    processor = sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())
    if not with_special:
        return processor.EncodeAsIds, processor.DecodeIds
    # The library never takes control tokens from text: what lies between them is encoded by itself.
    marked = {
        t: i
        for i, (t, kind) in enumerate(zip(vocabulary["tokens"], vocabulary["kinds"]))
        if kind in (CONTROL, UNKNOWN)
    }
    pattern = re.compile(
        "(" + "|".join(re.escape(t) for t in sorted(marked, key=len, reverse=True)) + ")"
    )

    def encode(text):
        return [
            i
            for part in pattern.split(text)
            if part
            for i in ([marked[part]] if part in marked else processor.EncodeAsIds(part))
        ]

    return encode, processor.DecodeIds


def train_sentence_piece(name, corpus):
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2 as pb

    options = {
        "sp-bytes": dict(
            byte_fallback=True,
            add_dummy_prefix=False,
            user_defined_symbols=["\n", "\n\n", "▁▁", "▁▁▁", "<b>"],
        ),
        "sp-prefix": dict(
            byte_fallback=True, add_dummy_prefix=True, user_defined_symbols=["<b>", "</b>"]
        ),
        "sp-unknown": dict(byte_fallback=False, add_dummy_prefix=True),
    }[name]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(corpus),
        model_writer=model,
        model_type="bpe",
        vocab_size=1600,
        character_coverage=0.98,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        control_symbols=["<start_of_turn>", "<end_of_turn>"],
        split_by_whitespace=name != "sp-bytes",
        allow_whitespace_only_pieces=True,
        minloglevel=2,
        **options,
    )
    proto = pb.ModelProto.FromString(model.getvalue())
    vocabulary = {
        "model": "llama",
        "pre_tokenizer": "default",
        "tokens": [p.piece for p in proto.pieces],
        "scores": [p.score for p in proto.pieces],
        "kinds": [p.type for p in proto.pieces],
        "unk": 0,
        "add_space_prefix": options["add_dummy_prefix"],
    }
    if name == "sp-bytes":  # pieces that merging passes through and splits again
        normal = [
            i
            for i, kind in enumerate(vocabulary["kinds"])
            if kind == NORMAL and len(vocabulary["tokens"][i]) > 1
        ]
        for i in normal[5:60:7]:
            vocabulary["kinds"][i] = UNUSED
    return vocabulary


# --- files


def golden(vocabulary, texts, num_decodes, make, seed):
    encode, _ = make(vocabulary, False)
    encode_trusted, decode = make(vocabulary, True)
    rng = random.Random(seed)
    plain = [i for i, kind in enumerate(vocabulary["kinds"]) if kind not in (CONTROL, UNKNOWN)]
    decodes = []
    for i in range(num_decodes):
        pool = (
            plain
            if i % 2
            else [
                t
                for t in plain
                if vocabulary["kinds"][t] == BYTE or len(vocabulary["tokens"][t]) < 3
            ]
        )
        ids = [rng.choice(pool) for _ in range(rng.randint(1, 12))]
        decodes.append([ids, decode(ids)])
    marked = [text for text in texts if "<" in text]
    return {
        "cases": [[text, encode(text)] for text in texts],
        "trusted": [[text, encode_trusted(text)] for text in marked],
        "decodes": decodes,
    }


def write(name, content):
    path = HERE / f"{name}.json"
    rows = []
    for key, value in content.items():
        lines = (
            [json.dumps(item, ensure_ascii=False, separators=(",", ":")) for item in value]
            if isinstance(value, list)
            else None
        )
        rows.append(
            json.dumps(key)
            + ":"
            + (
                "[\n" + ",\n".join(lines) + "]"
                if lines is not None
                else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
            )
        )
    path.write_text("{" + ",\n".join(rows) + "}\n", encoding="utf-8")
    print(
        path.name,
        path.stat().st_size,
        {key: len(value) for key, value in content.items() if isinstance(value, list)},
    )


def read_gguf(path):
    from gguf import GGUFReader

    fields = GGUFReader(path).fields
    get = lambda key, default=None: (
        fields["tokenizer.ggml." + key].contents() if "tokenizer.ggml." + key in fields else default
    )
    return {
        "model": get("model"),
        "pre_tokenizer": get("pre"),
        "tokens": get("tokens"),
        "scores": get("scores"),
        "kinds": get("token_type"),
        "merges": get("merges"),
        "add_space_prefix": get("add_space_prefix"),
    }


def main():
    if sys.argv[1] == "tiny":
        corpus = (
            [text for text in strings.texts(400, 1) for _ in range(2)]
            + strings.SCRIPTS * 3
            + strings.CODE * 3
        )
        for name in ["gpt-2", "smollm", "qwen2", "llama-bpe", "dbrx", "gpt-4o", "tekken", "default"]:
            vocabulary = train_bpe(name, corpus)
            write(
                name,
                {"vocabulary": vocabulary, **golden(vocabulary, strings.texts(400, 2), 60, bpe, 3)},
            )
        sentences = [line for text in corpus for line in text.replace("\0", "").split("\n") if line]
        for name in ["sp-bytes", "sp-prefix", "sp-unknown"]:
            vocabulary = train_sentence_piece(name, sentences)
            write(
                name,
                {
                    "vocabulary": vocabulary,
                    **golden(vocabulary, strings.texts(400, 2), 60, sentence_piece, 3),
                },
            )
    elif sys.argv[1] == "words":
        write("words", words())
    else:
        texts = strings.texts(2000, 4)
        write("smollm2", golden(read_gguf(sys.argv[2]), texts, 200, bpe, 5))
        write("gemma3", golden(read_gguf(sys.argv[3]), texts, 200, sentence_piece, 5))


main()
