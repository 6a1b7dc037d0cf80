"""`larder worker`, as a process."""
import contextlib
import os
import re
import signal
import subprocess
import threading

from api_server import BIN


class Worker:
    def __init__(self, model, *arguments, port=0, env=None):
        command = [BIN, "worker", "-m", model, "--listen", f"127.0.0.1:{port}", "-t", "1", *map(str, arguments)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env={**os.environ, **(env or {})})
        self.lines = []
        for line in self.process.stderr:
            self.lines.append(line)
            ready = re.search(r"Ready: a worker at (127\.0\.0\.1:\d+)", line)
            if ready:
                break
        else:
            raise RuntimeError("the worker did not start: " + "".join(self.lines))
        self.address = ready[1]
        self.reader = threading.Thread(target=lambda: self.lines.extend(self.process.stderr), daemon=True)
        self.reader.start()

    @property
    def port(self):
        return int(self.address.rsplit(":", 1)[1])

    def kill(self):
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def working(model, *arguments, **more):
    worker = Worker(model, *arguments, **more)
    try:
        yield worker
    finally:
        worker.process.send_signal(signal.SIGCONT)
        worker.kill()
