#!/usr/bin/env python3
"""Records what transformers computes in FP32 with a GGUF file's dequantised weights.

make_real.py MODEL.gguf OUT.json [LLAMA_LOGPROBS]

Needs torch, transformers 5.x and gguf. LLAMA_LOGPROBS is the program of llama_logprobs.cc: with it, the
distance of llama.cpp from the same reference is recorded beside it. OUT.json lists for each prompt the
token ids, the log-probability of each token but the first, and the greedy continuation with the margins
between the two best logits.
"""
import json
import pathlib
import subprocess
import sys

import gguf
import numpy as np
import torch
import transformers

NUM_GREEDY = 64
NUM_LONG = 1300  # tokens of the long prompts: more than twice Gemma's window

PROSE = """The keeper of the lighthouse wrote a line in his book every evening, whether anything had
happened or not. On most days nothing had. The wind came from the west, the gulls quarrelled over the
fish heads below the steps, and the supply boat was late. But on the ninth of March he wrote four pages,
and afterwards he tore two of them out again. What he left says only that a ship without lights had
passed close under the rocks, that a woman had stood at its rail and called a name, and that the name was
his own, which nobody on that coast had spoken aloud for thirty years."""

CODE = '''def merge_intervals(intervals: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the union of half-open intervals as a sorted list of disjoint ones."""
    merged: list[tuple[int, int]] = []
    for begin, end in sorted(intervals):
        if begin >= end:
            continue
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged


class IntervalSet:
    def __init__(self, intervals=()):
        self._intervals = merge_intervals(list(intervals))

    def __contains__(self, value):
'''

LANGUAGES = """Das Wetter in den Bergen schlägt schnell um, deshalb gehen erfahrene Wanderer früh los.
La bibliothèque municipale ouvre à neuf heures, sauf le lundi. El tren de las siete llega siempre tarde
cuando llueve. Мы вышли из дома до рассвета и шли вдоль реки. 今天下午三点我们在图书馆门口见面，然后一起去吃饭。
明日の朝は早く起きて、海まで歩きましょう。 ذهبنا إلى السوق صباحا واشترينا الخبز والزيتون. Ο καφές εδώ είναι πολύ
δυνατός. 우리는 저녁을 먹고 나서 공원을 산책했다."""


def prompts(tokenizer, is_chat):
    gpl = pathlib.Path("/usr/share/common-licenses/GPL-3").read_text()
    module = pathlib.Path(transformers.__file__).parent.joinpath("generation/stopping_criteria.py")
    texts = {"short": "The capital of France is", "prose": PROSE, "code": CODE,
             "languages": LANGUAGES}
    if is_chat:
        texts["chat"] = ("<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
                         "<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n")
    encoded = {name: tokenizer.encode(text) for name, text in texts.items()}
    encoded["long"] = tokenizer.encode(PROSE + "\n\n" + gpl)[:NUM_LONG]
    encoded["long_code"] = tokenizer.encode(module.read_text())[:NUM_LONG]
    return encoded


def load_model(path):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        str(path.parent), gguf_file=path.name, dtype=torch.float32,
        attn_implementation="eager").eval()
    check_loaded(path, model)
    return model


def check_loaded(path, model):
    """Holds the loader to the file: values, Gemma's norms, ties and constants."""
    reader = gguf.GGUFReader(str(path))
    tensors = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in reader.tensors
               if t.name in ("token_embd.weight", "blk.0.ffn_down.weight", "output_norm.weight")}
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    is_gemma = model.config.model_type == "gemma3_text"
    assert np.array_equal(tensors["token_embd.weight"], state["model.embed_tokens.weight"])
    assert np.array_equal(tensors["blk.0.ffn_down.weight"],
                          state["model.layers.0.mlp.down_proj.weight"])
    assert np.allclose(tensors["output_norm.weight"] - is_gemma, state["model.norm.weight"])
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    if is_gemma:
        rope = model.config.rope_parameters
        assert model.config.sliding_window == 512
        assert [kind == "full_attention" for kind in model.config.layer_types] == [
            (i + 1) % 6 == 0 for i in range(model.config.num_hidden_layers)]
        assert rope["full_attention"]["rope_theta"] == 1e6
        assert rope["sliding_attention"]["rope_theta"] == 1e4


def record(model, tokens):
    text = torch.tensor([tokens])
    with torch.no_grad():
        result = model(text, use_cache=True)
        logprobs = torch.log_softmax(result.logits[0, :-1], -1).gather(1, text[0, 1:, None])[:, 0]
        greedy, margins = [], []
        for _ in range(NUM_GREEDY):
            best = result.logits[0, -1].topk(2)
            greedy.append(best.indices[0].item())
            margins.append(round((best.values[0] - best.values[1]).item(), 4))
            result = model(best.indices[:1][None], past_key_values=result.past_key_values,
                           use_cache=True)
    return {"tokens": tokens, "logprobs": [round(x, 5) for x in logprobs.tolist()],
            "greedy": greedy, "margins": margins}


def llama_cpp_distance(program, path, entries):
    """Mean distance per token from the reference, over all prompts and for each."""
    total, count, by_prompt = 0.0, 0, {}
    for entry in entries:
        output = subprocess.run([program, str(path)], input=" ".join(map(str, entry["tokens"])),
                                capture_output=True, text=True, check=True).stdout
        distance = np.abs(np.array(output.split(), float) - np.array(entry["logprobs"]))
        by_prompt[entry["name"]] = round(float(distance.mean()), 5)
        total, count = total + distance.sum(), count + distance.size
    return {"mean_distance": round(float(total / count), 5), "by_prompt": by_prompt}


def main():
    torch.set_num_threads(2)
    path, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    if out.exists():
        golden = json.loads(out.read_text())
    else:
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
        model = load_model(path)
        is_chat = model.config.model_type == "llama"
        golden = {"prompts": [{"name": name, **record(model, tokens)}
                              for name, tokens in prompts(tokenizer, is_chat).items()]}
    if len(sys.argv) > 3:
        golden["llama_cpp"] = llama_cpp_distance(sys.argv[3], path, golden["prompts"])
    out.write_text(json.dumps(golden) + "\n")


if __name__ == "__main__":
    main()
