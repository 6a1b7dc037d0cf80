"""Answers of a given form, through the clients that ask for them."""
import concurrent.futures
import json
import os
import re
import typing

import anthropic
import openai
import pydantic
import pytest

from api_server import serving

QUESTION = [{"role": "user", "content": "Ada Lovelace, a cheerful mathematician of 36, likes poetry. Say it as JSON with name, age, mood and likes."}]
CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 30}, "unit": {"enum": ["C", "F"]}}, "required": ["city", "unit"]}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "The weather of a city.", "parameters": CITY}},
         {"type": "function", "function": {"name": "get_time", "description": "The time of day.", "parameters": {"type": "object", "properties": {}}}}]
ANTHROPIC_TOOLS = [{"name": tool["function"]["name"], "input_schema": tool["function"]["parameters"]} for tool in TOOLS]


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=40)
    age: int = pydantic.Field(ge=0, le=150)
    mood: typing.Literal["cheerful", "sad"]
    likes: typing.Annotated[list[typing.Annotated[str, pydantic.Field(max_length=20)]], pydantic.Field(max_length=3)]
    email: typing.Optional[str] = pydantic.Field(default=None, max_length=30)


@pytest.fixture(scope="module", params=["LARDER_TEST_SMOLLM2", "LARDER_TEST_GEMMA3"])
def server(request):
    if request.param not in os.environ:
        pytest.skip("the model is not there")
    with serving("-c", "2048", model=os.environ[request.param]) as running:
        yield running


@pytest.fixture(scope="module")
def claude(server):
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=300)


def ask(server, seed=0, **options):
    extra = {"seed": seed, **options.pop("extra_body", {})}
    return server.client.chat.completions.create(**{"model": "default", "messages": QUESTION, "max_tokens": 300, **options}, extra_body=extra)


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_class_of_pydantic(server, temperature):
    for seed in range(3):
        reply = server.client.chat.completions.parse(
            model="default", messages=QUESTION, response_format=Person, max_tokens=400, temperature=temperature, seed=seed)
        assert isinstance(reply.choices[0].message.parsed, Person)
        assert reply.choices[0].finish_reason == "stop"
        assert list(json.loads(reply.choices[0].message.content)) == ["name", "age", "mood", "likes", "email"]


def test_a_stream_is_the_same(server):
    options = {"response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": Person.model_json_schema()}}}
    whole = ask(server, seed=4, **options).choices[0].message.content
    pieces = [chunk.choices[0].delta.content or "" for chunk in ask(server, seed=4, stream=True, **options) if chunk.choices]
    assert "".join(pieces) == whole
    Person.model_validate_json(whole)


def test_many_at_once_and_choices(server):
    """Each its own format, in one batch; what others ask changes nothing."""
    def one(seed):
        schema = {"type": "array", "items": {"type": "integer", "minimum": seed, "maximum": seed + 5}, "minItems": 2, "maxItems": 4}
        reply = ask(server, seed=seed, n=2, response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": schema}})
        return [choice.message.content for choice in reply.choices]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(one, range(8)))
    for seed, texts in enumerate(answers):
        for text in texts:
            assert 2 <= len(json.loads(text)) <= 4 and all(seed <= number <= seed + 5 for number in json.loads(text)), text
    assert one(3) == answers[3]


@pytest.mark.parametrize("extra, pattern", [
    ({"guided_choice": ["positive", "negative"]}, "positive|negative"),
    ({"guided_regex": r"\d{3}-\d{4}"}, r"\d{3}-\d{4}"),
    ({"structured_outputs": {"regex": "(yes|no)!"}}, "(yes|no)!"),
    ({"guided_grammar": 'root ::= "the " [a-z]{2,8} "."'}, "the [a-z]{2,8}\\."),
    ({"grammar": 'root ::= item ("," item){2}\nitem ::= [0-9]'}, "[0-9],[0-9],[0-9]"),
    ({"guided_grammar": 'start: N ("," N)~2\nN: "1".."3"~2\n%import common.WS_INLINE\n'}, "[1-3]{2}(,[1-3]{2}){2}"),
    ({"structured_outputs": {"grammar": '%llguidance {}\n\nstart: "Say: " Q\nQ: "yes"\n     | /n[oO]/\n'}}, "Say: (yes|n[oO])"),
    ({"structured_outputs": {"json": {"enum": ["a", "b"]}}}, '"[ab]"'),
])
def test_the_words_of_other_servers(server, extra, pattern):
    chat = ask(server, extra_body=extra).choices[0]
    completion = server.client.completions.create(model="default", prompt="I love it:", max_tokens=50, extra_body={"seed": 1, **extra}).choices[0]
    for choice, text in ((chat, chat.message.content), (completion, completion.text)):
        assert re.fullmatch(pattern, text) and choice.finish_reason == "stop"


def test_one_form_in_two_words_has_one_answer(server):
    """However many places a text is at, no token is barred that the form permits."""
    prompt = "the quick brown fox jumps over the lazy dog and the quick brown fox"
    texts = [server.client.completions.create(model="default", prompt=prompt, max_tokens=24, temperature=0,
                                              extra_body={"guided_regex": regex}).choices[0].text
             for regex in ("[a-z ]{1,200}", "([a-z ]{1,20}){1,10}")]
    assert texts[0] == texts[1] and len(texts[0]) > 30


@pytest.mark.parametrize("choice, names", [
    ("required", {"get_weather", "get_time"}),
    ({"type": "function", "function": {"name": "get_time"}}, {"get_time"}),
    ({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "get_weather"}}]}}, {"get_weather"}),
])
def test_calls_that_are_demanded(server, choice, names):
    reply = ask(server, tools=TOOLS, tool_choice=choice, parallel_tool_calls=False, messages=[{"role": "user", "content": "Is it warm in Oslo?"}])
    assert reply.choices[0].finish_reason == "tool_calls" and not reply.choices[0].message.content
    [call] = reply.choices[0].message.tool_calls
    assert call.function.name in names
    arguments = json.loads(call.function.arguments)
    assert call.function.name == "get_time" or (set(arguments) == {"city", "unit"} and arguments["unit"] in ("C", "F"))


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_calls_that_were_demanded_are_found_again(server, seed, parallel):
    """The history's calls are printed as they were generated, so that their tokens are those in the cache."""
    messages = [{"role": "user", "content": f"What is the weather in {'Oslo Rome Bern'.split()[seed]}{'?!'[parallel]}"}]
    first = ask(server, seed, messages=messages, tools=TOOLS, tool_choice="required", parallel_tool_calls=parallel, max_tokens=700)
    assert first.choices[0].finish_reason == "tool_calls"
    answer = first.choices[0].message
    messages += [answer.model_dump(exclude_none=True)] + [
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"} for call in answer.tool_calls]
    next_turn = ask(server, seed, messages=messages, tools=TOOLS, max_tokens=1)
    assert next_turn.usage.prompt_tokens_details.cached_tokens >= first.usage.total_tokens - 1


@pytest.mark.parametrize("stores", [True, False])
def test_calls_of_a_response_are_found_again(server, stores):
    tools = [{"type": "function", **tool["function"]} for tool in TOOLS]
    question = {"role": "user", "content": f"Is it warm in {'Rome' if stores else 'Bern'}?"}
    first = server.client.responses.create(model="default", input=[question], tools=tools, tool_choice="required", max_output_tokens=700, extra_body={"seed": 1})
    results = [{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"} for call in first.output]
    before = {"previous_response_id": first.id, "input": results} if stores else {
        "input": [question, *(item.model_dump(exclude_none=True) for item in first.output), *results]}
    next_turn = server.client.responses.create(model="default", tools=tools, max_output_tokens=16, **before)
    assert next_turn.usage.input_tokens_details.cached_tokens >= first.usage.total_tokens - 1


def test_calls_of_a_message_are_found_again(claude):
    messages = [{"role": "user", "content": "Is it warm in Kyiv?"}]
    first = claude.messages.create(model="default", max_tokens=700, messages=messages, tools=ANTHROPIC_TOOLS, tool_choice={"type": "any"})
    assert first.stop_reason == "tool_use"
    messages += [{"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in first.content]},
                 {"role": "user", "content": [{"type": "tool_result", "tool_use_id": block.id, "content": "sunny"} for block in first.content]}]
    next_turn = claude.messages.create(model="default", max_tokens=1, messages=messages, tools=ANTHROPIC_TOOLS)
    usage = first.usage
    total = usage.input_tokens + (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0) + usage.output_tokens
    assert next_turn.usage.cache_read_input_tokens >= total - 1


def test_strict_tools_are_free_not_to_be_called(server):
    """A model that calls by itself does so well; text stays text."""
    tools = [{"type": "function", "function": {**tool["function"], "strict": True}} for tool in TOOLS]
    for seed in range(4):
        message = ask(server, seed=seed, tools=tools, max_tokens=60, messages=[{"role": "user", "content": "Is it warm in Oslo?"}]).choices[0].message
        for call in message.tool_calls or []:
            assert call.function.name != "get_weather" or json.loads(call.function.arguments)["unit"] in ("C", "F")
        assert message.tool_calls or "<tool_call>" not in message.content


def test_responses(server):
    reply = server.client.responses.parse(model="default", input=QUESTION[0]["content"], text_format=Person, max_output_tokens=400, temperature=0)
    assert isinstance(reply.output_parsed, Person) and reply.text.format.type == "json_schema"
    tool = {"type": "function", **TOOLS[0]["function"], "strict": True}
    reply = server.client.responses.create(model="default", input="Is it warm in Oslo?", tools=[tool], tool_choice={"type": "function", "name": "get_weather"})
    [call] = [item for item in reply.output if item.type == "function_call"]
    assert set(json.loads(call.arguments)) == {"city", "unit"} and reply.tool_choice.name == "get_weather"


def test_anthropic(claude):
    messages = [{"role": "user", "content": "Is it warm in Oslo?"}]
    for choice, names in (({"type": "any"}, {"get_weather", "get_time"}), ({"type": "tool", "name": "get_weather"}, {"get_weather"})):
        reply = claude.messages.create(model="default", max_tokens=200, messages=messages, tools=ANTHROPIC_TOOLS,
                                       tool_choice={**choice, "disable_parallel_tool_use": True})
        assert reply.stop_reason == "tool_use"
        [call] = reply.content
        assert call.name in names and (call.name == "get_time" or set(call.input) == {"city", "unit"})
    reply = claude.messages.create(model="default", max_tokens=400, messages=QUESTION,
                                   extra_body={"output_config": {"format": {"type": "json_schema", "schema": Person.model_json_schema()}}})
    Person.model_validate_json(reply.content[0].text)


@pytest.mark.parametrize("fields, param", [
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"properties": {"a": {"not": {}}}}}}}, "response_format.json_schema.schema.properties.a.not"),
    ({"guided_regex": "a(?=b)"}, "guided_regex"),
    ({"guided_grammar": "root ::= root"}, "guided_grammar"),
    ({"structured_outputs": {"grammar": "start: a\n%declare b"}}, "structured_outputs.grammar"),
    ({"response_format": {"type": "json_object"}, "ignore_eos": True}, "ignore_eos"),
    ({"response_format": {"type": "json_object"}, "min_tokens": 5}, "min_tokens"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [{"type": "function", "function": {"name": "f", "strict": True, "parameters": {"type": "object", "not": {}}}}]}, "tools.f.parameters.not"),
])
def test_what_cannot_be_obeyed_is_refused(server, fields, param):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(server, extra_body=fields)
    assert caught.value.param == param and caught.value.body["message"].startswith(param)
