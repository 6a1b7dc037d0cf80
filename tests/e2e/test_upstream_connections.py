"""Connections to an upstream: which are kept for the next request, and how many there are."""
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from fake_upstream import Exchange
from upstream_server import QUESTION, ask, failure, routing, wait_until


@pytest.fixture
def keeping(fake, faked):
    fake.keeps = True
    faked.metrics()
    before = fake.connections
    yield lambda: fake.connections - before
    fake.keeps = False


def test_connections_are_kept(fake, faked, keeping):
    fake.answer = Exchange.reply
    name = "larder:upstream_connections_total"
    before = faked.metrics()[name]
    for _ in range(20):
        assert ask(faked).status_code == 200

    def stream(exchange):
        exchange.begin_stream()
        exchange.event("a")
        exchange.send("0\r\n\r\n")
    fake.answer = stream
    for _ in range(5):
        assert ask(faked, stream=True).text.startswith("data: ")
    fake.answer = lambda exchange: exchange.reply(429)
    assert ask(faked).status_code == 429
    assert keeping() == 1 and faked.metrics()[name] == before + 1


def test_what_is_not_kept(fake, faked, keeping):
    def slow_end(exchange):
        exchange.reply()
        exchange.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwrong")
    cases = [
        lambda e: e.reply(headers="Connection: close\r\n"),
        lambda e: e.send("HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}"),
        lambda e: e.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwrong"),
        slow_end,
    ]
    for answer in cases:
        is_sent = threading.Event()
        fake.answer = lambda exchange, answer=answer, is_sent=is_sent: (answer(exchange), is_sent.set())
        assert ask(faked).status_code == 200
        assert is_sent.wait(20)
        fake.answer = lambda exchange: exchange.reply(body={"is": "right"})
        before = keeping()
        assert ask(faked).json() == {"is": "right"}
        assert keeping() == before + 1
        fake.answer = lambda exchange: exchange.reply(headers="Connection: close\r\n")
        ask(faked)


def test_a_kept_connection_that_has_ended(fake, faked, keeping):
    """It ends with the request, unread: that is asked once more, and only once; what has begun is not."""
    fake.answer = Exchange.reply
    assert ask(faked).status_code == 200
    asked = []

    def ends(exchange):
        asked.append(exchange)
        if len(asked) == 1:
            exchange.reset()
            raise ConnectionError("ended")
        exchange.reply(body={"is": "right"})
    fake.answer = ends
    assert ask(faked).json() == {"is": "right"} and len(asked) == 2

    def begins(exchange):
        asked.append(exchange)
        exchange.send("HTTP/1.1 200")
        raise ConnectionError("ended")
    fake.answer = begins
    failure(faked, 502, "upstream_failed", "no reply")
    assert len(asked) == 3

    def never(exchange):
        asked.append(exchange)
        exchange.reset()
        raise ConnectionError("ended")
    fake.answer = never
    failure(faked, 502, "upstream_failed", "no reply")
    assert len(asked) == 4  # over a new one: it is not asked again
    fake.answer = Exchange.reply
    ask(faked)
    fake.answer = never
    failure(faked, 502, "upstream_failed", "no reply")
    assert len(asked) == 6


def test_large_bodies_make_room_once_they_are_sent(fake):
    """As many as are read at once, whose replies let wait: those who stay here are read all the same."""
    have_come, may_answer = threading.Semaphore(0), threading.Event()

    def think(exchange):
        have_come.release()
        may_answer.wait(60)
        exchange.reply(body={"bytes": len(exchange.body)})
    large = {"max_tokens": 1, "pad": "x" * (4095 << 10)}  # 14 of 4 MiB are read at once, and there is room for small ones
    here = {"model": "smollm2", "prompt": "a", **large}
    with routing(f"http://127.0.0.1:{fake.port}/v1") as server, ThreadPoolExecutor(14) as pool:
        fake.answer, fake.keeps = Exchange.reply, True
        assert ask(server).status_code == 200  # over a connection that is kept
        fake.answer, fake.keeps = think, False
        asked = [pool.submit(ask, server, {"model": "gpt-x", "messages": QUESTION, **large}) for _ in range(14)]
        try:
            assert all(have_come.acquire(timeout=60) for _ in asked)
            assert wait_until(lambda: server.post("/v1/completions", here).status_code == 200)
        finally:
            may_answer.set()
        assert all(reply.result().json()["bytes"] > 4095 << 10 for reply in asked)


def test_connections_are_bounded(fake):
    running, most = 0, 0
    lock, all_are_there = threading.Lock(), threading.Event()

    def count(exchange):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        all_are_there.wait(60)
        time.sleep(0.01)
        with lock:
            running -= 1
        exchange.reply()
    fake.answer = count
    refused = 'vllm:admission_rejections_total{reason="upstream_busy"}'
    with routing(f"http://127.0.0.1:{fake.port}/v1", "--upstream-connections", "1") as server, ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(ask, server) for _ in range(8)]
        assert wait_until(lambda: server.metrics().get(refused) == 3)
        all_are_there.set()
        replies = [reply.result() for reply in asked]
    assert most == 1
    # One is there and four wait.
    assert sorted(reply.status_code for reply in replies) == [200] * 5 + [503] * 3
    busy = next(reply for reply in replies if reply.status_code == 503)
    assert busy.json()["error"]["code"] == "upstream_busy" and busy.headers["retry-after"] == "1"
