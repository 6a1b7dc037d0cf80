"""Writes ggml_types.bin: random blocks of every quantised type and the values that `gguf` gives them.

Run with the Python packages gguf and numpy: python make_ggml_types.py
Per type: u32 type, u32 number of values, u32 number of bytes, the bytes, the values as FP32.
"""
import pathlib
import struct

import gguf
import numpy as np

T = gguf.GGMLQuantizationType
# Places of FP16 fields in a block: random bits there would give NaN and infinity.
HALVES = {
    T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0],
    T.Q2_K: [80, 82], T.Q3_K: [108], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208],
    T.BF16: [], T.F16: [], T.MXFP4: [],
    T.IQ4_NL: [0], T.IQ4_XS: [0],
}

rng = np.random.default_rng(7)
out = bytearray()
for kind, halves in HALVES.items():
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = 6 if block_size > 1 else 256
    if kind == T.F16:
        data = rng.normal(size=(blocks, 1)).astype(np.float16).view(np.uint8)
    elif kind == T.BF16:
        data = (rng.normal(size=(blocks, 1)).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    else:
        data = rng.integers(0, 256, size=(blocks, block_bytes), dtype=np.uint8)
        for at in halves:
            # The last block's are subnormal.
            values = rng.normal(size=(blocks, 1)).astype(np.float16)
            values[-1] = np.float16(3e-6)
            data[:, at:at + 2] = values.view(np.uint8)
        if kind == T.MXFP4:
            data[:, 0] = [0, 1, 2, 120, 130, 252]  # 255 is no number, and from 253 on some are infinite
    if kind == T.F16:
        values = data.view(np.float16).astype(np.float32)
    else:
        values = gguf.quants.dequantize(data.reshape(-1), kind).astype(np.float32)
    raw = data.tobytes()
    out += struct.pack("<III", int(kind), values.size, len(raw)) + raw + values.tobytes()
path = pathlib.Path(__file__).with_name("ggml_types.bin")
path.write_bytes(out)
print(path, len(out))
