#!/usr/bin/env python3
"""Time to the first token of a chat's second turn where the template prints the answer anew (Qwen 3's without thoughts), with the
next turn computed ahead and without: two servers in turns.

    bench/next_turn.py --larder build/larder --model smollm2.gguf --rounds 9 --tokens 100 400 1000"""
import argparse
import pathlib
import re
import statistics
import subprocess
import threading
import time

import requests

TEMPLATE = pathlib.Path(__file__).parents[1] / "tests/golden/chat_template/templates/qwen3.jinja"
QUESTION = {"role": "user", "content": "Tell me how bread is made."}


class Server:
    def __init__(self, arguments, *more):
        command = [arguments.larder, "serve", "-m", arguments.model, "--port", "0", "-c", "8192", "--chat-template", str(TEMPLATE), *more]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if ready := re.search(r"at (http://\S+)", line):
                break
        self.url = ready[1]
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def chat(self, messages, num_tokens, salt):
        body = {"model": "default", "messages": messages, "max_tokens": num_tokens, "temperature": 0, "ignore_eos": True, "cache_salt": salt,
                "chat_template_kwargs": {"enable_thinking": False}}
        reply = requests.post(self.url + "/v1/chat/completions", json=body, timeout=600).json()
        return reply["choices"][0]["message"]["content"], reply["timings"]["prompt_ms"], reply["timings"]["cache_n"]

    def waits(self):
        """Until nothing is computed any more."""
        held = 1
        while held:
            time.sleep(2)
            held = float(re.search(r"larder:kv_blocks_held\{.*\} (\S+)", requests.get(self.url + "/metrics", timeout=60).text)[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--larder", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tokens", type=int, nargs="+", default=[100, 400, 1000])
    arguments = parser.parse_args()
    servers = {"ahead": Server(arguments), "off": Server(arguments, "--anticipate", "off")}
    print("| answer, tokens | off, ms | from the cache | ahead, ms | from the cache | off / ahead |\n| ---: | ---: | ---: | ---: | ---: | ---: |")
    for num_tokens in arguments.tokens:
        times = {name: [] for name in servers}
        found = {}
        for number in range(arguments.rounds):
            for name, server in servers.items():
                salt = f"{num_tokens} {number}"
                answer = server.chat([QUESTION], num_tokens, salt)[0]
                server.waits()
                messages = [QUESTION, {"role": "assistant", "content": answer}, {"role": "user", "content": "And cake?"}]
                _, ms, found[name] = server.chat(messages, 1, salt)
                times[name].append(ms)
        off, ahead = (statistics.median(times[name]) for name in ("off", "ahead"))
        print(f"| {num_tokens:,} | {off:.1f} | {found['off']} | {ahead:.1f} | {found['ahead']} | {off / ahead:.1f} |", flush=True)
    for server in servers.values():
        server.process.terminate()


if __name__ == "__main__":
    main()
