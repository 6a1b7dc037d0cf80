"""GGUF files taken apart and written anew."""
import pathlib
import struct

SCALARS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes, by type
STRING, ARRAY = 8, 9
ALIGNMENT = 32


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def number(self, code):
        (value,) = struct.unpack_from("<" + code, self.data, self.at)
        self.at += struct.calcsize(code)
        return value

    def skip(self, count):
        self.at += count

    def skip_string(self):
        self.skip(self.number("Q"))

    def skip_value(self, kind):
        if kind == STRING:
            self.skip_string()
        elif kind == ARRAY:
            kind, count = self.number("I"), self.number("Q")
            for _ in range(count):
                self.skip_value(kind)
        else:
            self.skip(SCALARS[kind])


def parts_of(path):
    """What the file says before its tensors, how many keys that are, and each tensor's (name to type, data)."""
    reader = Reader(pathlib.Path(path).read_bytes())
    reader.at = 8
    num_tensors, num_values = reader.number("Q"), reader.number("Q")
    begin = reader.at
    for _ in range(num_values):
        reader.skip_string()
        reader.skip_value(reader.number("I"))
    values = reader.data[begin:reader.at]
    infos, offsets = [], []
    for _ in range(num_tensors):
        begin = reader.at
        reader.skip_string()
        reader.skip(8 * reader.number("I") + 4)
        infos.append(reader.data[begin:reader.at])
        offsets.append(reader.number("Q"))
    data = reader.data[-(-reader.at // ALIGNMENT) * ALIGNMENT:]
    return values, num_values, [(info, data[first:end]) for info, first, end in zip(infos, offsets, [*offsets[1:], len(data)])]


def key(name, kind, code, value):
    return struct.pack("<Q", len(name)) + name + struct.pack("<I" + code, kind, value)


def write_piece(path, values, num_values, tensors):
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), num_values) + values
    offset = 0
    for info, data in tensors:
        header += info + struct.pack("<Q", offset)
        offset += len(data)
    path.write_bytes(header + bytes(-len(header) % ALIGNMENT) + b"".join(data for _, data in tensors))
