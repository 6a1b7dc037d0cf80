"""A remote tier of several servers that speak TLS only and ask for a certificate and a password."""
import json
import os
import shutil
import socket
import subprocess
import time

import pytest
from api_server import larder, serving
from certificates import make_certificate

PASSWORD = "of the cluster"
SLOTS = ["0", "5460", "5461", "10922", "10923", "16383"]
PROMPT = "".join(f"Shelf {i} holds {i * 13 % 77} jars. " for i in range(60))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Cluster:
    """Three servers; options(node) are what reaches them by way of one."""

    def __init__(self, folder):
        authority = make_certificate(folder, "authority", "Test authority")
        server = make_certificate(folder, "server", "127.0.0.1", authority, kind="IP")
        client = make_certificate(folder, "client", "larder.test", authority)
        self.files = {"ca": authority["pem"], "cert": client["pem"], "key": client["key"]}
        self.ports = [free_port() for _ in range(3)]
        buses = [free_port() for _ in range(3)]
        self.processes = []
        for port, bus in zip(self.ports, buses):
            (folder / str(port)).mkdir()
            self.processes.append(subprocess.Popen(
                ["redis-server", "--port", "0", "--tls-port", str(port), "--tls-cluster", "yes", "--tls-cert-file", server["pem"],
                 "--tls-key-file", server["key"], "--tls-ca-cert-file", authority["pem"], "--cluster-enabled", "yes",
                 "--cluster-port", str(bus), "--requirepass", PASSWORD, "--save", "", "--dir", str(folder / str(port))],
                stdout=subprocess.DEVNULL))
        for i in range(3):
            self.until(i, "OK", "CLUSTER", "ADDSLOTSRANGE", *SLOTS[2 * i:2 * i + 2])
        for port, bus in zip(self.ports[1:], buses[1:]):
            self.until(0, "OK", "CLUSTER", "MEET", "127.0.0.1", str(port), str(bus))
        for i in range(3):
            self.until(i, "cluster_state:ok", "CLUSTER", "INFO")

    def ask(self, node, *command):
        return subprocess.run(
            ["redis-cli", "--tls", "--cacert", self.files["ca"], "--cert", self.files["cert"], "--key", self.files["key"], "-p",
             str(self.ports[node]), "-a", PASSWORD, "--no-auth-warning", *command], capture_output=True, text=True).stdout

    def until(self, node, wanted, *command):
        deadline = time.monotonic() + 30
        while wanted not in (answer := self.ask(node, *command)):
            assert time.monotonic() < deadline, answer
            time.sleep(0.1)

    def options(self, node):
        password = PASSWORD.replace(" ", "%20")
        return ["--kv-remote", f"rediss://:{password}@127.0.0.1:{self.ports[node]}", "--kv-remote-ca", self.files["ca"],
                "--kv-remote-cert", self.files["cert"], "--kv-remote-key", self.files["key"]]

    def close(self):
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
def cluster(tmp_path):
    if not shutil.which("redis-server"):
        pytest.skip("redis-server is not installed")
    made = Cluster(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("model", ["LARDER_TEST_SMOLLM2", "LARDER_TEST_GEMMA3"])
def test_what_one_computed_another_finds(cluster, model):
    if model not in os.environ:
        pytest.skip("the model is not there")
    body = {"prompt": PROMPT, "max_tokens": 16, "temperature": 0, "logprobs": 1}
    with serving("-c", "2048", *cluster.options(0), model=os.environ[model]) as first:
        expected = first.post("/v1/completions", body).json()
        deadline = time.monotonic() + 20
        num_whole = expected["usage"]["prompt_tokens"] // 16
        while sum(int(cluster.ask(i, "DBSIZE")) for i in range(3)) < num_whole - 1:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    assert all(int(cluster.ask(i, "DBSIZE")) > 0 for i in range(3))
    with serving("-c", "2048", *cluster.options(2), model=os.environ[model]) as second:
        found = second.post("/v1/completions", body).json()
        metrics = second.metrics()
    assert found["usage"]["prompt_tokens_details"]["cached_tokens"] >= 16 * (num_whole - 1)
    assert found["choices"] == expected["choices"]
    assert metrics['larder:tier_on{tier="remote"}'] == 1
    assert sum(value for name, value in metrics.items() if name.startswith("larder:tier_faults_total")) == 0


def test_the_doctor_asks_by_tls(cluster):
    def check(*options, code):
        run = larder("doctor", "--json", "-m", os.environ["LARDER_TEST_SMOLLM2"], "--port", 0, *options, code=code)
        return next(one for one in json.loads(run.stdout)["checks"] if one["check"] == "remote")
    good = check(*cluster.options(1), code=0)
    assert good["verdict"] == "OK" and "one of a cluster" in good["text"]
    untrusted = check(*cluster.options(1)[:2], code=1)
    assert untrusted["verdict"] == "FAIL" and "certificate is not trusted" in untrusted["text"]


@pytest.mark.parametrize("url, word", [("redis://127.0.0.1:1", "rediss://"), ("rediss://127.0.0.1:1", "nowhere.pem")])
def test_a_file_that_is_none_ends_the_start(tmp_path, url, word):
    run = larder("serve", "-m", os.environ["LARDER_TEST_SMOLLM2"], "--port", 0, "--kv-remote", url, "--kv-remote-ca",
                 tmp_path / "nowhere.pem", code=1)
    assert word in run.stderr
