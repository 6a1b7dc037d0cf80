"""OpenAI's API through OpenAI's own client, and the server under load and at its end."""
import asyncio
import concurrent.futures
import contextlib
import json
import os
import pathlib
import re
import resource
import signal
import socket
import time
import warnings

import aiohttp
import openai
import pytest
import requests

from api_server import MODEL, serving
from worker_process import working

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
STORY = "Once upon a time, in a small village at the foot of a mountain, there lived an old clockmaker who "


def wait_until(condition, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return condition()


def test_chat_reports_usage_and_timings(server):
    reply = server.client.chat.completions.create(model="smollm2", messages=QUESTION, max_tokens=24, temperature=0)
    assert reply.choices[0].message.role == "assistant" and reply.choices[0].message.content
    assert reply.choices[0].finish_reason in ("stop", "length")
    assert reply.object == "chat.completion" and reply.model == "smollm2"
    usage = reply.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert 0 < usage.completion_tokens <= 24
    timings = reply.model_extra["timings"]
    assert timings["cache_n"] + timings["prompt_n"] == usage.prompt_tokens
    assert timings["predicted_n"] == usage.completion_tokens and timings["predicted_per_second"] > 0


def test_completion_knows_a_fact(server):
    reply = server.client.completions.create(model="default", prompt="The capital of France is", max_tokens=8, temperature=0)
    assert "Paris" in reply.choices[0].text and reply.object == "text_completion"


def test_stream_equals_whole(server):
    options = dict(model="smollm2", messages=QUESTION, max_tokens=24, temperature=0)
    whole = server.client.chat.completions.create(**options)
    text, roles, reasons, usages = "", 0, [], []
    for chunk in server.client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}):
        if chunk.usage:
            usages.append(chunk.usage)
            assert not chunk.choices
            continue
        delta = chunk.choices[0].delta
        roles += delta.role == "assistant"
        text += delta.content or ""
        reasons.append(chunk.choices[0].finish_reason)
    assert text == whole.choices[0].message.content
    assert roles == 1 and reasons[-1] == whole.choices[0].finish_reason and set(reasons[:-1]) <= {None}
    assert len(usages) == 1 and usages[0].completion_tokens == whole.usage.completion_tokens


def test_continuous_usage_counts_up(server):
    counts = [chunk.usage.completion_tokens for chunk in server.client.completions.create(
        model="smollm2", prompt=STORY, max_tokens=6, stream=True, extra_body={"ignore_eos": True},
        stream_options={"include_usage": True, "continuous_usage_stats": True})]
    assert counts == sorted(counts) and counts[-1] == 6


def test_second_call_is_cached_and_equal(server):
    options = dict(model="smollm2", prompt=f"{time.time()} {STORY * 4}", max_tokens=16, temperature=0,
                   extra_body={"return_token_ids": True, "ignore_eos": True})
    first, second = (server.client.completions.create(**options) for _ in range(2))
    assert first.usage.prompt_tokens_details.cached_tokens <= 1
    assert second.usage.prompt_tokens_details.cached_tokens == second.usage.prompt_tokens - 1
    assert first.choices[0].token_ids == second.choices[0].token_ids
    assert first.choices[0].text == second.choices[0].text


def test_salts_do_not_share(server):
    options = dict(model="smollm2", prompt=f"{time.time()} {STORY}", max_tokens=1)
    cached = [server.client.completions.create(**options, extra_body={"cache_salt": salt}).usage.prompt_tokens_details
              .cached_tokens for salt in ("a", "b", "a")]
    assert cached[0] <= 1 and cached[1] <= 1 and cached[2] > 1


def test_n_and_seed(server):
    options = dict(model="smollm2", prompt=STORY, max_tokens=8, n=4, seed=7, temperature=1)
    first, second = (server.client.completions.create(**options) for _ in range(2))
    texts = [choice.text for choice in first.choices]
    assert texts == [choice.text for choice in second.choices]
    assert len(set(texts)) > 1
    assert [choice.index for choice in first.choices] == [0, 1, 2, 3]


def test_stop_string_and_stop_token(server):
    options = dict(model="smollm2", prompt="1, 2, 3, 4, 5,", max_tokens=32, temperature=0)
    reply = server.client.completions.create(**options, stop=["9", "zzz"])
    assert reply.choices[0].finish_reason == "stop" and reply.choices[0].stop_reason == "9"
    assert "8" in reply.choices[0].text and "9" not in reply.choices[0].text
    assert reply.usage.completion_tokens < 32
    streamed = "".join(chunk.choices[0].text for chunk in server.client.completions.create(
        **options, stop=["9", "zzz"], stream=True))
    assert streamed == reply.choices[0].text
    nine = server.post("/tokenize", {"prompt": "9", "add_special_tokens": False}).json()["tokens"]
    by_token = server.client.completions.create(**options, extra_body={"stop_token_ids": nine})
    assert by_token.choices[0].stop_reason == nine[0] and by_token.choices[0].text == reply.choices[0].text


def test_chat_logprobs(server):
    reply = server.client.chat.completions.create(model="smollm2", messages=QUESTION, max_tokens=5, temperature=0,
                                                  logprobs=True, top_logprobs=3)
    content = reply.choices[0].logprobs.content
    assert "".join(entry.token for entry in content) == reply.choices[0].message.content
    for entry in content:
        assert bytes(entry.bytes).decode() == entry.token
        assert len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].logprob == max(best.logprob for best in entry.top_logprobs) == entry.logprob


def lm_eval_request(server, context, continuation):
    """What lm-evaluation-harness's local-completions sends and reads to score a continuation."""
    context, whole = (server.post("/tokenize", {"prompt": text}).json()["tokens"]
                      for text in (context, context + continuation))
    reply = server.post("/v1/completions", {"model": "smollm2", "prompt": [whole], "temperature": 0, "max_tokens": 1,
                                            "logprobs": 1, "seed": 1234, "echo": True}).json()
    logprobs = reply["choices"][0]["logprobs"]
    assert len(logprobs["token_logprobs"]) == len(logprobs["top_logprobs"]) == len(whole) + 1
    scores = logprobs["token_logprobs"][len(context):-1]
    best = logprobs["top_logprobs"][len(context):-1]
    return sum(scores), all(score == max(top.values()) for score, top in zip(scores, best))


def test_lm_evaluation_harness_can_score(server):
    right, right_is_greedy = lm_eval_request(server, "The capital of France is", " Paris")
    wrong, wrong_is_greedy = lm_eval_request(server, "The capital of France is", " Berlin")
    assert right > wrong and right_is_greedy and not wrong_is_greedy
    # At the end of a turn the best next token is an end token: no entry of the prompt may be lost.
    lm_eval_request(server, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", "Hello!<|im_end|>")


def test_echo_logprobs_do_not_depend_on_the_cache(server):
    body = {"prompt": f"{time.time()} {STORY}", "max_tokens": 1, "logprobs": 2, "echo": True, "temperature": 0}
    first, second = (server.post("/v1/completions", body).json()["choices"][0] for _ in range(2))
    assert first == second
    assert first["logprobs"]["token_logprobs"][0] is None
    assert "".join(first["logprobs"]["tokens"]) == first["text"]
    offsets = first["logprobs"]["text_offset"]
    assert offsets[0] == 0 and first["text"][offsets[3]:].startswith(first["logprobs"]["tokens"][3])


def assert_offsets_fit(choice):
    """Of every token that is a text of its own; the others are parts of characters."""
    text, logprobs = choice["text"], choice["logprobs"]
    offsets, tokens = logprobs["text_offset"], logprobs["tokens"]
    assert len(offsets) == len(tokens) and offsets == sorted(offsets) and offsets[-1] <= len(text)
    for offset, token in zip(offsets, tokens):
        assert "\ufffd" in token or text[offset:].startswith(token), (offset, token, text)
    return offsets


def test_offsets_are_characters_of_the_text(server):
    text = "Tokyo is 東京 🎉. It is in"
    tokens = server.post("/tokenize", {"prompt": text}).json()["tokens"]
    for prompt in (text, tokens):
        body = {"prompt": prompt, "max_tokens": 4, "logprobs": 0, "echo": True, "temperature": 0}
        choice = server.post("/v1/completions", body).json()["choices"][0]
        offsets = assert_offsets_fit(choice)
        assert "\ufffd" in "".join(choice["logprobs"]["tokens"]) and offsets[len(tokens)] == len(text)


@pytest.mark.skipif("LARDER_TEST_GEMMA3" not in os.environ, reason="the model is not there")
def test_a_bos_has_no_place_in_the_text():
    with serving(model=os.environ["LARDER_TEST_GEMMA3"]) as server:
        body = {"prompt": "Tokyo is 東京 🎉. It is in", "max_tokens": 4, "logprobs": 0, "echo": True, "temperature": 0}
        choice = server.post("/v1/completions", body).json()["choices"][0]
        logprobs = choice["logprobs"]
        assert logprobs["tokens"][0] == "<bos>" and logprobs["text_offset"][:2] == [0, 0]
        for name in ("tokens", "text_offset"):
            logprobs[name] = logprobs[name][1:]
        assert_offsets_fit(choice)


def test_prompts_in_all_shapes(server):
    tokens = server.post("/tokenize", {"prompt": STORY}).json()["tokens"]
    for prompt, count in ((STORY, 1), ([STORY, "1 2 3"], 2), (tokens, 1), ([tokens, tokens[:3]], 2)):
        reply = server.client.completions.create(model="smollm2", prompt=prompt, max_tokens=2, temperature=0)
        assert len(reply.choices) == count


def test_tokens_round_trip(server):
    for text in ("Hello world", "naïve café 😀 日本語", "  two  spaces\n\ttab", "<|im_start|> as text"):
        tokens = server.post("/tokenize", {"prompt": text, "return_token_strs": True}).json()
        assert tokens["count"] == len(tokens["tokens"]) == len(tokens["token_strs"])
        assert server.post("/detokenize", {"tokens": tokens["tokens"]}).json()["prompt"] == text
    chat = server.post("/tokenize", {"messages": QUESTION}).json()
    usage = server.client.chat.completions.create(model="smollm2", messages=QUESTION, max_tokens=1).usage
    assert chat["count"] == usage.prompt_tokens


def test_a_router_sees_the_prompt_of_a_chat(server):
    """Tools and all, from the body as it would go on."""
    tool = {"type": "function", "function": {"name": "find", "description": "Finds a city.",
                                             "parameters": {"type": "object", "properties": {"name": {"type": "string"}}}}}
    ask = {"model": "smollm2", "messages": QUESTION, "tools": [tool], "max_tokens": 1, "stream": False}
    rendered = server.post("/v1/chat/completions/render", ask).json()
    assert rendered["request_id"].startswith("chatcmpl-") and rendered["model"] == "smollm2"
    assert "Finds a city." in server.post("/detokenize", {"tokens": rendered["token_ids"]}).json()["prompt"]
    usage = server.post("/v1/chat/completions", ask).json()["usage"]
    assert len(rendered["token_ids"]) == usage["prompt_tokens"]
    assert rendered["token_ids"] == server.post("/tokenize", ask).json()["tokens"]
    assert server.post("/v1/chat/completions/render", {**ask, "messages": []}).status_code == 400


def test_final_message_can_be_continued(server):
    messages = [*QUESTION, {"role": "assistant", "content": "The capital of France is"}]
    fields = {"messages": messages, "continue_final_message": True}
    tokens = server.post("/tokenize", fields).json()["tokens"]
    assert server.post("/detokenize", {"tokens": tokens}).json()["prompt"].endswith("assistant\nThe capital of France is")
    reply = server.post("/v1/chat/completions", {**fields, "max_tokens": 4, "temperature": 0}).json()
    assert reply["choices"][0]["message"]["content"].startswith(" ")


def test_thoughts_are_told_apart(server):
    """A prompt that ends in <think> has the model think; without an end, all of it is a thought."""
    ask = {"model": "smollm2", "messages": [*QUESTION, {"role": "assistant", "content": "<think>\nThe user asks for"}],
           "max_tokens": 12, "temperature": 0,
           "extra_body": {"continue_final_message": True, "add_generation_prompt": False, "ignore_eos": True}}
    reply = server.client.chat.completions.create(**ask)
    message = reply.choices[0].message
    thought = message.model_extra["reasoning_content"]
    assert thought and not message.content
    assert reply.usage.completion_tokens_details.reasoning_tokens == reply.usage.completion_tokens == 12
    deltas = [chunk.choices[0].delta for chunk in server.client.chat.completions.create(**ask, stream=True) if chunk.choices]
    assert "".join((delta.model_extra or {}).get("reasoning_content", "") for delta in deltas) == thought
    assert not "".join(delta.content or "" for delta in deltas)
    with serving("-c", 1024, "--reasoning-format", "none") as plain:
        whole = plain.client.chat.completions.create(**ask)
    assert whole.choices[0].message.content.strip() == thought
    assert whole.usage.completion_tokens_details is None


def test_tokenizer_info(server):
    """What lm-eval's remote tokenizer asks for."""
    info = server.get("/tokenizer_info").json()
    assert info["eos_token"] == "<|im_end|>" and "<|im_start|>" in info["chat_template"] and info["model_max_length"] > 0


def test_models(server):
    models = server.client.models.list().data
    assert models[0].id == "smollm2" and models[0].max_model_len > 0
    file = pathlib.Path(server.model)
    for name in ("smollm2", "default", file.name, file.stem):
        assert server.client.models.retrieve(name).id == "smollm2"


@pytest.mark.parametrize("fields, status, param", [
    ({"model": "nope"}, 404, "model"),
    ({"temperature": "hot"}, 400, "temperature"),
    ({"n": 2**31}, 400, "n"),
    ({"max_tokens": -2}, 400, "max_tokens"),
    ({"prompt": ""}, 400, "prompt"),
    ({"prompt": "word " * 100_000}, 400, "prompt"),
    ({"prompt": [10**9]}, 400, "prompt"),
    ({"stop": ["x" * 2**20]}, 400, "stop"),
    ({"response_format": {"type": "xml"}}, 400, "response_format.type"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}}, 400, "response_format.json_schema.schema.not"),
    ({"suffix": "end"}, 400, "suffix"),
])
def test_errors_name_the_field(server, fields, status, param):
    reply = server.post("/v1/completions", {"prompt": "a", **fields})
    error = reply.json()["error"]
    assert reply.status_code == status and error["param"] == param
    assert set(error) == {"message", "type", "param", "code"} and param.split(".")[0] in error["message"]


def test_client_raises_the_right_errors(server):
    with pytest.raises(openai.NotFoundError):
        server.client.completions.create(model="nope", prompt="a")
    with pytest.raises(openai.BadRequestError) as caught:
        server.client.chat.completions.create(model="smollm2", messages=[])
    assert caught.value.param == "messages"


def test_sixty_four_clients_share_a_prefix(server):
    prefix = f"{time.time()} {STORY * 6}"
    server.client.completions.create(model="smollm2", prompt=prefix, max_tokens=1)
    before = server.metrics()

    def ask(i):
        return server.client.completions.create(model="smollm2", prompt=f"{prefix}{i}", max_tokens=4, temperature=0,
                                                extra_body={"ignore_eos": True})

    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        replies = list(pool.map(ask, range(64)))
    assert all(reply.usage.completion_tokens == 4 for reply in replies)
    cached = sum(reply.usage.prompt_tokens_details.cached_tokens for reply in replies)
    assert cached > 0.9 * sum(reply.usage.prompt_tokens for reply in replies)
    # Who shared the batch changes nothing.
    assert ask(17).choices[0].text == replies[17].choices[0].text
    after = server.metrics()
    assert after["vllm:prefix_cache_hits_total"] - before["vllm:prefix_cache_hits_total"] >= cached


async def stream_once(session, url, body):
    """Number of events of one stream, [DONE] included."""
    count = 0
    async with session.post(url + "/v1/completions", json=body) as reply:
        assert reply.status == 200
        async for line in reply.content:
            count += line.startswith(b"data: ")
    assert line == b"\n"
    return count


def test_a_thousand_live_streams(server):
    async def run():
        body = {"prompt": STORY, "max_tokens": 4, "stream": True, "ignore_eos": True, "stream_options": {"include_usage": True}}
        timeout = aiohttp.ClientTimeout(total=600)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
            return await asyncio.gather(*(stream_once(session, server.url, body) for _ in range(1000)))

    begin = time.monotonic()
    counts = asyncio.run(run())
    print(f"1000 streams of 4 tokens: {time.monotonic() - begin:.1f} s")
    assert len(counts) == 1000 and min(counts) >= 3
    assert wait_until(lambda: server.metrics()["larder:kv_blocks_held"] == 0, 20)


@pytest.fixture
def many_files():
    """10,200 of them here, and in a server that is started meanwhile."""
    soft, hard = limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(hard, 10_200), max(hard, 10_200)))  # beyond hard only root may
    except (OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 10_200:
        reason = f"10,000 idle sockets are not tested: the hard limit of open files is {hard} (ulimit -Hn), 10,200 are needed"
        warnings.warn(reason)  # a reason for skipping is shown on demand only
        pytest.skip(reason)
    yield
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_ten_thousand_idle_sockets_do_not_hinder(many_files):
    with serving() as server, contextlib.ExitStack() as idle:
        server.client.completions.create(model="smollm2", prompt="warm", max_tokens=4)
        begin = time.monotonic()
        server.client.completions.create(model="smollm2", prompt="quick", max_tokens=4)
        alone = time.monotonic() - begin
        for _ in range(10_000):
            idle.enter_context(socket.create_connection(("127.0.0.1", server.port)))
        assert wait_until(lambda: server.metrics()["larder:open_connections"] >= 10_000, 30)
        begin = time.monotonic()
        server.client.completions.create(model="smollm2", prompt="quick", max_tokens=4)
        beside = time.monotonic() - begin
        print(f"one request: {alone:.3f} s alone, {beside:.3f} s beside 10,000 idle sockets")
        assert beside < 5 * alone + 1
        idle.close()
        assert wait_until(lambda: server.metrics()["larder:open_connections"] < 100, 30)


@pytest.mark.parametrize("model", ["LARDER_TEST_SMOLLM2", "LARDER_TEST_GEMMA3"])
def test_an_answer_waits_for_its_reader(model):
    if model not in os.environ:
        pytest.skip("the model is not there")
    body = json.dumps({"model": "smollm2", "prompt": "Once upon a time", "max_tokens": 600, "n": 4, "ignore_eos": True,
                       "logprobs": 20, "stream": True, "temperature": 1, "seed": 7})

    def tokens_of(text):
        events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        choices = [choice for event in events for choice in event["choices"] if choice["logprobs"]]
        return [[logprob for choice in choices if choice["index"] == index for logprob in choice["logprobs"]["token_logprobs"]]
                for index in range(4)]

    with serving("-c", "2048", model=os.environ[model]) as server:
        expected = tokens_of(requests.post(server.url + "/v1/completions", data=body, headers={"Content-Type": "application/json"}, timeout=300).text)
        with socket.socket() as reader:
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 10)
            reader.connect(("127.0.0.1", server.port))
            reader.sendall(f"POST /v1/completions HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                           f"Content-Length: {len(body)}\r\n\r\n{body}".encode())

            def pauses():  # it goes on for as long as the system takes more for the reader
                metrics = server.metrics()
                return metrics["larder:num_requests_paused"] > 0 and metrics["vllm:num_requests_running"] == 0

            assert wait_until(pauses, 120)
            assert server.post("/reset_prefix_cache", {}).status_code == 200  # what it had computed is gone, too
            assert len(server.client.completions.create(model="smollm2", prompt="Meanwhile", max_tokens=4).choices) == 1
            reader.settimeout(120)
            text = b""
            while piece := reader.recv(1 << 16):
                text += piece
        assert tokens_of(text.decode()) == expected and [len(each) for each in expected] == [600] * 4
        metrics = server.metrics()
        assert metrics["larder:num_requests_paused"] == metrics["larder:dropped_streams_total"] == 0


def test_a_name_that_is_not_utf8_is_in_replies_that_are():
    with serving(name="caf\udce9") as server:  # the byte E9
        assert 'model_name="caf\ufffd"' in server.get("/metrics").content.decode()
        assert server.client.models.list().data[0].id == "caf\ufffd"
        assert server.client.completions.create(model="caf\ufffd", prompt="a", max_tokens=1).model == "caf\ufffd"


def test_metrics_have_the_names_that_dashboards_read(server):
    metrics = server.metrics()
    for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
                 "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total", "vllm:prompt_tokens_total",
                 "vllm:generation_tokens_total", "vllm:time_to_first_token_seconds_count",
                 "vllm:inter_token_latency_seconds_count", "vllm:e2e_request_latency_seconds_sum"):
        assert name in metrics, name
    assert metrics["vllm:time_to_first_token_seconds_count"] > 0


def test_every_metric_is_in_the_docs_and_no_other(tmp_path):
    docs = pathlib.Path(__file__).parents[2] / "docs/metrics.md"
    documented = {name: (kind, set(re.findall(r"`(\w+)`", labels)))
                  for name, kind, labels in re.findall(r"^\| `(\S+)` \| (\w+) \| (.*?)\|", docs.read_text(), re.M)}
    # For the tiers' own, those of events, of an upstream and of workers.
    with working(MODEL) as worker, \
            serving("--kv-disk", tmp_path, "--kv-disk-size", "512MiB", "--kv-events", f"ipc://{tmp_path}/events", "--workers", worker.address,
                    "--upstream", "http://127.0.0.1:9/v1", "--upstream-models", "other") as server:
        server.client.completions.create(model="smollm2", prompt=STORY, max_tokens=2)
        page = server.get("/metrics").text
    shown = {}
    for line in page.splitlines():
        if line.startswith("# TYPE "):
            name, kind = line.split()[2:]
            assert name not in shown
            # Of a family that has counted nothing yet the page has no labels.
            shown[name] = (kind, documented.get(name, (None, set()))[1])
        elif not line.startswith("#"):
            shown[name] = (kind, set(re.findall(r'(\w+)="', line)) - {"model_name", "engine", "le"})
    assert shown == documented


def test_api_key():
    with serving("--api-key", "secret", key="secret") as server:
        assert requests.get(server.url + "/health", timeout=10).status_code == 200
        assert requests.get(server.url + "/v1/models", timeout=10).status_code == 401
        with pytest.raises(openai.AuthenticationError):
            server.client.with_options(api_key="wrong").models.list()
        assert server.client.models.list().data[0].id == "smollm2"


def test_keys_take_turns():
    """One key's 48 prompts do not keep another's from being answered."""
    with serving("--api-key", "busy", "--api-key", "brief", key="busy") as server:
        def ask(key, number):
            body = {"prompt": f"Chapter {number}. " + STORY * 16, "max_tokens": 4, "cache_salt": f"{key} {number}"}
            reply = requests.post(server.url + "/v1/completions", json=body, headers={"Authorization": f"Bearer {key}"},
                                  timeout=300)
            assert reply.status_code == 200, reply.text
            return time.monotonic()

        with concurrent.futures.ThreadPoolExecutor(64) as pool:
            many = [pool.submit(ask, "busy", number) for number in range(48)]
            assert wait_until(lambda: any(one.done() for one in many), 60)
            brief = pool.submit(ask, "brief", 0).result()
            later = sum(one.result() > brief for one in many)
        assert later >= 24, f"{later} of 48 were answered later"


def test_a_template_without_end_costs_its_own_chat_only(tmp_path):
    template = tmp_path / "endless.jinja"
    template.write_text("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}")
    with serving("--chat-template", template) as server:
        refused = server.post("/v1/chat/completions", {"messages": QUESTION, "max_tokens": 1})
        assert refused.status_code == 400 and "more steps" in refused.json()["error"]["message"]
        assert refused.elapsed.total_seconds() < 5
        assert server.get("/health").status_code == 200
        assert server.post("/v1/completions", {"prompt": STORY, "max_tokens": 1}).status_code == 200


def refuses_connections(server):
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", server.port)).close()
        return False
    return True


@pytest.fixture
def hangups():
    """Sets what a process that starts from here on does with SIGHUP: nohup ignores it, and so may whoever runs the tests."""
    before = signal.getsignal(signal.SIGHUP)
    yield lambda action: signal.signal(signal.SIGHUP, action)
    signal.signal(signal.SIGHUP, before)


def test_a_hangup_is_nothing_under_nohup(hangups):
    hangups(signal.SIG_IGN)
    with serving() as server:
        server.process.send_signal(signal.SIGHUP)
        assert server.post("/v1/completions", {"prompt": STORY, "max_tokens": 1}).status_code == 200
        assert server.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_drain(number, hangups):
    hangups(signal.SIG_DFL)
    with serving("--drain-seconds", 60) as server:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            running = pool.submit(server.post, "/v1/completions",
                                  {"prompt": STORY, "max_tokens": 100, "ignore_eos": True})
            assert wait_until(lambda: server.metrics()["vllm:num_requests_running"] == 1, 10)
            server.process.send_signal(number)
            assert wait_until(lambda: refuses_connections(server), 20)
            assert running.result().json()["usage"]["completion_tokens"] == 100
        assert server.process.wait(timeout=30) == 0


def test_sigterm_ends_an_idle_server():
    with serving() as server:
        server.get("/health")
        assert server.stop() == 0


def test_a_log_that_nobody_reads_does_not_end_a_drain():
    read_end, write_end = os.pipe()
    with serving(stdout=write_end) as server:
        os.close(write_end)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            running = pool.submit(server.post, "/v1/completions",
                                  {"prompt": STORY, "max_tokens": 100, "ignore_eos": True})
            assert wait_until(lambda: server.metrics()["vllm:num_requests_running"] == 1, 10)
            os.close(read_end)
            server.process.send_signal(signal.SIGTERM)
            assert running.result().json()["usage"]["completion_tokens"] == 100
        assert server.process.wait(timeout=30) == 0


def test_second_signal_ends_at_once():
    with serving("--drain-seconds", 600) as server:
        body = {"prompt": STORY, "max_tokens": 1500, "ignore_eos": True, "stream": True}
        reply = requests.post(server.url + "/v1/completions", json=body, stream=True, timeout=60)
        lines = reply.iter_lines()
        next(lines)
        server.process.send_signal(signal.SIGTERM)
        assert wait_until(lambda: refuses_connections(server), 20)
        assert server.process.poll() is None
        assert server.stop() == 0
