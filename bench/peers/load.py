"""A load over HTTP, against any server with /v1/completions; and the plans of what is sent.

A plan is {"concurrency": n, "requests": [{"prompt": [token ids], "out": n, "after": n}]}: `after` holds a request
back until the first one has that many tokens; one with "ends_with_rest" is broken off once the others have ended. Its result is {"wall_s", "requests": [{"start", "times",
"prompt_tokens", "cached_tokens", "output_tokens"}]} in seconds of one clock.
"""
import asyncio
import json
import random
import time

# Ordinary tokens in every vocabulary that is measured: no special ones, no bytes.
TOKEN_IDS = (1000, 40000)


def random_tokens(rng, count):
    return [rng.randrange(*TOKEN_IDS) for _ in range(count)]


def many_plan(seed, concurrency, shared, prompt_tokens=560, output_tokens=32):
    """At least four requests, `concurrency` at once; with `shared` all but 60 tokens of their prompts are the same."""
    rng = random.Random(f"{seed} {concurrency} {shared}")
    num_shared = prompt_tokens - 60 if shared else 0
    prefix = random_tokens(rng, num_shared)
    requests = [{"prompt": prefix + random_tokens(rng, prompt_tokens - num_shared), "out": output_tokens, "after": 0}
                for _ in range(max(4, concurrency))]
    return {"concurrency": concurrency, "requests": requests}


def interference_plan(seed, long_tokens):
    """A running stream, and a long prompt that comes when it has 64 tokens. The stream outlasts the prompt, on any engine."""
    rng = random.Random(f"{seed} interference")
    return {"concurrency": 2, "requests": [{"prompt": random_tokens(rng, 32), "out": 8000, "after": 0, "ends_with_rest": True},
                                           {"prompt": random_tokens(rng, long_tokens), "out": 1, "after": 64}]}


def alone_plan(seed, num_tokens):
    """The same stream without the prompt, as long as it was when that was answered."""
    request = interference_plan(seed, 1)["requests"][0]
    return {"concurrency": 1, "requests": [{"prompt": request["prompt"], "out": num_tokens, "after": 0}]}


class Client:
    def __init__(self, base, plan):
        self.base = base
        self.plan = plan
        self.running = asyncio.Semaphore(plan["concurrency"])
        self.num_of_first = 0
        self.num_ended = 0
        self.progress = asyncio.Condition()

    async def run(self):
        import aiohttp
        # A connection for each request: llama.cpp's server closes them without a word, also where they could be kept.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=3600), connector=connector) as session:
            start = time.perf_counter()
            results = await asyncio.gather(*(self.one(session, i) for i in range(len(self.plan["requests"]))))
            return {"wall_s": time.perf_counter() - start, "requests": results}

    async def one(self, session, index):
        request = self.plan["requests"][index]
        async with self.progress:
            await self.progress.wait_for(lambda: self.num_of_first >= request["after"])
        async with self.running:
            result = await self.stream(session, index, request)
        self.num_ended += 1
        return result

    async def stream(self, session, index, request):
        body = {"model": "default", "prompt": request["prompt"], "max_tokens": request["out"], "temperature": 0,
                "stream": True, "ignore_eos": True, "stream_options": {"include_usage": True}}
        start, times, usage, wordless = time.perf_counter(), [], {}, None
        async with session.post(self.base + "/v1/completions", json=body) as reply:
            if reply.status != 200:
                raise RuntimeError(f"HTTP {reply.status}: {(await reply.text())[:300]}")
            async for line in reply.content:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[6:])
                if "error" in event:
                    raise RuntimeError(f"the stream broke off: {str(event['error'])[:300]}")
                usage = event.get("usage") or usage
                if not event.get("choices"):
                    continue
                wordless = wordless or time.perf_counter()
                if event["choices"][0].get("text"):
                    times.append(time.perf_counter())
                    if index == 0:
                        await self.count_first(len(times))
                if request.get("ends_with_rest") and self.num_ended == len(self.plan["requests"]) - 1:
                    usage = {"prompt_tokens": len(request["prompt"]), "completion_tokens": len(times)}
                    break
        if not times and wordless is None:
            raise RuntimeError("a stream without tokens")
        check_counts(request, usage)
        times = times or [wordless]  # a single token can be a part of a character, and have no text
        if index == 0:
            await self.count_first(1 << 30)  # whatever waits for it need not wait longer
        details = usage.get("prompt_tokens_details") or {}
        return {"start": start, "times": times, "prompt_tokens": usage["prompt_tokens"],
                "cached_tokens": details.get("cached_tokens"), "output_tokens": usage["completion_tokens"]}

    async def count_first(self, count):
        async with self.progress:
            self.num_of_first = count
            self.progress.notify_all()


def check_counts(request, usage):
    """An answer to another question, or half of one, is not what is measured."""
    asked, answered = (len(request["prompt"]), request["out"]), (usage.get("prompt_tokens"), usage.get("completion_tokens"))
    if answered[0] != asked[0] or (answered[1] != asked[1] and not request.get("ends_with_rest")):
        raise RuntimeError(f"asked for {asked[1]} tokens behind {asked[0]}, {answered[1]} came behind {answered[0]}")


def run_plan(base, plan):
    return asyncio.run(run_async(base, plan))


async def run_async(base, plan):
    return await Client(base, plan).run()
