"""One class per engine. Each answers in the same terms:

prefill_rates(model, lengths)  -> {length: tokens/s}, one stream, nothing cached
decode_rates(model, depths)    -> {tokens before: tokens/s}, one stream
serve(model, plans, capacity)  -> [result of each plan, with "peak_rss_bytes", "kv_bytes" and "kv_reserved_bytes"]
refusal(model)                 -> why it cannot run that file, or None

`capacity` is (sequences at once, tokens of each): every engine gets KV memory for these. Every call starts its own
process. Raises process.Failed.
"""
import json
import os
import pathlib
import random
import re
import subprocess

from peers import install, load, models
from peers.process import Failed, Server, Watch, free_port, run_command

DECODE_TOKENS = 64
BENCH_KV_BYTES = 3 << 30  # room for the longest context of every model


def kv_bytes_for(model, capacity):
    """What all that is asked for takes, if nothing is shared; the same for every engine, but at least one full context."""
    num_sequences, tokens_each = capacity
    return max(num_sequences * tokens_each, model.context) * model.kv_bytes_per_token


class Larder:
    name = "Larder"

    def __init__(self, options):
        self.binary = options.larder
        self.threads = options.threads
        self.log = install.PEERS / "larder-run.log"

    def version(self):
        return run_command([self.binary, "--version"], self.log, 60).strip().replace("larder ", "")

    def refusal(self, model):
        return None

    def bench(self, model, *arguments):
        return run_command([self.binary, "bench", "-m", model.path, "-t", self.threads, "-r", "1", "--kv-size", BENCH_KV_BYTES,
                            *arguments], self.log, 1800)

    def prefill_rates(self, model, lengths):
        out = self.bench(model, "-c", max(lengths) + 16, "--tg", 1, "--pp", *lengths)
        return {int(n): float(rate) for n, rate in re.findall(r"\| pp(\d+) \| ([\d.]+) ±", out)}

    def decode_rates(self, model, depths):
        behind = ["-d", *[d for d in depths if d > 0]] if any(depths) else []
        out = self.bench(model, "-c", max(depths) + DECODE_TOKENS + 16, "--pp", 16, "--tg", DECODE_TOKENS, *behind)
        found = re.findall(r"\| tg\d+(?: @ d(\d+))? \| ([\d.]+) ±", out)
        return {int(depth or 0): float(rate) for depth, rate in found if int(depth or 0) in depths}

    def serve(self, model, plans, capacity):
        port = free_port()
        # Random weights soon repeat themselves, and peers do not guess unless told: see bench/drafts.py.
        command = [self.binary, "serve", "-m", model.path, "--port", port, "-t", self.threads, "--kv-size",
                   kv_bytes_for(model, capacity), "--draft-tokens", 0]
        with Server(command, port, self.log) as server:
            return [serve_and_watch(server, plan, model.kv_bytes_per_token) for plan in plans]


class LlamaCpp:
    name = "llama.cpp"

    def __init__(self, options):
        self.bin = install.llama_cpp(options.llama_bin)
        self.is_given = options.llama_bin is not None
        self.threads = options.threads
        self.log = install.PEERS / "llama.cpp-run.log"

    def version(self):
        if self.is_given:  # it says so on standard error
            run_command([self.bin / "llama-server", "--version"], self.log, 60)
            found = re.search(r"version: (.*)", self.log.read_text())
            return found[1] if found else f"of unknown version, in {self.bin.name}"
        return f"the source in {install.LLAMA_SDIST.replace('==', ' ')}"

    def refusal(self, model):
        return None

    def bench(self, model, *arguments):
        out = run_command([self.bin / "llama-bench", "-m", model.path, "-t", self.threads, "-r", 1, "-fa", 1, "-o", "json",
                           *arguments], self.log, 1800)
        return json.loads(out)

    # The warm-up repeats the whole prompt: long ones do without, behind a short one that touches the weights.
    def prefill_rates(self, model, lengths):
        tests = self.bench(model, "-n", 0, "-p", ",".join(map(str, [64, *sorted(lengths)])), "--no-warmup")
        return {t["n_prompt"]: t["avg_ts"] for t in tests if t["n_prompt"] in lengths}

    def decode_rates(self, model, depths):
        tests = self.bench(model, "-p", 0, "-n", DECODE_TOKENS, "-d", ",".join(map(str, depths)))
        return {t["n_depth"]: t["avg_ts"] for t in tests}

    def serve(self, model, plans, capacity):
        num_sequences, tokens_each = capacity
        port = free_port()
        context = num_sequences * tokens_each
        command = [self.bin / "llama-server", "-m", model.path, "--port", port, "-t", self.threads, "-fa", "on", "-np",
                   num_sequences, "-c", context]
        with Server(command, port, self.log) as server:
            results = [serve_and_watch(server, plan, model.kv_bytes_per_token) for plan in plans]
        for result in results:  # each slot's part is set aside at the start and never shared
            result["kv_bytes"] = result["kv_reserved_bytes"] = context * model.kv_bytes_per_token
        return results


class OpenVino:
    name = "OpenVINO GenAI"
    types = {"Q4_0", "Q8_0", "F16"}

    def __init__(self, options):
        self.python = install.openvino()
        self.threads = options.threads
        self.log = install.PEERS / "openvino-run.log"

    def version(self):
        return install.version_of(install.OPENVINO)

    def refusal(self, model):
        if model.is_sparse:
            return "reads no GGUF files of models with experts"
        return None if model.weight_type in self.types else f"reads {', '.join(sorted(self.types))} of GGUF's types only"

    def drive(self, job):
        job_file = install.PEERS / "openvino-job.json"
        job_file.write_text(json.dumps(job))
        driver = pathlib.Path(__file__).with_name("openvino_driver.py")
        return json.loads(run_command([self.python, driver, job_file], self.log, 1800).splitlines()[-1])

    def rates(self, model, tests):
        return {int(k): v for k, v in self.drive({"do": "rates", "model": str(model.path), "threads": self.threads,
                                                  **tests}).items()}

    def prefill_rates(self, model, lengths):
        return self.rates(model, {"prefill": list(lengths)})

    def decode_rates(self, model, depths):
        return self.rates(model, {"decode": list(depths), "tokens": DECODE_TOKENS})

    def serve(self, model, plans, capacity):
        return self.drive({"do": "serve", "model": str(model.path), "threads": self.threads, "plans": plans,
                           "kv_bytes": kv_bytes_for(model, capacity), "kv_bytes_per_token": model.kv_bytes_per_token,
                           "sequences": capacity[0]})


class Vllm:
    name = "vLLM"

    def __init__(self, options):
        self.home = install.vllm()
        # Without instructions for BF16 it is several times faster in FP32.
        self.dtype = "bfloat16" if has_bf16() else "float32"
        self.kv_factor = 1 if has_bf16() else 2  # of the bytes at 16 bits
        self.threads = options.threads
        self.log = install.PEERS / "vllm-run.log"

    def version(self):
        return f"{install.version_of(install.VLLM)} for CPU, {self.dtype}, eager"

    def refusal(self, model):
        return None if model.name == "smollm2-q8_0" else "reads no GGUF; its copy of SmolLM2 stands beside Q8_0"

    def server(self, model, capacity):
        port = free_port()
        folder = models.hugging_face_folder(model, install.venv_python("vllm"))
        command = [self.home / "bin" / "vllm", "serve", folder, "--port", port, "--enforce-eager", "--max-model-len",
                   model.context, "--dtype", self.dtype, "--max-num-seqs", max(16, capacity[0]), "--served-model-name",
                   "default", "--enable-prompt-tokens-details"]
        cores = sorted(os.sched_getaffinity(0))[:self.threads]
        env = {"VLLM_CPU_KVCACHE_SPACE": str(-(-kv_bytes_for(model, capacity) * self.kv_factor // 2**30)),
               "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)), "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
        return Server(command, port, self.log, env)

    # Over HTTP, as it has no command for it that keeps prompts out of its cache.
    def prefill_rates(self, model, lengths):
        with self.server(model, (1, model.context)) as server:
            one_stream(server, 64, 1)
            return {n: n / one_stream(server, n, 1)[0] for n in lengths}

    def decode_rates(self, model, depths):
        with self.server(model, (1, model.context)) as server:
            one_stream(server, 64, 1)
            rates = {}
            for depth in depths:
                _, seconds, num_gaps = one_stream(server, max(1, depth), DECODE_TOKENS + 1)
                rates[depth] = num_gaps / seconds
            return rates

    def serve(self, model, plans, capacity):
        with self.server(model, capacity) as server:
            one_stream(server, 64, 8)
            return [serve_and_watch(server, plan, model.kv_bytes_per_token * self.kv_factor) for plan in plans]


def commit_of(binary):
    """What the tree that it was built in stands at, "" if it is not this one."""
    root = pathlib.Path(__file__).resolve().parents[2]
    if pathlib.Path(binary).resolve() != root / "build" / "larder":
        return ""
    done = subprocess.run(["git", "-C", root, "describe", "--always", "--dirty"], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


def has_bf16():
    flags = pathlib.Path("/proc/cpuinfo").read_text()
    return "avx512_bf16" in flags or "amx_bf16" in flags


def one_stream(server, num_prompt, num_output):
    """Seconds to the first token, from there to the last, and tokens in that time."""
    plan = {"concurrency": 1, "requests": [{"prompt": load.random_tokens(random.Random(), num_prompt),
                                            "out": num_output, "after": 0}]}
    request = load.run_plan(server.base, plan)["requests"][0]
    times = request["times"]
    return times[0] - request["start"], times[-1] - times[0], request["output_tokens"] - 1


def serve_and_watch(server, plan, kv_bytes_per_token):
    """The plan's result with the server's memory; KV in use as vLLM's metrics, which Larder has too, tell it."""
    def kv_bytes(page):
        usage = re.search(r"^vllm:kv_cache_usage_perc\S* (\S+)", page, re.MULTILINE)
        info = re.search(r"^vllm:cache_config_info\{(.*)\}", page, re.MULTILINE)
        if not usage or not info:
            return 0, 0
        blocks, size = (int(re.search(rf'{key}="(\d+)"', info[1])[1]) for key in ("num_gpu_blocks", "block_size"))
        reserved = blocks * size * kv_bytes_per_token
        return float(usage[1]) * reserved, reserved

    try:
        has_metrics = kv_bytes(server.text("/metrics"))[1] > 0
    except OSError:
        has_metrics = False
    with Watch(lambda: kv_bytes(server.text("/metrics"))[0] if has_metrics else 0) as watch:
        result = load.run_plan(server.base, plan)
    result["peak_rss_bytes"] = server.peak_rss_bytes()
    result["kv_bytes"] = watch.peak
    result["kv_reserved_bytes"] = kv_bytes(server.text("/metrics"))[1] if has_metrics else 0
    return result


ENGINES = [Larder, LlamaCpp, OpenVino, Vllm]


def set_up(options, names):
    """The engines that are there, and {name: why not} of the others."""
    there, absent = [], {}
    for engine in ENGINES:
        if names and engine.name not in names:
            absent[engine.name] = "left out by --engines"
            continue
        try:
            there.append(engine(options))
        except (install.Absent, Failed, OSError) as error:
            absent[engine.name] = str(error)
    return there, absent
