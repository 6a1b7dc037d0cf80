"""What a router does with KV events: subscribes, decodes both formats, knows what is stored, asks for what it missed.

Needs pyzmq and msgpack.
"""
import time

import msgpack
import zmq

END = b"\xff" * 8
# An event as an array has these behind its type's name.
FIELDS = {
    "BlockStored": ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name",
                    "extra_keys", "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window"),
    "BlockRemoved": ("block_hashes", "medium", "group_idx"),
    "AllBlocksCleared": (),
}


def decode(payload):
    """(ts, events, dp_rank), events as dicts with "type" in either format. Checks that no field lacks."""
    ts, raw, rank = msgpack.unpackb(payload)
    events = []
    for event in raw:
        if isinstance(event, list):
            kind, *values = event
            assert len(values) == len(FIELDS[kind]), event
            event = {"type": kind, **dict(zip(FIELDS[kind], values))}
        assert set(event) == {"type", *FIELDS[event["type"]]}, event
        events.append(event)
    return ts, events, rank


class Block:
    def __init__(self, tokens, parent, extra_keys, group):
        self.tokens, self.parent, self.extra_keys, self.group = tokens, parent, extra_keys, group


class Subscriber:
    """Not for several threads. Replays need replay_endpoint. The model: by medium {(group, hash): Block}; `stored` is the pool's."""

    def __init__(self, endpoint, replay_endpoint=None, topic="", timeout_s=20.0, subscribes=True):
        self.timeout_s = timeout_s
        self.endpoint = endpoint
        self.replay_endpoint = replay_endpoint
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.SUB)
        self.socket.setsockopt(zmq.IPV6, 1)
        self.socket.setsockopt(zmq.RCVHWM, 0)
        self.socket.setsockopt(zmq.LINGER, 0)
        if subscribes:  # else replays alone tell it
            self.socket.subscribe(topic.encode())
            self.socket.connect(endpoint)
        self.media = {"GPU": {}, "CPU": {}, "STORAGE": {}}
        self.num_orphans = 0  # stored behind what was not known: a router cannot tell what prompt that is
        self.next_sequence = 0  # expected next
        self.num_replayed = 0
        self.topics = set()
        self.log = []  # (sequence, event) of all that was applied

    @property
    def stored(self):
        return self.media["GPU"]

    def close(self):
        self.socket.close()
        self.context.term()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def replay(self, begin):
        """[(sequence, payload), ...] of all that the server still has from `begin` on. It has what happened before."""
        dealer = self.context.socket(zmq.DEALER)
        try:
            dealer.setsockopt(zmq.IPV6, 1)
            dealer.setsockopt(zmq.LINGER, 0)
            dealer.setsockopt(zmq.RCVHWM, 0)
            dealer.setsockopt(zmq.RCVTIMEO, int(self.timeout_s * 1000))
            dealer.connect(self.replay_endpoint)
            dealer.send_multipart([b"", begin.to_bytes(8, "big")])
            messages = []
            while True:
                empty, *topic, sequence, payload = dealer.recv_multipart()  # with a topic where events are maps
                assert empty == b"" and len(topic) <= 1
                if sequence == END:
                    assert payload == b""
                    return messages
                messages.append((int.from_bytes(sequence, "big"), payload))
        finally:
            dealer.close()

    def catch_up(self):
        """Applies what the server still has and this has not seen. Returns how many messages."""
        messages = [m for m in self.replay(self.next_sequence) if m[0] >= self.next_sequence]
        for sequence, payload in messages:
            self._apply(sequence, payload)
        self.num_replayed += len(messages)
        return len(messages)

    def poll(self, timeout_s=0.0):
        """Applies one live message if there is one in time; a gap before it is replayed. Returns its events or None."""
        if not self.socket.poll(int(timeout_s * 1000)):
            return None
        topic, sequence, payload = self.socket.recv_multipart()
        self.topics.add(topic.decode())
        sequence = int.from_bytes(sequence, "big")
        # As Dynamo does: what is not above all before is known from a replay. A server that has started anew is above it.
        if sequence < self.next_sequence:
            return []
        if sequence > self.next_sequence and self.replay_endpoint:
            self.catch_up()
            if sequence < self.next_sequence:
                return []
        return self._apply(sequence, payload)

    def poll_until(self, condition):
        """Applies live messages until condition() holds; False where it does not in time."""
        deadline = time.monotonic() + self.timeout_s
        while not condition():
            if time.monotonic() > deadline:
                return False
            self.poll(0.1)
        return True

    def chain(self, last_hash, group=0):
        """Tokens of the prompt that ends with the block, from its first one on."""
        tokens = []
        key = last_hash
        while key is not None:
            block = self.stored[group, key]
            tokens[:0] = block.tokens
            key = block.parent
        return tokens

    def has_prompt(self, tokens, group=0, extra_keys=None, medium="GPU"):
        """How many tokens of the prompt's beginning are stored, by the model; extra_keys: its first block's, as told."""
        by_parent = {(b.parent, tuple(b.tokens)): h for (g, h), b in self.media[medium].items()
                     if g == group and (b.parent is not None or b.extra_keys == extra_keys)}
        block_size = len(next(iter(by_parent))[1]) if by_parent else 1
        parent = None
        for i in range(0, len(tokens) - block_size + 1, block_size):
            found = by_parent.get((parent, tuple(tokens[i:i + block_size])))
            if found is None:
                return i
            parent = found
        return len(tokens) // block_size * block_size

    def _apply(self, sequence, payload):
        _, events, rank = decode(payload)
        assert rank == 0
        for event in events:
            self._apply_event(event)
            self.log.append((sequence, event))
        self.next_sequence = sequence + 1
        return events

    def _apply_event(self, event):
        if event["type"] == "AllBlocksCleared":
            for blocks in self.media.values():
                blocks.clear()
            return
        stored = self.media[event["medium"]]
        group = event["group_idx"]
        if event["type"] == "BlockRemoved":
            for key in event["block_hashes"]:
                stored.pop((group, key), None)
            return
        size, hashes, tokens = event["block_size"], event["block_hashes"], event["token_ids"]
        assert len(tokens) == size * len(hashes), event
        extra = event["extra_keys"] or [None] * len(hashes)
        assert len(extra) == len(hashes), event
        parent = event["parent_block_hash"]
        if parent is not None and not any({(group, parent), (0, parent)} & blocks.keys() for blocks in self.media.values()):
            self.num_orphans += 1
        for i, key in enumerate(hashes):
            stored[group, key] = Block(tokens[i * size:(i + 1) * size], parent, extra[i], group)
            parent = key
