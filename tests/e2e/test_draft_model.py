"""A small model that guesses for a large one: SmolLM2 for itself with layers that add nothing, so that all it guesses greedily is right,
and two of its layers, of which hardly anything is. Answers have to be those without guesses."""
import concurrent.futures
import json
import os
import pathlib
import struct

import pytest

from api_server import MODEL, larder, serving
from gguf_parts import key, parts_of, write_piece
from test_speculation import ASKED, COPY, answer

NUM_LAYERS = 30
GOLDEN = pathlib.Path(__file__).parents[1] / "golden/model"


def name_of(info):
    return info[8:8 + struct.unpack_from("<Q", info)[0]].decode()


def renamed(info, name):
    return struct.pack("<Q", len(name)) + name.encode() + info[8 + len(name_of(info)):]


def with_layers(values, number):
    """What the file says, with another number of layers."""
    old = key(b"llama.block_count", 4, "I", NUM_LAYERS)
    assert values.count(old) == 1
    return values.replace(old, key(b"llama.block_count", 4, "I", number))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Paths: of the large model, and of the one that knows little."""
    if not MODEL:
        pytest.skip("the model is not there")
    folder = tmp_path_factory.mktemp("models")
    values, num_values, tensors = parts_of(MODEL)
    layer_of = lambda info: int(name_of(info).split(".")[1]) if name_of(info).startswith("blk.") else -1
    of_first = [(info, data) for info, data in tensors if layer_of(info) == 0]
    more = [(renamed(info, name_of(info).replace("blk.0.", f"blk.{layer}.")),
             bytes(len(data)) if "attn_output" in name_of(info) or "ffn_down" in name_of(info) else data)
            for layer in range(NUM_LAYERS, 3 * NUM_LAYERS) for info, data in of_first]
    write_piece(folder / "large.gguf", with_layers(values, 3 * NUM_LAYERS), num_values, tensors + more)
    write_piece(folder / "poor.gguf", with_layers(values, 2), num_values, [one for one in tensors if layer_of(one[0]) < 2])
    return folder / "large.gguf", folder / "poor.gguf"


@pytest.fixture(scope="module")
def plain(models):
    with serving("-c", "2048", "--draft-tokens", "0", model=str(models[0])) as server:
        yield server


@pytest.fixture(scope="module", params=["itself", "poor"])
def guessing(request, models):
    with serving("-c", "2048", "--draft-model", MODEL if request.param == "itself" else models[1], model=str(models[0])) as server:
        server.guesses_right = request.param == "itself"
        yield server


@pytest.mark.parametrize("number", range(len(ASKED)))
def test_answers_are_the_same(plain, guessing, number):
    expected = answer(plain, ASKED[number])
    for salt in ("", "another"):  # under another one the cache has nothing, so that the model is asked
        assert answer(guessing, {**ASKED[number], **({"cache_salt": salt} if salt else {})}) == expected


def test_they_are_the_same_beside_others(plain, guessing):
    with concurrent.futures.ThreadPoolExecutor(len(ASKED)) as pool:
        together = list(pool.map(lambda asked: answer(guessing, asked), ASKED))
    assert together == [answer(plain, asked) for asked in ASKED]


def grown(server, asked):
    before = server.metrics()
    reply = server.post("/v1/chat/completions", asked).json()
    after = server.metrics()
    return reply, {name: after[name] - before.get(name, 0) for name in after}


def test_a_right_model_makes_fewer_steps_and_a_wrong_one_is_given_up(plain, guessing):
    asked = {"model": "default", "max_tokens": 150, "temperature": 0, "ignore_eos": True,
             "messages": [{"role": "user", "content": "Tell me a story about a fox who learns to sail."}]}
    expected, _ = grown(plain, asked)
    # What pays is learned by time, which other work on the machine takes: where it is not asked at once, it is later.
    for attempt in range(8):
        reply, more = grown(guessing, {**asked, "cache_salt": f"story {attempt}"})
        assert reply["choices"] == expected["choices"]
        timings = reply["timings"]
        assert more["vllm:spec_decode_num_draft_tokens_total"] == timings.get("draft_n", 0)
        # The prompt may take several steps.
        assert 150 <= more["larder:engine_steps_total"] + timings.get("draft_n_accepted", 0) < 155
        seconds = {part: more[f'larder:engine_seconds_total{{part="{part}"}}'] for part in ("forward", "draft_model")}
        print(timings, seconds)
        guessed, right = (more[f"larder:draft_model_{what}_total"] for what in ("tokens", "accepted_tokens"))
        assert right == guessed if guessing.guesses_right else right <= guessed
        assert guessed <= timings.get("draft_n", 0) and right <= timings.get("draft_n_accepted", 0)
        if guessed > 10 if guessing.guesses_right else seconds["draft_model"] < 0.15 * seconds["forward"]:
            return
    pytest.fail("a model that is right was not asked, or one that is not was")


def test_a_client_that_leaves_gives_all_back(guessing):
    for _ in range(3):
        stream = guessing.client.chat.completions.create(model="default", messages=COPY, max_tokens=500, stream=True)
        next(iter(stream))
        stream.close()
    assert answer(guessing, ASKED[0]) == answer(guessing, ASKED[0])


def test_a_model_that_cannot_guess_is_refused_in_one_line(models, tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(pathlib.Path(MODEL).read_bytes()[:1 << 20])
    for draft, *words in ((broken, "broken.gguf"), (tmp_path / "none.gguf", "none.gguf"), (GOLDEN / "tiny_hf_llama", "another vocabulary", "token 0"),
                          (tmp_path, "config.json")):
        for command in (("serve", "--port", 0), ("plan", "--no-measure"), ("generate", "-p", "a"), ("bench",)):
            lines = larder(*command, "-m", models[0], "--kv-size", "64MiB", "-c", 512, "--draft-model", draft, code=1).stderr.strip().splitlines()
            assert len(lines) == 1 and all(word in lines[0] for word in ("--draft-model", *words)), lines
    lines = larder("generate", "-p", "a", "-m", MODEL, "--draft-model", MODEL, "--draft-tokens", 0, code=1).stderr.strip().splitlines()
    assert len(lines) == 1 and "--draft-tokens 0" in lines[0]
    lines = larder("plan", "-m", "llama-3.1-8b", "--draft-model", MODEL, code=1).stderr.strip().splitlines()
    assert len(lines) == 1 and "--draft-model" in lines[0]


def test_it_is_planned(models):
    plans = [json.loads(larder("plan", "--json", "--no-measure", "-m", models[0], "--kv-size", "512MiB", "-c", 2048, *more).stdout)["server"]
             for more in ((), ("--draft-model", MODEL))]
    assert plans[0]["draft_bytes"] == 0 and plans[1]["kv_bytes"] == plans[0]["kv_bytes"]
    assert plans[1]["draft_bytes"] > os.path.getsize(MODEL) + plans[1]["draft_kv_bytes"]
    # Of a third of the layers, for a request of 2048 tokens at least.
    assert plans[1]["draft_kv_bytes"] > 0.9 * 2048 * plans[1]["kv_bytes"] / plans[1]["kv_capacity_tokens"] / 3
    assert "Draft model" in larder("plan", "--no-measure", "-m", models[0], "--kv-size", "512MiB", "-c", 2048, "--draft-model", MODEL).stdout


def test_other_commands_take_it(models):
    texts = [larder("generate", "-m", models[0], "-p", "A larder is", "-n", 24, "--temp", 0, "--kv-size", "256MiB", "-c", 512, *more).stdout
             for more in ((), ("--draft-model", MODEL))]
    assert texts[0] == texts[1]
    told = larder("bench", "-m", models[0], "--pp", 32, "--tg", 32, "-r", 1, "--kv-size", "256MiB", "-c", 512, "--draft-model", MODEL)
    assert "| tg32 |" in told.stdout and "+ draft model" in told.stderr
