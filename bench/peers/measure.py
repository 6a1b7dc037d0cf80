"""What is measured, in turns, and kept.

A unit is one measurement by one engine in one round; its outcome is a JSON file, so that a run that was ended goes on
where it was. Rounds come first, then measurements, then engines: a run that ends early has a bit of everything, and a
machine that slows down slows all engines.
"""
import dataclasses
import datetime
import hashlib
import json
import pathlib
import platform
import sys
import time

from peers import install, load, stats

# Of a load and of what a request holds: 560 tokens of prompt and 32 of output, with room for a block more.
LEAST_ALONE = 256  # tokens of a stream, for percentiles
TOKENS_PER_REQUEST = 640


@dataclasses.dataclass(frozen=True)
class Measurement:
    name: str
    kind: str  # prefill, decode, serve, interference
    model: str
    points: tuple  # lengths, depths or requests at once
    rounds: int

    def missing(self, data):
        """Points that an outcome's data has not: an engine may leave some out, and --long asks for more of them."""
        return [p for p in self.points if str(p) not in data] if self.kind in ("prefill", "decode") else []


def measurements(quick, long, rounds):
    """The most telling ones first."""
    if quick:
        return [
            Measurement("prefill.smollm2-q8_0", "prefill", "smollm2-q8_0", (256,), 1),
            Measurement("decode.smollm2-q8_0", "decode", "smollm2-q8_0", (0, 256), 1),
            Measurement("prefill.1b-q4_0", "prefill", "1b-q4_0", (128,), 1),
            Measurement("decode.1b-q4_0", "decode", "1b-q4_0", (0,), 1),
            Measurement("serve-2.smollm2-q8_0", "serve", "smollm2-q8_0", (2,), 1),
            Measurement("serve-4.smollm2-q8_0", "serve", "smollm2-q8_0", (4,), 1),
            Measurement("interference.smollm2-q8_0", "interference", "smollm2-q8_0", (1024,), 1),
        ]
    lengths = {"smollm2-q8_0": (512, 4096), "1b-q4_0": (512, 4096), "gemma3-q4_k_m": (512, 4096, 16384),
               "smollm2-q4_1": (512, 4096), "1b-q8_0": (512,), "1b-q4_k": (512,), "1b-bf16": (512,),
               "experts-q4_0": (512, 4096), "latent-q4_0": (512, 4096), "gpt_oss-mxfp4": (512, 4096)}
    depths = {"smollm2-q8_0": (0, 512, 2048, 8000), "1b-q4_0": (0, 512, 2048, 8192),
              "gemma3-q4_k_m": (0, 512, 2048, 8192, 32000), "smollm2-q4_1": (0, 512, 2048, 8000),
              "1b-q8_0": (0, 512, 2048), "1b-q4_k": (0, 512), "1b-bf16": (0, 512),
              "experts-q4_0": (0, 512, 8192), "latent-q4_0": (0, 512, 8192), "gpt_oss-mxfp4": (0, 512, 8192)}
    if long:
        lengths["1b-q4_0"] += (16384,)
        depths["1b-q4_0"] += (32768,)

    def serve(count):
        return Measurement(f"serve-{count}.smollm2-q8_0", "serve", "smollm2-q8_0", (count,), rounds if count <= 16 else 1)

    rates = []
    for model in lengths:
        rates.append(Measurement(f"prefill.{model}", "prefill", model, lengths[model], rounds))
        decode_rounds = rounds if max(depths[model]) < 32000 else 1
        rates.append(Measurement(f"decode.{model}", "decode", model, depths[model], decode_rounds))
    interference = Measurement("interference.smollm2-q8_0", "interference", "smollm2-q8_0", (7600,), rounds)
    return [serve(16), interference, *rates[:8], serve(4), serve(1), *rates[8:], serve(64)]


def perform(measurement, engine, model, round_):
    """The unit's outcome, as JSON has it."""
    if measurement.kind == "prefill":
        return {str(k): v for k, v in engine.prefill_rates(model, measurement.points).items()}
    if measurement.kind == "decode":
        return {str(k): v for k, v in engine.decode_rates(model, measurement.points).items()}
    (amount,) = measurement.points
    if measurement.kind == "interference":
        capacity = (2, model.context)
        with_prompt = engine.serve(model, [load.interference_plan(round_, amount)], capacity)[0]
        # Gaps grow with the stream's own context: it is compared with itself, as deep.
        num_tokens = max(LEAST_ALONE, len(with_prompt["requests"][0]["times"]))
        alone = engine.serve(model, [load.alone_plan(round_, num_tokens)], capacity)[0]
        outcome = {**with_prompt, "alone": alone["requests"][0]["times"]}
        stats.summarize_interference(outcome)  # one that cannot be told failed
        return outcome
    plans = [load.many_plan(round_, amount, shared) for shared in (True, False)]
    shared, unique = engine.serve(model, plans, (amount, TOKENS_PER_REQUEST))
    for result in (shared, unique):
        stats.summarize(result)
    return {"shared": shared, "unique": unique}


def digest_of(path):
    return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()


class Store:
    """Outcomes of units in files, in a folder of this machine, this binary, these threads and this way to measure.

    `versions` has those of engines that are there: what another version did is not theirs."""

    def __init__(self, options, versions=None):
        self.versions = versions or {}
        here = pathlib.Path(__file__).parent
        files = [options.larder, *(here / f"{name}.py" for name in ("engines", "load", "measure", "openvino_driver"))]
        if options.llama_bin:
            files += [pathlib.Path(options.llama_bin) / name for name in ("llama-bench", "llama-server")]
        facts = " ".join([*(digest_of(f) for f in files if pathlib.Path(f).exists()), cpu_name(), str(options.threads)])
        kind = "quick" if options.quick else "full"
        self.folder = install.PEERS / "results" / f"{kind}-{hashlib.sha256(facts.encode()).hexdigest()[:12]}"
        self.folder.mkdir(parents=True, exist_ok=True)

    def clear(self):
        for path in self.folder.iterdir():
            path.unlink()

    def path(self, measurement, engine_name, round_):
        return self.folder / f"{measurement.name}.{engine_name.replace(' ', '-')}.{round_}.json"

    def get(self, measurement, engine_name, round_):
        path = self.path(measurement, engine_name, round_)
        if not path.exists():
            return None
        outcome = json.loads(path.read_text())
        return outcome if outcome["version"] == self.versions.get(engine_name, outcome["version"]) else None

    def is_done(self, measurement, engine_name, round_):
        outcome = self.get(measurement, engine_name, round_)
        return outcome is not None and "data" in outcome and not measurement.missing(outcome["data"])

    def put(self, measurement, engine_name, round_, outcome):
        path = self.path(measurement, engine_name, round_)
        outcome = {"version": self.versions.get(engine_name, ""), "date": datetime.date.today().isoformat(), **outcome}
        unfinished = path.with_suffix(".part")
        unfinished.write_text(json.dumps(outcome))
        unfinished.rename(path)

    def outcomes(self, measurement, engine_name):
        """Of all rounds that were done, without failures."""
        return [o["data"] for o in self.all_rounds(measurement, engine_name) if "data" in o]

    def failures(self, measurement, engine_name):
        return [o["failed"] for o in self.all_rounds(measurement, engine_name) if "failed" in o]

    def dates(self, measurement, engine_name):
        return [o["date"] for o in self.all_rounds(measurement, engine_name)]

    def all_rounds(self, measurement, engine_name):
        found = [self.get(measurement, engine_name, r) for r in range(measurement.rounds)]
        return [o for o in found if o]


def cpu_name():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def run(todo, engines, models, store, end_s):
    """Does what is not in the store, until the clock (time.monotonic) is at end_s; false when that cut it short."""
    for round_ in range(max((m.rounds for m in todo), default=0)):
        for measurement in (m for m in todo if round_ < m.rounds):
            turn = round_ % len(engines)
            for engine in engines[turn:] + engines[:turn]:
                model = models[measurement.model]
                if engine.refusal(model) or store.is_done(measurement, engine.name, round_):
                    continue
                if time.monotonic() > end_s:
                    return False
                run_unit(measurement, engine, model, round_, store)
    return True


def is_whole(todo, engines, models, store):
    """Whether nothing is left but what engines refuse or fail at."""
    return all(engine.refusal(models[m.model]) or store.get(m, engine.name, r)
               for m in todo for engine in engines for r in range(m.rounds))


def run_unit(measurement, engine, model, round_, store):
    start = time.monotonic()
    try:
        outcome = {"data": perform(measurement, engine, model, round_)}
        words = "done"
    except Exception as error:  # whatever an engine does wrong is told, and the others go on
        words = f"failed: {error}"
        outcome = {"failed": f"{type(error).__name__}: {error}"[:300]}
    outcome["seconds"] = time.monotonic() - start
    store.put(measurement, engine.name, round_, outcome)
    print(f"{measurement.name}, round {round_ + 1}, {engine.name}: {words} in {outcome['seconds']:.1f} s", file=sys.stderr,
          flush=True)
