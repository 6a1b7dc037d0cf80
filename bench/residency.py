#!/usr/bin/env python3
"""How many conversations stay resident in a given KV memory: Larder beside llama-server, in one run.

residency.py --larder build/larder --llama LLAMA_CPP/build/bin -m MODEL.gguf [--kv-bytes-per-token 23040]

Each conversation is 4,000 shared tokens and 400 of its own. It is resident when, after all others had their turn, its next
turn computes no more than a block of what it said before. llama-server is asked with id_slot, so that every conversation
has a slot to itself, and without its copy of prompts beyond the KV memory (--cache-ram 0). For each engine the largest
number that all stay is searched from what its memory should hold.
"""
import argparse
import json
import random
import time
import urllib.error
import urllib.request

from peers.process import OPENER, Server, end_with_servers, free_port

BLOCK = 16


def post(base, path, body):
    request = urllib.request.Request(base + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    return json.load(OPENER.open(request, timeout=3600))


class Larder:
    name = "Larder"

    def __init__(self, a, num_conversations):
        self.command = [a.larder, "serve", "-m", a.model, "--kv-size", str(a.kv_bytes), "-t", str(a.threads),
                        "--kv-type", a.kv_type, "-c", "6144"]

    def cached(self, base, index, prompt):
        reply = post(base, "/v1/completions", {"model": "default", "prompt": prompt, "max_tokens": 1, "temperature": 0})
        return reply["usage"]["prompt_tokens_details"]["cached_tokens"]


class Llama:
    name = "llama-server"

    def __init__(self, a, num_conversations):
        tokens = a.kv_bytes // a.kv_bytes_per_token
        self.command = [f"{a.llama}/llama-server", "-m", a.model, "-t", str(a.threads), "-fa", "on", "-np",
                        str(num_conversations), "-c", str(tokens), "-kvu", "--cache-ram", "0", "--no-warmup",
                        "-ctk", a.kv_type, "-ctv", a.kv_type]

    def cached(self, base, index, prompt):
        reply = post(base, "/completion", {"prompt": prompt, "n_predict": 1, "temperature": 0, "id_slot": index,
                                           "cache_prompt": True})
        return reply["timings"]["cache_n"]


def num_resident(a, engine, num_conversations):
    rng = random.Random(3)
    shared = [rng.randrange(1000, 40000) for _ in range(a.shared)]
    prompts = [shared + [rng.randrange(1000, 40000) for _ in range(a.private)] for _ in range(num_conversations)]
    port = free_port()
    with Server([*engine.command, "--port", port], port) as server:
        start = time.time()
        resident = 0
        try:
            for index, prompt in enumerate(prompts):
                engine.cached(server.base, index, prompt)
            first = time.time() - start
            resident = sum(engine.cached(server.base, index, prompt) >= len(prompt) - BLOCK
                           for index, prompt in enumerate(prompts))
        except urllib.error.HTTPError as error:
            print(f"  {engine.name}, {num_conversations}: {error.code} {error.read()[:120]}", flush=True)
            return 0
        print(f"  {engine.name}: {resident} of {num_conversations} resident, first turns {first:.1f} s", flush=True)
        return resident


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("-m", "--model", required=True)
    p.add_argument("--larder", default="build/larder")
    p.add_argument("--llama", required=True, help="folder with llama-server")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--kv-bytes", type=int, default=1 << 30)
    p.add_argument("--kv-bytes-per-token", type=int, default=23040, help="of the model in the type (SmolLM2 135M, f16)")
    p.add_argument("--kv-type", default="f16", choices=["f16", "bf16"], help="of both engines")
    p.add_argument("--shared", type=int, default=4000)
    p.add_argument("--private", type=int, default=400)
    a = p.parse_args()
    end_with_servers()
    tokens = a.kv_bytes // a.kv_bytes_per_token
    best = {}
    for engine, expected in ((Llama, tokens // (a.shared + a.private)), (Larder, (tokens - a.shared) // a.private)):
        best[engine.name] = 0
        # Down to what fits; from there up to what no longer does.
        count = expected
        while count > 0 and num_resident(a, engine(a, count), count) < count:
            count -= 1
        while count >= expected and num_resident(a, engine(a, count + 1), count + 1) == count + 1:
            count += 1
        best[engine.name] = count
    print(f"| KV memory | Larder | llama-server | ratio |\n| ---: | ---: | ---: | ---: |\n| {a.kv_bytes / 2**30:.2f} GiB | "
          f"{best['Larder']} | {best['llama-server']} | {best['Larder'] / max(1, best['llama-server']):.2f} |")


if __name__ == "__main__":
    main()
