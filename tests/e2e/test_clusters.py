"""Several servers as parts of one cluster: prefill here and decode there, and what routers are told."""
import contextlib
import os
import socket

import pytest
from api_server import larder, serving
from kv_subscriber import Subscriber

TEXT = " ".join(f"Item {i}: the store keeps {i * 7 % 50} jars of it on shelf {i % 9}." for i in range(40))
MESSAGES = [{"role": "user", "content": TEXT + " Which shelf is item 3 on?"}]


@pytest.fixture(scope="module", params=["LARDER_TEST_SMOLLM2", "LARDER_TEST_GEMMA3"])
def model(request):
    if request.param not in os.environ:
        pytest.skip("the model is not there")
    return os.environ[request.param]


def through_sidecar(prefiller, decoder, path, body):
    """As llm-d's sidecar in front of the decoder does it: what the prefiller's reply says goes on unread."""
    asked = {**body, "max_tokens": 1, "stream": False, "kv_transfer_params": {
        "do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None,
        "remote_host": None, "remote_port": None}}
    asked.pop("stream_options", None)
    prefilled = prefiller.post(path, asked)
    assert prefilled.status_code == 200, prefilled.text
    params = prefilled.json()["kv_transfer_params"]
    decoded = decoder.post(path, {**body, "kv_transfer_params": params})
    assert decoded.status_code == 200, decoded.text
    return prefilled.json(), decoded.json()


@pytest.mark.parametrize("path, body", [("/v1/chat/completions", {"messages": MESSAGES}), ("/v1/completions", {"prompt": TEXT})])
def test_prefill_here_and_decode_there(redis, model, path, body):
    body = {**body, "max_tokens": 24, "temperature": 0}
    with serving("-c", "2048", "--kv-remote", redis.url, model=model) as prefiller, \
            serving("-c", "2048", "--kv-remote", redis.url, model=model) as decoder, serving("-c", "2048", model=model) as alone:
        expected = alone.post(path, body).json()
        prefilled, decoded = through_sidecar(prefiller, decoder, path, body)
        assert prefilled["usage"]["completion_tokens"] == 1
        assert prefilled["kv_transfer_params"]["do_remote_prefill"] is True
        num_prompt = expected["usage"]["prompt_tokens"]
        num_handed = prefilled["kv_transfer_params"]["num_tokens"]
        assert num_prompt - 16 < num_handed <= num_prompt
        # Each time, since the first reply came only when all was there; and bit for bit.
        assert decoded["choices"] == expected["choices"]
        assert decoded["usage"]["prompt_tokens_details"]["cached_tokens"] >= num_handed - 16
        assert decoder.metrics()['vllm:prompt_tokens_by_source_total{source="external_kv_transfer"}'] >= num_handed - 16
        # Again, with a stream.
        more = {**body, "stream": True, "stream_options": {"include_usage": True}}
        if path == "/v1/completions":
            more["prompt"] = TEXT[::-1]
        else:
            more["messages"] = [{"role": "user", "content": TEXT[::-1]}]
        asked = {**more, "stream": False, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
        del asked["stream_options"]
        params = prefiller.post(path, asked).json()["kv_transfer_params"]
        streamed = decoder.post(path, {**more, "kv_transfer_params": params})
        assert streamed.status_code == 200 and "data: [DONE]" in streamed.text
        assert f'"cached_tokens":{params["num_tokens"]}' in streamed.text.replace(" ", "") or \
            f'"cached_tokens":{params["num_tokens"] - 16}' in streamed.text.replace(" ", "")


def test_the_prefiller_waits_for_no_server_that_is_down(redis, model):
    with serving("-c", "2048", "--kv-remote", redis.url, model=model) as prefiller:
        redis.kill()
        redis.wait()
        begin = prefiller.post("/v1/completions", {"prompt": TEXT, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}})
        assert begin.status_code == 200 and begin.json()["kv_transfer_params"]["num_tokens"] > 0
        assert begin.elapsed.total_seconds() < 8


@pytest.mark.parametrize("params, field", [
    ({"do_remote_decode": True}, "kv_transfer_params.do_remote_decode"),
    ({"do_remote_decode": True, "do_remote_prefill": True}, "kv_transfer_params.do_remote_decode"),
    ({"do_remote_decode": "yes"}, "kv_transfer_params.do_remote_decode"),
    ([], "kv_transfer_params"),
])
def test_what_cannot_be_handed_over(params, field):
    with serving() as server:
        reply = server.post("/v1/completions", {"prompt": "Hello", "kv_transfer_params": params})
        assert reply.status_code == 400 and reply.json()["error"]["param"] == field, reply.text
        # Whoever is told to take over what is nowhere computes it.
        reply = server.post("/v1/completions", {"prompt": "Hello", "max_tokens": 2, "kv_transfer_params": {
            "do_remote_prefill": True, "remote_engine_id": "gone", "remote_block_ids": [1], "remote_host": "10.0.0.1", "remote_port": 5600}})
        assert reply.status_code == 200 and "kv_transfer_params" not in reply.json()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def told(*options, **more):
    """A server, and what a router knows of it that came late."""
    events, replay = (f"tcp://127.0.0.1:{free_port()}" for _ in range(2))
    with serving("--kv-events", events, "--kv-events-replay", replay, *options, **more) as server:
        with Subscriber(events, replay) as router:
            router.catch_up()
            yield server, router


def tokens_of(server, text):
    return server.post("/tokenize", {"prompt": text}).json()["tokens"]


def complete(server, prompt, **more):
    reply = server.post("/v1/completions", {"prompt": prompt, "max_tokens": 1, **more})
    assert reply.status_code == 200, reply.text
    return reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize("layout", ["map", "array"])
def test_routers_know_what_is_cached(model, layout):
    with told("-c", "2048", "--kv-events-format", layout, model=model) as (server, router):
        assert {event["type"] for _, event in router.log} == {"AllBlocksCleared"}
        # It came within seconds of the start, and is told to forget once more.
        assert router.poll_until(lambda: len(router.log) >= 2)
        tokens = tokens_of(server, TEXT)
        num_whole = len(tokens) // 16 * 16
        complete(server, TEXT)
        assert router.poll_until(lambda: router.has_prompt(tokens) == num_whole)
        # What follows the same beginning goes on from its last block.
        longer = TEXT + " And of honey there are three jars more than last year, on the shelf by the door."
        complete(server, longer)
        tokens = tokens_of(server, longer)
        assert router.poll_until(lambda: router.has_prompt(tokens) == len(tokens) // 16 * 16)
        assert len({group for group, _ in router.stored}) == (1 if "SmolLM2" in model else 6)
        assert all(block.extra_keys is None for block in router.stored.values())
        assert router.topics and all(topic.startswith("kv@") and topic.endswith("@smollm2") for topic in router.topics)
        # Under a salt they are others' and say so.
        complete(server, TEXT, cache_salt="tenant")
        assert router.poll_until(lambda: any(block.extra_keys for block in router.stored.values()))
        salt, = {tuple(block.extra_keys) for block in router.stored.values() if block.extra_keys}
        tokens = tokens_of(server, TEXT)
        assert router.poll_until(lambda: router.has_prompt(tokens, extra_keys=list(salt)) == num_whole)
        # Another router that asks for all of it learns the same.
        with Subscriber(router.endpoint, router.replay_endpoint, subscribes=False) as late:
            late.catch_up()
            assert late.next_sequence == router.next_sequence and set(late.stored) == set(router.stored) != set()
        server.post("/reset_prefix_cache", {})
        assert router.poll_until(lambda: not router.stored)
        metrics = server.metrics()
        assert metrics['larder:kv_events_total{kind="stored"}'] == metrics['larder:kv_events_total{kind="removed"}'] > 0
        assert metrics['larder:kv_events_total{kind="dropped"}'] == 0


def test_the_topic_has_the_port_that_is_bound(model):
    with told("-c", "512", model=model) as (server, router):
        assert router.poll_until(lambda: router.topics)
        assert router.topics == {f"kv@{socket.gethostname()}:{server.port}@smollm2"} and server.port != 0


@pytest.mark.parametrize("topic", ["", "kv@10.0.0.1:8080@m"])
def test_the_topic_can_be_said(model, topic):
    """vLLM's is empty, and its router takes no other."""
    with told("-c", "512", "--kv-events-topic", topic, model=model) as (_, router):
        assert router.poll_until(lambda: router.topics)
        assert router.topics == {topic}


def test_routers_notice_a_restart(model):
    """Although they take only numbers above those that they have seen, as Dynamo does."""
    at = [f"tcp://127.0.0.1:{free_port()}" for _ in range(2)]
    options = ("-c", "2048", "--kv-events", at[0], "--kv-events-replay", at[1])
    other = TEXT[::-1]
    with Subscriber(*at) as router:
        with serving(*options, model=model) as server:
            tokens, others = tokens_of(server, TEXT), tokens_of(server, other)
            complete(server, TEXT)
            assert router.poll_until(lambda: router.has_prompt(tokens) == len(tokens) // 16 * 16)
        last = router.next_sequence
        with serving(*options, model=model) as server:
            assert router.poll_until(lambda: not router.stored) and router.next_sequence > last + 100
            complete(server, other)
            assert router.poll_until(lambda: router.has_prompt(others) == len(others) // 16 * 16)
            assert router.has_prompt(tokens) == 0


def test_one_key_of_all_clients_is_no_salt(model, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("alone\n")
    with told("-c", "2048", "--api-key-file", keys, key="alone", model=model) as (server, router):
        tokens = tokens_of(server, TEXT)
        complete(server, TEXT)
        assert router.poll_until(lambda: router.has_prompt(tokens) == len(tokens) // 16 * 16)
        assert all(block.extra_keys is None for block in router.stored.values())
        complete(server, TEXT, cache_salt="tenant")
        assert router.poll_until(lambda: any(block.extra_keys for block in router.stored.values()))
    keys.write_text("one\nother\n")
    with told("-c", "2048", "--api-key-file", keys, key="one", model=model) as (server, router):
        complete(server, TEXT)
        assert router.poll_until(lambda: router.stored)
        assert router.has_prompt(tokens) == 0 and any(block.extra_keys for block in router.stored.values())


def test_routers_hear_of_evictions(model):
    # Room for few of the prompts.
    with told("-c", "512", "--kv-size", "12MiB", model=model) as (server, router):
        prompts = [f"Report {i} of the day. " + TEXT[i * 20:i * 20 + 700] for i in range(24)]
        for prompt in prompts:
            complete(server, prompt)
        assert router.poll_until(lambda: router.has_prompt(tokens_of(server, prompts[-1])) > 0)
        assert any(event["type"] == "BlockRemoved" for _, event in router.log)
        # The latest first, so that asking does not push out what is asked for next.
        num_known = 0
        for prompt in reversed(prompts[-3:]):
            tokens = tokens_of(server, prompt)
            while router.poll(0.05) is not None:
                pass
            expected = router.has_prompt(tokens)
            num_known += expected > 0
            assert complete(server, prompt) >= min(expected, len(tokens) - 1)
        assert num_known > 0


def test_routers_hear_of_what_the_disk_has(model, tmp_path):
    # Room for few of the prompts in the pool, for all of them on the disk.
    options = ("-c", "512", "--kv-size", "12MiB", "--kv-disk", tmp_path, "--kv-disk-size", "1GiB")
    prompts = [f"Report {i} of the day. " + TEXT[i * 20:i * 20 + 700] for i in range(12)]
    with told(*options, model=model) as (server, router):
        tokens = [tokens_of(server, prompt) for prompt in prompts]
        num_whole = [len(each) // 16 * 16 for each in tokens]
        for prompt in prompts:
            complete(server, prompt)
        assert router.poll_until(
            lambda: [router.has_prompt(each, medium="STORAGE") for each in tokens] == num_whole)
        assert any(event["type"] == "BlockRemoved" and event["medium"] == "GPU" for _, event in router.log)
        assert router.has_prompt(tokens[0]) < num_whole[0] and router.num_orphans == 0
        blocks = set(router.media["STORAGE"])
    # Another process tells of what it found, once whoever came with it has been told to forget.
    with told(*options, model=model) as (server, router):
        assert router.poll_until(
            lambda: [router.has_prompt(each, medium="STORAGE") for each in tokens] == num_whole)
        assert set(router.media["STORAGE"]) >= blocks and not router.stored and router.num_orphans == 0
        assert complete(server, prompts[0]) >= num_whole[0] - 16
        assert router.poll_until(lambda: router.has_prompt(tokens[0]) == num_whole[0])


def test_events_need_a_place():
    port = free_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        failed = larder("serve", "--kv-events", f"tcp://127.0.0.1:{port}", "--port", 0, code=1)
    assert f"--kv-events tcp://127.0.0.1:{port}" in failed.stderr and "in use" in failed.stderr
    assert "requires --kv-events" in larder("serve", "--kv-events-replay", "tcp://127.0.0.1:1", code=107).stderr
