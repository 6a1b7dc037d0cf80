#!/usr/bin/env python3
"""Makes tiny random models as Hugging Face keeps them, in folders, and what transformers computes with them, in FP32.

make_hf.py          those of this repository, tiny_hf_*, beside this script
make_hf.py FOLDER   one of every architecture, there

Needs torch, transformers 5.x, tokenizers, numpy and gguf. A folder tiny_hf_NAME has what save_pretrained writes and a
tokenizer trained here; tiny_hf_NAME.json what make_tiny.py's files have, and "texts": what the tokenizer makes of some.
"""
import json
import pathlib
import sys

import safetensors.torch
import tokenizers
import torch
import transformers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

import make_experts
import make_families
import make_tiny
from make_tiny import HERE, write_golden

sys.path.insert(0, str(HERE.parent / "tokenizer"))
import strings  # noqa: E402

NUM_TOKENS = 320
FAMILIES = [name for name in make_families.FAMILIES if name != "phi3_window"]
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CHAT_TEMPLATE = ("{{ bos_token }}{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] "
                 "+ '<|end|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}")


def corpus():
    return [text for text in strings.texts(400, 1) for _ in range(2)] + strings.SCRIPTS * 3 + strings.CODE * 3


def byte_level_tokenizer(pattern=LLAMA3):
    """As Llama 3's: its own pattern, words that are tokens are taken whole, and a template puts BOS before a text."""
    tokenizer = tokenizers.Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(tokenizers.Regex(pattern), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=NUM_TOKENS - 8, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
                                  limit_alphabet=256, show_progress=False)
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_special_tokens(["<|begin|>", "<|end|>", "<|user|>", "<|assistant|>"])
    tokenizer.add_tokens([tokenizers.AddedToken("<tool>", normalized=False)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A", special_tokens=[("<|begin|>", tokenizer.token_to_id("<|begin|>"))])
    return tokenizer, {"bos_token": "<|begin|>", "eos_token": "<|end|>"}


def piece_tokenizer(is_phi3=False):
    """As Gemma's: pieces with U+2581, merges, and tokens for the bytes of what is no piece. Or as Phi 3's, which begin
    with a space, and whose special tokens take along the spaces behind them."""
    tokenizer = tokenizers.Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    if is_phi3:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), tokenizer.normalizer])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    special = ["<pad>", "<eos>", "<bos>", "<unk>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=NUM_TOKENS + 150, special_tokens=special, limit_alphabet=120,
                                  max_token_length=6, show_progress=False)
    tokenizer.train_from_iterator((text[:40] for text in corpus()), trainer)
    state = json.loads(tokenizer.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if not token["content"].startswith("<0x")]
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(state))
    tokenizer.add_tokens([tokenizers.AddedToken(text, normalized=False) for text in ("\n\n", "\u2581\u2581\u2581", "<b>")])
    if is_phi3:
        tokenizer.add_special_tokens([tokenizers.AddedToken(text, normalized=False, rstrip=True)
                                      for text in ("<|user|>", "<|assistant|>", "<|end|>")])
    else:
        tokenizer.add_special_tokens(["<start_of_turn>", "<end_of_turn>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 2)])
    return tokenizer, {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>"}


def images_config():
    """As Gemma 3 from 4B on: a text model, of which the file says little, in one that reads images, too."""
    return transformers.Gemma3Config(
        text_config=make_tiny.gemma3_config().to_dict(), mm_tokens_per_image=4, tie_word_embeddings=True, vision_config={
            "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
            "image_size": 16, "patch_size": 4})


def make_images_model(config, seed):
    """With the text model of make_tiny.py."""
    model = transformers.Gemma3ForConditionalGeneration(config).eval()
    text = make_tiny.make_model(config.text_config, seed)
    model.model.language_model.load_state_dict(text.model.state_dict())
    return model


def configs():
    """Name: the configuration, what weights are saved as, and how large a file may be."""
    llama, qwen2, qwen3, gemma3 = (make() for make in (make_tiny.llama_config, make_tiny.qwen2_config,
                                                       make_tiny.qwen3_config, make_tiny.gemma3_config))
    mistral = transformers.MistralConfig(
        vocab_size=128, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, sliding_window=20, rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0})
    qwen2_window = transformers.Qwen2Config(
        vocab_size=128, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=1, max_position_embeddings=256, rms_norm_eps=1e-6, tie_word_embeddings=True,
        use_sliding_window=True, sliding_window=20, max_window_layers=1,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
    families = {name: (make_families.FAMILIES[name][1](), torch.float16 if name == "ernie4_5" else torch.bfloat16, "5GB")
                for name in FAMILIES}
    families["gemma2"][0].query_pre_attn_scalar = 24  # not the size of a head, as files of GGUF imply
    return {**families, "gemma3_images": (images_config(), torch.bfloat16, "5GB"), "llama": (llama, torch.bfloat16, "100KB"), "mistral": (mistral, torch.float32, "5GB"),
            "qwen2": (qwen2, torch.float32, "5GB"), "qwen2_window": (qwen2_window, torch.float16, "5GB"),
            "qwen3": (qwen3, torch.bfloat16, "5GB"), "gemma3": (gemma3, torch.float32, "5GB"),
            "qwen2moe": (make_experts.qwen2moe_config(), torch.bfloat16, "5GB"),
            "qwen3moe": (make_experts.qwen3moe_config(), torch.float16, "5GB"),
            "glm4moe": (make_experts.glm4moe_air_config(), torch.bfloat16, "5GB"),
            "mixtral": (make_experts.mixtral_config(), torch.float32, "5GB")}


def make_model(config, dtype, seed):
    has_experts = hasattr(config, "num_experts_per_tok")
    if isinstance(config, transformers.Gemma3Config):
        model = make_images_model(config, seed)
    else:
        model = (make_experts.make_expert_model if has_experts else make_tiny.make_model)(config, seed)
    with torch.no_grad():  # not of the rotation's frequencies, which are computed where a model is read
        for value in model.parameters():
            value.copy_(value.to(dtype))
        for name, value in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                value.copy_(value.to(dtype))
    return model


def has_margins(path, model, config):
    """Whether neither the choice of an expert nor that of a token is near a tie."""
    golden = json.loads(path.read_text())
    if min(golden["margins"]) < make_experts.LEAST_TOKEN_MARGIN:
        return False
    if not hasattr(config, "num_experts_per_tok"):
        return True
    margin = make_experts.smallest_margin(model, config, golden["tokens"] + golden["greedy"])
    return margin > make_experts.LEAST_EXPERT_MARGIN


def add_next_token_layer(path, config, dtype):
    """transformers leaves it out where it reads a folder."""
    layer = config.num_hidden_layers
    tensors = safetensors.torch.load_file(path)
    for name, weight in make_experts.next_token_tensors(config, layer):
        tensors[f"model.layers.{layer}.{name}"] = torch.from_numpy(weight).to(dtype)
    safetensors.torch.save_file(tensors, path, {"format": "pt"})


def make_one(folder, name, config, dtype, shard_size):
    tokenizer, named = piece_tokenizer(name == "phi3") if name in ("gemma3", "gemma3_images", "phi3") else byte_level_tokenizer()
    text_config = config.get_text_config()
    text_config.vocab_size = tokenizer.get_vocab_size() + 3  # rows that no token has
    golden = folder / f"tiny_hf_{name}.json"
    for seed in range(7, 100):
        model = make_model(config, dtype, seed)
        write_golden(golden, model, text_config, seed=11)
        if has_margins(golden, model, config):
            break
    target = folder / f"tiny_hf_{name}"
    model.to(dtype).save_pretrained(target, max_shard_size=shard_size)
    if name == "glm4moe":
        add_next_token_layer(target / "model.safetensors", config, dtype)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named)
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(target)
    print(name, seed, sum(path.stat().st_size for path in target.iterdir()), golden.stat().st_size)
    if name in ("gemma3_images", "qwen2moe", "glm4moe") or (name in FAMILIES and name != "phi3"):
        return  # their tokenizers are those of others
    texts = [text for text in strings.texts(60, 3) if len(text) < 60]
    if name == "phi3":
        texts += ["<|user|>\n  Hello <|end|> \u00a0\t\n<|assistant|>\n", "a<|end|>", "<|end|> \n <|user|>\u200b b"]
    texts = [[text, tokenizer.encode(text).ids] for text in texts]
    golden.write_text(json.dumps({**json.loads(golden.read_text()), "texts": texts}) + "\n")


def main():
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    folder.mkdir(parents=True, exist_ok=True)
    for name, (config, dtype, shard_size) in configs().items():
        if folder != HERE or name in ("llama", "gemma3", "qwen3moe", "qwen2moe", "glm4moe", "gemma3_images", *FAMILIES):
            make_one(folder, name, config, dtype, shard_size)


if __name__ == "__main__":
    main()
