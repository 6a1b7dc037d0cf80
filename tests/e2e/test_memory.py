"""The plan is what the process takes, and a KV budget that holds 8 serves 64."""
import asyncio
import concurrent.futures
import contextlib
import os
import re
import resource
import socket

import aiohttp
import pytest
import requests

from api_server import Server

MODELS = [os.environ.get(name) for name in ("LARDER_TEST_SMOLLM2", "LARDER_TEST_GEMMA3")]
UNITS = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10}


class Measured(Server):
    """A server that says what it planned to take."""

    def planned_bytes(self):
        value, unit = re.search(r"Memory: ([\d.]+) (GiB|MiB|KiB) =", "".join(self.lines)).groups()
        return float(value) * UNITS[unit]

    def metric(self, name):
        return sum(value for key, value in self.metrics().items() if key.split("{")[0] == name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        assert self.stop() == 0, "".join(self.lines[-20:])


async def ask_all(base, num_requests, prompt_words, max_tokens):
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=900)) as session:
        async def ask(i):
            prompt = " ".join(f"{i * 31 + k * 7 % 97}" for k in range(prompt_words))
            body = {"model": "default", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
            async with session.post(base + "/v1/completions", json=body) as reply:
                assert reply.status == 200, await reply.text()
                return await reply.json()
        return await asyncio.gather(*[ask(i) for i in range(num_requests)])


@pytest.mark.parametrize("model", MODELS, ids=["smollm2", "gemma3"])
def test_64_requests_on_a_budget_for_8(model):
    with Measured("--kv-size", "96MiB" if "Smol" in model else "80MiB", "-c", "512", model=model) as server:
        concurrency = float(re.search(r"per request: ([\d.]+)x", "".join(server.lines)).group(1))
        assert concurrency < 12, "the budget must be short of 64 by far"
        replies = asyncio.run(ask_all(server.url, 64, 30, 60))
        assert [r["choices"][0]["finish_reason"] for r in replies] == ["length"] * 64
        assert all(r["usage"]["completion_tokens"] == 60 for r in replies)
        assert server.metric("vllm:num_requests_running") == 0
        planned, resident = server.planned_bytes(), server.status_bytes("VmRSS")
        # What explains misses is not in the plan's total: it comes with the requests, to a bound.
        bookkeeping = server.metric("larder:bookkeeping_bytes")
        assert 0 < bookkeeping < 16 << 20
        print(f"planned {planned / 2**20:.1f} MiB, resident {resident / 2**20:.1f} MiB, "
              f"of it bookkeeping {bookkeeping / 2**20:.1f} MiB, "
              f"{server.metric('vllm:num_preemptions_total'):.0f} preemptions")
        assert abs(resident - bookkeeping - planned) <= 0.02 * planned


def test_with_a_model_that_guesses():
    """As its own one it never pays; it is asked nevertheless, before that is known."""
    with Measured("--kv-size", "256MiB", "-c", "2048", "--draft-model", MODELS[0], model=MODELS[0]) as server:
        for topic in ("a fox", "an old lighthouse"):
            asked = {"messages": [{"role": "user", "content": f"Tell me a story about {topic}."}], "max_tokens": 100, "temperature": 0}
            assert server.post("/v1/chat/completions", asked).status_code == 200
        asyncio.run(ask_all(server.url, 4, 300, 60))
        assert server.metrics()['larder:engine_seconds_total{part="draft_model"}'] > 0
        planned, resident = server.planned_bytes(), server.status_bytes("VmRSS")
        bookkeeping = server.metric("larder:bookkeeping_bytes")
        print(f"planned {planned / 2**20:.1f} MiB, resident {resident / 2**20:.1f} MiB, of it bookkeeping {bookkeeping / 2**20:.1f} MiB")
        assert abs(resident - bookkeeping - planned) <= 0.02 * planned
        assert server.status_bytes("VmHWM") <= 1.02 * (planned + bookkeeping)


def test_texts_of_many_tokens_take_what_the_documentation_says():
    """Each of 16 MiB, the most that a body has, and of 8 million tokens; four of them are 64 MiB, the most at once."""
    with Measured("--kv-size", "64MiB", "-c", "1024", "-t", "1", model=MODELS[0]) as server:
        body = {"prompt": "a 1 " * ((4 << 20) - 64)}
        with concurrent.futures.ThreadPoolExecutor() as clients:
            for reply in clients.map(lambda _: server.post("/tokenize", body), range(4)):
                assert reply.status_code in (400, 503)
        beside = (server.status_bytes("VmHWM") - server.planned_bytes()) / 2**20
        print(f"{beside:.0f} MiB beside the plan")
        assert beside < 300


def test_memory_that_runs_out_costs_what_asked_for_it():
    """An address space without the room for what clients send: they may fail, others and the end do not."""
    large = {"prompt": "a 1 " * ((4 << 20) - 64)}
    small = {"model": "default", "prompt": "Once", "max_tokens": 4, "ignore_eos": True}
    head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 200000\r\n\r\n"
    with contextlib.ExitStack() as open_ones, \
            Measured("--kv-size", "64MiB", "-c", "1024", "-t", "1", model=MODELS[0]) as server:
        assert server.post("/v1/completions", small).status_code == 200
        most = server.status_bytes("VmSize") + (8 << 20)
        resource.prlimit(server.process.pid, resource.RLIMIT_AS, (most, most))

        def send_large(_):
            with contextlib.suppress(requests.ConnectionError):
                return server.post("/tokenize", large).status_code

        def send_half(_):
            client = open_ones.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            with contextlib.suppress(ConnectionError):
                client.sendall(head + b"x" * 100_000)

        for _ in range(4):  # what is small does not fail in each
            with concurrent.futures.ThreadPoolExecutor(16) as clients:
                halves = clients.map(send_half, range(900))
                assert 200 not in list(clients.map(send_large, range(32)))
                list(halves)
            open_ones.close()
            assert server.get("/health").status_code == 200
        for _ in range(20):
            assert server.post("/v1/completions", small).json()["usage"]["completion_tokens"] == 4
