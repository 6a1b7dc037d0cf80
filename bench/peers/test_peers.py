"""What can be tested without a peer: percentiles, tables, plots, plans, the store, and a load against a server of our own."""
import json
import math
import pathlib
import sys
import threading
import time
import types
import xml.dom.minidom
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from peers import __main__ as main  # noqa: E402
from peers import engines, install, load, measure, models, process, report, stats, svg  # noqa: E402


def request(start, times, prompt=10, cached=4):
    return {"start": start, "times": times, "prompt_tokens": prompt, "cached_tokens": cached, "output_tokens": len(times)}


def test_percentile_is_the_nearest_rank():
    values = list(range(100, 0, -1))
    assert [stats.percentile(values, p) for p in (0, 50, 90, 99, 100)] == [1, 50, 90, 99, 100]
    assert stats.percentile([7], 99) == 7
    assert math.isnan(stats.percentile([], 50))


def test_summary_of_a_load():
    s = stats.summarize({"wall_s": 2.0, "requests": [request(0, [1.0, 1.5]), request(1.0, [1.25, 2.0, 2.25])]})
    assert (s["ttft_p50"], s["ttft_p99"]) == (250, 1000)
    assert (s["itl_p50"], s["itl_p99"]) == (500, 750)
    assert s["output_rate"] == 2.5 and s["cached_share"] == 0.4
    assert math.isnan(stats.summarize({"wall_s": 1, "requests": [request(0, [1], cached=None)]})["cached_share"])


def test_summary_has_what_a_request_felt():
    requests = [request(0, [0.1, 0.2, 0.3]), request(0, [0.3, 0.31, 0.32, 0.4]), request(1.0, [1.25]), request(0, [0.6, 0.61])]
    result = {"wall_s": 2.0, "requests": requests}
    s = stats.summarize(result)
    assert s["request_rate"] == 2
    assert s["ttft_mean"] == pytest.approx((100 + 300 + 250 + 600) / 4)
    # The request of one token has none.
    assert s["tpot_mean"] == pytest.approx((100 + 100 / 3 + 10) / 3)
    assert s["tpot_p50"] == pytest.approx(100 / 3) and s["tpot_p99"] == pytest.approx(100)
    assert s["itl_mean"] == pytest.approx((100 + 100 + 10 + 10 + 80 + 10) / 6)
    # The first is too slow a token, the last one was too late.
    assert s["goodput"] == 1
    assert stats.summarize(result, (500, 100.1))["goodput"] == 1.5
    assert stats.summarize(result, (600.1, 50))["goodput"] == 1.5
    # Tokens without text of their own count as well.
    half = {**request(0, [0.1, 0.3]), "output_tokens": 5}
    assert stats.summarize({"wall_s": 1, "requests": [half]})["tpot_p50"] == pytest.approx(50)
    single = stats.summarize({"wall_s": 2.0, "requests": [request(0, [0.1])]})
    assert math.isnan(single["tpot_mean"]) and math.isnan(single["itl_p99"]) and single["goodput"] == 0.5


def test_interference_compares_the_same_tokens():
    stream = request(0, [1.0, 1.1, 1.2, 1.7, 2.3, 2.4])
    alone = [0.5, 0.9, 1.0, 1.1, 1.3, 1.4]
    s = stats.summarize_interference({"requests": [stream, request(1.2, [2.0])], "alone": alone})
    assert s["idle_p50"] == pytest.approx(100) and s["idle_p99"] == pytest.approx(200)
    assert s["busy_p50"] == pytest.approx(500)
    assert s["busy_p99"] == pytest.approx(600) and s["long_ttft_s"] == pytest.approx(0.8)
    with pytest.raises(ValueError):  # what came later would not count
        stats.summarize_interference({"requests": [stream, request(1.2, [2.5])], "alone": alone})


def test_plans_share_no_more_than_meant():
    shared, unique = (load.many_plan(1, 16, s)["requests"] for s in (True, False))
    assert len({tuple(r["prompt"]) for r in shared}) == 16 and len({tuple(r["prompt"][:500]) for r in shared}) == 1
    assert len({tuple(r["prompt"][:4]) for r in unique}) == 16
    assert all(len(r["prompt"]) == 560 for r in shared + unique)
    assert shared[0]["prompt"][:8] != load.many_plan(2, 16, True)["requests"][0]["prompt"][:8]


def test_section_is_replaced_and_the_rest_kept():
    once = report.replace_section("# Results\n\nby hand\n", "first")
    twice = report.replace_section(once + "\nafter\n", r"second \1")
    assert "by hand" in twice and "after" in twice and r"second \1" in twice and "first" not in twice
    assert twice.count(report.BEGIN) == twice.count(report.END) == 1


def test_ticks_span_the_values():
    for top in (0.3, 7, 95, 1307, 9.9e6):
        ticks = svg.linear_ticks(top)
        assert ticks[0] == 0 and ticks[-1] >= top > ticks[-2] and 4 <= len(ticks) <= 10
    for low, high in ((3, 900), (0.02, 25000), (7, 7)):
        ticks = svg.log_ticks(low, high)
        assert ticks[0] <= low and ticks[-1] >= high


def test_figure_is_an_image_with_every_series():
    panels = [svg.Panel("a < b", ("x", "t/s"), {"A": [(1, 5), (64, 7)], "B": [(16, 1)], "C": []}),
              svg.Panel("words", ("x", "ms"), {"B": [("p50", 1), ("p99", 9000)]}, log_y=True),
              svg.Panel("empty", ("x", "y"), {"A": []})]
    image = xml.dom.minidom.parseString(svg.figure(panels, ["A", "B", "C"]))
    words = [t.firstChild.data for t in image.getElementsByTagName("text")]
    assert {"A", "B", "a < b", "p99", "64", "t/s"} <= set(words) and not {"C", "empty"} & set(words)
    assert svg.figure(panels[2:], ["A"]) is None


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setattr(install, "PEERS", tmp_path)
    binary = tmp_path / "larder"
    binary.write_text("a binary")
    return store_of(tmp_path)


def store_of(tmp_path, versions=None):
    options = types.SimpleNamespace(larder=str(tmp_path / "larder"), threads=2, quick=True, llama_bin=None)
    return measure.Store(options, versions)


class FakeEngine:
    def __init__(self, name, rate, refusal=None):
        self.name = name
        self.rate = rate
        self.reason = refusal
        self.num_calls = 0

    def refusal(self, model):
        return self.reason

    def prefill_rates(self, model, lengths):
        self.num_calls += 1
        if self.rate is None:
            raise RuntimeError("broke")
        return {n: self.rate + self.num_calls for n in lengths}


def test_run_goes_on_where_it_was_and_the_report_names_what_is_missing(store):
    todo = [measure.Measurement("prefill.tiny", "prefill", "tiny", (64, 128), 3)]
    tiny = {"tiny": models.Model("tiny", "Tiny Q4_1", "Q4_1", 1024, 16)}
    ours, broken, refusing = FakeEngine("Larder", 100.0), FakeEngine("llama.cpp", None), FakeEngine("vLLM", 1, "reads no GGUF")
    for _ in range(2):
        assert measure.run(todo, [ours, broken, refusing], tiny, store, math.inf)
    assert ours.num_calls == 3, "what is done is kept"
    assert broken.num_calls == 6 and refusing.num_calls == 0, "what failed is tried again"

    rep = report.Report(store, todo, tiny, ["Larder", "llama.cpp", "OpenVINO GenAI", "vLLM"])
    assert measure.is_whole(todo, [ours, broken, refusing], tiny, store)
    facts = report.facts_of("run", "Machine.", {"Larder": "1"})
    section = rep.section(facts, {"OpenVINO GenAI": "no wheel"}, {("vLLM", "reads no GGUF"): ["Tiny Q4_1"]})
    assert "| Tiny Q4_1 | pp64 | 102.0 | - | - | - | - |" in section
    assert "OpenVINO GenAI is absent: no wheel." in section and "vLLM without Tiny Q4_1: reads no GGUF." in section
    assert "llama.cpp, prefill.tiny: RuntimeError: broke." in section and "not measured" not in section
    assert list(rep.plots()) == ["prefill.svg"] and "(plots/prefill.svg)" in section

    # More points than before are measured anew; until then they are named.
    more = [measure.Measurement("prefill.tiny", "prefill", "tiny", (64, 256), 3)]
    section = report.Report(store, more, tiny, ["Larder"]).section(facts, {}, {})
    assert "- Larder, prefill.tiny: nothing of 256." in section
    assert "plots/prefill" in section and measure.run(more, [ours], tiny, store, math.inf) and ours.num_calls == 6
    assert "nothing of" not in report.Report(store, more, tiny, ["Larder"]).section(facts, {}, {})


def test_another_versions_outcomes_do_not_count(store, tmp_path):
    todo = [measure.Measurement("prefill.tiny", "prefill", "tiny", (64,), 1)]
    tiny = {"tiny": models.Model("tiny", "Tiny", "Q4_1", 1024, 16)}
    for version, rate in (("1", 10.0), ("2", 20.0)):
        kept = store_of(tmp_path, {"Larder": version})
        assert kept.outcomes(todo[0], "Larder") == []
        measure.run(todo, [FakeEngine("Larder", rate)], tiny, kept, math.inf)
        assert kept.outcomes(todo[0], "Larder") == [{"64": rate + 1}]


def test_names_of_measurements():
    every = measure.measurements(False, False, 2)
    named = lambda *parts: [m.name for m in every if main.has_name(m, parts)]  # noqa: E731
    assert named("serve-1") == ["serve-1.smollm2-q8_0"] and named("serve-16", "interference") == ["serve-16.smollm2-q8_0", "interference.smollm2-q8_0"]
    assert set(named("prefill.gemma3", "1b-q4_k")) == {"prefill.gemma3-q4_k_m", "prefill.1b-q4_k", "decode.1b-q4_k"}


def test_loads_have_both_tables(store):
    """From what is kept of a run: the times of its requests, from which all else follows."""
    memory = dict.fromkeys(("peak_rss_bytes", "kv_bytes", "kv_reserved_bytes"), 1 << 20)
    two = {"wall_s": 2.0, "requests": [request(0, [0.1, 0.125]), request(0, [0.3, 0.4])], **memory}
    one = {"wall_s": 2.0, "requests": [request(0, [0.1])], **memory}
    todo = [measure.Measurement("serve-2.tiny", "serve", "tiny", (2,), 1)]
    store.put(todo[0], "Larder", 0, {"data": {"shared": two, "unique": one}})
    tiny = {"tiny": models.Model("tiny", "Tiny", "Q4_1", 1024, 16)}
    facts = report.facts_of("run", "Machine.", {"Larder": "1"})
    section = report.Report(store, todo, tiny, ["Larder"]).section(facts, {}, {})
    assert "| shared | 2 | Larder | 2.00 | 2.0 | 100 | 300 | 300 | 25.0 | 100.0 | 100.0 | 40 % |" in section
    assert "| shared | 2 | Larder | 1.00 | 0.50 | 200 | 62.5 | 25.0 | 100.0 | 62.5 |" in section
    assert "| unique | 2 | Larder | 0.50 | 0.50 | 100 | - | - | - | - |" in section
    assert "TTFT is at most 500 ms and whose TPOT is at most 50 ms" in section
    other = report.Report(store, todo, tiny, ["Larder"], [250, 12.5]).section(facts, {}, {})
    assert "| shared | 2 | Larder | 1.00 | 0.00 |" in other and "at most 250 ms and whose TPOT is at most 12.5 ms" in other


def test_run_stops_when_time_is_up(store):
    todo = [measure.Measurement("prefill.tiny", "prefill", "tiny", (64,), 1)]
    tiny = {"tiny": models.Model("tiny", "Tiny", "Q4_1", 1024, 16)}
    assert not measure.run(todo, [FakeEngine("Larder", 1)], tiny, store, -math.inf)
    assert not measure.is_whole(todo, [FakeEngine("Larder", 1)], tiny, store)
    rep = report.Report(store, todo, tiny, ["Larder"])
    assert "Larder, prefill.tiny: not measured" in "\n".join(rep.gaps({}, {}))


class Streamer(BaseHTTPRequestHandler):
    """As many events with text as tokens are asked for; records the order in which requests came."""
    order, most, error = [], 1 << 20, ""

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Streamer.order.append(len(body["prompt"]))
        self.send_response(200)
        self.end_headers()
        num_tokens = min(body["max_tokens"], Streamer.most)
        for i in range(num_tokens):
            self.event({"choices": [{"text": "x"}]})
        if Streamer.error:
            return self.event({"error": {"message": Streamer.error}})
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": num_tokens}
        self.event({"choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def event(self, data):
        self.wfile.write(b"data: " + json.dumps(data).encode() + b"\n\n")


def test_llama_cpp_of_ones_own_tells_its_own_version(tmp_path, monkeypatch):
    monkeypatch.setattr(install, "PEERS", tmp_path)
    for program in ("llama-bench", "llama-server"):
        (tmp_path / program).write_text("#!/bin/sh\necho 'version: 7 (abc)' >&2\n")
        (tmp_path / program).chmod(0o755)
    options = types.SimpleNamespace(llama_bin=str(tmp_path), threads=1)
    assert engines.LlamaCpp(options).version() == "7 (abc)"


def test_llama_cpps_tiles_are_mended_once(tmp_path):
    source = tmp_path / "mmq.cpp"
    source.write_text("    tc.rows[7] = 16;\n    _tile_loadconfig(&tc);\n    done = true;\n")
    install.mend_tile_config(source)
    mended = source.read_text()
    assert mended.index('"memory"') < mended.index("_tile_loadconfig")
    install.mend_tile_config(source)
    assert source.read_text() == mended


@pytest.fixture
def streamer(monkeypatch):
    monkeypatch.setattr(Streamer, "order", [])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Streamer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def test_load_over_http_keeps_the_order_of_the_plan(streamer):
    stream, late = load.run_plan(streamer, load.interference_plan(1, 500))["requests"]
    assert Streamer.order == [32, 500]
    assert (len(late["times"]), late["prompt_tokens"]) == (1, 500)
    assert stream["output_tokens"] == len(stream["times"]) >= 64
    assert stream["cached_tokens"] is None and late["start"] >= stream["times"][63]


def test_half_an_answer_is_none(streamer, monkeypatch):
    monkeypatch.setattr(Streamer, "most", 3)
    with pytest.raises(RuntimeError, match="asked for 32 tokens behind 560, 3 came behind 560"):
        load.run_plan(streamer, load.many_plan(1, 1, False))
    monkeypatch.setattr(Streamer, "error", "out of luck")
    with pytest.raises(RuntimeError, match="out of luck"):
        load.run_plan(streamer, load.many_plan(1, 1, False))


def test_what_outlives_a_server_ends_with_it():
    child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"
    script = f"""
import http.server, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {child!r}], stdout=subprocess.PIPE)
child.stdout.readline()
class Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Ready).serve_forever()
"""
    port = process.free_port()
    with process.Server([sys.executable, "-c", script, port], port) as server:
        (child_id,) = [pid for pid in process.tree_of(server.process.pid) if pid != server.process.pid]
    for _ in range(100):
        state = pathlib.Path(f"/proc/{child_id}/stat")
        if not state.exists() or " Z " in state.read_text():
            return
        time.sleep(0.1)
    pytest.fail("the server's child runs on")
