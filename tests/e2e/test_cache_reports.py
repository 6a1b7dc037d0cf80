"""Why prompts were computed: reports, normalisation, isolation and the doctor, with real models and OpenAI's client."""
import json
import os
import re
import statistics
import time
import uuid

import pytest
import requests

from api_server import larder, serving

RULE_LIST = [f"Rule {i}: answer question {i} in one short sentence and never speak of rule {i} itself." for i in range(14)]
RULES = " ".join(RULE_LIST[:12])
TOOLS = [{"type": "function", "function": {"name": f"tool_{i}", "description": f"Does thing number {i}.",
          "parameters": {"type": "object", "properties": {"first": {"type": "string"}, "second": {"type": "integer"}}}}}
         for i in range(3)]


@pytest.fixture(scope="module", params=["LARDER_TEST_SMOLLM2", "LARDER_TEST_GEMMA3"])
def server(request):
    with serving(model=os.environ[request.param]) as running:
        yield running


def ask(server, system, question, key=None, **body):
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    body = {"messages": [{"role": "system", "content": system}, {"role": "user", "content": question}],
            "max_tokens": 4, "temperature": 0, "larder": {"cache_report": True}, **body}
    reply = requests.post(f"{server.url}/v1/chat/completions", json=body, headers=headers, timeout=120)
    assert reply.status_code == 200, reply.text
    return reply.json()


def check_sums(reply):
    report, usage = reply["larder"]["cache"], reply["usage"]
    assert report["prompt_tokens"] == usage["prompt_tokens"]
    assert report["cached_tokens"] == usage["prompt_tokens_details"]["cached_tokens"]
    assert sum(report["cached_by_source"].values()) == report["cached_tokens"]
    place = report["cached_tokens"]
    for miss in report["misses"]:
        assert miss["begin"] == place and miss["tokens"] > 0
        place += miss["tokens"]
    assert place == report["prompt_tokens"]
    return report


def lost(report, reason):
    return sum(miss["tokens"] for miss in report["misses"] if miss["reason"] == reason)


CHANGES = {
    "timestamp": (f"The time is 10:41:07.\n{RULES}", f"The time is 11:02:33.\n{RULES}"),
    "nonce": (f"Session {uuid.UUID(int=7)}.\n{RULES}", f"Session {uuid.UUID(int=2**100 + 9)}.\n{RULES}"),
    "reordered_json_keys": (f'Data: {{"alpha": 1, "beta": 2}}\n{RULES}', f'Data: {{"beta": 2, "alpha": 1}}\n{RULES}'),
    "whitespace": (f"Be kind.\n{RULES}", f"Be kind.\n\n{RULES}"),
    "changed_system_prompt": (f"You are a baker.\n{RULES}", f"You are a carpenter.\n{RULES}"),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_the_class_of_a_change(server, kind):
    before, after = CHANGES[kind]
    salt = f"class of {kind}"
    first = ask(server, before, "What is bread?", cache_salt=salt)
    second = ask(server, after, "What is bread?", cache_salt=salt)
    report = check_sums(second)
    assert report["nearest"]["id"] == first["id"]
    assert report["divergence"]["class"] == kind and report["divergence"]["message"] == 0
    assert report["divergence"]["token"] == report["nearest"]["shared_tokens"]
    assert lost(report, "diverged") > 150
    kept = requests.get(f"{server.url}/v1/cache/requests/{second['id']}", timeout=10).json()
    assert kept == report


def test_a_conversation_loses_nothing(server):
    """An agent with tools: each turn computes what is new, and 99 % of what could be reused is."""
    messages = [{"role": "system", "content": RULES}]
    reusable, reused, known = 0, 0, 0
    for turn in range(8):
        messages.append({"role": "user", "content": f"Question {turn}: name one more thing that floats."})
        reply = server.client.chat.completions.create(
            model="default", messages=messages, tools=TOOLS, max_tokens=24, temperature=0, extra_body={"cache_salt": "agent"})
        usage = reply.usage
        reusable += known
        reused += min(known, usage.prompt_tokens_details.cached_tokens)
        # Of an answer that was cut short the last token was drawn, not computed.
        is_cut = reply.choices[0].finish_reason == "length"
        known = usage.prompt_tokens + usage.completion_tokens - is_cut
        messages.append({"role": "assistant", "content": reply.choices[0].message.content})
    assert reused >= 0.99 * reusable, (reused, reusable)


def test_compaction_has_its_own_reason(server):
    """The server sums up what a chain of responses has outgrown: neither the instructions nor the input changed."""
    body = {"instructions": RULE_LIST[0], "max_output_tokens": 4, "temperature": 0, "cache_salt": "compacted",
            "context_management": [{"type": "compaction", "compact_threshold": 400}]}
    told, report = {}, {}
    for turn in range(20):
        reply = server.post("/v1/responses", {**body, "input": f"On day {turn} we counted {turn * 7} boats in the harbour."}).json()
        body |= {"previous_response_id": reply["id"], "prompt_cache_options": {"comparison_response_id": reply["id"]}}
        told = reply.get("prompt_cache_diagnostics")
        report = server.get(f"/v1/cache/requests/{reply['id']}").json()
        if reply["output"][0]["type"] == "compaction":
            break
        assert turn == 0 or told["type"] == "cache_hit"
    assert told["type"] == "cache_miss" and told["reason"] == "context_compacted", told
    assert report["divergence"]["class"] == "truncated_history" and report["divergence"]["segment"] == "summary"
    assert report["divergence"]["advice"] and lost(report, "diverged") > 50


def test_normalisation_makes_a_hit_of_a_nonce(server):
    def header(nonce):
        return f"x-anthropic-billing-header: cc_version=2.0; cch={nonce};\n{RULES}"
    options = dict(cache_salt="billing", larder={"cache_report": True, "normalise": ["nonce_headers"]})
    ask(server, header("1a2b3"), "What is bread?", **options)
    report = check_sums(ask(server, header("9f8e7"), "What is bread?", **options))
    assert report["normalised"] == ["nonce_headers"]
    assert report["cached_tokens"] == report["prompt_tokens"] - 1


def test_the_doctor_names_the_greatest_loss(server, tmp_path):
    for minute in range(4):
        ask(server, f"The time is 10:{minute}7:00.\n{RULES}", "What is a doctor?", cache_salt="doctor")
    told = json.loads(larder("doctor", "cache", server.url, "--json").stdout)
    assert told["losses"][0]["tokens"] >= told["losses"][-1]["tokens"]
    timestamp = next(loss for loss in told["losses"] if loss["why"] == "timestamp")
    assert timestamp["tokens"] > 450 and "time" in timestamp["advice"]
    # The same from what a client recorded, without a server.
    log = tmp_path / "requests.jsonl"
    log.write_text("".join(json.dumps({"messages": [{"role": "system", "content": f"The time is 10:{minute}7:00.\n{RULES}"},
                                                    {"role": "user", "content": "What is a doctor?"}]}) + "\n"
                           for minute in range(4)) + "not json\n")
    run = larder("doctor", "cache", log, "-m", server.model, "--json")
    told = json.loads(run.stdout)
    assert told["requests"] == 4 and told["losses"][0]["why"] == "timestamp" and told["losses"][0]["requests"] == 3
    assert "requests.jsonl:5" in run.stderr
    text = larder("doctor", "cache", server.url).stdout
    assert "timestamp in system" in text


def test_the_doctor_writes_no_control_characters(tmp_path):
    """Reports are what somebody has put into a file or a server answers: none of it is for the terminal to obey."""
    bad = "\x1b[2J\x1b]0;x\x07\x7f\x9b31m\u202e\n\u2028é中"
    report = {"object": "cache.report", "prompt_tokens": 100, "cached_tokens": 0, "misses": [{"reason": "diverged", "tokens": 90}],
              "divergence": {key: key + bad for key in ("class", "segment", "advice", "old_text", "new_text")}}
    other = {"object": "cache.report", "prompt_tokens": 10, "cached_tokens": 0, "misses": [{"reason": "odd" + bad, "advice": "todo" + bad, "tokens": 9}]}
    request = {"messages": [{"role": "role" + bad, "content": "a"}]}
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps(line) + "\n" for line in (report, other, request)))
    run = larder("doctor", "cache", log, "-m", os.environ["LARDER_TEST_SMOLLM2"])
    for text in (run.stdout, run.stderr):
        assert not [c for c in text if (ord(c) < 0x20 and c != "\n") or 0x7f <= ord(c) < 0xa0 or c in "\u202e\u2028"]
    for key in ("class", "segment", "advice", "old_text", "new_text", "odd", "todo"):
        assert re.search(key + r" \[2J.*é中", run.stdout), key
    assert len(run.stdout.splitlines()) == 8
    assert "log.jsonl:3: left out: " in run.stderr


def test_the_doctor_reads_a_server_at_an_ipv6_address():
    with serving("--host", "::1") as server:
        ask(server, RULES, "What is bread?")
        run = larder("doctor", "cache", server.url, "--json")
        assert json.loads(run.stdout)["requests"] == 1


@pytest.mark.parametrize("arguments, word", [
    (("-m", "/nowhere.gguf"), "/nowhere.gguf: "), (("--kv-type", "int3", "-m", os.environ["LARDER_TEST_SMOLLM2"]), "int3")])
def test_the_doctor_blames_no_log_for_a_model_that_it_cannot_use(tmp_path, arguments, word):
    log = tmp_path / "log.jsonl"
    log.write_text('{"messages": [{"role": "user", "content": "a"}]}\n' * 2)
    error = larder("doctor", "cache", log, *arguments, code=1).stderr
    assert len(error.splitlines()) == 1 and error.startswith("larder: ") and word in error


def test_the_doctor_reads_anthropics_requests_with_tools(tmp_path):
    call = {"type": "tool_use", "id": "call_1", "name": "look", "input": {"place": "jar"}}
    chat = {"model": "x", "max_tokens": 8, "messages": [
        {"role": "user", "content": f"{RULES} What is in the jar?"}, {"role": "assistant", "content": [call]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": "jam"}]}]}
    tools = [{"name": "look", "description": "Looks.", "input_schema": {"type": "object", "properties": {}}}]
    log = tmp_path / "requests.jsonl"
    log.write_text("".join(json.dumps(body) + "\n" for body in (
        chat, {**chat, "system": [{"type": "text", "text": "Be kind."}]}, {**chat, "tools": tools})))
    run = larder("doctor", "cache", log, "-m", os.environ["LARDER_TEST_SMOLLM2"], "--json")
    assert json.loads(run.stdout)["requests"] == 3 and "left out" not in run.stderr
    with open(log, "a") as more:
        more.write('{"prompt": "a"}\n{"input": "a"}\n')
    error = larder("doctor", "cache", log, "-m", os.environ["LARDER_TEST_SMOLLM2"], "--json").stderr
    assert "jsonl:4: left out: this is a completion's request" in error and "jsonl:5: left out: this is a response's" in error


def test_the_doctor_prepares_prompts_as_the_server_does(server, tmp_path):
    """Definitions, a call and its result, of which these models' templates know nothing."""
    def body(description):
        return {"model": "smollm2", "max_tokens": 2, "messages": [
            {"role": "user", "content": f"{RULES} What is in the jar?"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "call_1", "name": "look", "input": {"place": "jar"}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": "jam"}]}],
            "tools": [{"name": "look", "description": description, "input_schema": {"type": "object", "properties": {}}}]}
    bodies = [body("Looks."), body("Tastes what is in it.")]
    num_tokens = 0
    for sent in bodies:
        usage = server.post("/v1/messages", sent).json()["usage"]
        num_tokens += usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"]
    log = tmp_path / "requests.jsonl"
    log.write_text("".join(json.dumps(sent) + "\n" for sent in bodies))
    run = larder("doctor", "cache", log, "-m", server.model, "--json")
    told = json.loads(run.stdout)
    assert told["prompt_tokens"] == num_tokens
    assert told["losses"][0]["why"] == "changed_tools" and told["losses"][0]["tokens"] > 150


def test_keys_cannot_tell_what_others_asked():
    """One prompt, two keys: no hit, no word of it, and no difference in time to a prompt that nobody asked before."""
    with serving("--api-key", "alpha", "--api-key", "beta", model=os.environ["LARDER_TEST_SMOLLM2"]) as server:
        known, unknown, own = [], [], []
        rules = " ".join(RULE_LIST)
        for i in range(9):
            secret = f"Secret {i * 7919}: {rules}"
            hidden = ask(server, secret, "What is it?", key="alpha")["id"]
            for system, times in ((secret, known), (f"Guess {i * 7919}: {rules}", unknown)):
                begin = time.monotonic()
                reply = ask(server, system, "What is it?", key="beta", max_tokens=1)
                times.append(time.monotonic() - begin)
                report = check_sums(reply)
                # Its own earlier prompts it may hear of; of the other key's not even a count.
                assert lost(report, "other_salt") == 0
                assert hidden not in json.dumps(report)
                assert (report["nearest"]["id"] in own) if own else (report["nearest"] is None)
                # All of its own prompts begin with the same few tokens, the template's and a word.
                assert report["cached_tokens"] < (40 if own else 1)
                if system is secret and own:
                    told = report["divergence"]
                    assert str(i * 7919) not in told["shared_text"] + told["old_text"]
                own.append(reply["id"])
        # A hit is some ten times as fast as a miss; these are both misses.
        ratio = statistics.median(known) / statistics.median(unknown)
        assert 0.6 < ratio < 1.6, (ratio, known, unknown)
        begin = time.monotonic()
        again = ask(server, f"Secret {8 * 7919}: {rules}", "What is it?", key="alpha", max_tokens=1)
        hit = time.monotonic() - begin
        assert again["larder"]["cache"]["cached_tokens"] > 250 and hit < 0.5 * statistics.median(known)
