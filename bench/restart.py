#!/usr/bin/env python3
"""Time to first token of a long prompt that a server before computed: from its disk or from Redis, against computing it.

restart.py --larder build/larder -m MODEL.gguf --kv-disk DIR [--tokens 8000] [--rounds 3]
restart.py --larder build/larder -m MODEL.gguf --kv-remote redis://127.0.0.1:6379

Each round has a prompt of its own: computed by one process, which ends once all of it is stored, and asked of the next.
The disk's files leave the page cache in between.
"""
import argparse
import json
import os
import pathlib
import random
import statistics
import time
import urllib.request

from peers.process import OPENER, Server, end_with_servers, free_port


def drop_page_cache(folder):
    for path in pathlib.Path(folder).rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def first_token(a, tier, prompt):
    """Of a new process that is ready: seconds until the first token has come, and how many tokens were cached."""
    port = free_port()
    command = [a.larder, "serve", "-m", a.model, "--port", port, "-t", a.threads, "-c", len(prompt) + 64,
               "--kv-size", a.kv_size, *tier]
    with Server(command, port) as server:
        ready = time.perf_counter()
        body = json.dumps({"model": "default", "prompt": prompt, "max_tokens": 1, "temperature": 0}).encode()
        request = urllib.request.Request(server.base + "/v1/completions", body, {"Content-Type": "application/json"})
        reply = json.load(OPENER.open(request, timeout=3600))
        done = time.perf_counter()
        while any(not line.endswith(" 0") for line in server.text("/metrics").splitlines()
                  if line.startswith("larder:tier_blocks{") and 'op="pending"' in line):
            time.sleep(0.05)
    return done - ready, reply["usage"]["prompt_tokens_details"]["cached_tokens"]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--larder", default="build/larder")
    p.add_argument("-m", "--model", required=True)
    p.add_argument("--kv-disk")
    p.add_argument("--kv-remote")
    p.add_argument("--kv-size", default="600MiB")
    p.add_argument("--tokens", type=int, default=8000)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--rounds", type=int, default=3)
    a = p.parse_args()
    end_with_servers()
    tier = (["--kv-disk", a.kv_disk] if a.kv_disk else []) + (["--kv-remote", a.kv_remote] if a.kv_remote else [])
    if not tier:
        p.error("--kv-disk or --kv-remote")
    rng = random.Random(time.time_ns())
    rounds = []
    print("| round | computed, s | after a restart, s | of computing | tokens found |\n|---:|---:|---:|---:|---:|")
    for number in range(1, a.rounds + 1):
        prompt = [rng.randrange(1000, 40000) for _ in range(a.tokens)]
        computed, _ = first_token(a, tier, prompt)
        if a.kv_disk:
            drop_page_cache(a.kv_disk)
        loaded, found = first_token(a, tier, prompt)
        rounds.append((computed, loaded))
        print(f"| {number} | {computed:.2f} | {loaded:.3f} | 1/{computed / loaded:.0f} | {found:,} |", flush=True)
    computed, loaded = (statistics.median(each) for each in zip(*rounds))
    print(f"| median | {computed:.2f} | {loaded:.3f} | 1/{computed / loaded:.0f} | |")


if __name__ == "__main__":
    main()
