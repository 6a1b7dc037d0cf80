"""Models in folders as Hugging Face keeps them: tiny ones with random weights, by every command that takes a model."""
import json
import pathlib
import shutil

import pytest

from api_server import larder, serving

GOLDEN = pathlib.Path(__file__).parents[1] / "golden/model"
FOLDERS = ["tiny_hf_llama", "tiny_hf_gemma3", "tiny_hf_qwen3moe", "tiny_hf_phi3"]
FAMILIES = ["smollm3", "granite", "mistral3", "olmo3", "exaone4", "glm4", "glm4moe", "gemma2", "gemma3_images"]
SMALL = ("--kv-size", "1MiB")


@pytest.mark.parametrize("name", FOLDERS)
def test_commands_take_a_folder(name):
    folder = GOLDEN / name
    texts = json.loads((GOLDEN / f"{name}.json").read_text())["texts"]
    text, ids = next((text, ids) for text, ids in texts if "\0" not in text and len(ids) > 20)
    assert [int(word) for word in larder("tokenize", "-m", folder, "--special", "--ids", "-p", text).stdout.split()] == ids
    told = larder("doctor", "--port", 0, "-m", folder, *SMALL).stdout
    assert f"({name})" in told and "FAIL" not in told and "the file's own, and it runs" in told
    out = json.loads(larder("plan", "--json", "--no-measure", "-m", folder, *SMALL).stdout)
    assert out["model"]["parameters"] > 50_000
    answers = {larder("generate", "-m", folder, "-p", "A larder", "-n", 12, "--temp", 0, *SMALL).stdout for _ in range(2)}
    assert len(answers) == 1 and "A larder" in answers.pop()
    assert f"| {name} |" in larder("bench", "-m", folder, "--pp", 32, "--tg", 4, "-r", 1, *SMALL).stdout


def answer_beside_a_disk(folder, disk, prompt, *options, finds=False):
    """Of a server that has just been started: its text, and how many tokens of the prompt it found on the disk. On a busy
    machine a load may seem dearer than to compute so few tokens anew: where some are to be found, it is asked again."""
    for _ in range(5 if finds else 1):
        with serving("--kv-disk", disk, "--kv-disk-size", "64MiB", "--kv-size", "4MiB", *options, model=str(folder), name=None) as server:
            assert [model.id for model in server.client.models.list()] == [folder.name]
            reply = server.client.completions.create(model=folder.name, prompt=prompt, max_tokens=4, temperature=0)
        found = reply.usage.prompt_tokens_details.cached_tokens
        if found:
            break
    return reply.choices[0].text, found


def test_blocks_on_disk_are_found_again_by_the_same_weights_only(tmp_path):
    folder = tmp_path / "Model-1.5"
    shutil.copytree(GOLDEN / "tiny_hf_llama", folder)
    prompt = "A larder keeps what was made once. " * 7
    first, none = answer_beside_a_disk(folder, tmp_path / "kv", prompt)
    again, found = answer_beside_a_disk(folder, tmp_path / "kv", prompt, finds=True)
    assert first == again and none == 0 and found > 32
    weights = folder / "model-00002-of-00002.safetensors"
    content = bytearray(weights.read_bytes())
    content[-2] ^= 1
    weights.chmod(0o644)
    weights.write_bytes(content)
    assert answer_beside_a_disk(folder, tmp_path / "kv", prompt)[1] == 0


def test_chats_take_the_folders_template():
    with serving("--kv-size", "4MiB", model=str(GOLDEN / "tiny_hf_llama")) as server:
        messages = [{"role": "user", "content": "Hello"}]
        reply = server.client.chat.completions.create(model="default", messages=messages, max_tokens=4)
        told = larder("tokenize", "-m", GOLDEN / "tiny_hf_llama", "--special", "--no-bos", "--ids", "-p",
                      "<|begin|><|user|>Hello<|end|><|assistant|>").stdout
        assert reply.usage.prompt_tokens == len(told.split())


@pytest.mark.parametrize("name", FAMILIES)
def test_smaller_families_are_served_from_the_cache_as_without(name):
    prompt = "A larder keeps what was made once. " * 6
    with serving("--kv-size", "4MiB", model=str(GOLDEN / f"tiny_hf_{name}")) as server:
        replies = [server.client.completions.create(model="default", prompt=prompt, max_tokens=12, temperature=0, logprobs=1)
                   for _ in range(2)]
        chat = server.client.chat.completions.create(model="default", messages=[{"role": "user", "content": "Hello"}], max_tokens=4)
    assert [reply.usage.prompt_tokens_details.cached_tokens > 32 for reply in replies] == [False, True]
    assert replies[0].choices[0].text == replies[1].choices[0].text
    assert replies[0].choices[0].logprobs.token_logprobs == replies[1].choices[0].logprobs.token_logprobs
    assert chat.usage.completion_tokens > 0


def test_rotations_go_by_the_longest_sequence_and_keep_blocks_apart(tmp_path):
    """LongRoPE, with an original context that a prompt fits into that is worth reading back."""
    folder = tmp_path / "model"
    shutil.copytree(GOLDEN / "tiny_hf_phi3", folder)
    config = json.loads((folder / "config.json").read_text())
    config["original_max_position_embeddings"] = config["rope_parameters"]["original_max_position_embeddings"] = 240
    (folder / "config.json").write_text(json.dumps(config))
    prompt = "A larder keeps what was made once. " * 7
    lengths = ((), ("--max-model-len", 241), ("--max-model-len", 240), ("--max-model-len", 239))
    answers = [answer_beside_a_disk(folder, tmp_path / "kv", prompt, *length, finds=finds)
               for length, finds in zip(lengths, (False, True, False, True))]
    assert [found > 0 for _, found in answers] == [False, True, False, True]
    texts = [text for text, _ in answers]
    assert texts[0] == texts[1] and texts[2] == texts[3]


def test_a_folder_without_a_model_gets_one_line(tmp_path):
    for command in (("generate", "-p", "a"), ("tokenize", "-p", "a"), ("plan",), ("serve", "--port", 0)):
        lines = larder(*command, "-m", tmp_path, code=1).stderr.strip().splitlines()
        assert len(lines) == 1 and f"{tmp_path}: a folder without config.json" in lines[0]
    assert "a folder without config.json" in larder("doctor", "--port", 0, "-m", tmp_path, code=1).stdout
