"""SmolLM2 with experts in place of each MLP, which are that MLP: whichever a token chooses, it says what SmolLM2 says."""
import concurrent.futures
import re
import struct

import pytest

from api_server import MODEL, larder, serving
from gguf_parts import key, parts_of, write_piece

NUM_EXPERTS = 2
HIDDEN = 576
UINT32, F32 = 4, 0
PROMPT = "The larder was full of cheese, bread and apples. " * 20 + "In the morning the cook"


def info_of(name, dims, kind):
    return struct.pack("<Q", len(name)) + name + struct.pack(f"<I{len(dims)}QI", len(dims), *dims, kind)


def with_experts(info, data):
    """A matrix of an MLP once for each expert, any other tensor as it is."""
    length, = struct.unpack_from("<Q", info)
    name = info[8:8 + length]
    if not re.fullmatch(rb"blk\.\d+\.ffn_(gate|up|down)\.weight", name):
        return [(info, data)]
    cols, rows, kind = struct.unpack_from("<QQI", info, 8 + length + 4)
    name = name.replace(b".weight", b"_exps.weight")
    return [(info_of(name, (cols, rows, NUM_EXPERTS), kind), data * NUM_EXPERTS)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    values, num_values, tensors = parts_of(MODEL)
    values += (key(b"llama.expert_count", UINT32, "I", NUM_EXPERTS) + key(b"llama.expert_used_count", UINT32, "I", 1))
    changed = [part for tensor in tensors for part in with_experts(*tensor)]
    for layer in range(30):
        router = b"".join(struct.pack("<f", (i * (layer + 7)) % 13 / 13 - 0.5) for i in range(NUM_EXPERTS * HIDDEN))
        changed.append((info_of(f"blk.{layer}.ffn_gate_inp.weight".encode(), (HIDDEN, NUM_EXPERTS), F32), router))
    path = tmp_path_factory.mktemp("experts") / "experts.gguf"
    write_piece(path, values, num_values + 2, changed)
    yield path
    path.unlink()


def ask(server, seed):
    """Text and log-probabilities, to the last digit."""
    reply = server.client.completions.create(model="smollm2", prompt=PROMPT[seed:], max_tokens=12, logprobs=3, seed=seed,
                                             temperature=0 if seed == 0 else 0.9)
    choice = reply.choices[0]
    return choice.text, choice.logprobs.token_logprobs, reply.usage.prompt_tokens_details.cached_tokens


def test_equal_experts_say_what_the_mlp_says(model, tmp_path):
    with serving("-c", 2048) as server:
        dense = [ask(server, seed) for seed in range(6)]
    tier = ("--kv-disk", tmp_path, "--kv-disk-size", "64MiB")
    with serving("-c", 2048, *tier, model=str(model)) as server:
        with concurrent.futures.ThreadPoolExecutor(6) as clients:
            together = list(clients.map(lambda seed: ask(server, seed), range(6)))
        again = ask(server, 0)
    assert [answer[:2] for answer in together] == [answer[:2] for answer in dense]
    assert again[:2] == dense[0][:2] and again[2] > 200
    with serving("-c", 2048, *tier, model=str(model)) as server:
        after = ask(server, 0)
    assert after[:2] == dense[0][:2] and after[2] > 200


def test_plan_and_bench_count_what_a_token_reads(model):
    plan = larder("plan", "-m", model).stdout
    total, active = map(float, re.search(r"Parameters +([\d.]+) G, ([\d.]+) G of them for each token", plan).groups())
    assert total == pytest.approx(0.214, abs=0.02) and active == pytest.approx(0.135, abs=0.01)
    table = larder("bench", "-m", model, "--pp", 16, "--tg", 4, "-r", 1, "--kv-size", "128MiB").stdout
    assert "214" in re.search(r"\| ([\d.]+) M \|", table)[1]


def test_a_router_that_is_missing_is_named(model, tmp_path):
    values, num_values, tensors = parts_of(model)
    path = tmp_path / "without.gguf"
    write_piece(path, values, num_values, [tensor for tensor in tensors if b"blk.3.ffn_gate_inp" not in tensor[0]])
    refused = larder("generate", "-m", path, "-p", "a", code=1)
    assert "tensor 'blk.3.ffn_gate_inp.weight' is missing" in refused.stderr
