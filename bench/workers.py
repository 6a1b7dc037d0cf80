#!/usr/bin/env python3
"""What a worker on the same machine brings: a server alone, one with a worker of as many threads, which has half of the
products, and, as the most that could come of it here, one with twice the threads. They take turns second by second, since what a
shared machine gives varies; the ratios are of one round each.

bench/workers.py MODEL [--larder build/larder] [--rounds 20] [--threads 1] [--prompt 512] [--tokens 64]
"""
import argparse
import contextlib
import json
import re
import statistics
import subprocess
import time
import urllib.request


@contextlib.contextmanager
def running(command, ready):
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    try:
        for line in process.stderr:
            if found := re.search(ready, line):
                yield found[1]
                return
        raise RuntimeError(f"{command} did not start")
    finally:
        process.kill()
        process.wait()


def seconds_of(url, number, num_tokens, prompt_len):
    body = json.dumps({"prompt": [3 + (7 * i + number) % 90 for i in range(prompt_len)], "max_tokens": num_tokens, "temperature": 0,
                       "ignore_eos": True, "cache_salt": str(number)}).encode()
    request = urllib.request.Request(url + "/v1/completions", body, {"Content-Type": "application/json"})
    begin = time.perf_counter()
    json.load(urllib.request.urlopen(request, timeout=600))
    return time.perf_counter() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--larder", default="build/larder")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=64)
    a = parser.parse_args()
    worker = [a.larder, "worker", "-m", a.model, "--listen", "127.0.0.1:0", "-t", str(a.threads)]
    serve = [a.larder, "serve", "-m", a.model, "-c", "2048", "--kv-size", "512MiB", "--draft-tokens", "0", "--port", "0"]
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(running(worker, r"a worker at (\S+)"))
        ways = {"alone": ["-t", str(a.threads)],
                "with a worker": ["-t", str(a.threads), "--workers", address, "--worker-shares", "1,1"],
                "twice the threads": ["-t", str(2 * a.threads)]}
        urls = {way: stack.enter_context(running(serve + more, r"Ready: .* at (http://\S+)")) for way, more in ways.items()}
        tests = {f"prompt of {a.prompt}": (1, a.prompt), f"decode of {a.tokens}": (a.tokens, 1)}
        seen = {test: {way: [] for way in ways} for test in tests}
        for number in range(a.rounds + 1):
            for test, (num_tokens, prompt_len) in tests.items():
                for way, url in urls.items():
                    rate = max(num_tokens, prompt_len) / seconds_of(url, number, num_tokens, prompt_len)
                    if number > 0:  # the first round warms up
                        seen[test][way].append(rate)
        for test, by_way in seen.items():
            for way, rates in by_way.items():
                ratios = [rate / alone for rate, alone in zip(rates, by_way["alone"])]
                print(f"{test:15} {way:18} best {max(rates):7.1f}/s  median {statistics.median(rates):7.1f}/s  of alone: median "
                      f"{statistics.median(ratios):.2f}, best rounds {max(rates) / max(by_way['alone']):.2f}")


if __name__ == "__main__":
    main()
