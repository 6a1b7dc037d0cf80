"""The files that are measured."""
import dataclasses
import pathlib
import subprocess

from peers import install

DEQUANTISE = """
import sys, pathlib
from transformers import AutoModelForCausalLM, AutoTokenizer
import torch
source, target = map(pathlib.Path, sys.argv[1:])
AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(target)
model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.bfloat16)
# The weights are plain now; it would not save what it takes for quantised.
model.hf_quantizer = None
if hasattr(model.config, "quantization_config"):
    del model.config.quantization_config
model.save_pretrained(target)
"""


@dataclasses.dataclass(frozen=True)
class Model:
    name: str  # on the command line and in the store
    title: str
    weight_type: str
    context: int
    kv_bytes_per_token: int  # at FP16
    path: pathlib.Path = None

    @property
    def is_sparse(self):
        """Whether it has experts."""
        return self.name.startswith(("experts", "latent", "gpt_oss"))


# KV bytes: 2 (keys and values) * layers * KV heads * head size * 2 bytes.
MODELS = [
    Model("smollm2-q4_1", "SmolLM2 135M Q4_1", "Q4_1", 8192, 2 * 30 * 3 * 64 * 2),
    Model("smollm2-q8_0", "SmolLM2 135M Q8_0", "Q8_0", 8192, 2 * 30 * 3 * 64 * 2),
    Model("gemma3-q4_k_m", "Gemma 3 270M Q4_K_M", "Q4_K_M", 32768, 2 * 18 * 1 * 256 * 2),
    Model("1b-q4_0", "1B shape Q4_0", "Q4_0", 131072, 2 * 16 * 8 * 64 * 2),
    Model("1b-q8_0", "1B shape Q8_0", "Q8_0", 131072, 2 * 16 * 8 * 64 * 2),
    Model("1b-q4_k", "1B shape Q4_K", "Q4_K", 131072, 2 * 16 * 8 * 64 * 2),
    Model("1b-bf16", "1B shape BF16", "BF16", 131072, 2 * 16 * 8 * 64 * 2),
    Model("experts-q4_0", "Qwen3 30B-A3B, 6 layers, Q4_0", "Q4_0", 32768, 2 * 6 * 4 * 128 * 2),
    Model("latent-q4_0", "DeepSeek V2 Lite, 4 layers, Q4_0", "Q4_0", 163840, 4 * 576 * 2),  # keys are values
    Model("gpt_oss-mxfp4", "gpt-oss 20b, 4 layers, MXFP4", "MXFP4", 131072, 2 * 4 * 8 * 64 * 2),
]


def pulled(larder, name):
    done = subprocess.run([larder, "pull", name], capture_output=True, text=True)
    if done.returncode != 0:
        raise install.Absent(f"larder pull {name}: {done.stderr.strip()[-200:]}")
    return pathlib.Path(done.stdout.strip().splitlines()[-1])


def find(model, larder):
    """The model with its file, which is made or fetched if it is not there."""
    if model.name == "smollm2-q4_1":
        return dataclasses.replace(model, path=pulled(larder, "smollm2-135m"))
    if model.name == "gemma3-q4_k_m":
        return dataclasses.replace(model, path=pulled(larder, "gemma3-270m"))
    from peers import synthetic  # needs gguf and numpy
    path = install.PEERS / "models" / f"{model.name}.gguf"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        smollm2 = pulled(larder, "smollm2-135m")
        unfinished = path.with_suffix(".part")
        if model.name.startswith("smollm2"):
            synthetic.write_retyped(unfinished, smollm2, model.weight_type)
        else:
            synthetic.write_synthetic(unfinished, smollm2, model.weight_type, synthetic.SHAPES[model.name.split("-")[0]])
        unfinished.rename(path)
    return dataclasses.replace(model, path=path)


def hugging_face_folder(model, python):
    """The model in BF16 as vLLM reads it; `python` has transformers."""
    folder = install.PEERS / "models" / f"{model.name}-hf"
    if not (folder / "config.json").exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        unfinished = folder.with_suffix(".part")
        install.call([python, "-c", DEQUANTISE, model.path, unfinished], install.PEERS / "vllm.log", 900)
        unfinished.rename(folder)
    return folder
