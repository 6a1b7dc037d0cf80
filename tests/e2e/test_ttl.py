"""Pins end with their TTL, through both vendors' clients. In real time, so only where LARDER_TEST_TTL names the vendors:
anthropic (5 minutes), openai (30 minutes)."""
import os
import random
import time

import anthropic
import pytest

from api_server import serving

RULES = "You are the clerk of a small town library. " + "Answer briefly, politely and in full sentences. " * 40
VENDORS = os.environ.get("LARDER_TEST_TTL", "").split(",")


def flood(server):
    """More than the pool holds, all of it new."""
    for _ in range(5):
        words = " ".join(str(random.randrange(10**6)) for _ in range(110))
        reply = server.client.completions.create(model="smollm2", prompt=words, max_tokens=1)
        assert reply.usage.prompt_tokens > 400


def expired_tokens(server, reply_id):
    report = server.get(f"/v1/cache/requests/{reply_id}").json()
    return sum(miss["tokens"] for miss in report["misses"] if miss["reason"] == "expired")


class Anthropic:
    ttl_s = 5 * 60
    kept_s = 6 * 60  # a hit begins the time anew

    def __init__(self, server):
        self.client = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=300)

    def ask(self):
        """The tokens that were found, and the reply's id."""
        reply = self.client.messages.create(
            model="smollm2", max_tokens=1, messages=[{"role": "user", "content": "Where are the maps?"}],
            system=[{"type": "text", "text": RULES, "cache_control": {"type": "ephemeral", "ttl": "5m"}}])
        return reply.usage.cache_read_input_tokens, reply.id


class OpenAI:
    ttl_s = 30 * 60
    kept_s = 10 * 60

    def __init__(self, server):
        self.client = server.client

    def ask(self):
        reply = self.client.chat.completions.create(
            model="smollm2", max_tokens=1, extra_body={"prompt_cache_options": {"mode": "explicit", "ttl": "30m"}},
            messages=[{"role": "system", "content": [
                {"type": "text", "text": RULES, "prompt_cache_breakpoint": {"mode": "explicit"}}]},
                {"role": "user", "content": "Where are the maps?"}])
        return reply.usage.prompt_tokens_details.cached_tokens, reply.id


@pytest.mark.parametrize("vendor", [Anthropic, OpenAI])
def test_a_pin_ends_with_its_ttl(vendor):
    if vendor.__name__.lower() not in VENDORS:
        pytest.skip("takes minutes: set LARDER_TEST_TTL")
    # The default policy might keep what was hit so often without a pin, too.
    with serving("--kv-size", "32MiB", "-c", "1024", "--eviction", "lru") as server:
        api = vendor(server)
        api.ask()
        flood(server)
        begin = asked = time.monotonic()
        while time.monotonic() - begin < vendor.kept_s:
            time.sleep(vendor.ttl_s * 0.4)
            flood(server)
            assert time.monotonic() - asked < vendor.ttl_s, "the machine is too slow for this test"
            found, reply_id = api.ask()
            asked = time.monotonic()
            assert found > 350 and expired_tokens(server, reply_id) == 0
        time.sleep(vendor.ttl_s + 5)
        flood(server)
        found, reply_id = api.ask()
        lost = expired_tokens(server, reply_id)
        print(f"{vendor.__name__}: kept for {asked - begin:.0f} s, and {vendor.ttl_s + 5} s later {lost} tokens had expired")
        assert found < 50 and lost > 350
        assert api.ask()[0] > 350  # and it is there again
