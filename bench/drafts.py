#!/usr/bin/env python3
"""What guessing ahead gains (docs/speculation.md): answers of one server without guesses and of one with them, in turns.

drafts.py --larder build/larder smollm2-135m [--rounds 3] [--temperature 0]; --completions for models that do not chat

With --draft-model FILE a third server has a small model guess, too. With --llama DIR llama-server takes its turns, too, as it is and
with its own lookup of n-grams; its answers are others.
Each round asks all tasks of all, under a salt of its own; the answers have to be the same. "again" is the task before it once more.
"""
import argparse
import concurrent.futures
import contextlib
import json
import statistics
import time
import urllib.request

from peers.process import OPENER, Server, end_with_servers, free_port

TEXT = """The harbour of Lindholm was built in 1874 by the brothers Aron and Petter Vik, who had made their money with herring.
It has two moles, the northern one 310 metres long and the southern one 190, and a lighthouse of red granite that was lit on
3 October 1881. In 1907 a storm took away forty metres of the northern mole, and three boats sank at their moorings. The town
rebuilt it within two years and added a breakwater of concrete blocks. Since 1968 the harbour has been used by pleasure boats
only; the herring market became a museum with a collection of nets, compasses and ship models."""
CODE = """def read_rows(path, limit=None):
    rows = []
    with open(path) as file:
        for number, line in enumerate(file):
            if limit is not None and number >= limit:
                break
            fields = line.rstrip("\\n").split("\\t")
            if len(fields) < 3:
                raise ValueError(f"{path}:{number + 1}: {len(fields)} fields, 3 are needed")
            rows.append({"name": fields[0], "size": int(fields[1]), "kind": fields[2]})
    return rows"""
SCHEMA = {"type": "object", "additionalProperties": False, "required": ["harbour", "built_in", "built_by", "moles", "lighthouse"],
          "properties": {"harbour": {"type": "string", "maxLength": 40}, "built_in": {"type": "integer"},
                         "built_by": {"type": "array", "items": {"type": "string", "maxLength": 40}, "maxItems": 3},
                         "moles": {"type": "array", "maxItems": 3, "items": {
                             "type": "object", "additionalProperties": False, "required": ["side", "length_in_metres"],
                             "properties": {"side": {"enum": ["northern", "southern"]}, "length_in_metres": {"type": "integer"}}}},
                         "lighthouse": {"type": "object", "additionalProperties": False, "required": ["material", "lit_on"],
                                        "properties": {"material": {"type": "string", "maxLength": 40},
                                                       "lit_on": {"type": "string", "maxLength": 40}}}}}
TASKS = {
    "copy a text": ("Repeat this text word for word:\n\n" + TEXT, {}),
    "rename in code": ("Rewrite this function with `rows` renamed to `records`, and nothing else changed:\n\n```python\n" + CODE + "\n```", {}),
    "summary": ("Summarise this text in three sentences:\n\n" + TEXT, {}),
    "JSON by a schema": ("Extract the facts of this text as JSON with harbour, built_in, built_by, moles (each with side and length_in_metres) and "
                         "lighthouse (material and lit_on):\n\n" + TEXT, {"structured_outputs": {"json": SCHEMA}}),
    "question": ("Why do ships float although steel is heavier than water?", {}),
    "write code": ("Write a Python class for a queue of bounded length, with push, pop and a test.", {}),
    "story": ("Tell me a story about a fox who learns to sail.", {}),
    "again": None,
}


def ask(a, server, task, salt):
    prompt, more = TASKS[task]
    said = {"prompt": prompt + "\n\n"} if a.completions else {"messages": [{"role": "user", "content": prompt}]}
    body = {**said, "max_tokens": a.tokens, "temperature": a.temperature, "seed": 1, "cache_salt": salt, **more}
    path = "/v1/completions" if a.completions else "/v1/chat/completions"
    request = urllib.request.Request(server.base + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    reply = json.load(OPENER.open(request, timeout=3600))
    choice = reply["choices"][0]
    if a.show:
        print(choice)
    return choice["text"] if a.completions else choice["message"]["content"], reply["timings"]


def many(a, server, at_once, salt):
    """All tasks at once, some of them twice: tokens in a second."""
    tasks = [task for task in TASKS if TASKS[task] is not None] * at_once
    begin = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        replies = list(pool.map(lambda i: ask(a, server, tasks[i], f"{salt} {i}"), range(at_once)))
    seconds = time.perf_counter() - begin
    return [text for text, _ in replies], sum(t["predicted_n"] for _, t in replies) / seconds


def llama_servers(a, model):
    """llama.cpp's, without guesses and with them; its defaults look for 12 equal tokens, which finds less."""
    if not a.llama:
        return []
    command = [f"{a.llama}/llama-server", "-m", model, "-c", 2048, "-fa", "on", "-np", 1]
    guesses = ["--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", 3, "--spec-ngram-simple-size-m", 8]
    return [Server([*command, "--port", port, *more], port) for port, more in ((free_port(), []), (free_port(), guesses))]


def measure(a, model):
    """Sides: without guesses, with lookups, and with those and the draft model."""
    options = [["--draft-tokens", 0], a.drafts] + ([[*a.drafts, "--draft-model", a.draft_model]] if a.draft_model else [])
    found = {task: [] for task in TASKS}
    rates = {number: [] for number in a.at_once}
    others = {task: [] for task in TASKS}
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(Server([a.larder, "serve", "-m", model, "--port", port, "-c", 2048, *more], port))
                   for port, more in ((free_port(), more) for more in options)]
        llamas = [stack.enter_context(server) for server in llama_servers(a, model)]
        for number in range(-1, a.rounds):
            before = None
            for task in TASKS:
                asked = before if TASKS[task] is None else task
                before = asked
                replies = [ask(a, server, asked, f"round {number}") for server in servers]
                for answer, _ in replies:
                    if answer != replies[0][0]:
                        raise SystemExit(f"{task}: another answer with guesses:\n{answer}\n---\n{replies[0][0]}")
                theirs = [ask(a, server, asked, "")[1]["predicted_per_second"] for server in llamas]
                if number >= 0:
                    found[task].append([timings for _, timings in replies])
                    others[task].append(theirs)
            for at_once in a.at_once:
                sides = [many(a, server, at_once, f"round {number} of {at_once}") for server in servers]
                if any(texts != sides[0][0] for texts, _ in sides):
                    raise SystemExit(f"another answer with guesses, of {at_once} at once")
                if number >= 0:
                    rates[at_once].append([rate for _, rate in sides])
    name = model.rsplit("/", 1)[-1]
    for task, rounds in found.items():
        last = rounds[-1]
        told = [f"{last[0]['predicted_n']}"]
        for side in last[1:]:
            told += [f"{side.get('draft_n', 0)}", f"{side.get('draft_n_accepted', 0)}"]
        told += speeds([[side["predicted_per_second"] for side in sides] for sides in rounds])
        told += [f"{statistics.median(r[i] for r in others[task]):.1f}" for i in range(len(llamas))]
        print(f"| {name} | {task} | {' | '.join(told)} |", flush=True)
    for at_once, rounds in rates.items():
        print(f"| {name} | {at_once} at once | {'| ' * (2 * len(options) - 1)}{' | '.join(speeds(rounds))} |", flush=True)


def speeds(rounds):
    """Of each side its median, then its ratio to the first one, and of the draft model to the lookups, round by round."""
    medians = [f"{statistics.median(rates[i] for rates in rounds):.1f}" for i in range(len(rounds[0]))]
    ratios = [(1, 0)] + ([(2, 0), (2, 1)] if len(rounds[0]) > 2 else [])
    return medians + [f"{statistics.median(rates[i] / rates[j] for rates in rounds):.2f}" for i, j in ratios]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("models", nargs="+")
    p.add_argument("--larder", default="build/larder")
    p.add_argument("--drafts", nargs="*", default=[], help="options of the second server, such as --draft-tokens 15")
    p.add_argument("--llama", help="folder with llama-server")
    p.add_argument("--tokens", type=int, default=200)
    p.add_argument("--temperature", type=float, default=0)
    p.add_argument("--draft-model", help="and a third server, which has that model guess, too")
    p.add_argument("--at-once", type=int, nargs="*", default=[], help="and so many requests at once, of all tasks but the last")
    p.add_argument("--completions", action="store_true")
    p.add_argument("--show", action="store_true", help="print the answers, too")
    p.add_argument("--rounds", type=int, default=3)
    a = p.parse_args()
    a.drafts = [word for text in a.drafts for word in text.split()]
    end_with_servers()
    columns = ["model", "task", "tokens", "guessed", "came true"]
    columns += ["guessed by the model, too", "came true"] if a.draft_model else []
    columns += ["t/s without", "t/s with"] + (["t/s with the model"] if a.draft_model else []) + ["ratio"]
    columns += ["with the model", "of that with"] if a.draft_model else []
    columns += ["llama.cpp", "with guesses"] if a.llama else []
    print(f"| {' | '.join(columns)} |\n| --- | --- |{' ---: |' * (len(columns) - 2)}")
    for model in a.models:
        measure(a, model)


if __name__ == "__main__":
    main()
