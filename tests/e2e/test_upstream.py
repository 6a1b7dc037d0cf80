"""Requests that go to another server: a second Larder, and servers that fail in every way that a server can."""
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
import requests

from api_server import larder, serving
from fake_upstream import Exchange, FakeUpstream
from upstream_server import KEY, QUESTION, ask, failure, routing, wait_until

STORY = " ".join(f"Item {i} lies on shelf {i % 7}." for i in range(64))


@pytest.fixture(scope="module")
def upstream():
    with serving("-c", "2048", "--api-key", KEY, key=KEY, name="big") as server:
        yield server


@pytest.fixture(scope="module")
def server(upstream):
    with routing(upstream.url + "/v1", "--api-key", "of-this-server", "--upstream-when", "named,long,busy",
                 "--upstream-wait-ms", "0", "--max-sequences", "1", key="of-this-server") as server:
        yield server


def chat(server, **more):
    """The reply, and which way it came."""
    reply = server.client.chat.completions.with_raw_response.create(
        **{"model": "gpt-x", "messages": QUESTION, "max_tokens": 12, "temperature": 0, **more})
    return reply.parse(), reply.headers["x-larder-route"]


def num_of(server, reason):
    return server.metrics()[f'larder:upstream_requests_total{{reason="{reason}"}}']


def test_a_model_of_the_upstream(server, upstream):
    expected = upstream.client.chat.completions.create(model="big", messages=QUESTION, max_tokens=12, temperature=0)
    num_before = num_of(server, "named")
    answer, way = chat(server)
    assert way == "upstream" and answer.model == "big"
    assert answer.choices[0].message.content == expected.choices[0].message.content
    stream, way = chat(server, stream=True)
    chunks = list(stream)
    assert way == "upstream" and len(chunks) > 3
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == expected.choices[0].message.content
    text = server.client.completions.create(model="gpt-x", prompt="Once upon", max_tokens=4, temperature=0)
    assert text.model == "big" and text.usage.completion_tokens == 4
    response = server.client.responses.create(model="gpt-x", input="Hello", max_output_tokens=4)
    assert response.model == "big"
    events = list(server.client.responses.create(model="gpt-x", input="Hello", max_output_tokens=4, stream=True))
    assert events[-1].response.model == "big"
    assert num_of(server, "named") == num_before + 5
    metrics = server.metrics()
    assert metrics["larder:upstream_first_byte_seconds_count"] >= 5 and metrics["larder:upstream_failures_total"] == 0
    assert metrics['larder:upstream_bytes_total{direction="received"}'] > metrics['larder:upstream_bytes_total{direction="sent"}'] > 0


def test_the_local_model_stays(server):
    num_before = server.metrics()['larder:upstream_bytes_total{direction="sent"}']
    for model in ("smollm2", "default"):
        answer, way = chat(server, model=model)
        assert way == "local" and answer.model == "smollm2"
        stream, way = chat(server, model=model, stream=True)
        assert way == "local" and len(list(stream)) > 3
    assert server.metrics()['larder:upstream_bytes_total{direction="sent"}'] == num_before


def test_which_models_there_are(server):
    models = {model.id: model.owned_by for model in server.client.models.list()}
    assert models == {"smollm2": "larder", "gpt-x": "upstream", "gpt-y": "upstream"}
    assert server.client.models.retrieve("gpt-x").owned_by == "upstream"
    with pytest.raises(openai.NotFoundError, match='this server has "smollm2"'):
        chat(server, model="gpt-z")
    # This one the upstream does not know, and says so itself.
    with pytest.raises(openai.NotFoundError, match='this server has "big"') as error:
        chat(server, model="gpt-y")
    assert error.value.response.headers["x-larder-route"] == "upstream"
    assert error.value.param == "model"
    # Anthropic's API has other shapes.
    reply = server.post("/v1/messages", {"model": "gpt-x", "max_tokens": 4, "messages": QUESTION})
    assert reply.status_code == 404 and "model" in reply.json()["error"]["message"]
    assert server.post("/tokenize", {"model": "gpt-x", "prompt": "a"}).json()["error"]["param"] == "model"


@pytest.mark.parametrize("forbidding", [{"extra_headers": {"x-larder-route": "local"}},
                                        {"extra_body": {"x_larder_local_only": True}}])
def test_a_request_may_forbid_it(server, forbidding):
    with pytest.raises(openai.NotFoundError, match="gpt-x"):
        chat(server, **forbidding)
    assert chat(server, model="default", **forbidding)[1] == "local"
    with pytest.raises(openai.BadRequestError) as error:
        chat(server, model="default", messages=[{"role": "user", "content": STORY}], **forbidding)
    assert error.value.code == "context_length_exceeded"


def test_what_forbids_nothing_is_an_error(server):
    with pytest.raises(openai.BadRequestError, match="x-larder-route"):
        chat(server, extra_headers={"x-larder-route": "locally"})
    with pytest.raises(openai.BadRequestError, match="x_larder_local_only"):
        chat(server, extra_body={"x_larder_local_only": "yes"})


def test_keys_are_asked_for_first(server):
    reply = requests.post(server.url + "/v1/chat/completions", json={"model": "gpt-x", "messages": QUESTION},
                          headers={"Authorization": f"Bearer {KEY}"}, timeout=10)
    assert reply.status_code == 401


def test_what_is_too_long_here(server):
    num_before = num_of(server, "long")
    long = [{"role": "user", "content": STORY}]
    answer, way = chat(server, model="default", messages=long)
    assert way == "upstream" and answer.model == "big" and answer.usage.prompt_tokens > 512
    # Nothing is said of the model, and only the answer is too long.
    reply = server.post("/v1/chat/completions", {"messages": QUESTION, "max_tokens": 600, "stop": ["a"]})
    assert reply.json()["model"] == "big" and reply.headers["x-larder-route"] == "upstream"
    reply = server.post("/v1/completions", {"model": "smollm2", "prompt": ["One", STORY], "max_tokens": 2})
    assert reply.json()["model"] == "big" and len(reply.json()["choices"]) == 2
    assert num_of(server, "long") == num_before + 3
    # What is cut to the context is not.
    assert chat(server, model="default", messages=long, extra_body={"truncate_prompt_tokens": 100})[1] == "local"
    # Errors of the request are told here.
    with pytest.raises(openai.BadRequestError, match="temperature"):
        chat(server, model="default", messages=long, temperature=9)
    # Responses stay: those before them are here.
    with pytest.raises(openai.BadRequestError) as error:
        server.client.responses.create(model="default", input=STORY)
    assert error.value.code == "context_length_exceeded"


def test_what_comes_while_the_server_is_busy(server):
    num_before = num_of(server, "busy")
    stream = server.client.completions.create(model="default", prompt="Once", max_tokens=450, stream=True,
                                              extra_body={"ignore_eos": True})
    next(iter(stream))
    with ThreadPoolExecutor() as pool:
        # There is room for one answer: this one waits.
        second = pool.submit(chat, server, model="default")
        assert wait_until(lambda: server.metrics()["vllm:num_requests_waiting"] == 1)
        answer, way = chat(server, model="default")
        assert way == "upstream" and answer.model == "big"
        stays = pool.submit(chat, server, model="default", extra_body={"x_larder_local_only": True})
        assert wait_until(lambda: server.metrics()["vllm:num_requests_waiting"] == 2)
        stream.close()
        assert second.result()[1] == stays.result()[1] == "local"
    assert num_of(server, "busy") == num_before + 1
    assert chat(server, model="default")[1] == "local"


def test_a_client_that_goes_takes_its_request_along(server, upstream):
    num_before = upstream.metrics()["vllm:generation_tokens_total"]
    stream, _ = chat(server, stream=True, max_tokens=1900, extra_body={"ignore_eos": True})
    next(iter(stream))
    assert upstream.metrics()["vllm:num_requests_running"] == 1
    stream.close()
    assert wait_until(lambda: upstream.metrics()["vllm:num_requests_running"] == 0)
    # One that waits for the whole, too.
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        body = json.dumps({"model": "gpt-x", "messages": QUESTION, "max_tokens": 1900, "ignore_eos": True})
        client.sendall(f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                       f"Authorization: Bearer of-this-server\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        assert wait_until(lambda: upstream.metrics()["vllm:num_requests_running"] == 1)
    assert wait_until(lambda: upstream.metrics()["vllm:num_requests_running"] == 0)
    # Neither came to its end.
    assert upstream.metrics()["vllm:generation_tokens_total"] < num_before + 1900


def test_what_leaves_the_machine(fake, faked):
    seen = []
    fake.answer = lambda exchange: (seen.append(exchange), exchange.reply())
    body = '{ "messages" : [{"role":"user", "content":"\\u00e9 {\\"model\\": 1}"}],"mod\\u0065l":\t"gpt\\u002dx" ,"seed": 1.0e0,"my":{"model":"a"}}'
    reply = requests.post(faked.url + "/v1/chat/completions?api-key=a", data=body, timeout=10,
                          headers={"content-type": "application/json", "authorization": "Bearer mine", "cookie": "a=b",
                                   "x-api-key": "mine", "openai-organization": "mine"})
    assert reply.status_code == 200, reply.text
    assert seen[0].line == "POST /some/v1/chat/completions HTTP/1.1"
    assert seen[0].body.decode() == body.replace('"gpt\\u002dx"', '"big"')
    assert seen[0].headers["authorization"] == f"Bearer {KEY}" and seen[0].headers["host"] == f"127.0.0.1:{fake.port}"
    assert set(seen[0].headers) == {"host", "user-agent", "accept", "accept-encoding", "content-type", "content-length",
                                    "x-larder-via", "authorization"}
    # Under its own name the body is as it was, and a large one likewise.
    for more in ("", "x" * 3_000_000):
        body = json.dumps({"messages": QUESTION, "model": "gpt-y", "user": more})
        requests.post(faked.url + "/v1/chat/completions", data=body, headers={"content-type": "application/json"}, timeout=10)
        assert seen.pop().body.decode() == body


def test_what_comes_back(fake, faked):
    error = {"error": {"message": "Slow down.", "type": "requests", "param": None, "code": "rate_limit_exceeded"}}
    headers = ("Content-Type: application/json; charset=utf-8\r\nRetry-After: 7\r\nRetry-After-Ms: 6500\r\nX-Should-Retry: false\r\nx-request-id: req_theirs\r\nOpenAI-Processing-Ms: 5\r\n"
               "X-Larder-Other: 1\r\nX-Larder-Route: local\r\nSet-Cookie: a=b\r\nServer: other\r\nKeep-Alive: 5\r\nTrailer: a\r\n")
    fake.answer = lambda exchange: exchange.reply(429, error, headers)
    reply = ask(faked)
    assert reply.status_code == 429 and reply.json() == error
    assert reply.headers.pop("date") and reply.headers == {
        "server": "larder", "content-type": "application/json; charset=utf-8", "retry-after": "7", "retry-after-ms": "6500",
        "x-should-retry": "false", "x-request-id": "req_theirs",
        "openai-processing-ms": "5", "x-larder-other": "1", "x-larder-route": "upstream", "connection": "keep-alive",
        "content-length": reply.headers["content-length"]}
    # Without a length, after an interim reply, and in parts that split every token.
    def dribble(exchange):
        data = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{\"a\": 1}"
        for byte in data.encode():
            exchange.send(bytes([byte]))
    fake.answer = dribble
    assert ask(faked).json() == {"a": 1}
    # What a careless upstream says of the key.
    fake.answer = lambda exchange: exchange.reply(401, {"error": {"message": f"bad key {KEY}, {KEY}"}},
                                                  f"Content-Type: application/json\r\nx-request-id: {KEY}\r\n")
    reply = ask(faked)
    assert reply.status_code == 401 and reply.json()["error"]["message"] == "bad key ***, ***" and KEY not in str(reply.headers)
    # However often.
    fake.answer = lambda exchange: exchange.reply(401, (KEY * 500_000).encode())
    assert ask(faked).text == "***" * 500_000


def json_head(more=""):
    return "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n" + more


def test_an_upstream_that_fails(fake, faked):
    before = faked.metrics()["larder:upstream_failures_total"]
    cases = [
        (lambda e: e.reset(), "no reply"),
        (lambda e: None, "ended the connection"),
        (lambda e: e.send("SSH-2.0-OpenSSH_9\r\n\r\n"), "no reply"),
        (lambda e: e.send(json_head("Transfer-Encoding: chunked\r\n\r\n5\r\n{\"a\"")), "broke off"),
        (lambda e: e.send(json_head("Transfer-Encoding: chunked\r\n\r\nzz\r\n{}")), "broke off"),
        (lambda e: e.send(json_head("Transfer-Encoding: chunked\r\n\r\n1;" + "x" * 70_000)), "broke off"),
        (lambda e: e.send(json_head("Content-Length: 100\r\n\r\n{}")), "broke off"),
        (lambda e: e.send(json_head("Content-Length: -1\r\n\r\n{}")), "no reply"),
        (lambda e: e.send(json_head("Content-Length: 99999999999\r\n\r\n{}")), "over"),
        (lambda e: (e.send(json_head("\r\n")), e.send(b" " * (20 << 20))), "over"),
        (lambda e: e.send(json_head("X-A: " + "a" * 100_000 + "\r\n\r\n{}")), "no reply"),
        (lambda e: e.send(json_head("X-A: a\r\n" * 20_000 + "\r\n{}")), "no reply"),
        (lambda e: e.send("HTTP/1.1 100 Continue\r\n\r\n" * 50), "no reply"),
        (lambda e: e.reply(307, headers="Location: https://example.com\r\n"), "redirection"),
        (lambda e: e.reply(200, b"\x1f\x8b", "Content-Encoding: gzip\r\n"), "compressed"),
        (lambda e: e.send(json_head("Transfer-Encoding: gzip, chunked\r\n\r\n")), "compressed"),
    ]
    for answer, words in cases:
        fake.answer = answer
        failure(faked, 502, "upstream_failed", words)
    fake.answer = Exchange.wait_for_end
    failure(faked, 504, "upstream_timeout", "no reply")
    fake.answer = lambda e: (e.send(json_head("Content-Length: 100\r\n\r\n{}")), e.wait_for_end())
    failure(faked, 504, "upstream_timeout", "broke off")
    assert faked.metrics()["larder:upstream_failures_total"] == before + len(cases) + 2
    fake.answer = Exchange.reply
    assert ask(faked).status_code == 200


def test_a_stream_that_breaks_off(fake, faked):
    def read():
        texts = []
        for chunk in faked.client.chat.completions.create(model="gpt-x", messages=QUESTION, stream=True):
            texts.append(chunk.choices[0].delta.content)
        return texts

    def whole(exchange):
        exchange.begin_stream("x-request-id: req_1\r\n")
        exchange.event("a")
        exchange.event("b")
        exchange.chunk("data: [DONE]\n\n")
        exchange.send("0\r\n\r\n")
    fake.answer = whole
    assert read() == ["a", "b"]
    reply = ask(faked, stream=True)
    assert reply.headers["x-request-id"] == "req_1" and reply.headers["content-type"] == "text/event-stream"

    def breaks(exchange):
        exchange.begin_stream()
        exchange.event("a")
    fake.answer = breaks
    with pytest.raises(openai.APIError, match="upstream 127.0.0.1.* broke off"):
        read()

    def stalls(exchange):
        breaks(exchange)
        exchange.wait_for_end()
    fake.answer = stalls
    with pytest.raises(openai.APIError, match="in time"):
        read()

    def breaks_within(exchange):
        breaks(exchange)
        exchange.chunk('data: {"id"')
    fake.answer = breaks_within
    with pytest.raises(openai.APIConnectionError):
        read()
    # Each event comes when it is sent: the next one waits for who reads it.
    seen = threading.Semaphore(0)

    def one_by_one(exchange):
        exchange.begin_stream()
        for text in "abc":
            exchange.event(text)
            assert seen.acquire(timeout=20)
        exchange.send("0\r\n\r\n")
    fake.answer = one_by_one
    num_events = 0
    for line in ask(faked, stream=True).iter_lines(chunk_size=1):
        if line:
            num_events += 1
            assert b"error" not in line, line
            seen.release()
    assert num_events == 3


def test_an_error_between_line_ends_that_come_one_by_one(fake, faked):
    def breaks(exchange):
        exchange.begin_stream()
        exchange.chunk("data: {}\n")
        time.sleep(0.1)
        exchange.chunk("\n")
        time.sleep(0.1)
    fake.answer = breaks
    lines = [line for line in ask(faked, stream=True).iter_lines() if line]
    assert lines[0] == b"data: {}" and b"upstream_failed" in lines[1], lines


def test_an_error_as_a_stream_does_not_tell_the_key(fake, faked):
    def refuses(exchange):
        exchange.send(f"HTTP/1.1 401 X\r\nContent-Type: text/event-stream; a={KEY}\r\nTransfer-Encoding: chunked\r\n\r\n")
        exchange.chunk(f"data: bad key {KEY}\n\n")
        exchange.send("0\r\n\r\n")
    fake.answer = refuses
    reply = ask(faked, stream=True)
    assert reply.status_code == 401 and "bad key ***" in reply.text and KEY not in str(reply.headers)
    # In events, too.
    fake.answer = lambda exchange: exchange.send(f"HTTP/1.1 401 X\r\nContent-Type: text/event-stream\r\n\r\ndata: {KEY}\n\n")
    assert KEY not in ask(faked, stream=True).text


def test_a_byte_order_mark(fake, faked):
    seen = []
    fake.answer = lambda exchange: (seen.append(exchange.body), exchange.reply())
    body = b'\xef\xbb\xbf{"model":"gpt-x"}'
    reply = requests.post(faked.url + "/v1/chat/completions", data=body, headers={"content-type": "application/json"}, timeout=10)
    assert reply.status_code == 200 and seen == [body.replace(b"gpt-x", b"big")]


def test_a_request_that_comes_back():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with routing(f"http://127.0.0.1:{port}/v1", models="gpt-x", port=port) as server:
        failed = ask(server)
        assert failed.status_code == 508 and failed.json()["error"]["code"] == "upstream_loop", failed.text
        assert "leads back" in failed.json()["error"]["message"]
        # Too many others.
        via = ", ".join(f"{i:016x}" for i in range(8))
        assert "too many" in ask(server, headers={"x-larder-via": via}).json()["error"]["message"]
        assert ask(server, {"messages": QUESTION, "max_tokens": 1}, headers={"x-larder-via": via[:34]}).status_code == 200


def test_servers_in_a_row(upstream):
    with routing(upstream.url + "/v1", models="gpt-x=big") as second, \
            serving("-c", "512", "--upstream", second.url + "/v1", "--upstream-models", "gpt-z=gpt-x") as first:
        reply = ask(first, {"model": "gpt-z", "messages": QUESTION, "max_tokens": 2})
        assert reply.status_code == 200 and reply.json()["model"] == "big"


def test_a_client_that_does_not_read(fake, faked):
    num_sent = 0

    def flood(exchange):
        nonlocal num_sent
        exchange.begin_stream()
        while True:
            exchange.chunk("data: " + "x" * 60_000 + "\n\n")
            num_sent += 60_000
    while fake.ended.acquire(blocking=False):
        pass
    fake.answer = flood
    memory = faked.status_bytes("VmRSS")
    reply = ask(faked, stream=True)
    next(reply.iter_content(1000))
    while True:
        before = num_sent
        time.sleep(0.2)
        if before == num_sent:
            break
    assert num_sent < 64 << 20
    assert faked.status_bytes("VmRSS") < memory + (4 << 20)
    reply.close()
    assert fake.ended.acquire(timeout=20)


def test_an_upstream_that_is_not_there(tmp_path):
    gone = FakeUpstream()
    gone.close()
    with routing(f"http://127.0.0.1:{gone.port}/v1", "--upstream-when", "long", models="other") as server:
        reply = ask(server, {"messages": [{"role": "user", "content": STORY}]})
        assert reply.status_code == 502 and "refused" in reply.json()["error"]["message"]
        # Nobody asks by name then.
        assert ask(server, {"model": "other", "messages": QUESTION}).status_code == 404
        assert [model.id for model in server.client.models.list()] == ["smollm2"]
    with open(tmp_path / "log", "w") as log, routing("http://upstream.invalid/v1", log=log) as server:
        reply = ask(server)
        assert reply.status_code in (502, 504) and "upstream.invalid" in reply.json()["error"]["message"]
        assert server.stop() == 0
    log = (tmp_path / "log").read_text() + "".join(server.lines)
    assert "in the clear" in log and "Upstream: http://upstream.invalid/v1 gets requests for gpt-x, requests for gpt-y" in log


def test_the_key_is_in_no_log(faked):
    assert faked.stop() == 0
    log = faked.log.read_text() + "".join(faked.lines)
    assert "the upstream 127.0.0.1" in log
    assert KEY not in log and "mine" not in log


@pytest.mark.parametrize("options, words", [
    (["--upstream", "api.example.com/v1", "--upstream-models", "a"], "https://"),
    (["--upstream", f"https://me:{KEY}@example.com/v1", "--upstream-models", "a"], "--upstream-key-env"),
    (["--upstream", "https://example.com/v1", "--upstream-models", "a,,b"], "--upstream-models"),
    (["--upstream", "https://example.com/v1", "--upstream-models", "a", "--upstream-when", "failed"], "--upstream-when"),
    (["--upstream", "https://example.com/v1", "--upstream-models", "a", "--upstream-key-env", "LARDER_TEST_NO_KEY"],
     "LARDER_TEST_NO_KEY is not set"),
    (["--upstream", "https://example.com/v1", "--upstream-models", "default", "--port", "0"], "a name of the local model"),
])
def test_options_that_say_nothing_of_sense(options, words):
    failed = larder("serve", *options, code=1)
    assert words in failed.stderr and KEY not in failed.stderr


def test_options_that_need_each_other():
    assert "--upstream-models" in larder("serve", "--upstream", "https://example.com/v1", code=107).stderr
    assert "--upstream" in larder("serve", "--upstream-models", "a", code=107).stderr
