"""`cmake --install`, and the unit that comes with it."""
import pathlib
import shutil
import subprocess

import pytest
from api_server import BIN

BINARY = pathlib.Path(BIN)


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
