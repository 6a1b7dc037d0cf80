"""What a chat's next turn begins with is computed while nobody waits, where the template prints answers otherwise than they were
generated: Qwen 3's, which begins an answer with an empty thought and leaves it out of what it prints later."""
import pathlib
import time

import anthropic
import pytest
from api_server import larder, serving

TEMPLATE = pathlib.Path(__file__).parents[1] / "golden/chat_template/templates/qwen3.jinja"
ASKED = {"model": "default", "max_tokens": 120, "temperature": 0, "ignore_eos": True, "chat_template_kwargs": {"enable_thinking": False}}
QUESTION = {"role": "user", "content": "Tell me how bread is made."}
COUNTER = "larder:anticipated_tokens_total"


def start(*more):
    return serving("-c", 1024, "--chat-template", TEMPLATE, *more)


@pytest.fixture(scope="module")
def server():
    with start() as server:
        yield server


@pytest.fixture(scope="module")
def plain():
    with start("--anticipate", "off") as server:
        yield server


def wait_for_more(server, before, least=1):
    for _ in range(600):
        metrics = server.metrics()
        if metrics[COUNTER] >= before + least and metrics["larder:kv_blocks_held"] == 0:
            return metrics[COUNTER] - before
        time.sleep(0.05)
    pytest.fail("too little was computed ahead")


def talk(server, salt, waits, stream=False):
    """Two turns: the second one's reply, and how many tokens were computed ahead of it."""
    before = server.metrics()[COUNTER]
    asked = {**ASKED, "cache_salt": salt, "messages": [QUESTION]}
    if stream:
        chunks = server.client.chat.completions.create(model="default", messages=[QUESTION], max_tokens=120, temperature=0, stream=True,
                                                       extra_body={key: asked[key] for key in ("ignore_eos", "chat_template_kwargs", "cache_salt")})
        answer = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    else:
        answer = server.post("/v1/chat/completions", asked).json()["choices"][0]["message"]["content"]
    num_ahead = wait_for_more(server, before) if waits else 0
    messages = [QUESTION, {"role": "assistant", "content": answer}, {"role": "user", "content": "And cake?"}]
    return server.post("/v1/chat/completions", {**asked, "messages": messages, "max_tokens": 24, "logprobs": True}).json(), num_ahead


@pytest.mark.parametrize("stream", [False, True])
def test_the_next_turn_is_there(server, plain, stream):
    expected, _ = talk(plain, f"a{stream}", False)
    reply, num_ahead = talk(server, f"a{stream}", True, stream)
    assert reply["choices"] == expected["choices"]  # with every logprob
    cached, without = (one["usage"]["prompt_tokens_details"]["cached_tokens"] for one in (reply, expected))
    assert cached >= without + 110 and num_ahead >= 110
    # The answer, the end of the message before it and the next message's beginning are all that was missing.
    assert reply["usage"]["prompt_tokens"] - cached < 40
    assert plain.metrics()[COUNTER] == 0


def test_messages_and_responses_have_it_too(server):
    before = server.metrics()[COUNTER]
    client = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)
    client.messages.create(model="default", max_tokens=100, messages=[QUESTION], thinking={"type": "disabled"},
                           extra_body={"ignore_eos": True, "temperature": 0})
    wait_for_more(server, before, 60)  # and not what the test before has left
    before = server.metrics()[COUNTER]
    first = server.client.responses.create(model="default", max_output_tokens=100, input="Tell me how paper is made.",
                                           extra_body={**ASKED, "max_tokens": None})
    wait_for_more(server, before, 60)
    second = server.client.responses.create(model="default", max_output_tokens=4, input="And ink?", previous_response_id=first.id,
                                            extra_body={**ASKED, "max_tokens": None})
    assert second.usage.input_tokens - second.usage.input_tokens_details.cached_tokens < 40


def test_statistics_do_not_count_it(server):
    before = server.metrics()
    talk(server, "counted", True)
    after = server.metrics()
    grown = {name: after[name] - before[name] for name in before}
    assert grown["vllm:request_success_total{finished_reason=\"length\"}"] == 2
    prompts = grown["vllm:prompt_tokens_total"]
    assert prompts == grown["vllm:prefix_cache_queries_total"] == grown["vllm:request_prompt_tokens_sum"]
    assert grown[COUNTER] > 110


def test_an_ordinary_template_needs_none():
    with serving("-c", 1024) as server:
        for salt in ("a", "b"):
            server.post("/v1/chat/completions", {**ASKED, "messages": [QUESTION], "max_tokens": 40, "cache_salt": salt})
        assert server.metrics()[COUNTER] == 0


def test_the_option():
    assert "--anticipate" in larder("serve", "--anticipate", "on", code=105).stderr
