"""A model that thinks in <think> tags, through each API: its thought, of which two tokens make a letter, and its answer."""
import contextlib
import json
import os
import re
import subprocess

import anthropic
import pytest

from api_server import BIN, larder, serving
from harmony_model import Speech, letters, write_model

LINE, E_ACUTE = letters()[ord("\n")], [letters()[byte] for byte in "é".encode()]
TEMPLATE = """{%- for m in messages -%}
<|im_start|>{{ m.role }}
{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}<|im_end|>
{% endfor %}<|im_start|>assistant
{# <tool_call>: it knows of tools #}"""
SPEECH = Speech(
    ["know", "Bern", "dot", '{"name":', '"f"}', 2 * LINE],
    ["<|im_end|>", "<|im_start|>", "<think>", "</think>", "<tool_call>", "</tool_call>"],
    {LINE: ["<think>", "Bern"], "<think>": ["I"], "I": [E_ACUTE[0]], E_ACUTE[0]: [E_ACUTE[1]], E_ACUTE[1]: ["know"],
     "know": ["</think>"], "</think>": [2 * LINE, "<tool_call>"], 2 * LINE: ["Bern"], "Bern": ["dot"], "dot": ["<|im_end|>"],
     "<tool_call>": ['{"name":'], '{"name":': ['"f"}'], '"f"}': ["</tool_call>"], "</tool_call>": ["<|im_end|>"]},
    TEMPLATE)
USER = [{"role": "user", "content": "Hello"}]
TOOL = {"name": "f", "parameters": {"type": "object", "properties": {}}}
CALLS = {str(SPEECH.token("<tool_call>")): 9}
NUM_OF_THOUGHT = 6  # tokens, its tags among them


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    path = tmp_path_factory.mktemp("thoughts") / "thoughts.gguf"
    write_model(path, SPEECH)
    with serving("-c", 1024, model=str(path), name="thinker") as running:
        yield running


@pytest.mark.parametrize("more, thought, text, num_thought, reason", [
    ({}, "Iéknow", "Berndot", NUM_OF_THOUGHT, "stop"),
    ({"n": 2, "logprobs": True}, "Iéknow", "Berndot", NUM_OF_THOUGHT, "stop"),
    ({"max_tokens": 1}, "", "", 1, "length"),
    ({"max_tokens": 4}, "Ié", "", 4, "length"),
    ({"max_tokens": 8}, "Iéknow", "Bern", NUM_OF_THOUGHT, "length"),
    ({"stop": ["know"]}, "Ié", "", 5, "stop"),
    ({"stop": ["éknow</th"]}, "I", "", NUM_OF_THOUGHT, "stop"),
    ({"stop": ["\n\nBern"]}, "Iéknow", "", NUM_OF_THOUGHT, "stop"),
    ({"tools": [{"type": "function", "function": TOOL}], "logit_bias": CALLS}, "Iéknow", "[f{}]", NUM_OF_THOUGHT, "tool_calls"),
    ({"logit_bias": {str(SPEECH.token("<think>")): -9}}, "", "Berndot", 0, "stop"),
])
def test_chats(server, more, thought, text, num_thought, reason):
    ask = {"model": "thinker", "messages": USER, "temperature": 0, **more}
    num_choices = more.get("n", 1)

    def shown(calls):
        return "".join(f"[{call.function.name}{call.function.arguments}]" for call in calls or [])
    whole = server.client.chat.completions.create(**ask)
    for choice in whole.choices:
        assert (getattr(choice.message, "reasoning_content", ""), choice.finish_reason) == (thought, reason)
        assert (choice.message.content or "") + shown(choice.message.tool_calls) == text
    details = whole.usage.completion_tokens_details
    assert (details.reasoning_tokens if details else 0) == num_choices * num_thought
    thoughts, texts, reasons = [""] * num_choices, [""] * num_choices, [None] * num_choices
    stream = server.client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True})
    for chunk in stream:
        for choice in chunk.choices:
            thoughts[choice.index] += getattr(choice.delta, "reasoning_content", None) or ""
            texts[choice.index] += (choice.delta.content or "") + shown(choice.delta.tool_calls)
            reasons[choice.index] = choice.finish_reason or reasons[choice.index]
    assert (thoughts, texts, reasons) == ([thought] * num_choices, [text] * num_choices, [reason] * num_choices)


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("more, thought, text", [
    ({"reasoning_format": "none"}, "", "<think>Iéknow</think>\n\nBerndot"),
    ({"reasoning_format": "deepseek"}, "Iéknow", "Berndot"),
    ({"include_reasoning": False}, "", "Berndot"),
    ({"include_reasoning": False, "logit_bias": CALLS, "tools": [{"type": "function", "function": TOOL}]}, "", "[f]")])
def test_a_chat_says_whether_thoughts_are_told_apart_or_at_all(server, streams, more, thought, text):
    with server.post("/v1/chat/completions", {"messages": USER, "temperature": 0, "stream": streams, **more}) as reply:
        assert reply.status_code == 200
        if streams:
            chunks = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
            messages = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
        else:
            messages = [reply.json()["choices"][0]["message"]]
    shown = "".join((message.get("content") or "") + "".join(f"[{call['function']['name']}]" for call in message.get("tool_calls", []))
                    for message in messages)
    assert ("".join(message.get("reasoning_content", "") for message in messages), shown) == (thought, text)


@pytest.mark.parametrize("streams", [False, True])
def test_responses(server, streams):
    def ask(**more):
        reply = server.client.responses.create(model="thinker", input="Hello", temperature=0, stream=streams,
                                               include=["message.output_text.logprobs"], **more)
        return list(reply)[-1].response if streams else reply
    reply = ask()
    thought, message = reply.output
    assert (thought.content[0].text, thought.status) == ("Iéknow", "completed")
    # Neither tags nor the line ends behind them are the text's.
    assert message.content[0].text == "Berndot" and [one.token for one in message.content[0].logprobs] == ["Bern", "dot"]
    assert reply.usage.output_tokens_details.reasoning_tokens == NUM_OF_THOUGHT
    cut = ask(max_output_tokens=4)
    assert cut.status == cut.output[0].status == "incomplete" and cut.output[0].content[0].text == "Ié"
    assert ask(previous_response_id=reply.id).output_text == "Berndot"


def test_messages(server):
    client = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)
    ask = {"model": "thinker", "messages": USER, "max_tokens": 64, "extra_body": {"temperature": 0}}
    reply = client.messages.create(**ask)
    with client.messages.stream(**ask) as stream:
        streamed = stream.get_final_message()
    for content in (reply.content, streamed.content):
        assert [(block.type, getattr(block, block.type)) for block in content] == [("thinking", "Iéknow"), ("text", "Berndot")]
    cut = client.messages.create(**{**ask, "max_tokens": 4})
    assert [block.thinking for block in cut.content] == ["Ié"] and cut.stop_reason == "max_tokens"
    ended = client.messages.create(**ask, stop_sequences=["know"])
    assert (ended.stop_reason, ended.stop_sequence) == ("stop_sequence", "know")
    back = [*USER, {"role": "assistant", "content": [block.model_dump() for block in reply.content]}, *USER]
    assert client.messages.create(**{**ask, "messages": back}).content[1].text == "Berndot"


def test_a_conversation_in_the_terminal(tmp_path):
    path = tmp_path / "thoughts.gguf"
    write_model(path, SPEECH)
    run = larder("chat", "-m", path, "-c", 1024, "--kv-size", "64MiB", "--temp", 0, stdin="Hello\nHello\n")
    assert run.stdout == "BerndotBerndot"
    assert run.stderr.count("> Iéknow\n\n\n[") == 2 and "<think>" not in run.stderr
    first, second = (int(number) for number in re.findall(r"\[(\d+) prompt tokens, ", run.stderr))
    # The answer comes back without its thought: its letters, the end of its message and a line's.
    assert second == 2 * first + len("Berndot") + 2


def test_thoughts_are_dim_on_a_terminal(tmp_path):
    path = tmp_path / "thoughts.gguf"
    write_model(path, SPEECH)
    ours, theirs = os.openpty()
    with subprocess.Popen([BIN, "chat", "-m", path, "-c", "1024", "--kv-size", "64MiB", "--temp", "0"], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, stderr=theirs) as process:
        os.close(theirs)
        process.stdin.write(b"Hello\n")
        process.stdin.close()
        shown = b""
        with contextlib.suppress(OSError):  # the other end has gone
            while piece := os.read(ours, 4096):
                shown += piece
        assert process.stdout.read() == b"Berndot"
    os.close(ours)
    assert re.sub("\033\\[0m\033\\[2m", "", shown.decode()).count("\033[2mIéknow\033[0m") == 1
