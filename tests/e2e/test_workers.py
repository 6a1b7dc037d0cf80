"""A model on several machines, here several processes: the answers and every logprob are those of one, whatever becomes of a
worker; and what is refused is refused in one line."""
import concurrent.futures
import contextlib
import json
import os
import re
import signal
import subprocess
import time

import pytest
import requests

from api_server import BIN, MODEL, larder, serving
from worker_process import working

GEMMA = os.environ.get("LARDER_TEST_GEMMA3", "")
TEXT = "The larder behind the kitchen was cold, and on its shelves stood jars of plums, a wheel of cheese and"
ASKED = {"prompt": TEXT, "max_tokens": 40, "temperature": 0, "logprobs": 5}
DRAWN = {"prompt": TEXT * 12, "max_tokens": 24, "temperature": 0.9, "seed": 7, "logprobs": 3}


def answer(server, asked):
    reply = server.post("/v1/completions", asked)
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"]


def count_in(log, text):
    return log.read_text().count(text)


@pytest.fixture(scope="module", params=["smollm2", "gemma3"])
def model(request):
    path = MODEL if request.param == "smollm2" else GEMMA
    if not path:
        pytest.skip("the model is not there")
    return path


@pytest.fixture(scope="module")
def expected(model):
    with serving("-c", "1024", "-t", "1", model=model) as server:
        return [answer(server, asked) for asked in (ASKED, DRAWN)]


@pytest.mark.parametrize("shares", ["1,1", "3,1", "1,8", "2,1,1"])
def test_answers_and_logprobs_are_the_same(model, expected, shares):
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(working(model)) for _ in shares.split(",")[1:]]
        addresses = ",".join(worker.address for worker in workers)
        server = stack.enter_context(serving("-c", "1024", "-t", "1", "--workers", addresses, "--worker-shares", shares, model=model))
        assert [answer(server, asked) for asked in (ASKED, DRAWN)] == expected
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            together = list(pool.map(lambda i: answer(server, (ASKED, DRAWN)[i % 2]), range(6)))
        assert together == expected * 3
        metrics = server.metrics()
        for worker in workers:
            name = f'worker="{worker.address}"'
            assert metrics["larder:worker_up{%s}" % name] == 1
            assert metrics["larder:worker_losses_total{%s}" % name] == 0
            assert metrics['larder:worker_bytes_total{%s,direction="sent"}' % name] > 100_000
            assert metrics["larder:worker_wait_seconds_total{%s}" % name] > 0


def test_keys_as_codes_are_measured_as_on_one_machine(tmp_path):
    if not GEMMA:
        pytest.skip("the model is not there")
    options = ("-c", "1024", "-t", "1", "--kv-type", "int8", "--batch-tokens", "64")
    with serving(*options, model=GEMMA) as server:
        alone = answer(server, ASKED)
    os.environ["XDG_CACHE_HOME"], before = str(tmp_path), os.environ.get("XDG_CACHE_HOME")  # where nothing was measured yet
    try:
        with working(GEMMA) as worker, serving(*options, "--workers", worker.address, model=GEMMA) as server:
            assert answer(server, ASKED) == alone
    finally:
        os.environ.pop("XDG_CACHE_HOME")
        if before is not None:
            os.environ["XDG_CACHE_HOME"] = before


def test_a_draft_model_guesses_beside_them():
    if not MODEL:
        pytest.skip("the model is not there")
    options = ("-c", "1024", "-t", "1")
    with serving(*options) as server:
        alone = answer(server, ASKED)
    with working(MODEL) as worker, serving(*options, "--workers", worker.address, "--draft-model", MODEL) as server:
        assert answer(server, ASKED) == alone
        assert server.metrics()["larder:draft_model_accepted_tokens_total"] > 0


def test_blocks_of_one_machine_are_those_of_several(tmp_path):
    if not MODEL:
        pytest.skip("the model is not there")
    options = ("-c", "1024", "-t", "1", "--kv-disk", tmp_path)
    with serving(*options) as server:
        alone = answer(server, DRAWN)
        server.stop()
    with working(MODEL) as worker, serving(*options, "--workers", worker.address) as server:
        reply = server.post("/v1/completions", DRAWN).json()
        assert reply["choices"] == alone
        assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] > 200


def test_plan_tells_the_servers_share():
    if not MODEL:
        pytest.skip("the model is not there")
    planned = lambda *more: json.loads(larder("plan", "--json", "-m", MODEL, "-c", "1024", "--kv-size", "64MiB", *more).stdout)["server"]
    alone = planned("--no-measure")
    with working(MODEL) as worker:
        shared = planned("--workers", worker.address, "--worker-shares", "1,1")
    assert 0.5 * alone["weights_bytes"] < shared["weights_bytes"] < 0.75 * alone["weights_bytes"]  # the embedding is the server's


def memory_of(lines, what):
    plan = re.search(r"Memory: .*" + what + r" ([\d.]+) (KiB|MiB|GiB)", "".join(lines))
    return float(plan[1]) * {"KiB": 1 / 1024, "MiB": 1, "GiB": 1024}[plan[2]]


def test_the_server_plans_and_holds_its_own_share_alone():
    if not MODEL:
        pytest.skip("the model is not there")
    with working(MODEL) as worker, serving("-c", "1024", "--workers", worker.address, "--worker-shares", "1,3") as server:
        answer(server, ASKED)
        with serving("-c", "1024") as alone:
            answer(alone, ASKED)
            assert memory_of(server.lines, "weights") < 0.65 * memory_of(alone.lines, "weights")
            spared = alone.status_bytes("VmRSS") - server.status_bytes("VmRSS")
            assert spared > 15 << 20  # of 87 MiB, and its embedding is the server's


def test_a_worker_killed_under_load_costs_no_bit(model, expected, tmp_path):
    log = tmp_path / "log"
    with contextlib.ExitStack() as stack:
        worker = stack.enter_context(working(model))
        server = stack.enter_context(serving("-c", "1024", "-t", "1", "--workers", worker.address, model=model,
                                             stdout=stack.enter_context(log.open("w"))))
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            replies = [pool.submit(answer, server, (ASKED, DRAWN)[i % 2]) for i in range(12)]
            for _ in range(3):
                time.sleep(0.4)
                worker.kill()  # SIGKILL
                worker = stack.enter_context(working(model, port=worker.port))
            assert [reply.result() for reply in replies] == expected * 6
        assert server.get("/health").status_code == 200
        num_losses = server.metrics()['larder:worker_losses_total{worker="%s"}' % worker.address]
        assert 1 <= num_losses <= 3
        assert count_in(log, f"worker {worker.address} is lost") == num_losses  # a line each
        assert count_in(log, f"worker {worker.address} is back") == num_losses


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_one_that_stays_away_ends_requests_and_not_the_server(how):
    if not MODEL:
        pytest.skip("the model is not there")
    with contextlib.ExitStack() as stack:
        worker = stack.enter_context(working(MODEL))
        server = stack.enter_context(
            serving("-c", "1024", "-t", "1", "--workers", worker.address, "--worker-patience", "2"))
        first = answer(server, ASKED)
        worker.process.send_signal(how)
        begin = time.monotonic()
        reply = server.post("/v1/completions", {**ASKED, "cache_salt": "another"})
        assert reply.status_code == 503 and "was lost before the answer was complete" in reply.text
        assert time.monotonic() - begin < 30
        assert server.get("/health").status_code == 200
        assert server.metrics()['larder:worker_up{worker="%s"}' % worker.address] == 0
        assert server.post("/v1/completions", ASKED).status_code == 503  # shortly
        streamed = requests.post(server.url + "/v1/completions", json={**ASKED, "stream": True}, timeout=60)
        assert "was lost before the answer was complete" in streamed.text
        if how == signal.SIGKILL:
            worker = stack.enter_context(working(MODEL, port=worker.port))
        else:
            worker.process.send_signal(signal.SIGCONT)
        # The cache has what it had, and the answer goes on from there.
        for _ in range(50):
            reply = server.post("/v1/completions", ASKED)
            if reply.status_code == 200:
                break
            time.sleep(0.2)
        assert reply.json()["choices"] == first
        assert reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_a_server_that_ends_waits_for_no_worker():
    if not MODEL:
        pytest.skip("the model is not there")
    with working(MODEL) as worker, serving("--workers", worker.address, "--drain-seconds", "1") as server:
        worker.process.send_signal(signal.SIGSTOP)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            pool.submit(lambda: contextlib.suppress(Exception) and server.post("/v1/completions", ASKED))
            time.sleep(0.5)
            begin = time.monotonic()
            server.stop()
            assert time.monotonic() - begin < 20


def test_generate_says_the_same():
    if not MODEL:
        pytest.skip("the model is not there")
    asked = ("generate", "-m", MODEL, "-p", TEXT, "-n", "24")
    with working(MODEL) as worker:
        assert larder(*asked, "--workers", worker.address).stdout == larder(*asked).stdout


def doctor(*arguments, code=0):
    if not MODEL or not GEMMA:
        pytest.skip("the models are not there")
    report = json.loads(larder("doctor", "--json", "--port", 0, "-m", MODEL, "--kv-size", "64MiB", *arguments, code=code).stdout)
    return {check["check"]: check for check in report["checks"]}


def refusal(*arguments, model=MODEL):
    result = subprocess.run([BIN, "generate", "-m", model, "-p", "a", *arguments], capture_output=True, text=True, timeout=120)
    assert result.returncode == 1
    return result.stderr.splitlines()[-1]


def test_what_would_change_a_bit_is_refused():
    if not MODEL or not GEMMA:
        pytest.skip("the models are not there")
    isas = larder("--isa-list").stdout.split()
    with working(MODEL, env={"LARDER_ISA": "generic"}) as worker:
        if len(isas) > 1:
            line = refusal("--workers", worker.address)
            assert f"worker {worker.address}" in line and "with generic" in line and "LARDER_ISA" in line
    with working(GEMMA) as worker:
        assert "another model" in refusal("--workers", worker.address)


def test_keys(tmp_path):
    if not MODEL:
        pytest.skip("the model is not there")
    (tmp_path / "key").write_text("secret\n")
    (tmp_path / "other").write_text("Secret\n")
    with working(MODEL, "--worker-key-file", tmp_path / "key") as worker:
        assert "it wants a key" in refusal("--workers", worker.address)
        assert "key is another one" in refusal("--workers", worker.address, "--worker-key-file", tmp_path / "other")
        larder("generate", "-m", MODEL, "-p", "a", "-n", "1", "--workers", worker.address, "--worker-key-file", tmp_path / "key")


def test_a_second_server_is_refused():
    if not MODEL:
        pytest.skip("the model is not there")
    with working(MODEL) as worker, serving("--workers", worker.address):
        assert "it computes for another server already" in refusal("--workers", worker.address)


@pytest.mark.parametrize("arguments, expected", [
    (("--workers", "127.0.0.1:1"), "worker 127.0.0.1:1: Connection refused"),
    (("--workers", "nowhere"), '--workers: "nowhere" has no port; write HOST:PORT'),
    (("--workers", "a:1,b:2", "--worker-shares", "1,1"), "--worker-shares 1,1: 2 parts for 3 machines"),
    (("--workers", "a:1", "--worker-shares", "1,x"), "--worker-shares 1,x: must be whole numbers"),
    (("--workers", "a:1", "--worker-key-file", "/nowhere"), "/nowhere: cannot be read"),
])
def test_options_that_are_none(arguments, expected):
    if not MODEL:
        pytest.skip("the model is not there")
    assert expected in refusal(*arguments)


@pytest.mark.parametrize("arguments, text, fix", [
    (("127.0.0.1:1",), "worker 127.0.0.1:1: Connection refused", "start it, or correct --workers"),
    (("nowhere",), '"nowhere" has no port', "write HOST:PORT"),
    (("a:1", "--worker-shares", "1,x"), "--worker-shares 1,x: must be whole numbers", "start it, or correct --workers"),
])
def test_the_doctor_finds_workers_that_are_none(arguments, text, fix):
    """And says nothing of what fits: that depends on their shares."""
    checks = doctor("--workers", *arguments, code=1)
    assert checks["workers"]["verdict"] == "FAIL" and text in checks["workers"]["text"]
    assert fix in checks["workers"]["fix"] and "fit" not in checks


def test_the_doctor_of_workers():
    with working(MODEL) as worker:
        checks = doctor("--workers", worker.address, "--worker-shares", "2,1")
        assert "1, which with this machine have 2 : 1 of the products" in checks["workers"]["text"]
        assert checks["workers"]["verdict"] == checks["fit"]["verdict"] == "OK"
    with working(GEMMA) as worker:
        assert "another model" in doctor("--workers", worker.address, code=1)["workers"]["text"]


def test_workers_do_not_wait_for_a_draft_model_to_be_fetched():
    if not MODEL:
        pytest.skip("the model is not there")
    assert "--draft-model /nowhere.gguf: " in refusal("--draft-model", "/nowhere.gguf", "--workers", "127.0.0.1:1")


def test_a_worker_that_others_can_reach_needs_a_key():
    result = subprocess.run([BIN, "worker", "-m", MODEL or "x", "--listen", "0.0.0.0:0"], capture_output=True, text=True, timeout=60)
    assert result.returncode == 1 and "give --worker-key-file, or --open" in result.stderr
