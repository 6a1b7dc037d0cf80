#!/usr/bin/env python3
"""What clients take of the server's memory: sockets that do nothing, and streams under way.

connections.py --larder build/larder -m SmolLM2.gguf [--sockets 10000] [--streams 1000]

The resident set (VmRSS) is read before and while so many are there, what larder:bookkeeping_bytes tells is taken off, and the
difference is shared out over them. Streams are chats of a hundred bytes; it is read once all of them have begun where all run
at once, once 200 have where most wait in line. Needs as many open files as there are sockets.
"""
import argparse
import asyncio
import json
import resource

from peers.process import OPENER, Server, end_with_servers, free_port, status_bytes


def metric(base, name):
    lines = OPENER.open(base + "/metrics", timeout=600).read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


async def wait_for_connections(base, holds):
    while not holds(await asyncio.to_thread(metric, base, "larder:open_connections")):
        await asyncio.sleep(0.1)


def chat(port, index):
    body = json.dumps({"messages": [{"role": "user", "content": f"Tell me story number {index}, as long as you can."}],
                       "max_tokens": 1500, "stream": True, "ignore_eos": True}).encode()
    head = (f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n")
    return head.encode() + body


class Resident:
    """Beside what is kept of requests."""

    def __init__(self, server):
        self.server = server
        self.before = self.now()

    def now(self):
        return status_bytes(self.server.process.pid, "VmRSS") - metric(self.server.base, "larder:bookkeeping_bytes")

    def grown(self):
        return self.now() - self.before


async def connect(port, count, asks=False):
    """asks: each has a request answered at once."""
    pairs = []
    for begin in range(0, count, 200):
        some = await asyncio.gather(*(asyncio.open_connection("127.0.0.1", port) for _ in range(min(200, count - begin))))
        for _, writer in some if asks else ():
            writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        for reader, _ in some if asks else ():
            await reader.readuntil(b"\r\n\r\n")
        pairs += some
    return pairs


async def idle_sockets(server, port, count, asks):
    """Bytes of each; asks: after a request that was answered."""
    resident = Resident(server)
    pairs = await connect(port, count, asks)
    await wait_for_connections(server.base, lambda open_ones: open_ones >= count)
    grown = await asyncio.to_thread(resident.grown)
    for _, writer in pairs:
        writer.close()
    await wait_for_connections(server.base, lambda open_ones: open_ones < 10)
    return grown / count


async def live_streams(server, port, count, num_begun):
    """Bytes of each once so many have begun: the largest of some readings. Then they are given up."""
    resident = Resident(server)
    pairs = await connect(port, count)
    begun = 0

    async def read(reader):
        nonlocal begun
        is_begun = False
        while line := await reader.readline():
            if not is_begun and b'"content":"' in line and b'"content":""' not in line:
                is_begun = True
                begun += 1

    for index, (_, writer) in enumerate(pairs):
        writer.write(chat(port, index))
    readers = [asyncio.create_task(read(reader)) for reader, _ in pairs]
    while begun < num_begun:
        await asyncio.sleep(0.1)
    readings = [await asyncio.to_thread(resident.grown) for _ in range(3)]
    if any(reader.done() for reader in readers):
        raise RuntimeError("a stream had ended before all had begun")
    for _, writer in pairs:
        writer.close()
    await asyncio.gather(*readers, return_exceptions=True)
    await wait_for_connections(server.base, lambda open_ones: open_ones < 10)
    return max(readings) / count


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--larder", default="build/larder")
    p.add_argument("-m", "--model", required=True)
    p.add_argument("--sockets", type=int, default=10_000)
    p.add_argument("--streams", type=int, default=1000)
    p.add_argument("--kv-size", default="3GiB")
    a = p.parse_args()
    end_with_servers()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    def serve(*options):
        port = free_port()
        return Server([a.larder, "serve", "-m", a.model, "--kv-size", a.kv_size, "--port", port, *options], port), port

    def tell(count, what, each):
        print(f"| {count:,} {what} | {each / 1024:.2f} | {each * count / 2**20:.1f} |", flush=True)

    print("| clients | resident KiB of each | of all, MiB |\n| --- | ---: | ---: |", flush=True)
    server, port = serve("--max-sequences", str(a.streams), "--batch-tokens", str(max(512, a.streams + 1)))
    with server:
        asyncio.run(live_streams(server, port, 4, 4))  # what comes with the first ones
        each = asyncio.run(live_streams(server, port, a.streams, a.streams))
        tell(a.streams, "streams, all of them running", each)
    server, port = serve()
    with server:
        asyncio.run(live_streams(server, port, 4, 4))
        for asks in (False, True):
            tell(a.sockets, "idle sockets" + (", each after a request" if asks else ""),
                 asyncio.run(idle_sockets(server, port, a.sockets, asks)))
        tell(a.streams, "streams, 256 of them running",
             asyncio.run(live_streams(server, port, a.streams, min(a.streams, 200))))


if __name__ == "__main__":
    main()
