#!/usr/bin/env python3
"""What a worker brings: `larder bench` alone, with a worker beside it and, as the most that could come of it on one machine,
with as many threads in one process. They take turns; best and median of the rounds.

bench/workers.py MODEL [--larder build/larder] [--rounds 5] [--threads 1] [bench's own options, such as --pp 512 --tg 64]
"""
import argparse
import json
import re
import statistics
import subprocess
import time

ROW = re.compile(r"\| (pp\d+|tg\d+)[^|]* \| ([\d.]+)")


def rates(larder, model, *options):
    out = subprocess.run([larder, "bench", "-m", model, "-c", "2048", "--kv-size", "256MiB", *options], capture_output=True, text=True,
                         check=True).stdout
    return {test: float(rate) for test, rate in ROW.findall(out)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--larder", default="build/larder")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    given, options = parser.parse_known_args()
    worker = subprocess.Popen([given.larder, "worker", "-m", given.model, "--listen", "127.0.0.1:0", "-t", str(given.threads)],
                              stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    try:
        for line in worker.stderr:
            if ready := re.search(r"a worker at (\S+)", line):
                break
        ways = {"alone": ["-t", str(given.threads)],
                "with a worker": ["-t", str(given.threads), "--workers", ready[1], "--worker-shares", "1,1"],
                "twice the threads": ["-t", str(2 * given.threads)]}
        seen = {}
        for _ in range(given.rounds):
            for way, more in ways.items():
                for test, rate in rates(given.larder, given.model, *more, *options).items():
                    seen.setdefault(test, {}).setdefault(way, []).append(rate)
                time.sleep(0.5)
        for test, by_way in seen.items():
            for way, values in by_way.items():
                print(f"{test:8} {way:18} best {max(values):8.1f}  median {statistics.median(values):8.1f}  {json.dumps(values)}")
    finally:
        worker.kill()


if __name__ == "__main__":
    main()
