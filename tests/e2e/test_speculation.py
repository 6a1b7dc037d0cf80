"""Guesses at what follows: answers are the same with them and without, and come in fewer steps."""
import concurrent.futures
import json
import os

import pytest
from api_server import serving

CODE = """def read_rows(path, limit=None):
    rows = []
    with open(path) as file:
        for number, line in enumerate(file):
            if limit is not None and number >= limit:
                break
            rows.append({"name": line.split()[0], "size": int(line.split()[1])})
    return rows"""
COPY = [{"role": "user", "content": f"Rewrite this function with `rows` renamed to `records`:\n\n```python\n{CODE}\n```"}]
SCHEMA = {"type": "object", "required": ["function", "parameters", "returns"], "additionalProperties": False,
          "properties": {"function": {"type": "string", "maxLength": 20}, "returns": {"type": "string", "maxLength": 20},
                         "parameters": {"type": "array", "maxItems": 4, "items": {"type": "string", "maxLength": 20}}}}
ASKED = [
    {"messages": COPY, "temperature": 0},
    {"messages": COPY, "temperature": 0.8, "seed": 3, "n": 2},
    {"messages": COPY, "temperature": 0.7, "seed": 4, "top_p": 0.9, "frequency_penalty": 0.4, "repetition_penalty": 1.1},
    {"messages": COPY, "temperature": 0, "logprobs": True, "top_logprobs": 3},
    {"messages": COPY, "temperature": 1, "seed": 5, "structured_outputs": {"json": SCHEMA}},
    {"messages": COPY, "temperature": 0, "stop": ["enumerate"], "stream": True},
    {"messages": COPY, "temperature": 0, "prediction": {"type": "content", "content": CODE.replace("rows", "records")}},
    {"messages": COPY, "temperature": 0, "attention_window": 128, "attention_sinks": 16},
]


@pytest.fixture(scope="module", params=["LARDER_TEST_SMOLLM2", "LARDER_TEST_GEMMA3"])
def servers(request):
    """One without guesses, and one with them."""
    if request.param not in os.environ:
        pytest.skip("the model is not there")
    options = {"model": os.environ[request.param]}
    with serving("-c", "2048", "--draft-tokens", "0", **options) as plain, serving("-c", "2048", **options) as guessing:
        yield plain, guessing


def answer(server, asked):
    reply = server.post("/v1/chat/completions", {"model": "default", "max_tokens": 90, **asked})
    assert reply.status_code == 200, reply.text
    if asked.get("stream"):
        chunks = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
        return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
    return reply.json()["choices"]


@pytest.mark.parametrize("number", range(len(ASKED)))
def test_answers_are_the_same(servers, number):
    plain, guessing = servers
    expected = answer(plain, ASKED[number])
    for _ in range(2):  # then the cache has seen it
        assert answer(guessing, ASKED[number]) == expected


def test_they_are_the_same_beside_others(servers):
    plain, guessing = servers
    with concurrent.futures.ThreadPoolExecutor(len(ASKED)) as pool:
        together = list(pool.map(lambda asked: answer(guessing, asked), ASKED))
    assert together == [answer(plain, asked) for asked in ASKED]


def test_they_come_in_fewer_steps(servers):
    plain, guessing = servers
    asked = {"model": "default", "max_tokens": 100, "temperature": 0, "ignore_eos": True, "messages": COPY}
    for server in servers:
        server.post("/v1/chat/completions", asked)
    before = [server.metrics() for server in servers]
    replies = [server.post("/v1/chat/completions", asked).json() for server in servers]
    after = [server.metrics() for server in servers]
    grown = [{name: new[name] - old.get(name, 0) for name in new} for new, old in zip(after, before)]
    assert grown[0]["larder:engine_steps_total"] == 100
    assert "draft_n" not in replies[0]["timings"]
    # The cache knows all of it.
    assert grown[1]["larder:engine_steps_total"] < 60
    timings = replies[1]["timings"]
    assert grown[1]["larder:engine_steps_total"] + timings["draft_n_accepted"] == 100
    assert grown[1]["vllm:spec_decode_num_draft_tokens_total"] == timings["draft_n"]
    assert grown[1]["vllm:spec_decode_num_accepted_tokens_total"] == timings["draft_n_accepted"]
    assert 0 < grown[1]["vllm:spec_decode_num_drafts_total"] <= timings["draft_n"]
    assert grown[1]["vllm:generation_tokens_total"] == 100


def test_a_prediction_through_openais_client(servers):
    _, guessing = servers
    # Under salts of their own, so that the cache guesses nothing.
    ask = lambda salt, **more: guessing.client.chat.completions.create(
        model="default", messages=[{"role": "user", "content": "Count from 1 to 40, with commas."}], max_tokens=100, temperature=0,
        extra_body={"cache_salt": salt}, **more)
    alone = ask("a")
    said = alone.choices[0].message.content
    helped = ask("b", prediction={"type": "content", "content": said})
    assert helped.choices[0].message.content == said
    assert helped.usage.completion_tokens == alone.usage.completion_tokens
    details = helped.usage.completion_tokens_details
    assert details.accepted_prediction_tokens + (helped.timings["draft_n_accepted"] - details.accepted_prediction_tokens) > 10
    parts = ask("c", prediction={"type": "content", "content": [{"type": "text", "text": said[:40]}, {"type": "text", "text": said[40:]}]})
    assert parts.choices[0].message.content == said
    wrong = ask("d", prediction={"type": "content", "content": "Nothing of this comes. " * 50})
    assert wrong.choices[0].message.content == said


@pytest.mark.parametrize("prediction, field", [
    ({"type": "text", "content": "x"}, "prediction.type"), ({"type": "content"}, "prediction.content"),
    ({"type": "content", "content": 3}, "prediction.content"), ({"type": "content", "content": [{"type": "text"}]}, "prediction.content[0].text"),
    ("x", "prediction"),
])
def test_a_prediction_that_is_none(servers, prediction, field):
    reply = servers[1].post("/v1/chat/completions", {"messages": COPY, "prediction": prediction})
    assert reply.status_code == 400 and reply.json()["error"]["param"] == field, reply.text
