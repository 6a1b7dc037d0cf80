"""The section of bench/RESULTS.md between two marks, and the plots beside it."""
import datetime
import math
import re

from peers import stats, svg

BEGIN, END = "<!-- bench/peers: begin -->", "<!-- bench/peers: end -->"


def table(head, rows):
    """Markdown; the columns whose head starts with '>' stand to the right."""
    lines = ["| " + " | ".join(h.lstrip(">") for h in head) + " |",
             "| " + " | ".join("---:" if h.startswith(">") else "---" for h in head) + " |"]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows])


def number(value, digits=1):
    return "-" if value is None or math.isnan(value) else f"{value:,.{digits}f}"


def replace_section(document, section):
    """The document with the text between the marks replaced, or, without marks, added at its end."""
    marked = f"{BEGIN}\n\n{section.strip()}\n\n{END}"
    if BEGIN in document:
        return re.sub(re.escape(BEGIN) + ".*?" + re.escape(END), lambda _: marked, document, flags=re.DOTALL)
    return document.rstrip() + "\n\n" + marked + "\n"


class Report:
    def __init__(self, store, measurements, models, names, limits=stats.GOODPUT_LIMITS):
        self.store = store
        self.measurements = measurements
        self.models = models  # name -> Model
        self.names = names  # of all engines, ours first
        self.limits = limits  # of goodput

    def of_kind(self, kind):
        return [m for m in self.measurements if m.kind == kind]

    def rounds_words(self):
        done = [(n, m.rounds) for m in self.measurements for name in self.names if (n := len(self.store.outcomes(m, name)))]
        most = max((n for n, _ in done), default=1)
        if most == 1:
            return "every figure is of one round."
        words = f"the figures are medians over {most} rounds"
        if any(planned < most for _, planned in done):
            words += ", of the longest measurements of one"
        if any(n < planned for n, planned in done):
            words += ", where time allowed no more over fewer"
        return words + "."

    def dates(self):
        """Of the first and the last measurement."""
        dates = sorted(d for m in self.measurements for name in self.names for d in self.store.dates(m, name))
        return " to ".join(dict.fromkeys([dates[0], dates[-1]])) if dates else datetime.date.today().isoformat()

    def rate(self, measurement, engine, point):
        return stats.median([o[str(point)] for o in self.store.outcomes(measurement, engine) if str(point) in o])

    def summaries(self, measurement, engine, scenario, summarize=None):
        """Medians over rounds of what `summarize` says of each; None without any."""
        summarize = summarize or (lambda result: stats.summarize(result, self.limits))
        outcomes = self.store.outcomes(measurement, engine)
        results = [o[scenario] if scenario else o for o in outcomes]
        each = [{**summarize(r), **{k: r[k] for k in ("peak_rss_bytes", "kv_bytes", "kv_reserved_bytes")}} for r in results]
        return {key: stats.median([s[key] for s in each]) for key in each[0]} if each else None

    def rate_rows(self, kind, test_name):
        for m in self.of_kind(kind):
            for point in m.points:
                rates = [self.rate(m, name, point) for name in self.names]
                best = max((r for r in rates[1:] if not math.isnan(r)), default=math.nan)
                if not all(map(math.isnan, rates)):
                    yield [self.models[m.model].title, test_name(point), *map(number, rates), number(rates[0] / best, 2)]

    def loads(self):
        """What each row of a load begins with, and its summary."""
        for scenario in ("shared", "unique"):
            for m in sorted(self.of_kind("serve"), key=lambda m: m.points):
                for name in self.names:
                    s = self.summaries(m, name, scenario)
                    if s:
                        yield [scenario, m.points[0], name], s

    def serve_rows(self):
        for row, s in self.loads():
            share = s["cached_share"]
            yield [*row, number(s["wall_s"], 2), number(s["output_rate"]),
                   *(number(s[f"ttft_p{p}"], 0) for p in (50, 90, 99)),
                   *(number(s[f"itl_p{p}"]) for p in (50, 90, 99)),
                   "-" if math.isnan(share) else f"{share * 100:.0f} %"]

    def request_rows(self):
        """What vLLM's bench prints and the rows above have not."""
        for row, s in self.loads():
            yield [*row, number(s["request_rate"], 2), number(s["goodput"], 2), number(s["ttft_mean"], 0),
                   *(number(s[f"tpot_{what}"]) for what in ("mean", "p50", "p99")), number(s["itl_mean"])]

    def memory_rows(self):
        for m in sorted(self.of_kind("serve"), key=lambda m: m.points):
            for name in self.names:
                scenarios = [self.summaries(m, name, scenario) for scenario in ("shared", "unique")]
                if all(scenarios):
                    kv = [mib(s["kv_bytes"]) for s in scenarios]
                    yield [m.points[0], name, *kv, mib(scenarios[0]["kv_reserved_bytes"]), mib(scenarios[1]["peak_rss_bytes"])]

    def interference_rows(self):
        for m in self.of_kind("interference"):
            for name in self.names:
                s = self.summaries(m, name, None, stats.summarize_interference)
                if s:
                    yield [name, *(number(s[k]) for k in ("idle_p50", "idle_p99")), number(s["busy_count"], 0),
                           *(number(s[k]) for k in ("busy_p50", "busy_p99", "busy_most")),
                           number(s["busy_p99"] / s["idle_p99"], 1), number(s["long_ttft_s"], 2)]

    def gaps(self, absent, refusals):
        """What is not in the tables, and why."""
        for name, reason in absent.items():
            yield f"- {name} is absent: {reason}."
        for (name, reason), titles in refusals.items():
            yield f"- {name} without {', '.join(titles)}: {reason}."
        for m in self.measurements:
            for name in self.names:
                failures = self.store.failures(m, name)
                if failures and name not in absent:
                    yield f"- {name}, {m.name}: {failures[0]}."
                elif (name not in absent and not failures and not self.store.outcomes(m, name)
                      and not any(name == n and self.models[m.model].title in t for (n, _), t in refusals.items())):
                    yield f"- {name}, {m.name}: not measured, the run ended before."
                for data in self.store.outcomes(m, name)[:1]:
                    if m.missing(data):
                        yield f"- {name}, {m.name}: nothing of {', '.join(map(str, m.missing(data)))}."

    def section(self, facts, absent, refusals):
        rate_head = ["model", "test", *[">" + n + ", t/s" for n in self.names], ">Larder / best peer"]
        loads = self.of_kind("serve")
        drawn = self.plots()

        def plot(name):
            return f"![{name}](plots/{name}.svg)" if f"{name}.svg" in drawn else ""

        parts = ["## Larder and its peers", f"    {facts['command']}",
                 f"{self.dates()}. {facts['machine']} {facts['versions']} The engines take turns; {self.rounds_words()}",
                 "\n".join(self.gaps(absent, refusals))]
        if "vLLM" in self.names and "vLLM" not in absent and (self.of_kind("prefill") or self.of_kind("decode")):
            parts += ["One stream of vLLM goes over HTTP, which the other engines' own benchmarks do not, and it runs eagerly."]
        if self.of_kind("prefill"):
            parts += ["### Prefill, one stream", plot("prefill"),
                      table(rate_head, self.rate_rows("prefill", lambda n: f"pp{n}"))]
        if self.of_kind("decode"):
            parts += ["### Decode behind a context, one stream", plot("decode"),
                      table(rate_head, self.rate_rows("decode", lambda n: f"tg64 @ d{n}"))]
        if loads:
            parts += [
                "### Many requests at once",
                f"{self.models[loads[0].model].title} (vLLM: the same weights, dequantised), prompts of 560 tokens, 32 tokens "
                "out, over HTTP with streaming; OpenVINO GenAI within its own process. Shared: 500 tokens are the same in all "
                "prompts. Times in milliseconds.", plot("throughput"), plot("latency"),
                table(["prompts", ">at once", "engine", ">wall, s", ">tokens out/s", ">TTFT p50", ">p90", ">p99", ">ITL p50",
                       ">p90", ">p99", ">from the cache"], self.serve_rows()),
                "TPOT: a request's time per token after the first one. Goodput counts the requests whose TTFT is at most "
                f"{self.limits[0]:g} ms and whose TPOT is at most {self.limits[1]:g} ms.",
                table(["prompts", ">at once", "engine", ">requests/s", ">goodput, requests/s", ">TTFT mean", ">TPOT mean", ">p50",
                       ">p99", ">ITL mean"], self.request_rows()),
                "### Memory of these loads, MiB",
                "KV in use at its peak as each engine counts it (Larder's and vLLM's gauges are read five times a second, OpenVINO "
                "GenAI's after each step); llama.cpp sets every slot's part aside at the start, and "
                "OpenVINO GenAI keeps 8 bits by default where the others keep 16 (vLLM on machines without BF16: 32). All are given room for "
                "the requests' tokens if nothing is shared; all but llama.cpp for one full context at least, vLLM in whole GiB. The "
                "resident set is the process tree's peak, with the weights and what the engine keeps besides.", plot("memory"),
                table([">at once", "engine", ">KV, shared prompts", ">KV, unique", ">KV set aside", ">peak resident set"],
                      self.memory_rows())]
        for m in self.of_kind("interference"):
            parts += ["### A running stream while a long prompt comes",
                      f"{self.models[m.model].title}: the time between tokens of one stream while another's prompt of "
                      f"{m.points[0]:,} tokens is computed, and of the same stream alone, in milliseconds. Of few gaps the p99 is the longest.",
                      table(["engine", ">alone, p50", ">p99", ">with the prompt, gaps", ">p50", ">p99", ">longest", ">p99 / p99 alone",
                             ">the prompt's TTFT, s"], self.interference_rows())]
        return "\n\n".join(p for p in parts if p)

    def plots(self):
        """{file name: SVG} of what there is."""
        figures = {
            "prefill.svg": [self.rate_panel(m, "tokens in the prompt") for m in self.of_kind("prefill") if len(m.points) > 1],
            "decode.svg": [self.rate_panel(m, "tokens in the context") for m in self.of_kind("decode") if len(m.points) > 1],
            "throughput.svg": [self.load_panel(s, "output_rate", ("requests at once", "tokens out/s"))
                               for s in ("shared", "unique")],
            "latency.svg": [self.percentile_panel(s, what) for what in ("ttft", "itl") for s in ("shared", "unique")],
            "memory.svg": [self.load_panel(s, "kv_bytes", ("requests at once", "KV in use, MiB"), 1 / 2**20)
                           for s in ("shared", "unique")],
        }
        drawn = {name: svg.figure(panels, self.names) for name, panels in figures.items()}
        return {name: content for name, content in drawn.items() if content}

    def rate_panel(self, m, x_title):
        series = {name: [(p, r) for p in m.points if not math.isnan(r := self.rate(m, name, p))] for name in self.names}
        return svg.Panel(self.models[m.model].title, (x_title, "tokens/s"), series)

    def load_panel(self, scenario, key, axes, factor=1):
        series = {name: [(m.points[0], s[key] * factor) for m in self.of_kind("serve")
                         if (s := self.summaries(m, name, scenario))] for name in self.names}
        return svg.Panel(f"{scenario} prompts", axes, series, log_y=True)

    def percentile_panel(self, scenario, what):
        loads = self.of_kind("serve")
        m = next((m for m in loads if m.points == (16,)), loads[-1] if loads else None)
        series = {}
        for name in self.names if m else ():
            s = self.summaries(m, name, scenario)
            series[name] = [(f"p{p}", s[f"{what}_p{p}"]) for p in (50, 90, 99)] if s else []
        at_once = m.points[0] if m else 0
        return svg.Panel(f"{what.upper()}, {scenario} prompts, {at_once} at once", ("percentile", "ms"), series, log_y=True)


def mib(count):
    return number(count / 2**20, 0)


def facts_of(command, machine, versions):
    return {"command": command, "machine": machine,
            "versions": "; ".join(f"{name}: {version}" for name, version in versions.items()) + "."}
