"""What a cache-aware router makes of the server's KV events: it foretells each request's prefix from them alone.

The structs are those of vLLM's subscribers, written anew: a batch is an array, its events are arrays as in releases up to
0.23, or maps as since 0.24.
"""
import json
import random

import msgspec
import pytest
import zmq

from test_faults import GGUF, Serve, gauge

BLOCK = 16


def structs(array, extra):
    """A decoder of batches: arrays as 0.16 has them, or with `extra` as 0.18; maps as 0.33 without what is always left out."""
    class Batch(msgspec.Struct, array_like=True, omit_defaults=True):
        ts: float
        events: list
        data_parallel_rank: int | None = None

    class Event(msgspec.Struct, array_like=array, omit_defaults=True, tag=True, forbid_unknown_fields=True):
        pass

    class BlockStored(Event):
        block_hashes: list[int | bytes]
        parent_block_hash: int | bytes | None
        token_ids: list[int]
        block_size: int
        lora_id: int | None
        medium: str | None
        lora_name: str | None

    class BlockStoredExtra(BlockStored, tag="BlockStored"):
        extra_keys: list[tuple | None] | None = None

    class BlockRemoved(Event):
        block_hashes: list[int | bytes]
        medium: str | None

    class AllBlocksCleared(Event):
        pass

    class KVEventBatch(Batch):
        events: list[(BlockStoredExtra if extra else BlockStored) | BlockRemoved | AllBlocksCleared]

    return msgspec.msgpack.Decoder(type=KVEventBatch)


# What subscribers make of one answer to a replay (as a DEALER has it): its number and batch, or None at the end. `wanted`
# is the number that some insist on. Read in the sources named, and written anew.
END = -1


def number_of(frame):
    assert len(frame) == 8
    return int.from_bytes(frame, "big", signed=True)


def vllm_to_0_25(frames, topic, wanted):
    """Who reads vLLM's publisher (vllm/distributed/kv_events.py) of 0.9 to 0.25."""
    empty, number, batch = frames
    assert not empty and bool(batch) == (number_of(number) != END)
    return (number_of(number), batch) if batch else None


def vllm_since_0_26(frames, topic, wanted):
    """The same, of 0.26 to 0.33."""
    empty, name, number, batch = frames
    assert not empty and bool(batch) == (number_of(number) != END)
    assert name == (topic if batch else b"")
    return (number_of(number), batch) if batch else None


def vllm_router_0_1_17(frames, topic, wanted):
    """src/kv_index/subscriber.rs of the release on PyPI."""
    assert len(frames) == 4 and not frames[0]
    number = number_of(frames[2])
    if number == END:
        assert not frames[1] and not frames[3]
        return None
    assert frames[1] == topic and number == wanted
    return number, frames[3]


def llm_d_router_0_10(frames, topic, wanted):
    """pkg/kvevents/zmq_subscriber.go of v0.10.0."""
    frames = frames[1:] if not frames[0] else frames
    assert len(frames) == 3
    if not frames[2]:
        return None
    assert number_of(frames[1]) == wanted and len(frames[0].split(b"@")) == 3, "a pod's name and a model's"
    return wanted, frames[2]


def dynamo_of_three(frames, topic, wanted):
    """lib/kv-router/src/services/indexer/listener.rs of ai-dynamo/dynamo, at 8872753."""
    assert len(frames) >= 3
    return (number_of(frames[1]), frames[2]) if frames[2] else None


def dynamo_of_four(frames, topic, wanted):
    """The same, at 0c496f2."""
    assert len(frames) == 4
    return (number_of(frames[2]), frames[3]) if frames[3] else None


READERS = [("array", vllm_to_0_25, ""), ("array", dynamo_of_three, ""), ("map", vllm_since_0_26, "kv-events"),
           ("map", vllm_router_0_1_17, ""), ("map", llm_d_router_0_10, "kv@10.0.0.7@tiny"), ("map", dynamo_of_four, "")]


class Router:
    """Blocks by hash, as parent and tokens. It lives on the live socket; what it missed is asked for.

    What an answered request stored is on its way: by a replay sync() learns how far the server has told, and then reads as
    far. The replay's batches are used to compare, and taken only where a gap is seen.
    """

    def __init__(self, folder, wire="map", reader=vllm_since_0_26, topic="", near=False):
        self.decoder, self.reader, self.topic = structs(wire == "array", wire == "map" or near), reader, topic.encode()
        self.folder, self.near = folder, near
        self.to_the_byte = wire == "map" or not near  # arrays of 0.18 end with nil where nothing is extra
        self.sub = zmq.Context.instance().socket(zmq.SUB)
        self.sub.connect(f"ipc://{folder}/events")
        self.sub.setsockopt(zmq.SUBSCRIBE, self.topic)
        self.sub.setsockopt(zmq.RCVTIMEO, 20_000)
        self.next, self.heard = 0, -1  # what comes next; the last that the live socket had
        self.blocks, self.extra, self.removed, self.clears = {}, set(), 0, 0
        self.lose, self.lost, self.missed, self.gaps, self.live, self.replayed, self.restarts = 0, 0, 0, 0, 0, 0, 0

    def replay(self):
        """All from the next on, as the reader reads it. It has what was told before it was asked for."""
        asks = zmq.Context.instance().socket(zmq.DEALER)
        asks.setsockopt(zmq.RCVTIMEO, 20_000)
        asks.connect(f"ipc://{self.folder}/replay")
        asks.send_multipart([b"", self.next.to_bytes(8, "big")] + [self.topic] * self.near)
        batches = {}
        while (told := self.reader(asks.recv_multipart(), self.topic, self.next + len(batches))) is not None:
            batches[told[0]] = told[1]
        asks.close(0)
        return batches

    def catch_up(self):
        for number, payload in self.replay().items():
            self.replayed += 1
            self.take(number, payload)

    def join(self, server, store=None):
        """A subscription takes a while to arrive, and what is told before is missed."""
        for i in range(200):
            store(i) if store else ask(server, [3 + (7 * i + j) % 400 for j in range(40)])
            if self.sub.poll(100):
                return self
        raise AssertionError("nothing is heard")

    def sync(self):
        told = self.replay()
        newest = max(told, default=self.next - 1)
        while self.heard < newest:
            self.hear(told, newest)

    def hear(self, told, newest):
        topic, word, payload = self.sub.recv_multipart()
        number = number_of(word)
        assert topic == self.topic and told.get(number, payload) == payload
        if number < self.heard:
            self.next, self.heard, self.restarts = 0, -1, self.restarts + 1
            self.blocks.clear()
        self.missed += number > self.next and self.heard < 0
        self.heard = number
        if self.lose and self.next == number < newest:  # the next one will show it
            self.lose, self.lost = self.lose - 1, self.lost + 1
        elif number > self.next:
            self.gaps += 1
            self.catch_up()
        elif number == self.next:
            self.live += 1
            self.take(number, payload)

    def take(self, number, payload):
        if number < self.next:
            return
        assert number == self.next, "a gap"
        self.next = number + 1
        batch = self.decoder.decode(payload)
        assert msgspec.msgpack.encode(batch) == payload or not self.to_the_byte, "as msgspec writes it"
        for event in batch.events:
            name = type(event).__name__
            if name.startswith("BlockStored"):
                size = event.block_size
                assert event.medium == "GPU" and (size == BLOCK or self.near)
                assert len(event.token_ids) == size * len(event.block_hashes)
                assert event.parent_block_hash is None or event.parent_block_hash in self.blocks
                parent = event.parent_block_hash
                for i, key in enumerate(event.block_hashes):
                    self.blocks[key] = (parent, tuple(event.token_ids[size * i:size * (i + 1)]))
                    parent = key
                self.extra.update(key for keys in getattr(event, "extra_keys", None) or [] for key in keys or ())
            elif name == "BlockRemoved":
                self.removed += len(event.block_hashes)
                for key in event.block_hashes:
                    del self.blocks[key]
            else:
                self.clears += 1
                self.blocks.clear()

    def foretell(self, ids):
        known = {block: key for key, block in self.blocks.items()}
        parent, blocks = None, 0
        while (blocks + 1) * BLOCK <= len(ids) - 1:
            parent = known.get((parent, tuple(ids[BLOCK * blocks:BLOCK * (blocks + 1)])))
            if parent is None:
                break
            blocks += 1
        return blocks


def ask(server, ids, max_tokens=4, **kvilt):
    body = {"prompt": ids, "max_tokens": max_tokens, "temperature": 0, "kvilt": {"quality": "exact", **kvilt}}
    status, reply = server.post("/v1/completions", json.dumps(body))
    assert status == 200, reply
    return json.loads(reply)["usage"]["kvilt"]["prefix"]


def clear(server):
    status, reply = server.post("/v1/cache/clear", "{}")
    assert status == 200, reply


def ask_approximately(server, documents):
    """Of their KV, wherever they stood before: usage.kvilt."""
    body = {"messages": [{"role": "user", "content": "How long?"}], "documents": [{"text": text} for text in documents],
            "max_tokens": 1, "temperature": 0, "kvilt": {"policy": "epic"}}
    status, reply = server.post("/v1/chat/completions", json.dumps(body))
    assert status == 200, reply
    return json.loads(reply)["usage"]["kvilt"]


def serve(folder, wire="map", topic="", *flags):
    return Serve(GGUF, "--kv-bytes", "4MiB", "--kv-events", f"ipc://{folder}/events", "--kv-events-replay",
                 f"ipc://{folder}/replay", "--kv-events-format", wire, "--kv-events-topic", topic, *flags).ready()


@pytest.mark.parametrize("wire,reader,topic", READERS, ids=[reader.__name__ for _, reader, _ in READERS])
def test_a_router_foretells_every_prefix(tmp_path, wire, reader, topic):
    draw = random.Random(3)
    documents = [[draw.randrange(3, 500) for _ in range(60)] for _ in range(12)]
    with serve(tmp_path, wire, topic) as server:
        router = Router(tmp_path, wire, reader, topic).join(server)
        right, hits = 0, 0
        for turn in range(120):
            ids = [token for document in draw.sample(documents, draw.randrange(1, 5)) for token in document]
            if turn % 8 == 5:  # two answers unheard, of which the first one's batch is lost
                ask(server, ids[:-20])
                ask(server, ids[::-1])
                router.lose = 1
            router.sync()
            told = router.foretell(ids)
            assert told == ask(server, ids) // BLOCK, (turn, told)
            right, hits = right + 1, hits + (told > 0)
            if turn == 60:
                clear(server)
        router.sync()
        assert hits > 20 and right > hits, "some are known, others are not"
        assert router.removed > 20, "blocks were evicted meanwhile"
        assert router.clears == 2, "at the start, and when the cache was cleared"
        assert router.lost > 5 and router.gaps == router.lost + router.missed, "the beginning may be missed too"
        assert router.live > 60 and router.replayed > router.lost, (router.live, router.replayed, router.lost)
        assert not router.extra
        late = Router(tmp_path, wire, reader, topic).join(server)
        late.sync(), router.sync()
        assert late.blocks == router.blocks and late.blocks
        clear(server)
        late.sync()
        assert not late.blocks
        assert server.end() == 0


def chains(router):
    """All that the router believes to be there: each block with what is before it."""
    out = {}

    def chain(key):
        if key not in out:
            parent, ids = router.blocks[key]
            out[key] = (chain(parent) if parent is not None else ()) + ids
        return out[key]

    return {chain(key) for key in router.blocks}


def served(server, prompts):
    """All that is there, of prompts that hold everything that was asked: nothing is kept of what asks for it."""
    out = set()
    for ids in prompts:
        found = ask(server, ids + [2], publish=False, max_tokens=1) // BLOCK
        out.update(tuple(ids[:BLOCK * (i + 1)]) for i in range(found))
    return out


def test_a_router_has_the_servers_blocks_and_no_others(tmp_path):
    draw = random.Random(6)
    documents = [[draw.randrange(3, 500) for _ in range(60)] for _ in range(12)]
    with serve(tmp_path) as server:
        router = Router(tmp_path).join(server)
        clear(server)
        prompts, compared, gone = [], 0, 0
        for _ in range(8):
            for _ in range(8):
                prompts.append([token for document in draw.sample(documents, draw.randrange(1, 5)) for token in document])
                ask(server, prompts[-1], max_tokens=1)  # so that nothing but prompts is kept
            for _ in range(5):  # what is asked may need room, and then something leaves
                there, removed = served(server, prompts), router.removed
                router.sync()
                if router.removed == removed:
                    break
            assert chains(router) == there and len(router.blocks) == len(there)
            compared += len(there)
            gone += len({tuple(ids[:BLOCK * i]) for ids in prompts for i in range(1, len(ids) // BLOCK + 1)} - there)
        assert compared > 100 and gone > 20, (compared, gone)  # power: some are there, others have left


@pytest.mark.parametrize("wire,reader", [("array", vllm_to_0_25), ("map", vllm_since_0_26)], ids=["array", "map"])
def test_approximate_blocks_are_heard_on_their_own_topic_only(tmp_path, wire, reader):
    draw = random.Random(5)
    words = "the red key is in house a blue box on hill near river".split()
    documents = [" ".join(draw.choice(words) for _ in range(60)) for _ in range(6)]
    with serve(tmp_path, wire, "kv@here@tiny", "--kv-events-approximate", "near@here@tiny") as server:
        exact = Router(tmp_path, wire, reader, "kv@here@tiny").join(server)
        near = Router(tmp_path, wire, reader, "near@here@tiny", near=True)
        near.join(server, lambda _: ask_approximately(server, draw.sample(documents, 2)))
        reused = 0
        for _ in range(40):
            reused += ask_approximately(server, draw.sample(documents, 2))["reused"] > 0
            exact.sync(), near.sync()
            ids = [draw.randrange(3, 500) for _ in range(50)]
            assert exact.foretell(ids) == ask(server, ids) // BLOCK
        assert reused > 10
        assert near.live > 3 and near.removed > 5 and near.extra and not exact.extra
        assert near.blocks and not near.blocks.keys() & exact.blocks.keys()
        clear(server)
        exact.sync(), near.sync()
        assert not near.blocks and not exact.blocks and near.clears == 2


@pytest.mark.parametrize("wire,reader,topic", READERS[1:4:2], ids=["array", "map"])
def test_a_server_that_is_back_is_heard_anew(tmp_path, wire, reader, topic):
    ids = list(range(403, 203, -1))
    with serve(tmp_path, wire, topic) as server:
        router = Router(tmp_path, wire, reader, topic).join(server)
        for begin in reversed(range(60)):  # far more than the next one tells before it is heard
            ask(server, ids[begin:])
        router.sync()
        assert router.foretell(ids) == ask(server, ids) // BLOCK > 0 and router.clears == 1
        server.process.kill()
    with serve(tmp_path, wire, topic) as server:
        assert router.foretell(ids) > 0, "it has not heard of it yet"
        router.join(server).hear({}, 0)
        assert router.restarts == 1 and router.clears == 2
        assert router.foretell(ids) == ask(server, ids) // BLOCK == 0
        router.sync()
        assert router.foretell(ids) == ask(server, ids) // BLOCK > 0


def test_who_does_not_hear_foretells_wrong(tmp_path):
    """The power of the test above."""
    with Serve(GGUF, "--kv-events", f"ipc://{tmp_path}/events", "--kv-events-replay", f"ipc://{tmp_path}/replay").ready() as server:
        router = Router(tmp_path)
        ids = list(range(3, 103))
        ask(server, ids)
        assert router.foretell(ids) != ask(server, ids) // BLOCK


def test_salts_and_namespaces_are_told_only_where_asked_and_never_in_clear(tmp_path):
    for flags, blocks in [((), 0), (("--kv-events-tenants",), 6)]:
        with Serve(GGUF, "--kv-events", f"ipc://{tmp_path}/events", "--kv-events-replay", f"ipc://{tmp_path}/replay",
                   *flags).ready() as server:
            router = Router(tmp_path)
            ids = list(range(3, 103))
            status, reply = server.post("/v1/completions", json.dumps({"prompt": ids, "max_tokens": 1, "cache_salt": "a-secret-salt"}))
            assert status == 200, reply
            router.catch_up()
            assert len(router.blocks) == blocks
            assert len(router.extra) == (blocks > 0) and "a-secret-salt" not in str(router.extra)
            assert ask(server, ids) == 0, "another domain"


@pytest.mark.parametrize("flags,word", [
    (["--kv-events", "nonsense"], "KV events: 'nonsense'"),
    (["--kv-events", "tcp://127.0.0.1:0", "--kv-events-replay", "tcp://"], "KV events: 'tcp://'"),
    (["--kv-events-replay", "tcp://127.0.0.1:0"], "--kv-events"),
    (["--kv-events", "tcp://127.0.0.1:0", "--no-cache"], "--no-cache"),
    (["--kv-events", "tcp://127.0.0.1:0", "--kv-events-format", "xml"], "map or array"),
    (["--kv-events", "tcp://127.0.0.1:0", "--kv-events-approximate", "near"], "neither may begin"),
])
def test_flags_that_make_no_sense_are_refused(flags, word):
    with Serve(GGUF, *flags) as server:
        out = server.process.communicate(timeout=120)[0]
        assert server.process.returncode != 0 and word in out
