"""`cmake --install`, and the unit that comes with it."""
import os
import pathlib
import shutil
import signal
import socket
import subprocess

import pytest
from api_server import BIN

BINARY = pathlib.Path(BIN)
MODEL = os.environ.get("LARDER_TEST_SMOLLM2")


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    if not (BINARY.parent / "cmake_install.cmake").exists():
        pytest.skip("the binary lies in no folder of a build")
    folder = tmp_path_factory.mktemp("prefix")
    subprocess.run(["cmake", "--install", BINARY.parent, "--prefix", folder], check=True, capture_output=True, timeout=120)
    return folder


def start_line(prefix):
    unit = (prefix / "lib/systemd/system/larder.service").read_text()
    assert "@" not in unit.replace("@system-service", "")
    [line] = [line for line in unit.splitlines() if line.startswith("ExecStart=")]
    return line.removeprefix("ExecStart=").split()


def test_the_binary_runs_where_it_was_put(prefix):
    result = subprocess.run([prefix / "bin/larder", "--version"], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip()
    assert (prefix / "share/doc/larder/docs/operations.md").exists()


def test_the_unit_starts_what_was_installed(prefix):
    program, *arguments = start_line(prefix)
    assert program == str(prefix / "bin/larder")
    variables = {"${LARDER_MODEL}": ["/no/model.gguf"], "$LARDER_OPTIONS": ["--port", "0"]}
    words = [word for argument in arguments for word in variables.get(argument, [argument])]
    # Its options are all known: what is missing is the model.
    result = subprocess.run([program, *words], capture_output=True, text=True, timeout=60)
    assert result.returncode == 1 and "/no/model.gguf" in result.stderr, result.stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd")
def test_systemd_understands_the_unit(prefix):
    result = subprocess.run(["systemd-analyze", "verify", prefix / "lib/systemd/system/larder.service"],
                            capture_output=True, text=True, timeout=60)
    assert "larder.service" not in result.stdout + result.stderr, result.stderr


def can_be_process_1():
    return subprocess.run(["unshare", "-p", "-f", "true"], capture_output=True).returncode == 0


def code_of_ended_child(parent):
    """Tells the parent's only child to end, and what the parent then ends with."""
    [child] = pathlib.Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
    os.kill(int(child), signal.SIGTERM)
    try:
        return parent.wait(60)
    finally:
        if parent.poll() is None:
            os.kill(int(child), signal.SIGKILL)
            parent.wait(60)


# As in a container that is stopped at once: the kernel drops what process 1 has no handler for.
@pytest.mark.skipif(not MODEL or not can_be_process_1(), reason="needs a model and another process 1")
def test_process_1_can_be_ended_before_it_serves():
    with socket.create_server(("127.0.0.1", 0)) as worker:  # one that says nothing, for which the start waits
        worker.settimeout(60)
        command = ["unshare", "-p", "-f", BIN, "serve", "-m", MODEL, "--port", "0", "-t", "1",
                   "--workers", f"127.0.0.1:{worker.getsockname()[1]}"]
        parent = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        connection = worker.accept()[0]
        assert code_of_ended_child(parent) == 128 + signal.SIGTERM
        connection.close()


@pytest.mark.skipif(not MODEL or not can_be_process_1(), reason="needs a model and another process 1")
def test_a_worker_that_is_process_1_can_be_ended():
    command = ["unshare", "-p", "-f", BIN, "worker", "-m", MODEL, "--listen", "127.0.0.1:0", "-t", "1"]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert any("Ready" in line for line in parent.stdout)
    assert code_of_ended_child(parent) == 128 + signal.SIGTERM
