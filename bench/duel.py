#!/usr/bin/env python3
"""Builds, KV types or instruction sets against each other and against memory, a few milliseconds at a time.

duel.py --model MODEL.gguf --run "old=OLD/bench/model_bench" --run "new=NEW/bench/model_bench" --test "tg 16 512" --rounds 60
duel.py --model MODEL.gguf --run "f16=build-bench/bench/model_bench" --run "int8=build-bench/bench/model_bench {} 2 int8" --test "tg 16 2048"

Each run is a process of bench/model_bench, "{}" standing for the model; all stay loaded, and take turns test by test, so that
what the machine does from second to second is in all of them. Medians over the rounds, and the median of the ratios to
the first run, round by round. For tests that read every weight once a token, "tg", also the share of the bandwidth that
the same process reads its weights with, the better of plain loads and loads behind prefetches, in the same round.
"""
import argparse
import shlex
import statistics
import subprocess


class Run:
    def __init__(self, spec, model):
        self.name, command = spec.split("=", 1)
        argv = shlex.split(command)
        argv = [model if part == "{}" else part for part in argv] if "{}" in argv else [*argv, model]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        first = self.process.stdout.readline().split()
        if len(first) < 2:
            raise SystemExit(f"{self.name} did not start: {command}")
        self.weights_bytes = float(first[1]) * (1 << 20)

    def rate(self, test):
        self.process.stdin.write(test + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"{self.name} ended at the test {test!r}")
        seconds, units = answer.split()
        return float(units) / float(seconds)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", required=True)
    p.add_argument("--run", action="append", required=True, help="NAME=COMMAND")
    p.add_argument("--test", action="append", required=True, help="a line for model_bench")
    p.add_argument("--rounds", type=int, default=30)
    p.add_argument("--no-bandwidth", action="store_true")
    a = p.parse_args()
    runs = [Run(spec, a.model) for spec in a.run]
    print("| run | test | tokens/s | of the first run | GB/s | of the bandwidth |\n| --- | --- | ---: | ---: | ---: | ---: |")
    for test in a.test:
        rates, bandwidths = {run: [] for run in runs}, {run: [] for run in runs}
        reads_weights = test.startswith("tg ") and not a.no_bandwidth
        for turn in range(a.rounds):
            for run in runs if turn % 2 == 0 else reversed(runs):
                before = max(run.rate("read"), run.rate("fetch")) if reads_weights else 0
                rates[run].append(run.rate(test))
                if reads_weights:
                    bandwidths[run].append((before + max(run.rate("read"), run.rate("fetch"))) / 2)
        for run in runs:
            ratio = statistics.median(r / first for r, first in zip(rates[run], rates[runs[0]]))
            line = f"| {run.name} | {test} | {statistics.median(rates[run]):.2f} | {ratio:.3f} |"
            if reads_weights:
                # Sequences that decode at once read the weights once: tg COUNT DEPTH [SEQUENCES].
                num_sequences = int((test.split() + ["1"])[3])
                bytes_per_second = [r / num_sequences * run.weights_bytes for r in rates[run]]
                share = statistics.median(b / limit for b, limit in zip(bytes_per_second, bandwidths[run]))
                line += f" {statistics.median(bytes_per_second) / 1e9:.1f} | {share * 100:.1f} % |"
            else:
                line += " | |"
            print(line, flush=True)


if __name__ == "__main__":
    main()
