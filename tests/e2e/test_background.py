"""Responses in the background, through OpenAI's own client: asked for, left, read again, cancelled."""
import time

import openai
import pytest

from api_server import serving

LONG = dict(model="smollm2", input="Tell me a long tale about a whale.", temperature=0, max_output_tokens=7000,
            background=True, extra_body={"ignore_eos": True})


def ended(client, response, seconds=60):
    """What becomes of it."""
    end = time.monotonic() + seconds
    while response.status in ("queued", "in_progress"):
        assert time.monotonic() < end
        response = client.responses.retrieve(response.id)
    return response


def test_the_answer_is_there_when_it_is_asked_for(server):
    client = server.client
    options = dict(model="smollm2", input="What is the capital of France?", temperature=0, max_output_tokens=24)
    whole = client.responses.create(**options)
    begun = client.responses.create(**options, background=True)
    assert begun.status == "queued" and begun.background and begun.output == [] and begun.usage is None
    response = ended(client, begun)
    assert response.id == begun.id and response.status == whole.status
    assert response.output_text == whole.output_text
    assert response.usage.output_tokens == whole.usage.output_tokens
    following = client.responses.create(model="smollm2", input="And of Italy?", previous_response_id=response.id,
                                        max_output_tokens=4)
    assert following.usage.input_tokens_details.cached_tokens >= response.usage.total_tokens - 1
    assert client.responses.cancel(response.id).status == response.status


def test_a_stream_is_left_and_read_again(server):
    client = server.client
    seen, left = [], client.responses.create(**{**LONG, "max_output_tokens": 60}, stream=True)
    for event in left:
        seen.append(event)
        if event.type == "response.output_text.delta":
            break
    left.close()
    assert [event.type for event in seen[:3]] == ["response.created", "response.queued", "response.in_progress"]
    name, last = seen[0].response.id, seen[-1].sequence_number
    rest = list(client.responses.retrieve(name, stream=True, starting_after=last))
    assert [event.sequence_number for event in seen + rest] == list(range(len(seen) + len(rest)))
    text = "".join(event.delta for event in seen + rest if event.type == "response.output_text.delta")
    response = client.responses.retrieve(name)
    assert rest[-1].type == "response.incomplete" and rest[-1].response.output_text == text == response.output_text
    # Now that it has ended, by the client's helper, too.
    assert [event.to_dict() for event in client.responses.retrieve(name, stream=True)] == [event.to_dict() for event in seen + rest]
    with client.responses.stream(response_id=name, starting_after=last) as stream:
        assert [event.sequence_number for event in stream] == [event.sequence_number for event in rest]


def test_cancelled(server):
    client = server.client
    response = client.responses.create(**LONG)
    while client.responses.retrieve(response.id).status == "queued":
        pass
    with pytest.raises(openai.BadRequestError) as error:
        client.responses.create(model="smollm2", input="x", previous_response_id=response.id)
    assert error.value.body["param"] == "previous_response_id"
    cancelled = client.responses.cancel(response.id)
    assert cancelled.status == "cancelled" and cancelled.id == response.id
    assert client.responses.cancel(response.id) == cancelled == client.responses.retrieve(response.id)
    stored = client.responses.create(model="smollm2", input="Hi", max_output_tokens=2)
    with pytest.raises(openai.BadRequestError):
        client.responses.cancel(stored.id)
    with pytest.raises(openai.BadRequestError) as error:
        client.responses.create(model="smollm2", input="Hi", background=True, store=False)
    assert error.value.body["param"] == "background"
    gone = client.responses.create(**LONG)
    client.responses.delete(gone.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(gone.id)
    while server.metrics()["vllm:num_requests_running"] > 0:
        pass


def test_a_server_ends_without_waiting_for_them():
    """What would be stored ends with it; LONG takes longer than stop() waits."""
    with serving("--drain-seconds", "600") as server:
        response = server.client.responses.create(**LONG)
        while server.client.responses.retrieve(response.id).status == "queued":
            pass
        assert server.stop() == 0
