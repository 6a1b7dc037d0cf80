"""gpt-oss' answers through each API: thoughts, text and calls told apart, whole and streamed."""
import concurrent.futures
import dataclasses
import pathlib
import subprocess

import anthropic
import pytest

from api_server import BIN, serving
from harmony_model import HARMONY, write_model

TOOLS = [{"type": "function", "function": {
    "name": "weather", "description": "Of a city.",
    "parameters": {"type": "object", "properties": {"city": {"enum": ["Bern"]}}, "required": ["city"]}}}]
YES = {"type": "json_schema", "json_schema": {"name": "yes", "schema": {"enum": ["yes"]}}}
# With these the model writes its answer at once, and ends it.
TO_THE_POINT = {str(HARMONY.token("final")): 7, str(HARMONY.token("<|return|>")): 7}
USER = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    path = tmp_path_factory.mktemp("harmony") / "harmony.gguf"
    write_model(path)
    with serving("-c", 4096, model=str(path), name="harmony") as running:
        yield running


def chat(server, **more):
    return server.client.chat.completions.create(model="harmony", messages=more.pop("messages", USER), temperature=0,
                                                 **{"max_tokens": 400, **more})


def test_thoughts_and_text(server):
    reply = chat(server, logit_bias=TO_THE_POINT).choices[0]
    assert reply.message.content == "Hm" and not hasattr(reply.message, "reasoning_content")
    assert reply.finish_reason == "stop"
    # Three tokens of each thought are text.
    reply = chat(server, max_tokens=16).choices[0]
    assert reply.message.reasoning_content == "Hm\n\nHm" and reply.message.content == ""
    assert reply.finish_reason == "length"


def test_thoughts_are_never_part_of_the_text(server):
    refused = server.post("/v1/chat/completions", {"messages": USER, "reasoning_format": "none"})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "reasoning_format"
    assert not hasattr(chat(server, max_tokens=16, extra_body={"include_reasoning": False}).choices[0].message, "reasoning_content")


def test_a_conversation_in_the_terminal_goes_on(tmp_path):
    """Of whole messages as words, so that it comes to an end by itself. The template refuses answers with tags in them."""
    thought, answer = "<|channel|>analysis<|message|>Hm", "<|channel|>final<|message|>Bern"
    speech = dataclasses.replace(HARMONY, words=[thought, answer, "assistant"], following={
        "t": [thought], thought: ["<|end|>"], "<|end|>": ["<|start|>"], "<|start|>": ["assistant"], "assistant": [answer],
        answer: ["<|return|>"]})
    path = tmp_path / "harmony.gguf"
    write_model(path, speech)
    command = (BIN, "chat", "-m", path, "-c", "1024", "--kv-size", "64MiB", "--temp", "0")
    ask = {"input": "Hello\nHello\n", "capture_output": True, "text": True, "timeout": 300}
    run = subprocess.run(command, **ask)
    assert (run.returncode, run.stdout) == (0, "BernBern")
    assert run.stderr.count("> Hm\n\n\n[") == 2 and "<|" not in run.stderr
    one = subprocess.run([*command[:1], "generate", *command[2:], "--chat", "-p", "Hello"], **ask)
    assert (one.returncode, one.stdout) == (0, "Bern\n") and "Hm\n\n" in one.stderr


def test_a_form_binds_the_answer_not_the_thought(server):
    reply = chat(server, response_format=YES).choices[0]
    assert (reply.message.reasoning_content, reply.message.content) == ("Hm", '"yes"')
    assert reply.finish_reason == "stop"


def test_a_call(server):
    reply = chat(server, tools=TOOLS, tool_choice="required").choices[0]
    assert reply.finish_reason == "tool_calls" and reply.message.content is None
    assert reply.message.reasoning_content == "Hm"
    call, = reply.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("weather", '{"city":"Bern"}')
    # And back: the thought before a call is printed, and what the tool said.
    history = [*USER, {"role": "assistant", "content": None, "reasoning_content": "Hm", "tool_calls": [call.model_dump()]},
               {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    told = server.post("/tokenize", {"messages": history, "tools": TOOLS, "return_token_strs": True}).json()
    prompt = "".join(told["token_strs"])
    assert "<|channel|>analysis<|message|>Hm<|end|>" in prompt and "to=functions.weather" in prompt
    assert chat(server, messages=history, tools=TOOLS, logit_bias=TO_THE_POINT).choices[0].message.content == "Hm"


def test_streams(server):
    thought, text, calls, reasons = "", "", [], []
    for chunk in chat(server, response_format=YES, stream=True):
        delta = chunk.choices[0].delta
        thought += getattr(delta, "reasoning_content", None) or ""
        text += delta.content or ""
    assert (thought, text) == ("Hm", '"yes"')
    for chunk in chat(server, tools=TOOLS, tool_choice="required", stream=True):
        calls += chunk.choices[0].delta.tool_calls or []
        reasons.append(chunk.choices[0].finish_reason)
    assert [call.function.name for call in calls] == ["weather"] and reasons[-1] == "tool_calls"


def test_effort_is_in_the_prompt(server):
    for more, said in [({}, "medium"), ({"reasoning_effort": "high"}, "high"),
                       ({"chat_template_kwargs": {"reasoning_effort": "low"}}, "low")]:
        told = server.post("/tokenize", {"messages": USER, "return_token_strs": True, **more}).json()
        assert f"Reasoning: {said}" in "".join(told["token_strs"]).replace("Ġ", " ")


@pytest.mark.parametrize("streams", [False, True])
def test_responses(server, streams):
    options = {"model": "harmony", "input": "Hello", "temperature": 0, "reasoning": {"effort": "low"}}
    form = {"format": {"type": "json_schema", "name": "yes", "schema": {"enum": ["yes"]}}}
    if streams:
        events = list(server.client.responses.create(stream=True, text=form, **options))
        names = [event.type for event in events]
        assert "response.reasoning_text.delta" in names and "response.reasoning_text.done" in names
        reply = events[-1].response
    else:
        reply = server.client.responses.create(text=form, **options)
    thought, message = reply.output
    assert (thought.type, thought.content[0].text, reply.output_text) == ("reasoning", "Hm", '"yes"')
    tool = {"type": "function", **TOOLS[0]["function"]}
    reply = server.client.responses.create(tools=[tool], tool_choice="required", **options)
    assert [item.type for item in reply.output] == ["reasoning", "function_call"]
    # With what it gave, and what the tool said.
    given = [{"role": "user", "content": "Hello"}, *[item.model_dump(exclude_none=True) for item in reply.output],
             {"type": "function_call_output", "call_id": reply.output[1].call_id, "output": "sunny"}]
    again = server.client.responses.create(**{**options, "input": given}, tools=[tool], text=form)
    assert again.output_text == '"yes"'


def test_messages(server):
    client = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)
    tool = {"name": "weather", "input_schema": TOOLS[0]["function"]["parameters"]}
    options = {"model": "harmony", "max_tokens": 400, "messages": USER, "tools": [tool], "tool_choice": {"type": "any"},
               "extra_body": {"temperature": 0}}
    reply = client.messages.create(**options)
    thought, call = reply.content
    assert (thought.type, thought.thinking, call.type, call.input) == ("thinking", "Hm", "tool_use", {"city": "Bern"})
    assert reply.stop_reason == "tool_use"
    with client.messages.stream(**options) as stream:
        streamed = stream.get_final_message()
    assert [block.type for block in streamed.content] == ["thinking", "tool_use"]
    assert streamed.content[0].thinking == "Hm"
    back = [*USER, {"role": "assistant", "content": [block.model_dump() for block in reply.content]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}]}]
    assert client.messages.create(**{**options, "messages": back}).stop_reason == "tool_use"


def test_what_a_disk_kept_changes_no_bit(tmp_path):
    """Of a tiny random model in a folder, whose windows, sinks and experts decide: cold, together with others, and restarted."""
    model = pathlib.Path(__file__).parents[1] / "golden/model/tiny_hf_gpt_oss"
    prompt = [(7 * i * i + 3 * i) % 120 + 5 for i in range(300)]

    def ask(server, start=0):
        reply = server.client.completions.create(model="tiny", prompt=prompt[start:], max_tokens=12, logprobs=2, temperature=0)
        return reply.choices[0].logprobs.token_logprobs, reply.usage.prompt_tokens_details.cached_tokens

    tier = ("-c", 512, "--kv-disk", tmp_path, "--kv-disk-size", "64MiB")
    with serving("-c", 512, model=str(model), name="tiny") as server:
        cold = [ask(server, start)[0] for start in range(4)]
    with serving(*tier, model=str(model), name="tiny") as server:
        with concurrent.futures.ThreadPoolExecutor(4) as clients:
            together = list(clients.map(lambda start: ask(server, start)[0], range(4)))
        again, cached = ask(server)
    assert together == cold and again == cold[0] and cached > 250
    for _ in range(5):  # as it measures the disk and the model at start, so few tokens may be computed sooner than read
        with serving(*tier, model=str(model), name="tiny") as server:
            again, cached = ask(server)
        assert again == cold[0]
        if cached > 250:
            break
    assert cached > 250
