"""A server that has an upstream, and what is asked of it."""
import contextlib
import os
import subprocess
import time

import requests

from api_server import serving

KEY = "secret-of-the-upstream-1234"
QUESTION = [{"role": "user", "content": "What is a larder?"}]


def wait_until(condition, seconds=10):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


@contextlib.contextmanager
def routing(url, *options, log=subprocess.DEVNULL, models="gpt-x=big,gpt-y", **more):
    """A server that has an upstream, whose key it gets by the environment."""
    os.environ["LARDER_TEST_UPSTREAM_KEY"] = KEY
    with serving("-c", "512", "--upstream", url, "--upstream-models", models, "--upstream-key-env", "LARDER_TEST_UPSTREAM_KEY",
                 *options, stdout=log, **more) as server:
        yield server


def ask(server, body=None, headers=None, **more):
    return requests.post(server.url + "/v1/chat/completions", headers=headers, timeout=20,
                         json=body or {"model": "gpt-x", "messages": QUESTION}, **more)


def failure(server, status, code, *words):
    reply = ask(server)
    assert reply.status_code == status, reply.text
    error = reply.json()["error"]
    assert error["code"] == code and error["type"] == "server_error", error
    assert all(word in error["message"] for word in ("127.0.0.1", *words)), error
    assert KEY not in reply.text
