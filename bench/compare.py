#!/usr/bin/env python3
"""Larder beside llama.cpp on one machine, in one run: prefill and decode of files.

compare.py --larder build/larder --llama LLAMA_CPP/build/bin MODEL.gguf... [--rounds 3]

Engines take turns, so that a machine that slows down slows both; the table shows medians over rounds.
"""
import argparse
import re
import statistics

from peers.process import output_of


def larder_rates(a, model):
    out = output_of([a.larder, "bench", "-m", model, "-t", a.threads, "-r", 1, "--pp", *a.pp, "--tg", a.tg])
    return {test: float(rate) for test, rate in re.findall(r"\| (pp\d+|tg\d+) \| ([\d.]+) ±", out)}


def llama_rates(a, model):
    out = output_of([f"{a.llama}/llama-bench", "-m", model, "-t", a.threads, "-r", 1, "-fa", 1, "-p",
                     ",".join(map(str, a.pp)), "-n", a.tg])
    return {test: float(rate) for test, rate in re.findall(r"(pp\d+|tg\d+) \|\s+([\d.]+) ±", out)}


def compare_rates(a):
    print("| model | test | Larder, t/s | llama.cpp, t/s | ratio |\n| --- | --- | ---: | ---: | ---: |")
    for model in a.models:
        rounds = [(larder_rates(a, model), llama_rates(a, model)) for _ in range(a.rounds)]
        for test in rounds[0][0]:
            ours = statistics.median(r[0][test] for r in rounds)
            theirs = statistics.median(r[1][test] for r in rounds)
            print(f"| {model.rsplit('/', 1)[-1]} | {test} | {ours:.1f} | {theirs:.1f} | {ours / theirs:.2f} |", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("models", nargs="+")
    p.add_argument("--larder", default="build/larder")
    p.add_argument("--llama", required=True, help="folder with llama-bench")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--pp", type=int, nargs="+", default=[512])
    p.add_argument("--tg", type=int, default=128)
    compare_rates(p.parse_args())


if __name__ == "__main__":
    main()
