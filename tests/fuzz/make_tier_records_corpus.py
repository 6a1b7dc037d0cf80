#!/usr/bin/env python3
"""Makes the seeds of tier_records_fuzz: segment headers, record headers and values, good and bad. The
target sets their checksums right itself.

make_tier_records_corpus.py CORPUS_FOLDER
"""
import pathlib
import struct
import sys

BLOCK_BYTES = 512


def segment(version=1, record_version=1, block=BLOCK_BYTES, slots=1000):
    return struct.pack("<8sIHH32sqqQ", b"LARDERKV", version, record_version, 256, bytes([1] * 32),
                       block, slots, 0)


def record(version=1, encoding=0, payload=BLOCK_BYTES, stored=BLOCK_BYTES, group=0):
    identity = b"".join(bytes([i] * 32) for i in (1, 2, 3, 4))
    return struct.pack("<4sHH128s16iiIqqQQQQ", b"LRDB", version, encoding, identity, *range(16), group,
                       0, payload, stored, 7, 0, 0, 0)


# A frame by hand: magic, single segment with one byte of size, one last block of type raw or repeat.
def zstd_frame(block_type, data, size):
    length = size if block_type == 1 else len(data)
    head = (length << 3 | block_type << 1 | 1).to_bytes(3, "little")
    return b"\x28\xb5\x2f\xfd" + b"\x60" + struct.pack("<H", size - 256) + head + data


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    plain = bytes(range(256)) * 2
    seeds = {
        "segment": segment(),
        "segment_version": segment(version=2),
        "segment_no_slots": segment(slots=0),
        "segment_many_slots": segment(slots=2**31 - 2, block=2**32),
        "segment_longest": segment(slots=2**31 - 2, block=2**30),
        "segment_negative": segment(slots=-1, block=-1),
        "segment_short": segment()[:40],
        "record": record(),
        "record_version": record(version=2),
        "record_encoding": record(encoding=9),
        "record_negative": record(payload=-1, stored=-1),
        "record_short": record()[:255],
        "value": record() + plain,
        "value_short": record() + plain[:-1],
        "value_long": record() + plain + b"x",
        "value_group": record(group=-5) + plain,
        "value_zstd_raw": record(encoding=1) + zstd_frame(0, plain, 512),
        "value_zstd_repeat": record(encoding=1) + zstd_frame(1, b"a", 512),
        "value_zstd_bomb": record(encoding=1) + zstd_frame(1, b"a", 65791),
        "value_zstd_cut": record(encoding=1) + zstd_frame(0, plain, 512)[:100],
        "empty": b"",
    }
    for name, data in seeds.items():
        (folder / name).write_bytes(data)


if __name__ == "__main__":
    main()
