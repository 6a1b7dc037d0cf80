"""Long conversations, bounded by each strategy, through OpenAI's own client.

Of 200 turns where they come at once; turn by turn of 60, or LARDER_TEST_TURNS=200.
"""
import os

import openai
import pytest

from api_server import serving

NUM_TURNS = 200
NUM_LIVE_TURNS = int(os.environ.get("LARDER_TEST_TURNS", "60"))
SERVER_OPTIONS = ("-c", "2048", "--kv-size", "1GiB")
BOUND = 640  # tokens of a prompt
FACT = "The code word of the old archive is Zanzibar."
QUESTION = "What is the code word of the old archive?"
ANSWERS = ["Noted.", "I see.", "All right.", "Thank you."]
SYSTEM = "You are a helpful assistant."
STRATEGIES = ["rolling_window", "retrieval", "summary"]
# Of all prompts' tokens; 0.88, 0.65 and 0.87 were seen. What is retrieved is new at every turn.
CACHED_SHARE = {"rolling_window": 0.8, "retrieval": 0.55, "summary": 0.8}


def text_of_turn(turn):
    return FACT if turn == 3 else f"On day {turn} we counted {turn * 7 % 90} boats in the harbour."


def history_of(strategy, bound=BOUND):
    return {"larder": {"history": {"strategy": strategy, "max_tokens": bound}}}


def chat_of(num_turns):
    """That many turns and the question, as a client keeps them."""
    messages = [{"role": "system", "content": SYSTEM}]
    for turn in range(1, num_turns + 1):
        messages += [{"role": "user", "content": text_of_turn(turn)},
                     {"role": "assistant", "content": ANSWERS[turn % len(ANSWERS)]}]
    return [*messages, {"role": "user", "content": QUESTION}]


def ask(server, strategy, num_turns=NUM_TURNS, **options):
    return server.client.chat.completions.create(
        model="smollm2", messages=chat_of(num_turns), temperature=0, max_tokens=16,
        extra_body={**history_of(strategy), "return_token_ids": True, **options})


def prompt_of(server, completion):
    tokens = completion.model_extra["prompt_token_ids"]
    return server.post("/detokenize", {"tokens": tokens}).json()["prompt"]


def check_promise(strategy, report, prompt):
    """What each strategy says of turn 3, and whether that is what the model read."""
    assert report["dropped_turns"] >= 3
    assert SYSTEM in prompt and prompt.count(QUESTION) == 1
    if strategy == "rolling_window":
        assert FACT not in prompt and report["summary"] is None and report["retrieved_turns"] == []
    if strategy == "retrieval":
        assert 3 in report["retrieved_turns"] and FACT in prompt
    if strategy == "summary":
        assert report["summary"] and report["summary"] in prompt and report["untold_messages"] == 0


def talk(server, strategy, say):
    """The turns and the question; say answers one. Bounded at every turn, and mostly from the cache."""
    could, cached, droppings, written, last = 0, 0, 0, 0, 0
    for turn in range(1, NUM_LIVE_TURNS + 2):
        usage, report, text = say(QUESTION if turn > NUM_LIVE_TURNS else text_of_turn(turn))
        num_tokens, num_cached = usage
        assert num_tokens <= BOUND, (turn, report)
        assert report["dropped_turns"] >= last
        droppings += report["dropped_turns"] > last
        if report["summary_usage"]:
            written += report["summary_usage"]["answers"]
        last = report["dropped_turns"]
        could += num_tokens
        cached += num_cached
    print(f"{strategy}: {could} tokens of prompts, {cached / could:.1%} cached, {droppings} droppings, "
          f"{written} summaries; of turn 3: {text!r}; {report}")
    assert last > NUM_LIVE_TURNS / 2 and report["dropped_messages"] == 2 * last
    return cached / could, report, text


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_conversation_on_the_server(server, strategy):
    conversation = server.client.conversations.create().id

    def say(text):
        response = server.client.responses.create(
            model="smollm2", input=text, instructions=SYSTEM, conversation=conversation, temperature=0,
            max_output_tokens=16 if text == QUESTION else 4, extra_body=history_of(strategy))
        usage = response.usage
        report = response.model_extra["larder"]["history"]
        return (usage.input_tokens, usage.input_tokens_details.cached_tokens), report, response.output_text

    share, report, text = talk(server, strategy, say)
    assert share >= CACHED_SHARE[strategy]
    if strategy == "retrieval":
        # What the model makes of it, beside what it wrote itself, is asked of the same words below: its own differ
        # between instruction sets.
        assert 3 in report["retrieved_turns"] and text
    if strategy == "summary":
        assert report["summary"] and report["untold_messages"] == 0
    kept = server.client.conversations.items.list(conversation, limit=1, order="asc")
    assert kept.data[0].content[0].text == text_of_turn(1)  # nothing is deleted
    server.client.conversations.delete(conversation)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_chat_that_the_client_keeps(server, strategy):
    """All 200 turns at once; then once more, and with a turn more."""
    first, second = ask(server, strategy), ask(server, strategy)
    report = first.model_extra["larder"]["history"]
    prompt = prompt_of(server, first)
    print(f"{strategy}: {first.usage.prompt_tokens} tokens; of turn 3: {first.choices[0].message.content!r}")
    assert first.usage.prompt_tokens <= BOUND
    check_promise(strategy, report, prompt)
    assert second.usage.prompt_tokens_details.cached_tokens == second.usage.prompt_tokens - 1
    assert second.choices == first.choices
    if strategy == "retrieval":
        assert "Zanzibar" in first.choices[0].message.content
    if strategy == "summary":
        assert report["summary_usage"]["answers"] > 0
        assert second.model_extra["larder"]["history"]["summary_usage"] is None


def test_without_a_strategy_it_is_an_error(server):
    with pytest.raises(openai.BadRequestError) as refused:
        ask(server, "none")
    assert refused.value.code == "context_length_exceeded"
    items = [{"role": message["role"], "content": message["content"]} for message in chat_of(NUM_TURNS)]
    with pytest.raises(openai.BadRequestError) as refused:
        server.client.responses.create(model="smollm2", input=items)
    assert refused.value.code == "context_length_exceeded"
    cut = server.client.responses.create(model="smollm2", input=items, truncation="auto", max_output_tokens=4)
    # Half of the room, which comes in steps of 64 tokens, less than a turn.
    assert cut.truncation == "auto" and 940 < cut.usage.input_tokens < 2048
    assert cut.model_extra["larder"]["history"]["dropped_turns"] >= 3


def test_compaction(server):
    """The client drops all that stands before the newest compaction, as OpenAI's guide has it."""
    items, lengths, compactions = [], [], 0
    for turn in range(1, 61):
        items.append({"role": "user", "content": text_of_turn(turn)})
        response = server.client.responses.create(
            model="smollm2", input=items, instructions=SYSTEM, store=False, max_output_tokens=4, temperature=0,
            context_management=[{"type": "compaction", "compact_threshold": BOUND}])
        assert response.usage.input_tokens <= BOUND
        for item in response.output:
            if item.type == "compaction":
                compactions += 1
                items = []
            items.append(item.model_dump(exclude_none=True))
        lengths.append(len(items))
    print(f"{compactions} compactions in 60 turns; at most {max(lengths)} items were sent")
    assert 2 <= compactions <= 12 and max(lengths) < 2 * 60


def test_every_cut_of_a_chain_is_told(server):
    """By an item of its own, even where more turns are summed up in the same words as before."""
    chain, dropped, cuts = {}, 0, 0
    for turn in range(12):
        words = " ".join(["apple", "tree", "river", "stone", "cloud", "mouse"][(turn * 5 + word * word) % 6] for word in range(30))
        response = server.client.responses.create(
            model="smollm2", input=words, max_output_tokens=10, temperature=0,
            context_management=[{"type": "compaction", "compact_threshold": 400}], **chain)
        chain = {"previous_response_id": response.id}
        now = response.model_extra["larder"]["history"]["dropped_messages"]
        assert [item.type for item in response.output].count("compaction") == (now > dropped), turn
        cuts += now > dropped
        dropped = now
    assert cuts >= 2


@pytest.mark.skipif("LARDER_TEST_GEMMA3" not in os.environ, reason="the model is not there")
def test_another_model_and_a_rule_for_all():
    """Gemma 3 has no system prompt of its own, and other tokens; the server bounds who does not say."""
    with serving(*SERVER_OPTIONS, "--history", f"retrieval:{BOUND}", model=os.environ["LARDER_TEST_GEMMA3"]) as gemma:
        for strategy in STRATEGIES:
            # This one goes on to the last token that a summary may have.
            completion = ask(gemma, strategy, 40 if strategy == "summary" else NUM_TURNS)
            report = completion.model_extra["larder"]["history"]
            print(f"{strategy}: {completion.usage.prompt_tokens} tokens, {report}")
            assert completion.usage.prompt_tokens <= BOUND
            check_promise(strategy, report, prompt_of(gemma, completion))
        message = gemma.post("/v1/messages", {"model": "smollm2", "max_tokens": 4, "messages": chat_of(NUM_TURNS)[1:]}).json()
        assert message["larder"]["history"]["strategy"] == "retrieval"
        usage = message["usage"]
        assert usage["input_tokens"] + usage["cache_read_input_tokens"] <= BOUND
