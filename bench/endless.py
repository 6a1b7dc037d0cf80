#!/usr/bin/env python3
"""Generates far past a model's context with attention sinks, and shows that memory and speed stay.

endless.py --larder build/larder -m MODEL.gguf [--tokens 100000] [--window 1024] [--sinks 16] [--temperature 0.7]

One streamed request; every tenth of the way a row: tokens per second, the process's resident memory, KV blocks held, and
the perplexity of what was generated (the model's own log-probability of each token, under the window). A low one may be of
a text that repeats itself: beside it stands how many of each part's runs of eight tokens are new.
"""
import argparse
import collections
import http.client
import json
import math
import time

from peers.process import Server, end_with_servers, free_port, status_bytes


def blocks_held(server):
    metrics = server.text("/metrics")
    return next(float(line.split()[-1]) for line in metrics.splitlines() if line.startswith("larder:kv_blocks_held"))


def tokens_of(port, a):
    """Each token's text and log-probability, as they come."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    body = {"model": "default", "prompt": a.prompt, "max_tokens": a.tokens, "ignore_eos": True, "stream": True,
            "temperature": a.temperature, "seed": 1, "logprobs": 0, "attention_window": a.window,
            "attention_sinks": a.sinks}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    if reply.status != 200:
        raise SystemExit(f"HTTP {reply.status}: {reply.read().decode()[:300]}")
    for line in reply:
        if line.startswith(b"data: {"):
            for choice in json.loads(line[6:]).get("choices", []):
                logprobs = choice.get("logprobs") or {}
                yield from zip(logprobs.get("tokens", []), logprobs.get("token_logprobs", []))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--larder", default="build/larder")
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--tokens", type=int, default=100000)
    parser.add_argument("--window", type=int, default=1024)
    parser.add_argument("--sinks", type=int, default=16)
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", default="The history of the sea begins")
    a = parser.parse_args()
    if a.tokens < 80:
        parser.error("--tokens: at least 80, eight in each tenth")
    end_with_servers()
    port = free_port()
    with Server([a.larder, "serve", "-m", a.model, "--port", port, "-c", "4096", "--kv-size", "256MiB", "-t", a.threads],
                port) as server:
        print("| tokens | tokens/s | resident, MiB | KV blocks held | perplexity | new runs of eight |\n"
              "| ---: | ---: | ---: | ---: | ---: | ---: |")
        part = a.tokens // 10
        total = part_sum = 0.0
        began = time.monotonic()
        count = 0
        run, seen, num_new = collections.deque(maxlen=8), set(), 0
        for count, (token, logprob) in enumerate(tokens_of(port, a), 1):
            run.append(token)
            num_new += hash(tuple(run)) not in seen
            seen.add(hash(tuple(run)))
            total += logprob
            part_sum += logprob
            if count % part == 0:
                rate = part / (time.monotonic() - began)
                resident = status_bytes(server.process.pid, "VmRSS") / 2**20
                print(f"| {count} | {rate:.1f} | {resident:.1f} | {blocks_held(server):.0f} | "
                      f"{math.exp(-part_sum / part):.2f} | {num_new / part * 100:.0f} % |", flush=True)
                began = time.monotonic()
                part_sum, num_new = 0.0, 0
        assert count == a.tokens, f"{count} tokens came"
        print(f"\nPerplexity of all {count}: {math.exp(-total / count):.2f}")


if __name__ == "__main__":
    main()
