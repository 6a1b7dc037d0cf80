"""Anthropic's API through Anthropic's own client."""
import os
import time

import anthropic
import pytest

from api_server import serving

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
RULES = "You are the clerk of a small town library. " + "Answer briefly, politely and in full sentences. " * 12
TOOLS = [{"name": "find_book", "description": "Find a book by its title.",
          "input_schema": {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}}]


def connect(server, key="none", **options):
    return anthropic.Anthropic(base_url=server.url, api_key=key, max_retries=0, timeout=300, **options)


@pytest.fixture(scope="module")
def client(server):
    return connect(server)


def create(client, **options):
    body = {"temperature": 0, **options.pop("extra_body", {})}
    return client.messages.create(**{"model": "smollm2", "max_tokens": 24, "messages": QUESTION, **options}, extra_body=body)


def cached(text, ttl="5m"):
    return {"type": "text", "text": text, "cache_control": {"type": "ephemeral", "ttl": ttl}}


def total(usage):
    assert usage.cache_creation_input_tokens == (
        usage.cache_creation.ephemeral_5m_input_tokens + usage.cache_creation.ephemeral_1h_input_tokens)
    return usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens


def count(client, **options):
    return client.messages.count_tokens(**{"model": "smollm2", "messages": QUESTION, **options}).input_tokens


def test_text(server, client):
    reply = create(client)
    chat = server.client.chat.completions.create(model="smollm2", messages=QUESTION, max_tokens=24, temperature=0)
    assert reply.type == "message" and reply.role == "assistant" and reply.model == "smollm2"
    assert reply.id.startswith("msg_") and reply._request_id.startswith("req_")
    assert reply.content[0].text == chat.choices[0].message.content != ""
    assert reply.stop_reason in ("end_turn", "max_tokens")
    assert total(reply.usage) == count(client) and 0 < reply.usage.output_tokens <= 24


def test_stream_equals_whole(client):
    whole = create(client)
    kinds = []
    with client.messages.stream(model="smollm2", max_tokens=24, messages=QUESTION, extra_body={"temperature": 0}) as stream:
        for event in stream:
            kinds.append(event.type)
        final = stream.get_final_message()
    assert final.content[0].text == whole.content[0].text
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert total(final.usage) == total(whole.usage)
    raw = [kind for kind in kinds if kind not in ("text",)]
    assert raw[0] == "message_start" and raw[1] == "content_block_start" and raw[-1] == "message_stop"
    assert raw[-3:-1] == ["content_block_stop", "message_delta"]


def test_stop_sequence_and_prefill(client):
    whole = create(client).content[0].text
    word = whole.split()[2]
    reply = create(client, stop_sequences=[word])
    assert reply.stop_reason == "stop_sequence" and reply.stop_sequence == word
    assert reply.content[0].text == whole[:whole.index(word)]
    # The model goes on with what it is said to have begun.
    begun = create(client, messages=QUESTION + [{"role": "assistant", "content": "One, two, three,"}], max_tokens=8)
    assert begun.content[0].text.strip().lower().startswith(("four", "4")), begun.content[0].text


def test_prewarming_generates_nothing(client):
    system = [cached(f"{time.time()} {RULES}", "1h")]
    warm = create(client, system=system, max_tokens=0)
    assert warm.content == [] and warm.usage.output_tokens == 0 and warm.usage.cache_creation.ephemeral_1h_input_tokens > 100
    reply = create(client, system=system)
    assert reply.usage.cache_creation_input_tokens == 0
    assert reply.usage.cache_read_input_tokens >= warm.usage.cache_creation_input_tokens


def test_usage_with_breakpoints(client):
    system = [{"type": "text", "text": f"Ticket {time.time()}."}, cached(RULES, "1h")]
    turns = [{"role": "user", "content": [cached("Where do I find books on gardening?")]}]
    first = create(client, system=system, messages=turns)
    assert total(first.usage) == count(client, system=system, messages=turns)
    assert first.usage.cache_read_input_tokens < 20  # what all prompts of this template begin with
    assert first.usage.cache_creation.ephemeral_1h_input_tokens > 100
    assert 0 < first.usage.cache_creation.ephemeral_5m_input_tokens < 30
    turns += [{"role": "assistant", "content": first.content[0].text},
              {"role": "user", "content": [cached("And on trees?")]}]
    second = create(client, system=system, messages=turns)
    written = total(first.usage) - first.usage.input_tokens
    assert total(second.usage) == count(client, system=system, messages=turns)
    assert second.usage.cache_read_input_tokens >= written
    assert second.usage.cache_creation.ephemeral_1h_input_tokens == 0
    assert 0 < second.usage.cache_creation.ephemeral_5m_input_tokens < total(second.usage) - written


def test_diagnostics_name_what_changed(client):
    def reason(before, **options):
        """What is said of a prompt against an earlier one; the stream says the same."""
        options = {"max_tokens": 1, "diagnostics": {"previous_message_id": before}, **options}
        reply = create(client, **options)
        body = {"model": "smollm2", "messages": QUESTION, **options}
        with client.messages.stream(**body) as stream:
            streamed = stream.get_final_message()
        for message in (reply, streamed):
            yield message.diagnostics and message.diagnostics.cache_miss_reason

    system, turns = f"{time.time()} {RULES}", [{"role": "user", "content": "Where are the maps? " * 12}]
    first = create(client, system=system, messages=turns, tools=TOOLS, max_tokens=4)
    longer = [*turns, {"role": "assistant", "content": first.content[0].text}, {"role": "user", "content": "And the atlas?"}]
    assert list(reason(first.id, system=system, messages=longer, tools=TOOLS)) == [None, None]
    other = [{"role": "user", "content": "Where are the books? " * 12}]
    tool = {**TOOLS[0], "description": "Find any book."}
    for expected, at_least, options in (
            ("system_changed", 100, {"system": f"{time.time()} {RULES}", "messages": turns, "tools": TOOLS}),
            ("tools_changed", 40, {"system": system, "messages": turns, "tools": [tool]}),
            ("messages_changed", 30, {"system": system, "messages": other, "tools": TOOLS})):
        for told in reason(first.id, **options):
            assert told.type == expected and told.cache_missed_input_tokens >= at_least
    for told in reason("msg_of_nobody", system=system):
        assert told.type == "previous_message_not_found"


def test_a_prefix_is_found_however_many_blocks_back(client):
    system = [cached(f"{time.time()} {RULES}")]
    first = create(client, system=system, max_tokens=1)
    many = [{"role": "user", "content": [{"type": "text", "text": f"Note {i}."} for i in range(30)] + [cached("Thanks.")]}]
    second = create(client, system=system, messages=many, max_tokens=1)
    assert second.usage.cache_read_input_tokens >= total(first.usage) - first.usage.input_tokens


def test_top_level_cache_control_and_short_prefixes(client):
    nonce = f"{time.time()} {RULES}"
    reply = create(client, system=nonce, max_tokens=1, cache_control={"type": "ephemeral"})
    assert reply.usage.cache_creation.ephemeral_5m_input_tokens > 100 and reply.usage.input_tokens < 10
    short = create(client, messages=[{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
                   system=[cached("Hm.")], max_tokens=1)
    assert short.usage.cache_creation_input_tokens == 0


def test_tools_and_their_results(client):
    history = [{"role": "user", "content": "Do you have 'Emma'?"},
               {"role": "assistant", "content": [{"type": "text", "text": "I will look."}, {
                   "type": "tool_use", "id": "toolu_1", "name": "find_book", "input": {"title": "Emma"}}]},
               {"role": "user", "content": [
                   {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "Shelf 12."}]},
                   {"type": "text", "text": "On which shelf?"}]}]
    tools = [{**TOOLS[0], "cache_control": {"type": "ephemeral", "ttl": "1h"}}]
    options = dict(system=RULES, tools=tools, messages=history)
    first, second = (create(client, **options) for _ in range(2))
    assert first.content[0].text == second.content[0].text
    assert total(first.usage) == count(client, **options)
    assert second.usage.cache_read_input_tokens == total(second.usage) - 1
    assert count(client, **options) > count(client, system=RULES, messages=history)
    assert count(client, **options, tool_choice={"type": "none"}) == count(client, **options)


def test_a_call_comes_as_a_block(client):
    """The history is such that a small model writes a call."""
    tool = {"name": "get_weather", "description": "The weather in a city.", "input_schema": {
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}
    turns = []
    for number, city in enumerate(["Paris", "Rome", "Oslo"]):
        call = {"type": "tool_use", "id": f"toolu_{number}", "name": "get_weather", "input": {"city": city}}
        result = {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": "sunny"}
        turns += [{"role": "user", "content": f"What is the weather in {city}?"}, {"role": "assistant", "content": [call]},
                  {"role": "user", "content": [result]}, {"role": "assistant", "content": f"It is sunny in {city}."}]
    turns.append({"role": "user", "content": "What is the weather in Bern?"})
    reply = create(client, tools=[tool], messages=turns, max_tokens=60)
    with client.messages.stream(model="smollm2", max_tokens=60, messages=turns, tools=[tool], extra_body={"temperature": 0}) as stream:
        final = stream.get_final_message()
    assert [block.type for block in final.content] == [block.type for block in reply.content]
    calls = [block for block in reply.content if block.type == "tool_use"]
    assert calls, reply.content
    assert calls[0].name == "get_weather" and isinstance(calls[0].input, dict) and calls[0].id.startswith("toolu_")
    assert [block.input for block in final.content if block.type == "tool_use"] == [call.input for call in calls]


@pytest.mark.parametrize("options", [
    {"system": [cached("a", "5m"), cached("b", "1h")]},
    {"tools": [{**TOOLS[0], "cache_control": {"type": "ephemeral"}}], "system": [cached("b", "1h")]},
    {"messages": [{"role": "user", "content": [cached(str(i)) for i in range(5)]}]},
    {"messages": [{"role": "user", "content": [{"type": "image", "source": {
        "type": "base64", "media_type": "image/png", "data": "AA=="}}]}]},
    {"tool_choice": {"type": "tool", "name": "none"}, "tools": TOOLS},
    {"messages": []},
    {"messages": [{"role": "user", "content": "word " * 10_000}]},
])
def test_bad_requests(client, options):
    with pytest.raises(anthropic.BadRequestError) as caught:
        create(client, **options)
    assert caught.value.body["error"]["type"] == "invalid_request_error"
    assert caught.value.request_id == caught.value.body["request_id"]


def test_errors_are_the_clients_classes(server):
    with pytest.raises(anthropic.NotFoundError):
        create(connect(server), model="claude-of-nowhere")
    with pytest.raises(anthropic.NotFoundError):
        connect(server).get("/v1/messages/batches/none", cast_to=object)
    with serving("--api-key", "secret", key="secret") as locked:
        with pytest.raises(anthropic.AuthenticationError) as caught:
            create(connect(locked, "wrong"))
        assert caught.value.body["error"]["type"] == "authentication_error"
        assert create(connect(locked, "secret"), max_tokens=1).type == "message"
        bearer = anthropic.Anthropic(base_url=locked.url, auth_token="secret", api_key=None, max_retries=0)
        assert create(bearer, max_tokens=1).type == "message"


def test_a_client_that_goes_is_not_worked_for(server, client):
    name = 'vllm:request_success_total{finished_reason="abort"}'
    before = server.metrics()[name]
    with client.messages.stream(model="smollm2", max_tokens=4000, extra_body={"temperature": 0}, messages=[
            {"role": "user", "content": "Write a very long story about a lighthouse."}]) as stream:
        next(iter(stream.text_stream))
    end = time.monotonic() + 20
    while time.monotonic() < end and server.metrics()["vllm:num_requests_running"] > 0:
        time.sleep(0.05)
    metrics = server.metrics()
    # It did not come to its end.
    assert metrics["vllm:num_requests_running"] == 0 and metrics[name] == before + 1


@pytest.mark.parametrize("model", ["LARDER_TEST_SMOLLM2", "LARDER_TEST_GEMMA3"])
def test_an_agent_reuses_its_history(model):
    """Calls, their results and the model's own answers come back: 99 % of the tokens that could be reused are."""
    with serving(model=os.environ[model]) as running:
        could, were = agent(connect(running))
        print(f"{model}: {were} of {could} tokens")
        assert were >= 0.99 * could


def agent(client):
    """The tokens that could be reused, and those that were."""
    messages, known, could, were = [], 0, 0, 0
    system = [cached(f"{time.time()} {RULES}")]
    for turn in range(10):
        messages.append({"role": "user", "content": f"Question {turn}: where is book number {turn}?"})
        if turn % 2 == 0:  # as an agent's log has it: a call, and what came of it
            call = {"type": "tool_use", "id": f"toolu_{turn}", "name": "find_book", "input": {"title": f"Book {turn}"}}
            result = {"type": "tool_result", "tool_use_id": f"toolu_{turn}", "content": f"Shelf {turn}, to the left."}
            messages += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
        reply = create(client, system=system, tools=TOOLS, messages=messages, max_tokens=24)
        could += known
        were += min(known, reply.usage.cache_read_input_tokens)
        # Of an answer that was cut short the last token was drawn, not computed.
        known = total(reply.usage) + reply.usage.output_tokens - (reply.stop_reason == "max_tokens")
        messages.append({"role": "assistant", "content": reply.content[0].text})
    return could, were
