"""The binary: its commands, and its server as a client sees it, started on a free port and stopped at the end."""
import contextlib
import os
import pathlib
import re
import signal
import subprocess
import threading

import openai
import requests

BIN = os.environ.get("LARDER_BIN", "")
MODEL = os.environ.get("LARDER_TEST_SMOLLM2", "")


def larder(*arguments, stdin="", code=0):
    """A command that ends."""
    result = subprocess.run([BIN, *map(str, arguments)], input=stdin, capture_output=True, text=True, timeout=300)
    assert result.returncode == code, result.stdout + result.stderr
    return result


class Server:
    def __init__(self, *arguments, key=None, model=None, name="smollm2", stdout=subprocess.DEVNULL, port=0):
        self.model = model or MODEL
        named = ["--name", name] if name else []
        command = [BIN, "serve", "-m", self.model, "--port", str(port), *named, *map(str, arguments)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=stdout, text=True)
        self.lines = []
        for line in self.process.stderr:
            self.lines.append(line)
            ready = re.search(r"Ready: .* at (http://\S+)", line)
            if ready:
                break
        else:
            raise RuntimeError("the server did not start: " + "".join(self.lines))
        self.url = ready[1]
        # Somebody has to read on, or the pipe fills and the server's log blocks.
        self.reader = threading.Thread(target=lambda: self.lines.extend(self.process.stderr), daemon=True)
        self.reader.start()
        self.headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.client = openai.OpenAI(base_url=self.url + "/v1", api_key=key or "none", max_retries=0, timeout=300)

    @property
    def port(self):
        return int(self.url.rsplit(":", 1)[1])

    def get(self, path):
        return requests.get(self.url + path, headers=self.headers, timeout=60)

    def post(self, path, body):
        return requests.post(self.url + path, json=body, headers=self.headers, timeout=300)

    def metrics(self):
        """name{labels beside model_name and engine} -> value"""
        values = {}
        for line in self.get("/metrics").text.splitlines():
            if not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                values[re.sub(r'model_name="[^"]*",engine="0",?', "", name).replace("{}", "")] = float(value)
        return values

    def status_bytes(self, field):
        """Of its memory: VmRSS, what is resident; VmHWM, the most that was."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(rf"{field}:\s+(\d+) kB", status).group(1)) * 1024

    def stop(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        return self.process.wait(timeout=60)


@contextlib.contextmanager
def serving(*arguments, **more):
    if "--kv-size" not in arguments:  # less than by default: on a virtual machine pages take long to come
        arguments += ("--kv-size", "512MiB")
    server = Server(*arguments, **more)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()
