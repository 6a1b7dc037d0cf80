"""OpenAI's tools of type "custom", whose input is a text, through its client."""
import os
import re

import openai
import pytest

from api_server import serving

PATCH = """start: begin hunk~1..2 end
begin: "*** Begin Patch" LF
end: "*** End Patch"
hunk: "*** Add File: " NAME LF line~1..2
NAME: /[a-z]{1,8}\\.py/
line: "+" /[^\\n]{1,20}/ LF
%import common.LF
"""
PATCHED = r"\*\*\* Begin Patch\n(\*\*\* Add File: [a-z]{1,8}\.py\n(\+[^\n]{1,20}\n){1,2}){1,2}\*\*\* End Patch"
GRAMMARS = [({"syntax": "lark", "definition": PATCH}, PATCHED),
            ({"syntax": "regex", "definition": r"^(?P<month>May|June) \d{1,2} \"[a-z]+\"$"}, r'(May|June) \d{1,2} "[a-z]+"'),
            (None, None)]
QUESTION = {"role": "user", "content": "Write a file hello.py that prints hello."}


@pytest.fixture(scope="module", params=["LARDER_TEST_SMOLLM2", "LARDER_TEST_GEMMA3"])
def server(request):
    if request.param not in os.environ:
        pytest.skip("the model is not there")
    with serving("-c", "2048", model=os.environ[request.param]) as running:
        yield running


def response_tool(grammar):
    tool = {"type": "custom", "name": "patch", "description": "Edits files."}
    return {**tool, "format": {"type": "grammar", **grammar}} if grammar else tool


def chat_tool(grammar):
    custom = {"name": "patch", "description": "Edits files."}
    return {"type": "custom", "custom": {**custom, "format": {"type": "grammar", "grammar": grammar}} if grammar else custom}


@pytest.mark.parametrize("grammar, pattern", GRAMMARS)
@pytest.mark.parametrize("stores", [True, False])
def test_responses(server, grammar, pattern, stores):
    asked = {"model": "default", "tools": [response_tool(grammar)], "temperature": 0}
    question = {**QUESTION, "content": QUESTION["content"] + "!?"[stores]}
    first = server.client.responses.create(
        input=[question], tool_choice={"type": "custom", "name": "patch"}, max_output_tokens=600, **asked)
    if grammar is None and first.status == "incomplete":  # free text that found no end
        return
    [call] = first.output
    assert call.type == "custom_tool_call" and call.name == "patch" and first.tool_choice.type == "custom"
    assert pattern is None or re.fullmatch(pattern, call.input), call.input
    assert first.tools[0].type == "custom" and (grammar is None or first.tools[0].format.definition == grammar["definition"])
    result = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "Done."}
    before = {"previous_response_id": first.id, "input": [result]} if stores else {
        "input": [question, call.model_dump(exclude_none=True), result]}
    then = server.client.responses.create(max_output_tokens=16, **asked, **before)
    assert then.usage.input_tokens_details.cached_tokens >= first.usage.total_tokens - 1


def test_a_stream_of_responses(server):
    asked = {"model": "default", "tools": [response_tool(GRAMMARS[0][0])], "tool_choice": "required", "temperature": 0,
             "parallel_tool_calls": False, "input": [QUESTION], "max_output_tokens": 600}
    whole = server.client.responses.create(**asked).output[0].input
    events = list(server.client.responses.create(stream=True, **asked))
    assert [event.type for event in events[2:-1]] == [
        "response.output_item.added", "response.custom_tool_call_input.delta", "response.custom_tool_call_input.done",
        "response.output_item.done"]
    assert events[2].item.input == "" and events[3].delta == events[4].input == events[5].item.input == whole
    assert events[3].item_id == events[5].item.id == events[2].item.id
    assert events[-1].response.output[0].input == whole


@pytest.mark.parametrize("grammar, pattern", GRAMMARS)
def test_chat(server, grammar, pattern):
    asked = {"model": "default", "tools": [chat_tool(grammar)], "temperature": 0}
    choice = {"type": "custom", "custom": {"name": "patch"}}
    first = server.client.chat.completions.create(messages=[QUESTION], tool_choice=choice, max_tokens=600, **asked)
    if grammar is None and first.choices[0].finish_reason == "length":
        return
    assert first.choices[0].finish_reason == "tool_calls"
    message = first.choices[0].message
    [call] = message.tool_calls
    assert call.type == "custom" and call.custom.name == "patch"
    assert pattern is None or re.fullmatch(pattern, call.custom.input), call.custom.input
    pieces = [piece for chunk in server.client.chat.completions.create(
                  messages=[QUESTION], tool_choice=choice, max_tokens=600, stream=True, **asked)
              for piece in (chunk.choices[0].delta.tool_calls or [])]
    assert [(piece.index, piece.type, piece.custom) for piece in pieces] == [
        (0, "custom", {"name": "patch", "input": call.custom.input})]
    history = [QUESTION, message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": "Done."}]
    then = server.client.chat.completions.create(messages=history, max_tokens=1, **asked)
    assert then.usage.prompt_tokens_details.cached_tokens >= first.usage.total_tokens - 1


def test_a_grammar_binds_calls_that_are_not_demanded(server):
    for seed in range(3):
        reply = server.client.chat.completions.create(
            model="default", messages=[QUESTION], tools=[chat_tool(GRAMMARS[0][0])], max_tokens=200, seed=seed, temperature=1)
        for call in reply.choices[0].message.tool_calls or []:
            assert re.fullmatch(PATCHED, call.custom.input)


def test_allowed_tools_and_both_kinds(server):
    function = {"type": "function", "name": "now", "parameters": {"type": "object", "properties": {}}}
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "patch"}]}
    reply = server.client.responses.create(model="default", input=[QUESTION], tools=[function, response_tool(GRAMMARS[1][0])],
                                           tool_choice=allowed, parallel_tool_calls=False, max_output_tokens=300)
    assert [item.type for item in reply.output] == ["custom_tool_call"] and reply.tool_choice.tools[0]["type"] == "custom"


def test_a_conversation_holds_the_call(server):
    client = server.client
    conversation = client.conversations.create(items=[{"type": "message", **QUESTION}])
    reply = client.responses.create(model="default", conversation=conversation.id, tools=[response_tool(GRAMMARS[1][0])], input="Now.",
                                    tool_choice={"type": "custom", "name": "patch"}, max_output_tokens=300)
    client.conversations.items.create(conversation.id, items=[
        {"type": "custom_tool_call_output", "call_id": reply.output[0].call_id, "output": "Done."}])
    types = [item.type for item in client.conversations.items.list(conversation.id, order="asc")]
    assert types == ["message", "message", "custom_tool_call", "custom_tool_call_output"]
    assert client.responses.create(model="default", conversation=conversation.id, input="And?", max_output_tokens=16).usage.input_tokens > 0
    compacted = client.responses.compact(model="default", input=[
        QUESTION, reply.output[0].model_dump(exclude_none=True),
        {"type": "custom_tool_call_output", "call_id": reply.output[0].call_id, "output": "Done."},
        {"role": "user", "content": "Thanks."}])
    assert compacted.output[-1].type == "compaction"


@pytest.mark.parametrize("definition, reason", [("start: a", "line 1: there is no rule 'a'"), ("start: /(?=a)/", "lookahead")])
def test_a_broken_grammar_is_refused(server, definition, reason):
    with pytest.raises(openai.BadRequestError) as caught:
        server.client.responses.create(model="default", input="x", tools=[response_tool({"syntax": "lark", "definition": definition})])
    assert caught.value.param == "tools[0].format.definition" and reason in caught.value.body["message"]
