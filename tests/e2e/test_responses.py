"""The Responses API and conversations through OpenAI's own client."""
import json
import time

import openai
import pytest

from api_server import serving

STORY = "Once upon a time, in a small village at the foot of a mountain, there lived an old clockmaker. "
WEATHER = {"type": "function", "name": "get_weather", "description": "The weather of a city.", "strict": None,
           "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}
TURNS = ["Tell me about the sea.", "And its colours?", "Name three fish.", "Which is the largest?", "Why is the sea salty?",
         "Tell me a short tale about a whale.", "Give it a name.", "What does it eat?", "Where does it sleep?", "Thank you!"]


def reusable(response):
    """Tokens of a response's prompt and answer that were computed: of a cut answer all but the last."""
    return response.usage.total_tokens - (response.status == "incomplete")


def test_create_and_retrieve(server):
    response = server.client.responses.create(model="smollm2", input="What is the capital of France?", temperature=0,
                                              max_output_tokens=24, metadata={"topic": "geography"})
    chat = server.client.chat.completions.create(model="smollm2", temperature=0, max_tokens=24, messages=[
        {"role": "user", "content": "What is the capital of France?"}])
    assert response.output_text == chat.choices[0].message.content and response.output_text
    assert response.status in ("completed", "incomplete")
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    details = response.usage.input_tokens_details
    assert details.cached_tokens + details.cache_write_tokens == response.usage.input_tokens
    assert response.output[0].role == "assistant" and response.metadata == {"topic": "geography"}
    again = server.client.responses.retrieve(response.id)
    assert again.output_text == response.output_text and again.usage == response.usage
    items = server.client.responses.input_items.list(response.id)
    assert [item.content[0].text for item in items] == ["What is the capital of France?"]
    server.client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        server.client.responses.retrieve(response.id)


def test_store_false_is_not_kept(server):
    response = server.client.responses.create(model="smollm2", input="Hi", max_output_tokens=4, store=False)
    with pytest.raises(openai.NotFoundError):
        server.client.responses.retrieve(response.id)


def test_stream_equals_whole(server):
    options = dict(model="smollm2", input="Say hello.", max_output_tokens=500, temperature=0)
    whole = server.client.responses.create(**options)
    assert whole.status == "completed"
    text, types, numbers = "", [], []
    for event in server.client.responses.create(**options, stream=True):
        types.append(event.type)
        numbers.append(event.sequence_number)
        if event.type == "response.output_text.delta":
            text += event.delta
    assert text == whole.output_text == event.response.output_text
    assert types[:4] == ["response.created", "response.in_progress", "response.output_item.added",
                         "response.content_part.added"]
    assert types[-4:] == ["response.output_text.done", "response.content_part.done", "response.output_item.done",
                          f"response.{whole.status}"]
    assert numbers == list(range(len(numbers)))
    with server.client.responses.stream(**options) as stream:
        assert stream.get_final_response().output_text == whole.output_text


def replay(server, create):
    """Ten turns; the share of the tokens that could be reused that were."""
    could, were, cached = 0, 0, []
    response = None
    for number, text in enumerate(TURNS):
        following = create(text, response, number)
        details = following.usage.input_tokens_details
        if response is not None:
            could += reusable(response)
            were += min(details.cached_tokens, reusable(response))
        cached.append(details.cached_tokens)
        response = following
    assert cached == sorted(cached) and cached[-1] > cached[1] > 0
    return were / could


@pytest.mark.parametrize("stream", [False, True])
def test_chain_of_previous_responses_reuses_everything(server, stream):
    def create(text, previous, number):
        options = dict(model="smollm2", input=text, instructions=f"Be brief. Chain {stream}.", temperature=1,
                       max_output_tokens=40, extra_body={"seed": number},
                       previous_response_id=previous.id if previous else None)
        count = server.client.responses.input_tokens.count(
            model="smollm2", input=text, instructions=options["instructions"],
            previous_response_id=options["previous_response_id"])
        response = server.client.responses.create(**options, stream=stream)
        if stream:
            *_, last = response
            response = last.response
        assert count.input_tokens == response.usage.input_tokens
        return response

    assert replay(server, create) >= 0.99
    assert server.metrics()["larder:history_turns_kept_total"] > 0


def test_history_sent_by_the_client_reuses_everything(server):
    """As the Agents SDK does without a store: the output items come back as input."""
    history = []

    def create(text, _, number):
        history.append({"role": "user", "content": text})
        response = server.client.responses.create(model="smollm2", input=history, temperature=1, max_output_tokens=40,
                                                  store=False, extra_body={"seed": 100 + number})
        history.extend(item.model_dump() for item in response.output)
        return response

    assert replay(server, create) >= 0.99


def test_chat_history_reuses_everything(server):
    messages, could, were, last = [], 0, 0, None
    for number, text in enumerate(TURNS):
        messages.append({"role": "user", "content": "Chat. " + text})
        reply = server.client.chat.completions.create(model="smollm2", messages=messages, temperature=1, max_tokens=40,
                                                      seed=200 + number)
        if last is not None:
            could += last
            were += min(last, reply.usage.prompt_tokens_details.cached_tokens)
        last = reply.usage.total_tokens - (reply.choices[0].finish_reason == "length")
        messages.append({"role": "assistant", "content": reply.choices[0].message.content})
    assert were / could >= 0.99


def test_agent_with_tools_reuses_everything(server):
    conversation = server.client.conversations.create(metadata={"agent": "weather"})
    could, were, last = 0, 0, None
    for number in range(6):
        items = [{"role": "user", "content": f"What is the weather in city {number}?"},
                 {"type": "function_call", "call_id": f"call_{number}", "name": "get_weather",
                  "arguments": json.dumps({"city": f"city {number}"})},
                 {"type": "function_call_output", "call_id": f"call_{number}", "output": f"{number} degrees, sunny"}]
        response = server.client.responses.create(
            model="smollm2", input=items, conversation=conversation.id, tools=[WEATHER], max_output_tokens=30,
            temperature=1, extra_body={"seed": 300 + number})
        if last is not None:
            could += reusable(last)
            were += min(response.usage.input_tokens_details.cached_tokens, reusable(last))
        last = response
    assert were / could >= 0.99
    types = [item.type for item in server.client.conversations.items.list(conversation.id, order="asc", limit=5)]
    assert types == ["message", "function_call", "function_call_output", "message"] * 6


def test_a_call_comes_as_an_item(server):
    """The history is such that a small model writes a call; the call and its result go back in."""
    call = {"type": "function_call", "name": "get_weather"}
    items = []
    for number, city in enumerate(["Paris", "Rome", "Oslo"]):
        items += [{"role": "user", "content": f"What is the weather in {city}?"},
                  {**call, "call_id": f"c{number}", "arguments": json.dumps({"city": city})},
                  {"type": "function_call_output", "call_id": f"c{number}", "output": "sunny"},
                  {"role": "assistant", "content": f"It is sunny in {city}."}]
    items.append({"role": "user", "content": "What is the weather in Bern?"})
    options = dict(model="smollm2", tools=[WEATHER], max_output_tokens=60, temperature=0)
    whole = server.client.responses.create(**options, input=items)
    with server.client.responses.stream(**options, input=items) as stream:
        names = [event.type for event in stream]
        final = stream.get_final_response()
    calls = [item for item in whole.output if item.type == "function_call"]
    assert calls, whole.output_text
    assert [(item.name, item.arguments) for item in final.output if item.type == "function_call"] == [
        (item.name, item.arguments) for item in calls]
    assert names.count("response.function_call_arguments.done") == len(calls)
    assert calls[0].name == "get_weather" and isinstance(json.loads(calls[0].arguments), dict)
    results = [{"type": "function_call_output", "call_id": item.call_id, "output": "raining"} for item in calls]
    following = server.client.responses.create(**options, input=results, previous_response_id=whole.id)
    details = following.usage.input_tokens_details
    print(f"{len(calls)} calls; then {details.cached_tokens} of {whole.usage.total_tokens} tokens reused")
    assert details.cached_tokens >= whole.usage.input_tokens - 1


def test_conversations(server):
    client = server.client
    made = client.conversations.create(metadata={"topic": "demo"}, items=[{"role": "user", "content": "one"}])
    assert client.conversations.retrieve(made.id) == made and made.metadata == {"topic": "demo"}
    assert client.conversations.update(made.id, metadata={"topic": "other"}).metadata == {"topic": "other"}
    added = client.conversations.items.create(made.id, items=[{"role": "user", "content": str(n)} for n in range(7)])
    assert len(added.data) == 7
    texts = [item.content[0].text for item in client.conversations.items.list(made.id, order="asc", limit=3)]
    assert texts == ["one", *map(str, range(7))]
    last = added.data[-1]
    assert client.conversations.items.retrieve(last.id, conversation_id=made.id) == last
    assert client.conversations.items.delete(last.id, conversation_id=made.id).id == made.id
    with pytest.raises(openai.NotFoundError):
        client.conversations.items.retrieve(last.id, conversation_id=made.id)
    assert client.conversations.delete(made.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.conversations.retrieve(made.id)


def test_diagnostics_name_what_changed(server):
    def told(before, **options):
        """What is said of a prompt against an earlier one; the stream says the same."""
        options = {"model": "smollm2", "max_output_tokens": 1, "prompt_cache_options": {"comparison_response_id": before}, **options}
        whole = server.client.responses.create(**options)
        *_, last = server.client.responses.create(**options, stream=True)
        for response in (whole, last.response):
            yield response.prompt_cache_diagnostics.to_dict()

    rules, question = f"{time.time()} {STORY * 4}", "Where did the clockmaker live? " * 8
    base = dict(instructions=rules, input=question, tools=[WEATHER], prompt_cache_key="one")
    first = server.client.responses.create(model="smollm2", max_output_tokens=4, **base)
    size = first.usage.input_tokens
    for diagnosis in told(first.id, **base):
        assert diagnosis == {"type": "cache_hit"}
    for reason, change in (("input_changed", {"input": "Who was he? " * 8}),
                           ("tools_changed", {"tools": [{**WEATHER, "description": "Rain or sun?"}]}),
                           ("prompt_cache_key_changed", {"prompt_cache_key": "two", "instructions": "Be brief."})):
        for diagnosis in told(first.id, **{**base, **change}):
            assert diagnosis["type"] == "cache_miss" and diagnosis["reason"] == reason
            assert diagnosis["cache_missed_tokens"] + diagnosis["comparison_reusable_tokens"] == size
            assert diagnosis["cache_missed_tokens"] > 20
    for diagnosis in told("resp_of_nobody", **base):
        assert diagnosis == {"type": "comparison_response_not_found"}


# Where templates tell how much to think: gpt-oss' before all messages, others' behind them.
@pytest.mark.parametrize("template", [
    "Reasoning: {{ reasoning_effort or 'medium' }}.\n{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>",
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>{% if reasoning_effort == 'low' %}<think></think>{% endif %}",
])
def test_diagnostics_name_another_effort(template, tmp_path):
    (tmp_path / "template.jinja").write_text(template)
    with serving("--chat-template", tmp_path / "template.jinja") as server:
        create = server.client.responses.create
        turns = [{"role": "user", "content": STORY}]
        first = create(model="smollm2", input=turns, max_output_tokens=4, reasoning={"effort": "low"})

        def reason(text, effort):
            more = [*turns, {"role": "assistant", "content": first.output_text}, {"role": "user", "content": text}]
            told = create(model="smollm2", input=more, max_output_tokens=1, reasoning={"effort": effort},
                          prompt_cache_options={"comparison_response_id": first.id}).prompt_cache_diagnostics.to_dict()
            return told["type"], told.get("reason")

        assert reason("Who was he?", "high") == ("cache_miss", "reasoning_effort_changed")
        if "Reasoning" in template:
            assert reason("Who was he?", "low") == ("cache_hit", None)
        turns[0]["content"] = "Another one: " + STORY
        assert reason("Who was he?", "low") == ("cache_miss", "input_changed")


def test_diagnostics_name_no_effort_that_the_template_does_not_know(server):
    def told(text, effort, **options):
        return server.client.responses.create(model="smollm2", input=text, max_output_tokens=1, reasoning={"effort": effort}, **options)

    first = told(STORY, "low")
    more = told("Another one: " + STORY, "high", prompt_cache_options={"comparison_response_id": first.id})
    assert more.prompt_cache_diagnostics.to_dict()["reason"] == "input_changed"


def test_prewarm_then_a_hit(server):
    options = dict(model="smollm2", input=f"{time.time()} {STORY * 8} Who lived there?", max_output_tokens=4)
    warm = server.client.responses.create(**options, prompt_cache_options={"prewarm": True})
    assert warm.status == "completed" and warm.output == [] and warm.usage.output_tokens == 0
    hit = server.client.responses.create(**options).usage
    assert hit.input_tokens == warm.usage.input_tokens
    assert hit.input_tokens_details.cached_tokens == hit.input_tokens - 1


def test_errors_name_the_field(server):
    def param(**options):
        with pytest.raises(openai.BadRequestError) as error:
            server.client.responses.create(**{"model": "smollm2", "input": "x", **options})
        return error.value.body["param"]

    assert param(conversation="conv_x", previous_response_id="resp_x") == "previous_response_id"
    assert param(tools=[{"type": "web_search"}]) == "tools[0].type"
    assert param(text={"format": {"type": "xml"}}) == "text.format.type"
    assert param(input=[{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]) == "input[0].content[0].type"
    assert param(prompt_cache_options={"ttl": "1h"}) == "prompt_cache_options.ttl"
    with pytest.raises(openai.NotFoundError):
        server.client.responses.create(model="smollm2", input="x", previous_response_id="resp_none")


def test_keys_do_not_see_each_other():
    with serving("--api-key", "one", "--api-key", "two", key="one") as server:
        other = server.client.with_options(api_key="two")
        made = server.client.conversations.create()
        response = server.client.responses.create(model="smollm2", input=STORY * 3, max_output_tokens=2)
        for call in (lambda: other.responses.retrieve(response.id),
                     lambda: other.responses.delete(response.id),
                     lambda: other.responses.create(model="smollm2", input="x", previous_response_id=response.id),
                     lambda: other.conversations.retrieve(made.id),
                     lambda: other.conversations.items.list(made.id),
                     lambda: other.responses.create(model="smollm2", input="x", conversation=made.id)):
            with pytest.raises(openai.NotFoundError):
                call()
        theirs = other.responses.create(model="smollm2", input=STORY * 3, max_output_tokens=2)
        assert theirs.usage.input_tokens_details.cached_tokens == 0


def test_compact(server):
    """What it gives goes on as the conversation did; the compaction alone is the same."""
    client = server.client
    items = []
    for number, text in enumerate(TURNS[:6]):
        items.append({"role": "user", "content": text})
        response = client.responses.create(model="smollm2", input=items, max_output_tokens=30, temperature=0)
        items += [item.model_dump(exclude_none=True) for item in response.output]
    before = client.responses.input_tokens.count(model="smollm2", input=items).input_tokens
    plain = client.responses.compact(model="smollm2", input=items)
    assert plain.object == "response.compaction" and plain.id.startswith("resp_")
    assert [item.type for item in plain.output] == ["message", "message", "compaction"]
    assert [item.role for item in plain.output[:2]] == ["user", "assistant"]
    assert plain.output[1].content[0].text == response.output_text
    # The question for the summary stands behind the prompt that is cached.
    usage = plain.usage
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens and usage.output_tokens > 0
    assert usage.input_tokens_details.cached_tokens > 0.5 * usage.input_tokens
    # What is summed up is the same with instructions, and it was.
    known = client.responses.compact(model="smollm2", input=items, instructions="Be brief.")
    assert known.usage.total_tokens == 0 and known.output[-1].encrypted_content == plain.output[-1].encrypted_content
    history = [item.to_dict(warnings=False) for item in plain.output]  # its types know no message of a user
    question = {"role": "user", "content": "What did I ask about?"}
    whole = client.responses.create(model="smollm2", input=[*history, question], max_output_tokens=12, temperature=0)
    alone = client.responses.create(model="smollm2", input=[history[-1], question], max_output_tokens=12, temperature=0)
    assert whole.output_text == alone.output_text
    print(f"{before} tokens, then {whole.usage.input_tokens}")
    assert whole.usage.input_tokens == alone.usage.input_tokens < before
    # Of a chain; and again, of what was compacted.
    chain = client.responses.compact(model="smollm2", previous_response_id=whole.id)
    assert [item.type for item in chain.output] == ["message", "message", "compaction"]
    with pytest.raises(openai.BadRequestError) as error:
        client.responses.compact(model="smollm2", input=[{"role": "system", "content": "Be brief."}])
    assert error.value.body["param"] == "input"
