"""The tiers through the binary: kill -9, faults of disk and network, two servers on one store."""
import ctypes
import json
import os
import random
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time

import pytest
import requests

import api_server
from api_server import BIN, MODEL, Server, serving

BLOCK = 16
NUM_KILLS = int(os.environ.get("LARDER_TEST_KILLS", "6"))

WORDS = ("the larder keeps what was cooked once so that nobody has to cook it again and whoever comes late finds "
         "bread cheese apples and a note that says who ate the cake").split()


def text(seed, num_words):
    words = random.Random(seed)
    return " ".join(words.choice(WORDS) for _ in range(num_words))


# Some share their beginning, as sessions under one system prompt do.
PROMPTS = [text(i % 3, 40 + 30 * (i % 4)) + " " + text(100 + i, 50 + 13 * i) for i in range(7)]


def ask(server, prompt, max_tokens=6, **more):
    reply = server.post("/v1/completions", {"model": "smollm2", "prompt": prompt, "temperature": 0,
                                            "max_tokens": max_tokens, "logprobs": 3, **more})
    assert reply.status_code == 200, reply.text
    return reply.json()


def answer(reply):
    choice = reply["choices"][0]
    return choice["text"], choice["logprobs"]["token_logprobs"], choice["logprobs"]["top_logprobs"]


def cached(reply):
    return reply["usage"]["prompt_tokens_details"]["cached_tokens"]


def full_blocks(reply):
    """Tokens of a prompt that a tier can have: whole blocks, never the last token."""
    return (reply["usage"]["prompt_tokens"] - 1) // BLOCK * BLOCK


@pytest.fixture(scope="module")
def expected():
    """Every prompt's answer, computed from nothing."""
    with serving() as server:
        answers = []
        for prompt in PROMPTS:
            reply = ask(server, prompt)
            assert server.post("/reset_prefix_cache", {}).status_code == 200
            answers.append(answer(reply))
        return answers


def wait_until_saved(server, tier="disk"):
    for _ in range(200):
        metrics = server.metrics()
        if not metrics[f'larder:tier_blocks{{tier="{tier}",op="pending"}}']:
            return metrics
        time.sleep(0.05)
    raise AssertionError("blocks still wait to be written")


def check_all(server, expected, prompts=PROMPTS):
    """Every answer is bit-equal to the one from nothing; returns the replies."""
    replies = [ask(server, prompt) for prompt in prompts]
    for prompt, reply in zip(prompts, replies):
        assert answer(reply) == expected[PROMPTS.index(prompt)]
    return replies


def test_a_restart_finds_everything(tmp_path, expected):
    with serving("--kv-disk", tmp_path) as server:
        check_all(server, expected)
        wait_until_saved(server)
        assert server.stop() == 0
    with serving("--kv-disk", tmp_path) as server:
        reply = ask(server, PROMPTS[0])
        assert cached(reply) == full_blocks(reply)
        check_all(server, expected)
        metrics = server.metrics()
        assert metrics['vllm:prompt_tokens_cached_by_source_total{source="disk"}'] >= full_blocks(reply)
        assert metrics["vllm:external_prefix_cache_hits_total"] >= full_blocks(reply)
        assert metrics['larder:tier_bytes_total{tier="disk",op="read"}'] > 0


def test_kill_9_under_load(tmp_path, expected):
    """Fault 35. What was complete a second before is found, and no answer is ever another one.

    LARDER_TEST_KILLS=200 LARDER_TEST_KILL_DIR=DIR goes on for longer, with what is in DIR already.
    """
    tmp_path = os.environ.get("LARDER_TEST_KILL_DIR", tmp_path)
    chance = random.Random(os.environ.get("LARDER_TEST_SEED", "1"))
    num_expected = num_found = 0
    starts = []
    stored = 0
    for kill in range(NUM_KILLS):
        began = time.monotonic()
        server = Server("--kv-disk", tmp_path, "--kv-disk-size", "8GiB", "--kv-size", "512MiB")
        starts.append(time.monotonic() - began)
        done = []
        ends = []

        def load(seed):
            order = random.Random(seed)
            try:
                while True:
                    fresh = order.random() < 0.5
                    prompt = text(order.random(), 150) if fresh else order.choice(PROMPTS)
                    max_tokens = order.choice([1, 6, 20]) if fresh else 6
                    reply = ask(server, prompt, max_tokens=max_tokens)
                    done.append((time.monotonic(), prompt, max_tokens, reply))
            except BaseException as error:
                ends.append((time.monotonic(), error))

        threads = [threading.Thread(target=load, args=(f"{kill}.{i}",)) for i in range(3)]
        for thread in threads:
            thread.start()
        time.sleep(chance.uniform(1.2, 3.5))
        killing = time.monotonic()
        server.stop(signal.SIGKILL)
        killed = time.monotonic()
        for thread in threads:
            thread.join()
        for at, error in ends:
            assert isinstance(error, requests.RequestException) and at >= killing, repr(error)
        for _, prompt, _, reply in done:
            if prompt in PROMPTS:
                assert answer(reply) == expected[PROMPTS.index(prompt)]
        old = [(prompt, max_tokens, reply) for at, prompt, max_tokens, reply in done if at < killed - 1]
        with serving("--kv-disk", tmp_path, "--kv-disk-size", "8GiB") as again:
            for prompt, max_tokens, reply in chance.sample(old, min(6, len(old))):
                now = ask(again, prompt, max_tokens=max_tokens)
                assert answer(now) == answer(reply)  # which was computed from nothing, if it is fresh
                if prompt not in PROMPTS:  # an earlier run may have stored those
                    num_expected += full_blocks(reply)
                    num_found += min(cached(now), full_blocks(reply))
            metrics = again.metrics()
            assert metrics['larder:tier_faults_total{tier="disk",op="io_error"}'] == 0
            stored = metrics['larder:tier_stored_bytes{tier="disk",op="stored"}']
            again.stop(signal.SIGKILL)
    starts.sort()
    print(f"{NUM_KILLS} kills: {num_found} of {num_expected} tokens found, {stored / 2**30:.2f} GiB stored; starts: median "
          f"{starts[NUM_KILLS // 2]:.2f} s, slowest {', '.join(f'{start:.2f}' for start in starts[-5:])} s")
    assert num_expected > 0
    assert num_found >= 0.99 * num_expected
    assert starts[-1] < 5


def test_flipped_bits_are_misses(tmp_path, expected):
    """Fault 34."""
    with serving("--kv-disk", tmp_path) as server:
        check_all(server, expected)
        wait_until_saved(server)
        server.stop(signal.SIGKILL)
    chance = random.Random(7)
    segments = [path for path in tmp_path.iterdir() if path.suffix == ".kv"]
    assert segments
    for path in segments:
        with open(path, "r+b") as file:
            for _ in range(200):
                place = chance.randrange(os.path.getsize(path))
                file.seek(place)
                byte = file.read(1)
                file.seek(place)
                file.write(bytes([byte[0] ^ 1 << chance.randrange(8)]))
    with serving("--kv-disk", tmp_path) as server:
        check_all(server, expected)
        assert server.metrics()['larder:tier_faults_total{tier="disk",op="corrupt"}'] > 0


def test_a_truncated_or_foreign_file_is_survived(tmp_path, expected):
    small = ("--kv-disk", tmp_path, "--kv-disk-size", "64MiB")  # so that two thirds of a file are less than was written
    with serving(*small) as server:
        check_all(server, expected)
        wait_until_saved(server)
        server.stop(signal.SIGKILL)
    for path in tmp_path.iterdir():
        if path.suffix == ".kv":
            os.truncate(path, os.path.getsize(path) * 2 // 3)
    (tmp_path / "notes.txt").write_text("not a segment")
    (tmp_path / "segment-00999999.kv").write_bytes(os.urandom(70000))
    with serving(*small) as server:
        assert cached(check_all(server, expected)[0]) > 0  # nothing but the disk can have it
        assert server.metrics()['larder:tier_faults_total{tier="disk",op="corrupt"}'] > 0
    assert (tmp_path / "notes.txt").read_text() == "not a segment"


def test_types_in_one_directory_do_not_mix(tmp_path, expected):
    """Fault 38."""
    with serving("--kv-disk", tmp_path, "--kv-type", "int8") as server:
        first = answer(ask(server, PROMPTS[0]))
        wait_until_saved(server)
    with serving("--kv-disk", tmp_path) as server:
        reply = ask(server, PROMPTS[0], larder={"cache_report": True})
        assert cached(reply) == 0
        assert answer(reply) == expected[0]
        misses = {miss["reason"]: miss["tokens"] for miss in reply["larder"]["cache"]["misses"]}
        assert misses["other_model"] == full_blocks(reply)
        wait_until_saved(server)
    with serving("--kv-disk", tmp_path, "--activations", "f32") as server:
        assert cached(ask(server, PROMPTS[0])) == 0
    with serving("--kv-disk", tmp_path, "--kv-type", "int8") as server:
        reply = ask(server, PROMPTS[0])
        assert cached(reply) == full_blocks(reply)
        assert answer(reply) == first


def test_mathematics_in_one_directory_do_not_mix(tmp_path, expected, monkeypatch):
    """Fault 38: glibc has two sines, which differ in the last bit of one number in 1,500."""
    other = ("GLIBC_TUNABLES", "glibc.cpu.hwcaps=-FMA")
    sines = [sys.executable, "-c", "import math; print([math.sin(i) for i in range(20000)])"]
    if subprocess.check_output(sines) == subprocess.check_output(sines, env=dict([*os.environ.items(), other])):
        pytest.skip("no other sine on this machine")
    with monkeypatch.context() as patch:
        patch.setenv(*other)
        with serving("--kv-disk", tmp_path) as server:
            ask(server, PROMPTS[0])
            wait_until_saved(server)
    with serving("--kv-disk", tmp_path) as server:
        reply = ask(server, PROMPTS[0])
        assert cached(reply) == 0
        assert answer(reply) == expected[0]


def count_opened(path):
    """How often this file has been opened when the result is called."""
    libc = ctypes.CDLL(None)
    events = libc.inotify_init1(os.O_NONBLOCK)
    # Events that follow each other and are alike are one: those of its folder lie between.
    own, _ = (libc.inotify_add_watch(events, os.fsencode(watched), 0x20) for watched in (path, path.parent))
    assert own >= 0

    def count():
        news = os.read(events, 1 << 16)
        os.close(events)
        num_opened = at = 0
        while at < len(news):
            watch, _, _, name_bytes = struct.unpack_from("iIII", news, at)
            num_opened += watch == own
            at += 16 + name_bytes
        return num_opened
    return count


def test_models_of_one_shape_in_one_directory_do_not_mix(tmp_path, expected):
    """Fault 38: they differ in one bit of one weight."""
    other = tmp_path / "other.gguf"
    shutil.copyfile(MODEL, other)
    with open(other, "r+b") as file:
        file.seek(os.path.getsize(other) - 1000)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    directory = tmp_path / "tier"
    num_opened = count_opened(other)
    with serving("--kv-disk", directory, model=other) as server:
        assert num_opened() == 1  # so that whatever comes to lie there meanwhile lends its hash to nobody's blocks
        first = answer(ask(server, PROMPTS[0]))
        wait_until_saved(server)
    with serving("--kv-disk", directory) as server:
        reply = ask(server, PROMPTS[0])
        assert cached(reply) == 0
        assert answer(reply) == expected[0]
        wait_until_saved(server)
    with serving("--kv-disk", directory, model=other) as server:
        reply = ask(server, PROMPTS[0])
        assert cached(reply) == full_blocks(reply)
        assert answer(reply) == first


def test_instruction_sets_on_one_remote_do_not_mix(redis, monkeypatch):
    """Fault 38."""
    prompt = text(7, 40)  # the portable set is slow
    with serving() as server:
        expected = answer(ask(server, prompt))
    with monkeypatch.context() as patch:
        patch.setenv("LARDER_ISA", "generic")
        with serving("--kv-remote", redis.url) as server:
            ask(server, prompt)
            wait_until_saved(server, "remote")
    for num_cached_of in (lambda reply: 0, full_blocks):
        with serving("--kv-remote", redis.url) as server:
            reply = ask(server, prompt)
            assert cached(reply) == num_cached_of(reply)
            assert answer(reply) == expected
            wait_until_saved(server, "remote")


def test_a_second_server_on_the_directory_is_refused(tmp_path):
    with serving("--kv-disk", tmp_path):
        second = subprocess.run([BIN, "serve", "-m", MODEL, "--port", "0", "--kv-disk", tmp_path],
                                capture_output=True, text=True, timeout=60)
        assert second.returncode != 0
        assert str(tmp_path) in second.stderr


def test_closed_standard_streams_keep_out_of_the_segments(tmp_path):
    """As some service managers start programs: what is opened next would be taken for the log."""
    for _ in range(2):
        command = [BIN, "generate", "-m", MODEL, "-p", text(1, 100), "-n", "2", "--kv-disk", str(tmp_path),
                   "--kv-disk-size", "64MiB"]
        code = subprocess.run(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command], timeout=300).returncode
        assert code == 0
    segments = [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size > 1 << 20]
    assert segments and all(path.open("rb").read(8) == b"LARDERKV" for path in segments)
    assert (tmp_path / "lock").read_bytes() == b""


def test_a_full_disk_is_a_miss(small_disk, expected):
    """Fault 33."""
    with serving("--kv-disk", small_disk) as server:
        for _ in range(2):
            check_all(server, expected)
        assert server.metrics()['larder:tier_faults_total{tier="disk",op="io_error"}'] > 0
        server.stop(signal.SIGKILL)
    with serving("--kv-disk", small_disk) as server:
        check_all(server, expected)


def test_a_limit_on_file_sizes_is_a_miss(tmp_path, expected, monkeypatch):
    """Fault 33, as `ulimit -f` has it: a segment cannot grow beyond it, and SIGXFSZ would end the process."""
    limited = tmp_path / "larder"
    limited.write_text(f'#!/bin/sh\nulimit -f 2048\nexec "{BIN}" "$@"\n')  # 1 MiB; not Python, which ignores the signal
    limited.chmod(0o755)
    monkeypatch.setattr(api_server, "BIN", str(limited))
    with serving("--kv-disk", tmp_path / "tier") as server:
        for _ in range(2):
            check_all(server, expected, PROMPTS[:3])
        assert wait_until_saved(server)['larder:tier_faults_total{tier="disk",op="io_error"}'] > 0
        assert server.stop() == 0


def test_two_servers_share_what_either_computed(redis, expected):
    with serving("--kv-remote", redis.url) as one, serving("--kv-remote", redis.url) as two:
        check_all(one, expected, PROMPTS[:4])
        wait_until_saved(one, "remote")
        reply = check_all(two, expected, PROMPTS[:4])[0]
        assert cached(reply) == full_blocks(reply)
        check_all(two, expected, PROMPTS[4:6])
        wait_until_saved(two, "remote")
        reply = check_all(one, expected, PROMPTS[4:6])[0]
        assert cached(reply) >= full_blocks(reply)
        assert one.metrics()['vllm:prompt_tokens_cached_by_source_total{source="p2p"}'] > 0


@pytest.mark.parametrize("tier", ["disk", "remote"])
def test_keys_do_not_meet_in_a_tier(tier, tmp_path, redis):
    """One prompt, two keys: the tier gives it to the one that computed it, and the other cannot tell from its time."""
    where = ("--kv-disk", tmp_path) if tier == "disk" else ("--kv-remote", redis.url)
    with serving(*where, "--api-key", "alpha", "--api-key", "beta", key="alpha") as alpha:
        def timed(key, prompt):
            alpha.headers["Authorization"] = f"Bearer {key}"
            begin = time.monotonic()
            reply = ask(alpha, prompt, max_tokens=1)
            return time.monotonic() - begin, cached(reply), full_blocks(reply)

        known, unknown, own = [], [], []
        for i in range(5):
            prompt = text(500 + i, 250)
            timed("alpha", prompt)
            wait_until_saved(alpha, tier)
            assert alpha.post("/reset_prefix_cache", {}).status_code == 200
            asked = [(prompt, known), (text(900 + i, 250), unknown)]
            for asked_prompt, times in asked[::1 if i % 2 else -1]:
                seconds, found, _ = timed("beta", asked_prompt)
                assert found == 0
                times.append(seconds)
            seconds, found, could_be = timed("alpha", prompt)
            assert found == could_be
            own.append(seconds)
        metrics = alpha.metrics()
        source = {"disk": "disk", "remote": "p2p"}[tier]
        assert metrics[f'vllm:prompt_tokens_cached_by_source_total{{source="{source}"}}'] > 0
        ratio = statistics.median(known) / statistics.median(unknown)
        print(f"{tier}: {statistics.median(known):.4f} s where another key knows it, {statistics.median(unknown):.4f} s "
              f"where none does, {statistics.median(own):.4f} s from the tier")
        assert 0.6 < ratio < 1.6, (known, unknown)
        assert statistics.median(own) < 0.5 * statistics.median(known)


def test_a_remote_that_hangs_or_dies_costs_time_not_answers(redis, expected):
    """Faults 36 and 37."""
    with serving("--kv-remote", redis.url) as server:
        check_all(server, expected, PROMPTS[:5])
        wait_until_saved(server, "remote")
        server.post("/reset_prefix_cache", {})
        redis.send_signal(signal.SIGSTOP)
        check_all(server, expected, PROMPTS[:3])
        # The breaker is open: nobody waits for it any more.
        assert server.metrics()['larder:tier_on{tier="remote"}'] == 0
        ask(server, "a short one", max_tokens=1)
        assert server.metrics()['larder:tier_on{tier="remote"}'] == 0
        redis.send_signal(signal.SIGCONT)
        redis.kill()
        server.post("/reset_prefix_cache", {})
        check_all(server, expected)


def test_a_remote_that_lies_is_a_miss(redis, expected):
    with serving("--kv-remote", redis.url) as server:
        check_all(server, expected, PROMPTS[:4])
        wait_until_saved(server, "remote")
        keys = subprocess.run(["redis-cli", "-u", redis.url, "keys", "*"], capture_output=True, text=True).stdout.split()
        assert keys
        for i, key in enumerate(keys):
            lie = [["set", key, "short"], ["del", key], ["setrange", key, "5000", "xx"], ["set", key, ""]][i % 4]
            subprocess.run(["redis-cli", "-u", redis.url, *lie], capture_output=True, check=True)
        server.post("/reset_prefix_cache", {})
        check_all(server, expected)
        assert server.metrics()['larder:tier_faults_total{tier="remote",op="corrupt"}'] > 0


def test_a_server_without_its_remote_starts_all_the_same(expected):
    with serving("--kv-remote", "redis://127.0.0.1:9") as server:
        check_all(server, expected, PROMPTS[:2])


def test_a_disconnect_during_a_load_frees_its_blocks(tmp_path, expected):
    """Fault 31. The requests never end by themselves."""
    with serving("--kv-disk", tmp_path) as server:
        check_all(server, expected)
        wait_until_saved(server)
    with serving("--kv-disk", tmp_path) as server:
        for i in range(20):
            body = json.dumps({"model": "smollm2", "prompt": PROMPTS[i % 7], "max_tokens": 10_000_000,
                               "ignore_eos": True, "attention_window": 128}).encode()
            with socket.create_connection(("127.0.0.1", server.port)) as client:
                client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                               b"Content-Length: %d\r\n\r\n" % len(body) + body)
                time.sleep(0.003 * i)
            server.post("/reset_prefix_cache", {})
        gone = time.monotonic()
        while True:
            metrics = server.metrics()
            if metrics['vllm:request_success_total{finished_reason="abort"}'] == 20 and not any(
                    metrics[gauge] for gauge in ("larder:kv_blocks_held", "vllm:num_requests_running",
                                                 "vllm:num_requests_waiting")):
                break
            assert time.monotonic() - gone < 30, metrics
            time.sleep(0.02)
        assert metrics['vllm:prompt_tokens_cached_by_source_total{source="disk"}'] > 0
        check_all(server, expected)


def test_sockets_leave_the_tier_its_files(tmp_path, monkeypatch):
    """Fault 40: a tier needs a file for what it writes first, beside clients that hold all that they may."""
    limited = tmp_path / "larder"
    limited.write_text(f'#!/bin/sh\nulimit -n 128\nexec "{BIN}" "$@"\n')
    limited.chmod(0o755)
    monkeypatch.setattr(api_server, "BIN", str(limited))
    with serving("--kv-disk", tmp_path / "tier") as server, requests.Session() as kept:
        assert kept.get(server.url + "/health").status_code == 200
        clients = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(300)]
        with monkeypatch.context() as patch:
            patch.setattr(server, "get", lambda path: kept.get(server.url + path))
            patch.setattr(server, "post", lambda path, body: kept.post(server.url + path, json=body))
            ask(server, PROMPTS[0])
            wait_until_saved(server)
            for client in clients:
                client.close()
            while server.metrics()["larder:open_connections"] > 1:
                time.sleep(0.02)
        ask(server, PROMPTS[1])
        metrics = wait_until_saved(server)
        assert metrics['larder:tier_faults_total{tier="disk",op="io_error"}'] == 0
        assert metrics['vllm:admission_rejections_total{reason="too_many_connections"}'] > 200
        assert metrics['larder:tier_blocks_total{tier="disk",op="written"}'] >= len(PROMPTS[0].split()) // BLOCK


def test_endless_context_holds_its_memory():
    with serving("-c", "816", "--kv-size", "96MiB") as server:
        plain = ask(server, "once upon a time", max_tokens=5000, ignore_eos=True)
        assert plain["choices"][0]["finish_reason"] == "length"
        assert plain["usage"]["total_tokens"] == 816
        most = []
        ended = threading.Event()

        def watch():
            while not ended.wait(0.2):
                most.append(server.metrics()["larder:kv_blocks_held"])

        watcher = threading.Thread(target=watch)
        watcher.start()
        endless = ask(server, "once upon a time", max_tokens=1000, ignore_eos=True, attention_window=128,
                      attention_sinks=16)
        ended.set()
        watcher.join()
        assert endless["usage"]["completion_tokens"] == 1000
        assert endless["choices"][0]["finish_reason"] == "length"
        assert max(most) <= (2 * 128 + 16 + 512) / BLOCK + 1
        wrong = server.post("/v1/completions", {"model": "smollm2", "prompt": "x", "attention_window": 100})
        assert wrong.status_code == 400
        assert wrong.json()["error"]["param"] == "attention_window"
