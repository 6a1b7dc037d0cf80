"""larder plan and larder doctor as a person and a program run them."""
import contextlib
import json
import os
import pathlib
import re
import socket
import subprocess
import threading
import time

import pytest

from api_server import BIN, larder, serving

SMOLLM2 = os.environ.get("LARDER_TEST_SMOLLM2")
GEMMA3 = os.environ.get("LARDER_TEST_GEMMA3")


def plan(*arguments, code=0):
    return json.loads(larder("plan", "--json", *arguments, code=code).stdout)


def test_plan_of_a_file_is_measured_and_complete():
    out = plan("-m", SMOLLM2, "--kv-size", "200MiB", "--rate", 0.001)
    assert out["memory"]["kv_bytes_per_token"] == 23040
    assert out["model"]["parameters"] == 134515008
    assert out["server"]["total_bytes"] >= out["server"]["kv_bytes"] + out["server"]["weights_bytes"]
    assert out["speed"]["source"] == "measured"
    assert out["capacity"]["max_requests_per_second"] > 0.01
    assert 0 < out["capacity"]["requests_by_littles_law"] < 1
    cold = [row["seconds"] for row in out["speed"]["first_token"]]
    assert cold == sorted(cold) and all(row["seconds_all_cached"] < row["seconds"] for row in out["speed"]["first_token"])
    rates = [lever["max_requests_per_second"] for lever in out["levers"]]
    assert rates and rates == sorted(rates, reverse=True)
    assert set(out["speed"]["targets"]) == {"voice", "code", "chat", "batch"}


def test_plan_keeps_room_for_all_that_a_server_holds_of_requests():
    out = plan("-m", SMOLLM2, "--no-measure", "--kv-size", "64MiB")
    # Answers, stored responses, drafts, summaries, recent prompts, reports, tokens in line.
    assert out["server"]["bookkeeping_bytes"] >= (64 + 256 + 64 + 4 + 32 + 8 + 64) << 20


def test_scratch_is_planned_for_what_the_cache_holds(tmp_path):
    """Not for the context that a file promises: more memory is never less of it."""
    with open(SMOLLM2, "rb") as file:
        content = bytearray(file.read())
    key = b"llama.context_length"
    at = content.index(key) + len(key)  # a type, 32 bits, and the number
    content[at + 4:at + 8] = (1 << 24).to_bytes(4, "little")
    model = tmp_path / "long.gguf"
    model.write_bytes(content)
    # What else a server holds differs from machine to machine by more than a block.
    held = plan("-m", model, "--no-measure", "--kv-size", "96MiB", "-c", 4200)["server"]
    tightest = (held["total_bytes"] + held["bookkeeping_bytes"]) // (1 << 20) + 1
    lengths = []
    for more in (0, 50, 55, 235):
        out = plan("-m", model, "--no-measure", "--memory", f"{tightest + more}MiB")["server"]
        assert out["max_model_len"] >= 0.99 * out["kv_capacity_tokens"], more
        lengths.append(out["max_model_len"])
    assert lengths == sorted(lengths) and lengths[0] > 4000
    assert plan("-m", model, "--no-measure", "--memory", f"{tightest + 235}MiB", "-c", 2048)["server"]["max_model_len"] == 2048


def test_clients_are_planned_by_their_limits():
    def bookkeeping(*options):
        return plan("-m", SMOLLM2, "--no-measure", *options)["server"]["bookkeeping_bytes"]

    few = bookkeeping("--max-sequences", 100, "--kv-size", "64MiB")
    more = bookkeeping("--max-sequences", 500, "--kv-size", "64MiB")
    assert more - few > 400 * (8 << 10)
    # A step has so many tokens that no more of them would run.
    most = bookkeeping("--max-sequences", 511, "--kv-size", "64MiB")
    assert bookkeeping("--max-sequences", 65536, "--kv-size", "64MiB") == most
    assert bookkeeping("--max-sequences", 65536, "--kv-size", "64MiB", "--batch-tokens", 1024) - most > 500 * (8 << 10)
    # And the tokens of their answers, by what the cache holds.
    assert bookkeeping("--max-sequences", 100, "--kv-size", "128MiB") > few


OF_SERVER = [("--max-connections", 1000), ("--max-body-bytes", "256MiB"), ("--kv-events", "tcp://127.0.0.1:0"),
             ("--upstream", "https://127.0.0.1:1/v1", "--upstream-models", "big", "--upstream-connections", 1000,
              "--upstream-key-env", "LARDER_TEST_SET_WHERE_IT_IS_SERVED"),
             ("--anticipate", "off")]
WITHOUT_MEMORY = ["--host", "127.0.0.1", "--name", "served", "--normalise", "timestamps", "--cors", "http://app.example",
                  "--reasoning-format", "none", "--history", "summary:1024", "--drain-seconds", 1, "--log-seconds", 0,
                  "--api-key", "a-key"]
TEMPLATE = pathlib.Path(__file__).parents[1] / "golden/chat_template/templates/qwen3.jinja"


def test_what_a_server_is_told_of_its_memory_counts_in_a_plan():
    def bookkeeping(*options):
        return plan("-m", SMOLLM2, "--no-measure", "--kv-size", "64MiB", "--chat-template", TEMPLATE, *options)["server"]["bookkeeping_bytes"]

    usual = bookkeeping()
    fewer, larger, events, upstream, idle = [bookkeeping(*options) for options in OF_SERVER]
    assert usual - fewer > 15000 * (12 << 10)
    assert larger - usual == 4 * ((1 << 28) - (64 << 20))
    assert events - usual >= 16 << 20
    assert upstream - usual == 1000 * (160 << 10)
    assert usual - idle >= 8 << 20


def test_a_plan_and_a_server_and_the_doctor_take_the_same_line(monkeypatch):
    """And say the same of it."""
    monkeypatch.setenv("LARDER_TEST_SET_WHERE_IT_IS_SERVED", "a-key")
    options = ["--kv-size", "64MiB", "--chat-template", TEMPLATE, *(word for words in OF_SERVER for word in words), *WITHOUT_MEMORY]
    planned = re.search(r"at most +(.*) of bookkeeping", larder("plan", "-m", SMOLLM2, "--no-measure", *options).stdout)[1]
    with serving(*options, name=None) as server:
        assert f"Bookkeeping: up to {planned} more, as requests come\n" in server.lines
    checks = doctor("--port", 0, *options)
    assert checks["upstream"]["verdict"] == checks["events"]["verdict"] == checks["fit"]["verdict"] == "OK"
    for command in "plan", "doctor":  # nobody is told of options that change nothing
        assert "--reasoning-format" not in larder(command, "--help").stdout


def test_the_doctor_looks_at_what_a_server_would_hold():
    held = plan("-m", SMOLLM2, "--no-measure", "--kv-size", "64MiB")["server"]
    memory = f"{(held['total_bytes'] + held['bookkeeping_bytes'] >> 20) + 64}MiB"
    assert doctor("--port", 0, "--memory", memory)["fit"]["verdict"] == "OK"
    assert doctor("--port", 0, "--memory", memory, "--max-body-bytes", 1 << 28, code=1)["fit"]["verdict"] == "FAIL"


def test_the_doctor_finds_an_upstream_and_events_that_are_none():
    asked = ("--upstream", "http://127.0.0.1:1/v1", "--upstream-models", "big")
    for option, word in (("--upstream-key-env", "LARDER_TEST_NO_SUCH_KEY"), ("--upstream-when", "never")):
        check = doctor("--port", 0, *asked, option, word, code=1)["upstream"]
        assert word in check["text"] and check["fix"]
    checks = doctor("--port", 0, "--kv-events", "tcp://127.0.0.1:none", *asked, code=1)
    assert checks["events"]["verdict"] == "FAIL" and "--kv-events" in checks["events"]["text"]
    assert checks["upstream"]["verdict"] == checks["fit"]["verdict"] == "OK"


@pytest.mark.parametrize("model, bytes_per_token", [
    ("llama-3-8b", 131072), ("Llama 3 70B", 327680), ("llama-3.1-405b", 516096), ("deepseek-v3", 70272)])
def test_plan_of_published_models(model, bytes_per_token):
    out = plan("-m", model, "--machine", "h200", "--tp", 16)
    assert out["memory"]["kv_bytes_per_token"] == bytes_per_token
    assert out["fits"] and out["capacity"]["requests_by_memory"] > 1


def test_a_plan_takes_the_types_that_a_server_takes():
    run = larder("plan", "-m", "deepseek-v3", "--machine", "h200", "--tp", 16, "--kv-type", "int8", code=1)
    assert "--kv-type int8: deepseek-v3 has latent attention" in run.stderr


def test_plan_says_what_is_missing_and_still_shows_the_ceiling():
    run = larder("plan", "-m", "llama-3-70b", "--machine", "h100", code=1)
    assert "does not fit: needs" in run.stderr and "--tp 2" in run.stderr
    out = plan("-m", "llama-3-70b", "--machine", "h100", code=1)
    alone = [d for d in out["speed"]["decode"] if d["context"] == 0 and d["requests"] == 1][0]["tokens_per_second"]
    assert 23.6 < alone < 24.2
    assert out["shortage"] in run.stderr


@pytest.mark.parametrize("option", ["--kv-size", "--memory"])
def test_plan_of_a_file_that_does_not_fit_is_a_report_too(option):
    run = larder("plan", "--json", "-m", SMOLLM2, "--no-measure", option, "900TiB", code=1)
    out = json.loads(run.stdout)
    assert out["fits"] is False and out["memory"]["kv_bytes_per_token"] == 23040
    assert run.stderr == f"larder: {out['shortage']}\n" and f"take a smaller {option}" in out["shortage"]
    assert out["machine"]["memory_bytes"] < 900 << 40


def test_plan_of_a_published_model_on_this_machine():
    out = plan("-m", "llama-3.2-1b", "--weights", "q4_0", "--prompt", 512, "--output", 64)
    assert out["machine"]["read_bytes_per_second"] > 1e9
    assert out["speed"]["source"] == "roofline"


def test_plan_of_a_file_for_another_case_does_not_ask_this_machine():
    larder("plan", "-m", SMOLLM2, "--kv-size", "70GiB", "--machine", "h100")
    for arguments in (("--machine", "h100"), ("--weights", "q4_0", "--no-measure")):
        run = larder("plan", "-m", SMOLLM2, "--kv-size", "100TiB", *arguments, code=1)
        assert "Requests of 128 tokens at once" in run.stdout and "does not fit: needs" in run.stderr


def test_plan_for_another_machine_takes_its_limits_from_the_options():
    arguments = ("-m", "llama-3-8b", "--machine", "h100")
    assert plan(*arguments, "--memory", "40GiB")["machine"]["memory_bytes"] == 40 << 30
    assert plan(*arguments, "--kv-size", "2GiB")["memory"]["kv_budget_bytes_per_device"] == 2 << 30
    short = plan(*arguments, "-c", 1000)
    assert max(row["prompt"] for row in short["speed"]["first_token"]) == 1000
    assert short["capacity"]["longest_request_tokens"] == 1000
    assert "does not fit" in larder("plan", *arguments, "--memory", "8GiB", code=1).stderr


def test_plan_holds_a_request_of_the_length_that_was_asked_for():
    arguments = ("plan", "-m", SMOLLM2, "--machine", "l4", "--kv-size", "100MiB")
    larder(*arguments, "-c", 4096)
    # As a server, which takes requests without a window, too.
    for window in ((), ("--attention-window", 64)):
        run = larder(*arguments, "-c", 8192, *window, code=1)
        assert "for one request of 8192 tokens" in run.stderr and "use --kv-size 180MiB" in run.stderr
    larder(*arguments[:-1], "180MiB", "-c", 8192)


def test_plan_of_too_large_a_disk_advises_a_smaller_one(tmp_path):
    run = larder("plan", "-m", SMOLLM2, "--no-measure", "--kv-disk", tmp_path, "--kv-disk-size", "1000TiB", code=1)
    assert run.stderr.endswith(" available: take a smaller --kv-disk-size\n")


def test_plan_for_this_machine_takes_its_context_from_the_options():
    def longest(*arguments):
        out = plan("-m", SMOLLM2, "--no-measure", *arguments)
        assert out["model"]["context_length"] == 8192
        return out["memory"]["max_context_for_budget"][0]["tokens"]

    assert longest("-c", 1000) == 1000
    assert longest("-c", 20000, "--kv-size", "600MiB", "--prompt", 15000) == 20000
    assert longest("--kv-size", "600MiB") == 8192


def test_a_context_beyond_the_trained_one_is_told():
    for model in (SMOLLM2, "llama-3-8b"):
        arguments = ("plan", "-m", model, "--machine", "h100", "-c", 20000)
        warning = larder(*arguments).stderr
        assert "--max-model-len 20000" in warning and " 8192 " in warning and "--attention-window" in warning
        assert larder(*arguments, "--attention-window", 4096).stderr == ""


def test_plan_counts_no_more_decodes_than_a_step_has():
    arguments = ("-m", "llama-3.1-8b", "--machine", "h100", "--prompt", 512)
    full = plan(*arguments)["capacity"]
    at_64 = plan(*arguments, "--max-sequences", 64)["capacity"]
    fewer = plan(*arguments, "--max-sequences", 16)["capacity"]
    assert full["requests_by_memory"] > 256
    for figure in ("max_requests_per_second", "decode_tokens_per_second_full"):
        assert full[figure] == pytest.approx(at_64[figure]) and fewer[figure] < 0.6 * full[figure]
    assert "64, in turns" in larder("plan", *arguments).stdout
    assert "in turns" not in larder("plan", *arguments, "--max-sequences", 64).stdout


def test_plan_with_a_window_is_about_the_window_throughout():
    arguments = ("-m", "llama-3.1-8b", "--machine", "h100", "--prompt", 8192)
    window = ("--attention-window", 1024, "--attention-sinks", 16)
    all_seen, out = plan(*arguments), plan(*arguments, *window)
    assert {row["tokens"] for row in out["memory"]["max_context_for_budget"]} == {1 << 24}
    assert out["capacity"]["longest_request_tokens"] == 1 << 24
    decode = {row["context"]: row["tokens_per_second"] for row in out["speed"]["decode"] if row["requests"] == 64}
    assert decode[2048] == decode[8192] == decode[131072] < decode[512]
    first, first_all = ({row["prompt"]: row["seconds"] for row in o["speed"]["first_token"]} for o in (out, all_seen))
    assert first[512] == first_all[512] and first[131072] < 0.5 * first_all[131072]
    assert out["capacity"]["ttft_seconds"] == first[8192]
    for target, of_all in all_seen["speed"]["targets"].items():
        assert out["speed"]["targets"][target]["longest_prompt"] > of_all["longest_prompt"]
    page = larder("plan", *arguments, *window).stdout
    held = f"{out['capacity']['requests_by_memory']:.1f}"
    for line in (rf"Requests of 8192 tokens at once +{held}", rf"memory holds {held}", r"Longest context of 100 at once +any, up to",
                 r"Attention window +1024 tokens and 16 sinks: a token sees 1040 at most, a request holds 2592 at most"):
        assert re.search(line, page), page
    short = plan(*arguments, *window, "--kv-size", "1GiB")["memory"]["max_context_for_budget"]
    assert [row["tokens"] for row in short] == [1 << 24, 816, 160, 80]


def test_plan_with_a_window_takes_lengths_beyond_the_context():
    arguments = ("-m", "llama-3-8b", "--machine", "h100", "--prompt", 100000)
    assert "8192" in larder("plan", *arguments, code=1).stderr
    out = plan(*arguments, "--attention-window", 1024, "--cached", 90)
    assert out["workload"]["prompt"] == 100000 and out["fits"]
    assert "90 % of the prompt cached, of which the window's 1024 tokens count" in larder(
        "plan", *arguments, "--attention-window", 1024, "--cached", 90).stdout


def test_plan_cuts_no_length_that_was_given():
    out = larder("plan", "-m", "llama-3-8b", "--machine", "h100", "--prompt", 8100).stdout
    assert "8100 tokens in, 92 out" in out


def test_plan_without_measuring_is_about_memory():
    out = larder("plan", "-m", GEMMA3, "--no-measure").stdout
    assert "KV bytes per token" in out and "first token" not in out


@pytest.mark.parametrize("arguments, words", [
    (("-m", "llama-3-9b"), ["llama-3-9b", "Llama 3 8B", "--list"]),
    (("-m", "llama-3-8b", "--machine", "tpu"), ["tpu", "H100"]),
    (("-m", "llama-3-8b", "--weights", "q3"), ["q3", "q4_0"]),
    (("-m", "llama-3-8b", "--tp", 2), ["--tp", "--machine"]),
    (("-m", "llama-3-8b", "--workers", "127.0.0.1:1"), ["--workers: planned for a model's file on this machine"]),
    (("-m", SMOLLM2, "--workers", "127.0.0.1:1", "--machine", "h100"), ["--workers: planned for", "--machine"]),
    (("-m", SMOLLM2, "--workers", "127.0.0.1:1", "--weights", "q4_0"), ["--workers: planned for", "--weights"]),
    (("-m", SMOLLM2, "--draft-model", SMOLLM2, "--machine", "h100"), ["--draft-model: planned for", "--machine"]),
    (("-m", "llama-3-8b", "--machine", "h100", "--workers", "nowhere"), ["--workers", "nowhere", "HOST:PORT"]),
    (("-m", "llama-3-8b", "--machine", "h100", "--kv-disk", "d", "--kv-disk-size", "lots"), ["--kv-disk-size", "lots"]),
    (("-m", "llama-3-8b", "--device", "cuda:0", "--machine", "h100"), ["--device", "--machine", "one of them"]),
    (("-m", "llama-3-8b", "--device", "cuda:99"), ["cuda:99"]),
    (("-m", "llama-3-8b", "--machine", "h100", "--kv-size", "lots"), ["lots", "512MiB"]),
    (("-m", "llama-3-8b", "--machine", "h100", "--memory", "x"), ["x", "512MiB"]),
    (("-m", "llama-3-8b", "--machine", "h100", "--memory", "8GiB", "--kv-size", "1GiB"), ["--memory", "--kv-size"]),
    (("-m", "llama-3-8b", "--machine", "h100", "--kv-size", "0"), ["--kv-size 0: must be more than 0"]),
    (("-m", SMOLLM2, "--memory", "0MiB"), ["--memory 0MiB: must be more than 0"]),
    (("-m", "llama-3-8b", "--machine", "h100", "--prompt", 9000), ["--prompt 9000", "8192"]),
    (("-m", "llama-3-8b", "--machine", "h100", "--output", 9000), ["--output 9000", "8192"]),
    (("-m", "llama-3-8b", "--machine", "h100", "--attention-window", 17), ["--attention-window must", "multiple of 16"]),
    (("-m", SMOLLM2, "--machine", "h100", "--attention-sinks", 16), ["--attention-sinks needs", " --attention-window"]),
    (("-m", "llama-3-8b", "--machine", "h100", "--attention-window", 8192), ["--attention-window 8192", "smaller window"]),
])
def test_plan_errors_help(arguments, words):
    error = larder("plan", *arguments, code=1).stderr.strip().splitlines()[-1]
    for word in words:
        assert word in error


def test_plan_lists_what_it_knows():
    out = larder("plan", "--list").stdout
    assert "gpt-oss 120B" in out and "RTX 4090" in out
    names = plan("--list")
    assert "gpt-oss 120B" in names["models"] and "RTX 4090" in names["machines"] and names["weights"][0] == "f16"
    assert names["machines"][0] == "this"


def doctor(*arguments, code=0):
    model = () if "-m" in arguments else ("-m", SMOLLM2)
    report = json.loads(larder("doctor", "--json", *model, *arguments, code=code).stdout)
    assert report["ok"] == (code == 0)
    return {check["check"]: check for check in report["checks"]}


def test_doctor_of_a_healthy_set_up(tmp_path):
    checks = doctor("--port", 0, "--kv-size", "64MiB", "--kv-disk", tmp_path / "new" / "kv", "--kv-disk-size", "64MiB")
    for name in ("instructions", "memory", "model", "weights", "tokenizer", "chat template", "fit", "port", "disk", "disk room"):
        assert checks[name]["verdict"] == "OK", checks[name]
    assert not (tmp_path / "new").exists()
    lines = larder("doctor", "-m", SMOLLM2, "--port", 0).stdout.splitlines()
    assert all(line.split()[0] in ("OK", "WARN", "FAIL") for line in lines)
    assert all("; fix: " in line for line in lines if not line.startswith("OK"))


def test_doctor_finds_a_taken_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        check = doctor("--port", taken.getsockname()[1], code=1)["port"]
    assert check["verdict"] == "FAIL" and "--port" in check["fix"]


def test_doctor_looks_at_the_address_as_the_server_does(tmp_path):
    def port(*arguments, code=0):
        check = doctor("--port", 0, *arguments, code=code)["port"]
        assert check["verdict"] == ("FAIL" if code else "OK"), check
        return check

    keys = tmp_path / "keys"
    keys.write_text("abc\n")
    assert "--api-key" in port("--host", "0.0.0.0", code=1)["fix"]
    for allowed in (("--open",), ("--api-key", "k"), ("--api-key-file", keys)):
        port("--host", "0.0.0.0", *allowed)
    port("--host", "localhost")
    assert "example.com" in port("--host", "example.com", code=1)["text"]
    assert "none" in port("--api-key-file", tmp_path / "none", code=1)["text"]


def test_doctor_finds_no_such_device():
    checks = doctor("--port", 0, "--device", "cuda:99", code=1)
    assert checks["device"]["verdict"] == "FAIL" and "cuda:99" in checks["device"]["text"]
    assert "fit" not in checks


def test_doctor_finds_a_size_that_is_none(tmp_path):
    for size in ("10XB", "1KiB"):
        check = doctor("--port", 0, "--kv-disk", tmp_path, "--kv-disk-size", size, code=1)["disk"]
        assert check["verdict"] == "FAIL" and "--kv-disk-size" in check["text"]


def test_doctor_finds_a_damaged_model(tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(open(SMOLLM2, "rb").read(1000))
    run = larder("doctor", "--port", 0, "-m", broken, code=1)
    assert any(line.startswith("FAIL") and ("broken.gguf" in line or "GGUF" in line) for line in run.stdout.splitlines())
    assert "FAIL" in larder("doctor", "--port", 0, "-m", tmp_path / "none.gguf", code=1).stdout


def test_doctor_warns_of_a_template_that_asks_for_more(tmp_path):
    own = tmp_path / "own.jinja"
    own.write_text("{% if tools %}{{ tools|nope }}{% endif %}{{ messages[0].content }}")
    check = doctor("--port", 0, "--chat-template", own)["chat template"]
    assert check["verdict"] == "WARN" and "the filter nope" in check["text"]
    arguments = ("plan", "-m", SMOLLM2, "--no-measure")
    assert "the filter nope" in larder(*arguments, "--chat-template", own).stderr
    assert larder(*arguments).stderr == ""


def test_doctor_finds_what_it_may_not_read(tmp_path):
    checks = doctor("--port", 0, "--chat-template", tmp_path, code=1)
    check = checks["chat template"]
    assert check["verdict"] == "FAIL" and f"{tmp_path}: cannot be read" in check["text"]
    assert "--chat-template" in check["fix"]
    assert checks["fit"]["verdict"] == "OK", "what comes behind is looked at all the same"
    # No more than a folder that this user may not enter; root may enter all of those.
    (tmp_path / "round").symlink_to(tmp_path / "round")
    check = doctor("--port", 0, "-m", tmp_path / "round" / "m.gguf", code=1)["model"]
    assert check["verdict"] == "FAIL" and "symbolic links" in check["text"] and check["fix"]


def test_doctor_finds_what_does_not_fit():
    assert doctor("--port", 0, "--kv-size", "900TiB", code=1)["fit"]["verdict"] == "FAIL"


def test_doctor_finds_a_size_of_nothing():
    check = doctor("--port", 0, "--kv-size", 0, code=1)["fit"]
    assert "--kv-size 0" in check["text"] and "smaller" not in check["fix"]


def test_doctor_looks_at_options_before_the_model_is_there(tmp_path):
    """And whether it can be fetched."""
    def checks_of(cache, *arguments):
        run = subprocess.run([BIN, "doctor", "--json", "--port", "0", *arguments], capture_output=True, text=True,
                             timeout=60, env={**os.environ, "XDG_CACHE_HOME": str(cache)})
        return {(check["check"], check["verdict"]): check for check in json.loads(run.stdout)["checks"]}

    for option, word in (("--kv-size", "lots"), ("--kv-type", "int3"), ("--attention-window", "17")):
        assert word in checks_of(tmp_path, option, word)["fit", "FAIL"]["text"]
    checks = checks_of(tmp_path / "new")
    assert ("model", "WARN") in checks and ("model", "FAIL") not in checks and ("fit", "FAIL") not in checks
    assert not (tmp_path / "new").exists()
    (tmp_path / "file").write_text("")
    assert "XDG_CACHE_HOME" in checks_of(tmp_path / "file")["model", "FAIL"]["fix"]


def test_doctor_fetches_no_draft_model(tmp_path):
    def checks_of(draft, code=0):
        env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "PIP_NO_INDEX": "1"}
        run = subprocess.run([BIN, "doctor", "--json", "--port", "0", "-m", SMOLLM2, "--kv-size", "64MiB", "--draft-model", draft],
                             capture_output=True, text=True, timeout=60, env=env)
        assert run.returncode == code and "Fetching" not in run.stderr, run.stderr
        return {check["check"]: check for check in json.loads(run.stdout)["checks"]}

    checks = checks_of("smollm2-135m")
    assert checks["draft model"]["verdict"] == "WARN" and checks["draft model"]["fix"] == "larder pull smollm2-135m"
    assert checks["fit"]["verdict"] == "OK"  # without it
    assert not (tmp_path / "cache").exists()
    checks = checks_of(str(tmp_path / "none.gguf"), code=1)
    assert checks["draft model"]["verdict"] == "FAIL" and "--draft-model" in checks["draft model"]["fix"]
    assert checks["fit"]["verdict"] == "OK"
    checks = checks_of(SMOLLM2)
    assert "draft model" not in checks and checks["fit"]["verdict"] == "OK"


def test_doctor_finds_the_disk_in_use(tmp_path):
    options = ("--kv-disk", tmp_path, "--kv-disk-size", "64MiB")
    with serving("--kv-size", "64MiB", *options):
        check = doctor("--port", 0, *options, code=1)["disk"]
        assert check["verdict"] == "FAIL" and "another process" in check["text"]
    assert doctor("--port", 0, *options)["disk"]["verdict"] == "OK"
    assert not list(tmp_path.glob("doctor-*"))


def test_doctor_warns_of_a_disk_without_room(tmp_path):
    check = doctor("--port", 0, "--kv-disk", tmp_path, "--kv-disk-size", "900TiB", code=1)
    assert check["disk room"]["verdict"] == "WARN"


def test_doctor_takes_a_disk_that_is_full_of_blocks(small_disk):
    """New ones take their place; what else fills it keeps the tier from beginning."""
    full = small_disk / "0.kv"
    with contextlib.suppress(OSError), open(full, "wb", buffering=0) as file:
        while file.write(bytes(1 << 20)) > 0:
            pass
    speed = doctor("--port", 0, "--kv-disk", small_disk, "--kv-disk-size", "8MiB")["disk speed"]
    assert speed["verdict"] == "WARN" and "not measured" in speed["text"]
    full.rename(small_disk / "other")
    check = [c for c in json.loads(larder("doctor", "--json", "-m", SMOLLM2, "--port", 0, "--kv-disk", small_disk,
                                          code=1).stdout)["checks"] if c["verdict"] == "FAIL"]
    assert [c["check"] for c in check] == ["disk"]


def test_doctor_finds_no_redis():
    check = doctor("--port", 0, "--kv-remote", "redis://127.0.0.1:1", code=1)["remote"]
    assert check["verdict"] == "FAIL" and "--kv-remote" in check["fix"]
    assert doctor("--port", 0, "--kv-remote", "http://x", code=1)["remote"]["verdict"] == "FAIL"


def test_doctor_gives_redis_no_more_time_than_the_server():
    with socket.socket() as hung:
        hung.bind(("127.0.0.1", 0))
        hung.listen()
        hung.settimeout(60)

        def answer_late():
            with contextlib.suppress(OSError), hung.accept()[0] as connection:
                connection.recv(4096)
                time.sleep(1.5)
                connection.sendall(b"+PONG\r\n")
                connection.recv(4096)
                connection.sendall(b"$0\r\n\r\n")

        thread = threading.Thread(target=answer_late)
        thread.start()
        check = doctor("--port", 0, "--kv-remote", f"redis://127.0.0.1:{hung.getsockname()[1]}", code=1)["remote"]
        thread.join()
    assert check["verdict"] == "FAIL" and "in time" in check["text"]


def test_doctor_of_a_redis(redis):
    """Without a bound, with one at which nothing goes, and as it should be."""
    def check():
        checks = doctor("--port", 0, "--kv-remote", redis.url)
        assert checks["remote"]["verdict"] == "OK" and "answers in" in checks["remote"]["text"]
        return checks["remote memory"]

    def configure(*setting):
        subprocess.run(["redis-cli", "-u", redis.url, "config", "set", *setting], check=True, capture_output=True)

    unbounded = check()
    assert unbounded["verdict"] == "WARN" and "maxmemory" in unbounded["fix"]
    configure("maxmemory", "64mb")
    full = check()
    assert full["verdict"] == "WARN" and "allkeys-lru" in full["fix"]
    configure("maxmemory-policy", "allkeys-lru")
    assert check()["verdict"] == "OK"
