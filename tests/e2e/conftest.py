"""What tests of several files need."""
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time

import pytest

from api_server import serving
from fake_upstream import FakeUpstream
from upstream_server import routing


@pytest.fixture(scope="module")
def server(request):
    """One for all tests of a file, with its SERVER_OPTIONS."""
    with serving(*getattr(request.module, "SERVER_OPTIONS", ())) as running:
        yield running


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 16 MiB; needs root to mount it."""
    if os.geteuid() != 0 or not shutil.which("mount"):
        pytest.skip("cannot mount")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", tmp_path], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("cannot mount")
    yield tmp_path
    subprocess.run(["umount", "-l", tmp_path], check=True)


@pytest.fixture
def redis():
    """A redis-server of the test's own, at .url."""
    if not shutil.which("redis-server"):
        pytest.skip("redis-server is not installed")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(["redis-server", "--port", str(port), "--save", "", "--appendonly", "no"],
                               stdout=subprocess.DEVNULL)
    for _ in range(100):
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            break
        time.sleep(0.05)
    process.url = f"redis://127.0.0.1:{port}"
    yield process
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGCONT)
        process.kill()
    process.wait()


@pytest.fixture(scope="module")
def fake():
    running = FakeUpstream()
    yield running
    running.close()


@pytest.fixture(scope="module")
def faked(fake, tmp_path_factory):
    path = tmp_path_factory.mktemp("log") / "stdout"
    with open(path, "w") as log, routing(f"http://127.0.0.1:{fake.port}/some/v1/", "--upstream-timeout", "1",
                                         "--upstream-connections", "1", log=log) as server:
        server.log = path
        yield server
