#!/usr/bin/env python3
"""What a token costs by the length of its context and by the sequences that decode at once: a table, and a plot.

cost.py --larder build/larder MODEL.gguf... [--contexts 512 ... 32768] [--batches 1 ... 64] [--kv-type f16] [--svg cost.svg]

By context, one sequence decodes; by batch, all of them behind --depth tokens. A cliff is a step at which a token costs more
than the work explains: by context more than twice as much for twice as many tokens, by batch more than with fewer sequences.
"""
import argparse
import pathlib
import re
import sys

from peers import svg
from peers.process import output_of

CONTEXTS = (512, 1024, 2048, 4096, 8192, 16384, 32768)
BATCHES = (1, 2, 4, 8, 16, 32, 64)
NOISE = 1.05  # of two medians on one machine


def bench(a, model, *options):
    return output_of([a.larder, "bench", "-m", model, "--pp", 16, "--tg", a.tokens, "-r", a.rounds, "--made-up",
                      "--kv-type", a.kv_type, "--kv-size", a.kv_size, *options])


def by_context(a, model):
    """{context: milliseconds a token}"""
    out = bench(a, model, "-d", *a.contexts)
    return {int(depth): 1e3 / float(rate) for depth, rate in re.findall(r"\| tg\d+ @ d(\d+) \| ([\d.]+) ±", out)}


def by_batch(a, model):
    out = bench(a, model, "-d", a.depth, "--batch", *a.batches)
    return {int(batch): 1e3 / float(rate) for batch, rate in re.findall(r"\| (\d+) x tg\d+ @ d\d+ \| ([\d.]+) ±", out)}


def cliffs(costs, most):
    """Steps (from, to) whose cost grows by more than most(from, to)."""
    points = sorted(costs.items())
    return [(x, y) for (x, cost), (y, later) in zip(points, points[1:]) if later > cost * most(x, y) * NOISE]


def table(title, costs, columns):
    print(f"\n| {title} | " + " | ".join(f"{c:,}" for c in columns) + " |")
    print("| --- |" + " ---: |" * len(columns))
    for name, of_model in costs.items():
        print(f"| {name} | " + " | ".join(f"{of_model[c]:.2f}" if c in of_model else "" for c in columns) + " |")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("models", nargs="+", type=pathlib.Path)
    p.add_argument("--larder", default="build/larder")
    p.add_argument("--contexts", type=int, nargs="+", default=CONTEXTS)
    p.add_argument("--batches", type=int, nargs="+", default=BATCHES)
    p.add_argument("--depth", type=int, default=512, help="tokens before those of --batches (default 512)")
    p.add_argument("--tokens", type=int, default=32)
    p.add_argument("--rounds", type=int, default=1)
    p.add_argument("--kv-type", default="f16")
    p.add_argument("--kv-size", default="3GiB")
    p.add_argument("--svg", type=pathlib.Path)
    a = p.parse_args()
    contexts, batches = {}, {}
    for model in a.models:
        contexts[model.stem], batches[model.stem] = by_context(a, model), by_batch(a, model)
    table("ms a token, by context", contexts, a.contexts)
    table(f"ms a token, by sequences at once behind {a.depth}", batches, a.batches)
    found = [f"{name}: from {x:,} to {y:,}" for name, costs in contexts.items() for x, y in cliffs(costs, lambda x, y: y / x)]
    found += [f"{name}: from {x} to {y} at once" for name, costs in batches.items() for x, y in cliffs(costs, lambda *_: 1)]
    print("\ncliffs: " + ("; ".join(found) if found else "none"))
    if a.svg:
        panels = [svg.Panel("One sequence", ("tokens in the context", "ms a token"),
                            {name: list(c.items()) for name, c in contexts.items()}, log_y=True),
                  svg.Panel(f"Behind {a.depth} tokens each", ("sequences at once", "ms a token"),
                            {name: list(c.items()) for name, c in batches.items()}, log_y=True)]
        image = svg.figure(panels, list(contexts))
        if image is None:
            sys.exit("nothing was measured: no plot")
        a.svg.write_text(image)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
