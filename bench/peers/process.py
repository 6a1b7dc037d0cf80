"""Servers as child processes: started on a free port, watched, stopped with all of their own children."""
import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

# A proxy is for other machines.
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Failed(Exception):
    """An engine did not do what it was asked; the text goes into the results."""


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run_command(command, log, timeout_s, env=None):
    """Its standard output; standard error goes to the file `log`, whose end explains a failure."""
    with open(log, "w") as err:
        try:
            done = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, stderr=err, text=True,
                                  timeout=timeout_s, env={**os.environ, **(env or {})})
        except subprocess.TimeoutExpired:
            raise Failed(f"no result in {timeout_s} s") from None
    if done.returncode != 0:
        raise Failed(f"exit status {done.returncode}: {last_line(log)}")
    return done.stdout


def output_of(command):
    """Its standard output. Ends the program where it fails, with its words; what it left out is told."""
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    for line in done.stderr.splitlines():
        if done.returncode != 0 or "left out" in line:
            print(line, file=sys.stderr)
    if done.returncode != 0:
        sys.exit(f"{command[0]} ended with {done.returncode}")
    return done.stdout


def last_line(path):
    lines = [line for line in pathlib.Path(path).read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it said nothing"


def end_with_servers():
    """A signal that ends the program ends its servers, too: they are in sessions of their own."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda n, _: sys.exit(128 + n))


def tree_of(pid):
    """The process and all below it."""
    children = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found, open_ids = [], [pid]
    while open_ids:
        found.append(open_ids.pop())
        open_ids += children.get(found[-1], [])
    return found


def status_bytes(pid, field):
    """Of a process's memory: VmRSS, what is resident; VmHWM, the most that was. 0 once it has ended."""
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return 0


def peak_rss_bytes(pid):
    """The sum of every process's own peak; pages that they share are counted in each."""
    total = 0
    for process in tree_of(pid):
        with contextlib.suppress(OSError):
            total += status_bytes(process, "VmHWM")
    return total


class Server:
    """A server that answers /health with 200 when it is ready. What it says goes to `log`, else to a file of its own."""

    def __init__(self, command, port, log=None, env=None, ready_s=600):
        self.base = f"http://127.0.0.1:{port}"
        self.folder = tempfile.TemporaryDirectory()
        self.log = log or f"{self.folder.name}/log"
        with open(self.log, "w") as out:
            self.process = subprocess.Popen([str(c) for c in command], stdout=out, stderr=subprocess.STDOUT,
                                            env={**os.environ, **(env or {})}, start_new_session=True)
        try:
            self.wait_ready(ready_s)
        except BaseException:
            self.stop()
            raise

    def wait_ready(self, ready_s):
        end = time.monotonic() + ready_s
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise Failed(f"the server ended: {last_line(self.log)}")
            with contextlib.suppress(OSError):
                if OPENER.open(self.base + "/health", timeout=2).status == 200:
                    return
            time.sleep(0.1)
        raise Failed(f"the server was not ready in {ready_s} s: {last_line(self.log)}")

    def text(self, path):
        return OPENER.open(self.base + path, timeout=30).read().decode()

    def peak_rss_bytes(self):
        return peak_rss_bytes(self.process.pid)

    def stop(self):
        for number, wait_s in ((signal.SIGTERM, 20), (signal.SIGKILL, 20)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(wait_s)
                break
        with contextlib.suppress(ProcessLookupError):  # who outlives their leader
            os.killpg(self.process.pid, signal.SIGKILL)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


class Watch:
    """Calls `read` every fifth of a second while it is entered; `peak` is the largest value that came back."""

    def __init__(self, read):
        self.read = read
        self.peak = 0
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.loop, daemon=True)

    def loop(self):
        while not self.over.wait(0.2):
            with contextlib.suppress(OSError):
                self.peak = max(self.peak, self.read())

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()
