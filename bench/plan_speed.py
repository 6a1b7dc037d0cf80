#!/usr/bin/env python3
"""What `larder plan` expects of this machine against what `larder bench` measures.

plan_speed.py --larder build/larder MODEL.gguf... [--rounds 3] [--kv-type f16]

Plan and bench take turns; the table shows medians over the rounds. Fails when one is off by more than --within percent, as
it may on a machine that others use.
"""
import argparse
import json
import re
import statistics
import sys

from peers.process import output_of

PROMPTS = (512, 2048)
DEPTH = 2048
TESTS = [*(f"pp{length}" for length in PROMPTS), "tg64", f"tg64 @ d{DEPTH}"]


def planned(a, options):
    out = json.loads(output_of([a.larder, "plan", "--json", *options]))
    speed = out["speed"]
    rates = {f"pp{row['prompt']}": row["prompt"] / row["seconds"] for row in speed["first_token"]}
    for row in speed["decode"]:
        if row["requests"] == 1:
            rates["tg64" if row["context"] == 0 else f"tg64 @ d{row['context']}"] = row["tokens_per_second"]
    return rates


def measured(a, options):
    out = output_of([a.larder, "bench", *options, "--pp", *PROMPTS, "--tg", 64, "-d", DEPTH, "-r", 1])
    return {test: float(rate) for test, rate in re.findall(r"\| ((?:pp|tg)\d+(?: @ d\d+)?) \| ([\d.]+) ±", out)}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("models", nargs="+")
    p.add_argument("--larder", default="build/larder")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--kv-type", default="f16")
    p.add_argument("--within", type=float, default=15, help="percent (default 15)")
    a = p.parse_args()
    print("| model | KV type | test | planned, t/s | measured, t/s | off |\n| --- | --- | --- | ---: | ---: | ---: |")
    worst = 0
    for model in a.models:
        options = ["-m", model, "--kv-type", a.kv_type, "--kv-size", "300MiB", "-c", "4096"]
        rounds = [(planned(a, options), measured(a, options)) for _ in range(a.rounds)]
        for test in TESTS:
            plan, bench = (statistics.median(r[i][test] for r in rounds) for i in (0, 1))
            off = (plan / bench - 1) * 100
            worst = max(worst, abs(off))
            print(f"| {model.rsplit('/', 1)[-1]} | {a.kv_type} | {test} | {plan:.1f} | {bench:.1f} | {off:+.1f} % |", flush=True)
    print(f"\nworst: {worst:.1f} %")
    sys.exit(worst > a.within)


if __name__ == "__main__":
    main()
