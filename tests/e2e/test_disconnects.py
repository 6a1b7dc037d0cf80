"""Fault 31: whoever hangs up, in whatever state its request is, gives back what it held at once."""
import contextlib
import json
import os
import signal
import socket
import time

import pytest

from api_server import serving
from test_tiers import text, wait_until_saved

ABORTED = 'vllm:request_success_total{finished_reason="abort"}'
LOADING = 'vllm:num_requests_waiting_by_reason{reason="deferred"}'
ON = 'larder:tier_on{tier="remote"}'
LONG = text(1, 1500)


@contextlib.contextmanager
def asking(server, prompt, max_tokens, stream=True):
    body = json.dumps({"model": "smollm2", "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "stream": stream}).encode()
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                       b"Content-Length: %d\r\n\r\n" % len(body) + body)
        yield client


def wait_for(server, condition):
    """The first metrics of which it is true; nothing hangs on how long that takes."""
    end = time.monotonic() + 60
    while not condition(metrics := server.metrics()):
        assert time.monotonic() < end, metrics
    return metrics


def steps_to_be_free(server, num_aborted, is_free):
    """Of the engine, from when the server has heard that a client is gone until nothing of it is left."""
    begin = time.monotonic()
    wait_for(server, lambda metrics: metrics[ABORTED] == num_aborted)
    metrics = server.metrics()  # all of these are of a time after that
    heard = metrics["larder:engine_steps_total"]
    while not is_free(metrics):
        # One step that had begun and the one after which the engine looks; it goes by no clock.
        assert metrics["larder:engine_steps_total"] <= heard + 2, metrics
        assert time.monotonic() - begin < 60, metrics
        metrics = server.metrics()
    num_steps = metrics["larder:engine_steps_total"] - heard
    print(f"free {num_steps:.0f} steps after the server heard of it, {1e3 * (time.monotonic() - begin):.0f} ms after the end")
    return metrics


def holds_nothing(metrics):
    return not any(metrics[gauge] for gauge in ("larder:kv_blocks_held", "vllm:num_requests_running", "vllm:num_requests_waiting"))


def test_in_line():
    with serving("--max-sequences", "1", "-c", "8192") as server:
        with asking(server, "Once upon a time", 8000):
            wait_for(server, lambda metrics: metrics["vllm:num_requests_running"] == 1 and metrics["vllm:generation_tokens_total"] > 0)
            before = server.metrics()
            with asking(server, LONG, 1000):
                wait_for(server, lambda metrics: metrics["vllm:num_requests_waiting"] == 1)
            after = steps_to_be_free(server, 1, lambda metrics: metrics["vllm:num_requests_waiting"] == 0)
            assert after["vllm:prompt_tokens_total"] == before["vllm:prompt_tokens_total"], "of it nothing was computed"
            assert after["vllm:num_requests_running"] == 1, "the other one goes on"
        steps_to_be_free(server, 2, holds_nothing)


def test_in_prefill():
    with serving("--batch-tokens", "16", "--max-sequences", "4", "-c", "4096") as server:
        num_tokens = server.post("/tokenize", {"model": "smollm2", "prompt": LONG}).json()["count"]
        with asking(server, LONG, 1000):
            metrics = wait_for(server, lambda metrics: metrics["larder:engine_steps_total"] >= 2)
            assert metrics["larder:kv_blocks_held"] > 0
        metrics = steps_to_be_free(server, 1, holds_nothing)
        assert 0 < metrics["vllm:prompt_tokens_total"] < num_tokens and metrics["vllm:generation_tokens_total"] == 0


@pytest.mark.parametrize("stream", [True, False])
def test_in_decode(stream):
    with serving("-c", "8192") as server:
        with asking(server, "Once upon a time", 8000, stream):
            wait_for(server, lambda metrics: metrics["vllm:generation_tokens_total"] >= 3)
        metrics = steps_to_be_free(server, 1, holds_nothing)
        assert metrics["vllm:generation_tokens_total"] < 8000


def test_in_a_load(redis):
    """Of a tier that does not answer: the load ends by itself only after a second or more, as a fault, and all is computed."""
    with serving("--kv-remote", redis.url, "-c", "4096") as server:
        server.post("/v1/completions", {"model": "smollm2", "prompt": LONG, "max_tokens": 1})
        wait_until_saved(server, "remote")
        for num_aborted in range(1, 6):
            assert server.post("/reset_prefix_cache", {}).status_code == 200
            before = wait_for(server, lambda metrics: metrics[ON] == 1)
            redis.send_signal(signal.SIGSTOP)

            def has_computed(metrics):
                return metrics["larder:engine_steps_total"] > before["larder:engine_steps_total"]

            with asking(server, LONG, 1000):
                wait_for(server, lambda metrics: metrics[LOADING] == 1 or has_computed(metrics))
            after = steps_to_be_free(server, num_aborted, holds_nothing)
            redis.send_signal(signal.SIGCONT)
            if not has_computed(after):
                break
        else:
            raise AssertionError("each load ended before the server heard that its client was gone")
        assert after["vllm:prompt_tokens_cached_total"] == before["vllm:prompt_tokens_cached_total"]
