"""Requests of Anthropic's API that go to another server: a second Larder, and one that fails."""
import json

import anthropic
import pytest
import requests
from api_server import larder, serving
from fake_upstream import Exchange
from upstream_server import KEY, routing

OWN_KEY = "of-this-server"
ASKED = {"model": "claude", "max_tokens": 12, "messages": [{"role": "user", "content": "What is a larder?"}]}
STORY = " ".join(f"Item {i} lies on shelf {i % 7}." for i in range(64))


def keyed_routing(url, *options):
    return routing(url, "--api-key", OWN_KEY, *options, models="claude=big", key=OWN_KEY)


def client_of(server, key=OWN_KEY):
    return anthropic.Anthropic(base_url=server.url, api_key=key, max_retries=0)


@pytest.fixture(scope="module")
def upstream():
    with serving("-c", "2048", "--api-key", KEY, key=KEY, name="big") as server:
        yield server


@pytest.fixture(scope="module")
def server(upstream):
    with keyed_routing(upstream.url + "/v1", "--upstream-api", "anthropic", "--upstream-when", "named,long,busy", "--upstream-wait-ms", "0",
                 "--max-sequences", "1") as server:
        yield server


@pytest.fixture(scope="module")
def to_fake(fake):
    with keyed_routing(f"http://127.0.0.1:{fake.port}/base/", "--upstream-api", "openai,anthropic", "--upstream-timeout", "2") as server:
        yield server


def send(server, **more):
    """The message, and which way it came."""
    body = {"temperature": 0, **more.pop("extra_body", {})}
    reply = client_of(server).messages.with_raw_response.create(**{**ASKED, **more}, extra_body=body)
    return reply.parse(), reply.headers["x-larder-route"]


def test_messages_and_counts_are_the_upstreams(server, upstream):
    there = client_of(upstream, KEY)
    expected = there.messages.create(**{**ASKED, "model": "big"}, extra_body={"temperature": 0})
    message, way = send(server)
    assert way == "upstream" and message.model == "big"
    assert message.content[0].text == expected.content[0].text
    with client_of(server).messages.stream(**ASKED, extra_body={"temperature": 0}) as stream:
        assert "".join(stream.text_stream) == expected.content[0].text
        assert stream.get_final_message().usage.output_tokens == expected.usage.output_tokens
        assert stream.response.headers["x-larder-route"] == "upstream"
    asked = {"model": "claude", "messages": ASKED["messages"]}
    count = client_of(server).messages.count_tokens(**asked).input_tokens
    assert count == there.messages.count_tokens(**{**asked, "model": "big"}).input_tokens
    assert client_of(server).beta.messages.create(**ASKED, extra_body={"temperature": 0}).content[0].text == expected.content[0].text


def test_the_local_model_stays_until_a_prompt_is_too_long(server):
    # The most that a client would take says nothing of what it will get.
    message, way = send(server, model="smollm2", max_tokens=4000, stop_sequences=[" "])
    assert way == "local" and message.model == "smollm2"
    message, way = send(server, model="smollm2", messages=[{"role": "user", "content": STORY}])
    assert way == "upstream" and message.model == "big" and message.usage.input_tokens > 512
    # Any number of them is counted here.
    asked = {"model": "smollm2", "messages": [{"role": "user", "content": STORY}]}
    reply = client_of(server).messages.with_raw_response.count_tokens(**asked)
    assert reply.parse().input_tokens > 512 and reply.headers["x-larder-route"] == "local"


@pytest.mark.parametrize("forbidding", [{"extra_headers": {"x-larder-route": "local"}},
                                        {"extra_body": {"x_larder_local_only": True}}])
def test_a_request_may_forbid_it(server, forbidding):
    with pytest.raises(anthropic.NotFoundError, match="none that is to stay local"):
        send(server, **forbidding)
    with pytest.raises(anthropic.BadRequestError, match="512"):
        send(server, model="smollm2", messages=[{"role": "user", "content": STORY}], **forbidding)


def test_an_api_that_it_has_not_stays(server):
    reply = server.post("/v1/chat/completions", {**ASKED, "model": "claude"})
    assert reply.status_code == 404 and "where only messages of Anthropic's API go" in reply.json()["error"]["message"]


def test_what_is_sent(to_fake, fake):
    seen = []

    def answer(exchange):
        seen.append(exchange)
        exchange.reply(body={"type": "message"}, headers="Content-Type: application/json\r\nrequest-id: req_1\r\nanthropic-a: b\r\n"
                       "anthropic-organization-id: theirs\r\n")

    fake.answer = answer
    body = b'{"max_tokens":4, "model":"claude" ,"messages":[]}'
    own = {"x-api-key": OWN_KEY, "content-type": "application/json", "cookie": "a=b"}
    reply = requests.post(to_fake.url + "/v1/messages?beta=true", data=body,
                          headers={**own, "anthropic-version": "2024-01-01", "anthropic-beta": "one,two"}, timeout=10)
    assert reply.status_code == 200 and reply.json() == {"type": "message"}
    assert (reply.headers["request-id"], reply.headers["anthropic-a"]) == ("req_1", "b")
    assert "anthropic-organization-id" not in reply.headers
    assert seen[0].line == "POST /base/messages?beta=true HTTP/1.1"
    assert seen[0].body == body.replace(b'"claude"', b'"big"')
    headers = seen[0].headers
    assert (headers["x-api-key"], headers["anthropic-version"], headers["anthropic-beta"]) == (KEY, "2024-01-01", "one,two")
    assert "authorization" not in headers and "cookie" not in headers
    requests.post(to_fake.url + "/v1/messages/count_tokens", data=body, headers=own, timeout=10)
    assert seen[1].line == "POST /base/messages/count_tokens HTTP/1.1"
    assert seen[1].headers["anthropic-version"] == "2023-06-01" and "anthropic-beta" not in seen[1].headers
    # OpenAI's as ever.
    requests.post(to_fake.url + "/v1/chat/completions?beta=true", data=body, headers={**own, "anthropic-beta": "one"}, timeout=10)
    assert seen[2].line == "POST /base/chat/completions HTTP/1.1"
    assert seen[2].headers["authorization"] == f"Bearer {KEY}"
    assert not {"x-api-key", "anthropic-version", "anthropic-beta"} & set(seen[2].headers)


def test_failures_have_anthropics_shape(to_fake, fake):
    fake.answer = lambda exchange: exchange.reset()
    with pytest.raises(anthropic.InternalServerError, match="upstream") as error:
        send(to_fake)
    assert error.value.status_code == 502 and error.value.body["type"] == "error"
    assert error.value.body["error"]["type"] == "api_error"
    assert error.value.response.headers["x-larder-route"] == "upstream"

    def echo_key(exchange):
        text = f"no key {exchange.headers['x-api-key']} here"
        exchange.reply(401, {"type": "error", "error": {"type": "authentication_error", "message": text}},
                       f"Content-Type: application/json\r\nanthropic-echo: {KEY}\r\n")

    fake.answer = echo_key
    with pytest.raises(anthropic.AuthenticationError, match=r"no key \*\*\* here") as error:
        send(to_fake)
    assert "anthropic-echo" not in error.value.response.headers

    def break_off(exchange):
        exchange.begin_stream()
        event = {"type": "message_start", "message": {"id": "m", "type": "message", "role": "assistant", "content": [], "model": "big",
                                                      "stop_reason": None, "stop_sequence": None,
                                                      "usage": {"input_tokens": 1, "output_tokens": 1}}}
        exchange.chunk("event: message_start\ndata: " + json.dumps(event) + "\n\n")
        exchange.reset()

    fake.answer = break_off
    events = []
    with pytest.raises(anthropic.APIStatusError, match="upstream") as error:
        for event in client_of(to_fake).messages.create(**ASKED, stream=True):
            events.append(event.type)
    assert events == ["message_start"]
    assert error.value.body["error"]["type"] == "api_error"
    fake.answer = Exchange.wait_for_end
    with pytest.raises(anthropic.APIStatusError, match="upstream") as error:
        send(to_fake)
    assert error.value.status_code == 504 and error.value.body["error"]["type"] == "timeout_error"
    reply = requests.post(to_fake.url + "/v1/messages", json={**ASKED, "max_tokens": 5}, headers={"x-larder-via": "a" * 200, "x-api-key": OWN_KEY},
                          timeout=10)
    assert reply.status_code == 508 and reply.json()["error"]["type"] == "api_error"


def test_options_that_say_nothing(fake):
    url = f"http://127.0.0.1:{fake.port}/v1"
    lines = larder("serve", "--upstream", url, "--upstream-models", "claude", "--upstream-api", "claude", code=1).stderr.strip().splitlines()
    assert len(lines) == 1 and '--upstream-api: "claude"' in lines[0]
    lines = larder("serve", "--upstream", url + "/messages", "--upstream-models", "claude", code=1).stderr.strip().splitlines()
    assert len(lines) == 1 and "--upstream: " in lines[0]
