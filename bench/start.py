#!/usr/bin/env python3
"""How long a server takes from its start until it is ready, and until its first token.

start.py --larder build/larder --model SmolLM2.gguf --model gemma-3.gguf [--rounds 5]

Models take turns; the first round, which may have to read them from the disk, is told apart. Medians of the others.
"""
import argparse
import json
import pathlib
import statistics
import time
import urllib.request

from peers.process import OPENER, Server, end_with_servers, free_port


def seconds_of(larder, model):
    """Until /health says so, which is asked every 0.1 s, and until a token has come."""
    port = free_port()
    begin = time.perf_counter()
    with Server([larder, "serve", "-m", model, "--port", port], port) as server:
        ready = time.perf_counter() - begin
        body = json.dumps({"model": "default", "prompt": "Once", "max_tokens": 1}).encode()
        request = urllib.request.Request(server.base + "/v1/completions", body, {"Content-Type": "application/json"})
        OPENER.open(request, timeout=600).read()
        return ready, time.perf_counter() - begin


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--larder", default="build/larder")
    p.add_argument("--model", action="append", required=True)
    p.add_argument("--rounds", type=int, default=5)
    a = p.parse_args()
    end_with_servers()
    found = {model: [] for model in a.model}
    for _ in range(a.rounds + 1):
        for model in a.model:
            found[model].append(seconds_of(a.larder, model))
    print("| model | first start, ready | ready | first token |\n|---|---:|---:|---:|")
    for model, (first, *others) in found.items():
        ready, token = (statistics.median(each) for each in zip(*others))
        print(f"| {pathlib.Path(model).stem} | {first[0]:.2f} s | {ready:.2f} s | {token:.2f} s |")


if __name__ == "__main__":
    main()
