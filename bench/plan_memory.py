#!/usr/bin/env python3
"""The plan against the memory of the running server, in 30 configurations.

plan_memory.py --larder build/larder --smollm2 SmolLM2.gguf --gemma3 gemma-3.gguf --llama llama-1b.gguf [--only NUMBER...]

Each configuration is planned by `larder plan --json`, then served under the same options; eight clients send prompts of
random tokens until all of them together are longer than what the KV cache holds. Then the server's resident set (VmRSS) and
its peak since the start (VmHWM) are read and compared with the plan. Fails when one is off by more than --within percent.
"""
import argparse
import json
import random
import sys
import threading

from peers.process import Server, end_with_servers, free_port, output_of, status_bytes
from residency import post

CLIENTS = 8
# model, KV type, KV size, context, batch tokens, threads
CONFIGURATIONS = [
    ("smollm2", "f16", "32MiB", 512, 512, 2),
    ("smollm2", "f16", "96MiB", 2048, 512, 1),
    ("smollm2", "f16", "200MiB", 8192, 512, 2),
    ("smollm2", "f16", "96MiB", 2048, 64, 2),
    ("smollm2", "f16", "96MiB", 2048, 2048, 2),
    ("smollm2", "bf16", "64MiB", 1024, 256, 2),
    ("smollm2", "int8", "64MiB", 2048, 512, 2),
    ("smollm2", "int8", "32MiB", 1024, 128, 4),
    ("smollm2", "int4", "32MiB", 2048, 512, 2),
    ("smollm2", "k=int8,v=int4", "48MiB", 4096, 1024, 2),
    ("smollm2", "f16", "400MiB", 4096, 512, 8),
    ("gemma3", "f16", "32MiB", 512, 512, 2),
    ("gemma3", "f16", "96MiB", 2048, 512, 1),
    ("gemma3", "f16", "200MiB", 16384, 512, 2),
    ("gemma3", "f16", "96MiB", 2048, 64, 2),
    ("gemma3", "f16", "96MiB", 2048, 2048, 2),
    ("gemma3", "bf16", "64MiB", 1024, 256, 2),
    ("gemma3", "int8", "64MiB", 2048, 512, 2),
    ("gemma3", "int8", "32MiB", 1024, 128, 4),
    ("gemma3", "int4", "48MiB", 4096, 512, 2),
    ("gemma3", "k=int8,v=int4", "40MiB", 4096, 1024, 2),
    ("llama", "f16", "32MiB", 512, 512, 2),
    ("llama", "f16", "64MiB", 1024, 512, 1),
    ("llama", "f16", "96MiB", 2048, 64, 2),
    ("llama", "f16", "64MiB", 1024, 1024, 2),
    ("llama", "bf16", "48MiB", 1024, 256, 2),
    ("llama", "int8", "32MiB", 1024, 512, 2),
    ("llama", "int8", "24MiB", 1024, 128, 4),
    ("llama", "int4", "16MiB", 1024, 512, 2),
    ("llama", "k=int8,v=int4", "20MiB", 512, 512, 8),
]


def fill(base, plan, seed):
    """Prompts until more tokens were sent than the cache holds, by several clients at once."""
    rng = random.Random(seed)
    length = min(plan["max_model_len"] - 16, 480)
    left = [plan["kv_capacity_tokens"] + length]
    lock = threading.Lock()
    errors = []

    def client():
        while True:
            with lock:
                if left[0] <= 0 or errors:
                    return
                left[0] -= length
                prompt = [rng.randrange(1000, 40000) for _ in range(length)]
            try:
                post(base, "/v1/completions", {"model": "default", "prompt": prompt, "max_tokens": 8, "temperature": 0})
            except Exception as error:  # one client less would send too little
                errors.append(error)

    clients = [threading.Thread(target=client) for _ in range(CLIENTS)]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join()
    if errors:
        raise errors[0]


def measure(a, configuration):
    model, kv_type, kv_size, context, batch, threads = configuration
    options = ["-m", getattr(a, model), "--kv-type", kv_type, "--kv-size", kv_size, "-c", str(context), "--batch-tokens",
               str(batch), "-t", str(threads)]
    plan = json.loads(output_of([a.larder, "plan", "--json", "--no-measure", *options]))["server"]
    port = free_port()
    with Server([a.larder, "serve", "--port", port, *options], port) as server:
        fill(server.base, plan, 1)
        bound = plan["total_bytes"] + plan["bookkeeping_bytes"]
        resident, peak = (status_bytes(server.process.pid, field) for field in ("VmRSS", "VmHWM"))
        return plan["total_bytes"], resident, peak, bound


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--larder", default="build/larder")
    p.add_argument("--smollm2", required=True)
    p.add_argument("--gemma3", required=True)
    p.add_argument("--llama", required=True, help="a file in the shape of Llama 3.2 1B")
    p.add_argument("--within", type=float, default=2, help="percent (default 2)")
    p.add_argument("--only", type=int, nargs="*", help="numbers of configurations (default: all)")
    a = p.parse_args()
    end_with_servers()
    if not set(a.only or [1]) <= set(range(1, len(CONFIGURATIONS) + 1)):
        p.error(f"--only: configurations are 1 to {len(CONFIGURATIONS)}")
    print("| # | model | KV type | KV size | context | batch | threads | planned, MiB | resident | off | peak | off |")
    print("| ---: | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    worst, is_beyond = 0, False
    for number, configuration in enumerate(CONFIGURATIONS, 1):
        if a.only and number not in a.only:
            continue
        planned, resident, peak, bound = measure(a, configuration)
        is_beyond = is_beyond or peak > bound * 1.02
        off = [(value / planned - 1) * 100 for value in (resident, peak)]
        worst = max(worst, *(abs(x) for x in off))
        print(f"| {number} | {' | '.join(map(str, configuration))} | {planned / 2**20:.1f} | {resident / 2**20:.1f} | "
              f"{off[0]:+.2f} % | {peak / 2**20:.1f} | {off[1]:+.2f} % |", flush=True)
    print(f"\nworst: {worst:.2f} %" + ("; beyond what it may ever take" if is_beyond else ""))
    sys.exit(is_beyond or worst > a.within)


if __name__ == "__main__":
    main()
