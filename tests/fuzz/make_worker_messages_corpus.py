#!/usr/bin/env python3
"""Makes the seeds of worker_messages_fuzz: headers, texts of the handshake and addresses, good and bad.

make_worker_messages_corpus.py CORPUS_FOLDER
"""
import json
import pathlib
import struct
import sys


def header(kind=8, stage=0, has_queries=1, layer=0, rows=1, exchange=1, payload=0, reserved=0):
    return struct.pack("<4sHBBIIQQQ", b"LRDW", kind, stage, has_queries, layer, rows, exchange, payload, reserved)


def codes(rows, cols=64):
    return rows * cols + rows * cols // 32 * 4


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    text = lambda **fields: json.dumps(fields).encode()
    seeds = {
        # A row of 64 in codes, and its rests for V.
        "heads": header(payload=codes(2)),
        "heads_of_no_queries": header(has_queries=0, rows=8, payload=codes(16)),
        "output": header(stage=1, rows=3, payload=codes(3)),
        "gate": header(stage=2, payload=codes(1)),
        "down": header(stage=3, payload=codes(1)),
        "logits": header(stage=4, rows=2, payload=2 * 64 * 4),
        "too_many_rows": header(rows=9, payload=codes(18)),
        "no_rows": header(rows=0),
        "other_layer": header(layer=1, payload=codes(2)),
        "logits_of_a_layer": header(stage=4, layer=1, payload=256),
        "other_size": header(payload=codes(2) + 1),
        "huge": header(rows=2**31 - 1, layer=2**31 - 1, payload=2**64 - 1),
        "outputs": header(kind=9, stage=3, payload=128),
        "loading": header(kind=5, payload=2),
        "long_text": header(kind=2, payload=65537),
        "no_stage": header(stage=5),
        "reserved": header(reserved=1),
        "short": header()[:39],
        "welcome": text(protocol=1, nonce="0" * 64, wants_key=False),
        "welcome_of_tomorrow": text(protocol=2, anything=[1]),
        "hello": text(protocol=1, kernels="avx512", activations="int8", model="0" * 32, proof=""),
        "hello_long": text(protocol=1, kernels="a" * 33, activations="int8", model="", proof=""),
        "offer": text(bytes_per_second=2.5e10),
        "offer_negative": text(bytes_per_second=-1),
        "assign": text(shares=[3, 2, 1], machine=2, max_rows=512, max_logit_rows=64),
        "assign_zero": text(shares=[1, 0], machine=1, max_rows=1, max_logit_rows=1),
        "assign_many": text(shares=[1] * 65, machine=1, max_rows=1, max_logit_rows=1),
        "assign_huge": text(shares=[2**20] * 64, machine=63, max_rows=8192, max_logit_rows=8192),
        "assign_other": text(shares=[1, 1], machine=2, max_rows=8192, max_logit_rows=1),
        "refusal": text(message="no\nsecond line \u001b[31m"),
        "address": b"10.0.0.2:7070",
        "address_v6": b"[::1]:7070",
        "address_bad": b"[::1:7070",
        "deep": b"[" * 5000,
        "empty": b"",
    }
    for name, data in seeds.items():
        (folder / name).write_bytes(data)


if __name__ == "__main__":
    main()
