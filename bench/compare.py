#!/usr/bin/env python3
"""Larder beside llama.cpp on one machine, in one run: prefill and decode of files, then requests at once.

compare.py --larder build/larder --llama LLAMA_CPP/build/bin MODEL.gguf... [--rounds 3] [--serve MODEL.gguf]

Engines take turns, so that a machine that slows down slows both; the table shows medians over rounds.
Needs aiohttp for --serve.
"""
import argparse
import asyncio
import json
import random
import re
import statistics
import subprocess
import time

from peers.process import Server, free_port

WORDS = ("anchor basil copper dune ember fjord glacier hazel island juniper kelp lantern meadow nutmeg orchard "
         "pebble quartz ripple saffron timber umber violet willow yarrow zephyr").split()


def larder_rates(a, model):
    out = subprocess.run([a.larder, "bench", "-m", model, "-t", str(a.threads), "-r", "1", "--pp", *map(str, a.pp),
                          "--tg", str(a.tg)], check=True, capture_output=True, text=True).stdout
    return {test: float(rate) for test, rate in re.findall(r"\| (pp\d+|tg\d+) \| ([\d.]+) ±", out)}


def llama_rates(a, model):
    out = subprocess.run([f"{a.llama}/llama-bench", "-m", model, "-t", str(a.threads), "-r", "1", "-fa", "1", "-p",
                          ",".join(map(str, a.pp)), "-n", str(a.tg)], check=True, capture_output=True, text=True).stdout
    return {test: float(rate) for test, rate in re.findall(r"(pp\d+|tg\d+) \|\s+([\d.]+) ±", out)}


def compare_rates(a):
    print("| model | test | Larder, t/s | llama.cpp, t/s | ratio |\n| --- | --- | ---: | ---: | ---: |")
    for model in a.models:
        rounds = [(larder_rates(a, model), llama_rates(a, model)) for _ in range(a.rounds)]
        for test in rounds[0][0]:
            ours = statistics.median(r[0][test] for r in rounds)
            theirs = statistics.median(r[1][test] for r in rounds)
            print(f"| {model.rsplit('/', 1)[-1]} | {test} | {ours:.1f} | {theirs:.1f} | {ours / theirs:.2f} |", flush=True)


def words(rng, n):
    return " ".join(rng.choice(WORDS) for _ in range(n))


async def one_request(session, base, messages, num_tokens):
    body = {"model": "default", "messages": messages, "max_tokens": num_tokens, "temperature": 0, "stream": True,
            "ignore_eos": True, "stream_options": {"include_usage": True}}
    start, first, usage = time.perf_counter(), None, {}
    async with session.post(base + "/v1/chat/completions", json=body) as reply:
        assert reply.status == 200, await reply.text()
        async for line in reply.content:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            usage = event.get("usage") or usage
            if event.get("choices") and event["choices"][0]["delta"].get("content"):
                first = first or time.perf_counter()
    return (first or time.perf_counter()) - start, usage


async def run_load(base, a, shared):
    import aiohttp
    rng = random.Random(7)
    prefix = words(rng, a.prefix_words)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=3600)) as session:
        jobs = []
        for _ in range(a.requests):
            system = prefix if shared else words(rng, a.prefix_words)
            messages = [{"role": "system", "content": system}, {"role": "user", "content": words(rng, 20)}]
            jobs.append(one_request(session, base, messages, 32))
        start = time.perf_counter()
        results = await asyncio.gather(*jobs)
        return time.perf_counter() - start, statistics.median(r[0] for r in results), results


def serve_once(a, engine, shared):
    port = free_port()
    command = {
        "Larder": [a.larder, "serve", "-m", a.serve, "--port", str(port), "-t", str(a.threads)],
        "llama.cpp": [f"{a.llama}/llama-server", "-m", a.serve, "--port", str(port), "-t", str(a.threads), "-np",
                      str(a.requests), "-c", "32768", "-fa", "on"],
    }[engine]
    with Server(command, port) as server:
        return asyncio.run(run_load(server.base, a, shared))[:2]


def compare_serving(a):
    print(f"\n{a.requests} requests at once, 32 tokens out, {a.serve.rsplit('/', 1)[-1]}\n")
    print("| prompts | engine | wall, s | median TTFT, s | ratio of walls |\n| --- | --- | ---: | ---: | ---: |")
    for shared in (True, False):
        runs = {"Larder": [], "llama.cpp": []}
        for _ in range(a.rounds):
            for engine, results in runs.items():
                results.append(serve_once(a, engine, shared))
        wall = {e: statistics.median(r[0] for r in v) for e, v in runs.items()}
        for engine, values in runs.items():
            ttft = statistics.median(r[1] for r in values)
            print(f"| {'shared prefix' if shared else 'unique'} | {engine} | {wall[engine]:.2f} | {ttft:.2f} | "
                  f"{wall['llama.cpp'] / wall[engine]:.2f} |", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("models", nargs="*")
    p.add_argument("--larder", default="build/larder")
    p.add_argument("--llama", required=True, help="folder with llama-bench and llama-server")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--pp", type=int, nargs="+", default=[512])
    p.add_argument("--tg", type=int, default=128)
    p.add_argument("--serve", help="a model to serve to many at once")
    p.add_argument("--requests", type=int, default=16)
    p.add_argument("--prefix-words", type=int, default=500)
    a = p.parse_args()
    if a.models:
        compare_rates(a)
    if a.serve:
        compare_serving(a)


if __name__ == "__main__":
    main()
