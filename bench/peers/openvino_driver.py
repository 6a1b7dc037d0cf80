"""Runs inside OpenVINO GenAI's environment: does the job in the JSON file that is named, and prints its result as JSON.

rates: one stream through LLMPipeline, as its own benchmark does. serve: a plan of load.py through the continuous-batching
pipeline in this process, without HTTP.
"""
import json
import random
import re
import sys
import time

import numpy as np
import openvino as ov
import openvino_genai as genai

BLOCK_TOKENS = 32  # of its CPU plugin


def config_for(num_tokens):
    config = genai.GenerationConfig()
    config.max_new_tokens = num_tokens
    config.ignore_eos = True
    config.do_sample = False
    return config


def tensor_of(tokens):
    return ov.Tensor(np.array([tokens], dtype=np.int64))


def rates(job):
    pipeline = genai.LLMPipeline(job["model"], "CPU", INFERENCE_NUM_THREADS=job["threads"])
    rng = random.Random(1)

    def run(num_prompt, num_output):
        tokens = tensor_of([rng.randrange(1000, 40000) for _ in range(num_prompt)])
        inputs = genai.TokenizedInputs(tokens, ov.Tensor(np.ones((1, num_prompt), dtype=np.int64)))
        return pipeline.generate(inputs, config_for(num_output)).perf_metrics

    run(64, 8)
    found = {n: n / (run(n, 1).get_ttft().mean / 1e3) for n in job.get("prefill", [])}
    found.update({d: 1e3 / run(max(1, d), job["tokens"] + 1).get_tpot().mean for d in job.get("decode", [])})
    return found


def serve(job):
    scheduler = genai.SchedulerConfig()
    scheduler.num_kv_blocks = job["kv_bytes"] // (BLOCK_TOKENS * job["kv_bytes_per_token"])
    scheduler.enable_prefix_caching = True
    scheduler.dynamic_split_fuse = True
    scheduler.max_num_batched_tokens = 512
    scheduler.max_num_seqs = max(16, job["sequences"])
    pipeline = genai.ContinuousBatchingPipeline(job["model"], scheduler, "CPU", {"INFERENCE_NUM_THREADS": job["threads"]})
    warm_up = {"concurrency": 1, "requests": [{"prompt": list(range(2000, 2064)), "out": 8, "after": 0}]}
    Run(pipeline, warm_up, 1 << 20).go()
    return [Run(pipeline, plan, (number + 2) << 20).go() for number, plan in enumerate(job["plans"])]


class Run:
    """One plan: requests are added as others end, and every step's new tokens get the step's time."""

    def __init__(self, pipeline, plan, first_id):
        self.pipeline = pipeline
        self.requests = plan["requests"]
        self.concurrency = plan["concurrency"]
        self.first_id = first_id
        self.waiting = list(range(len(self.requests)))
        self.running = {}
        self.starts, self.times, self.counts = {}, {}, dict.fromkeys(self.waiting, 0)
        self.kv_peak_bytes = 0.0
        self.kv_reserved_bytes = 0

    def add_what_may_run(self):
        for index in list(self.waiting):
            request = self.requests[index]
            if len(self.running) < self.concurrency and self.counts[0] >= request["after"]:
                self.waiting.remove(index)
                self.starts[index] = time.perf_counter()
                self.times[index] = []
                self.running[index] = self.pipeline.add_request(self.first_id + index, tensor_of(request["prompt"]),
                                                                config_for(request["out"]))

    def read(self):
        now = time.perf_counter()
        for index, handle in list(self.running.items()):
            while handle.can_read():
                count = sum(len(output.generated_ids) for output in handle.read().values())
                self.counts[index] += count
                self.times[index] += [now] if count else []
            if handle.get_status() == genai.GenerationStatus.RUNNING:
                continue
            del self.running[index]
            if self.counts[index] != self.requests[index]["out"]:
                raise RuntimeError(f"{self.counts[index]} tokens of {self.requests[index]['out']}: {handle.get_status()}")

    def go(self):
        start = time.perf_counter()
        self.add_what_may_run()
        while self.running:
            if not self.pipeline.has_non_finished_requests():
                raise RuntimeError("requests neither run nor ended")
            self.pipeline.step()
            metrics = self.pipeline.get_metrics()
            self.kv_reserved_bytes = metrics.kv_cache_size_in_bytes
            self.kv_peak_bytes = max(self.kv_peak_bytes, metrics.cache_usage / 100 * self.kv_reserved_bytes)
            self.read()
            self.add_what_may_run()
            if not self.waiting and all(self.requests[i].get("ends_with_rest") for i in self.running):
                for handle in self.running.values():
                    handle.stop()
                self.running.clear()
        return {"wall_s": time.perf_counter() - start, "requests": [self.result(i) for i in range(len(self.requests))],
                "peak_rss_bytes": peak_rss_bytes(), "kv_reserved_bytes": self.kv_reserved_bytes,
                "kv_bytes": self.kv_peak_bytes}

    def result(self, index):
        return {"start": self.starts[index], "times": self.times[index], "prompt_tokens": len(self.requests[index]["prompt"]),
                "cached_tokens": None, "output_tokens": self.counts[index]}


def peak_rss_bytes():
    with open("/proc/self/status") as status:
        return int(re.search(r"VmHWM:\s+(\d+) kB", status.read())[1]) * 1024


def main():
    with open(sys.argv[1]) as file:
        job = json.load(file)
    print(json.dumps({"rates": rates, "serve": serve}[job["do"]](job)))


if __name__ == "__main__":
    main()
