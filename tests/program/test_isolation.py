"""Random interleavings of tenants, salts and namespaces with equal texts, through memory, a folder and restarts: nobody
finds what is not theirs, exactly or approximately, and every answer of exact requests is that of a server without a cache.

src/engine/views_test.cc does the same with the cache in memory alone, where it can also say what must be found.
KVILT_ISOLATION_SEEDS: how many interleavings (1). KVILT_ISOLATION_STEPS: of how many steps, each three requests at once (50).
"""
import collections
import json
import os
import random
import threading

import pytest

from test_faults import PROBE, Serve
from test_tenants import KEYS, call

SEEDS = int(os.environ.get("KVILT_ISOLATION_SEEDS", "1"))
STEPS = int(os.environ.get("KVILT_ISOLATION_STEPS", "50"))
AT_ONCE = 3
TENANTS = ["one", "two", "admin"]
SALTS = ["", "x"]  # alike, so that what is joined wrongly meets
NAMES = ["", "x", "one"]
# None begins like another. With a pool of 4 MiB of bf16, 2,730 tokens, most leave memory soon.
TEXTS = [[10 + i] + [3 + random.Random(i).randrange(900) for _ in range(399)] for i in range(3)]
END = [7, 11, 13, 17]


class Asked:
    """One request: its place in the cache, and the text with or without something unheard of before it."""

    def __init__(self, dice):
        self.tenant, self.salt = dice.choice(TENANTS), dice.choice(SALTS)
        self.names = dice.sample(NAMES, dice.randrange(1, 4))
        self.which, self.exact = dice.randrange(len(TEXTS)), dice.random() < 0.6
        head = [] if self.exact else [3 + dice.randrange(900) for _ in range(12)]
        self.prompt = head + TEXTS[self.which] + END
        self.own = (self.tenant, self.salt, self.names[0], self.which)
        self.places = [(self.tenant, self.salt, name, self.which) for name in self.names]

    def ask(self, server):
        body = {"prompt": self.prompt, "max_tokens": 4, "temperature": 0, "ignore_eos": True,
                "kvilt": {"policy": "prefix" if self.exact else "naive", "namespaces": self.names}}
        if self.salt:
            body["cache_salt"] = self.salt
        status, answer = call(server, self.tenant, "POST", "/v1/completions", body)
        assert status == 200, answer
        self.text, self.usage = answer["choices"][0]["text"], answer["usage"]["kvilt"]
        self.found = self.usage["prefix"] + self.usage["reused"] + self.usage["chain"]


def together(server, asked):
    failed = []

    def run(one):
        try:
            one.ask(server)
        except BaseException as error:  # noqa: BLE001: it is told below
            failed.append(error)

    threads = [threading.Thread(target=run, args=(one,)) for one in asked]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed


class Left:
    """Where a text was asked for. In `exact` it may have exact KV: an exact request left it, or somebody found it elsewhere."""

    def __init__(self, places=(), exact=()):
        self.places, self.exact = set(places), set(exact)

    def behind(self, asked):
        """What there may be when these are asked at once: they may find each other's, and what that made visible."""
        out = Left(self.places, self.exact)
        for one in asked * AT_ONCE:
            out.places.add(one.own)
            out.exact.update([one.own] if one.exact or any(place in out.exact for place in one.places) else [])
        return out


def answers():
    """Of a server without a cache."""
    with Serve(PROBE, "--no-cache", "--kv-type", "bf16").ready() as server:
        body = {"max_tokens": 4, "temperature": 0, "ignore_eos": True}
        out = [json.loads(server.post("/v1/completions", json.dumps({**body, "prompt": text + END}))[1]) for text in TEXTS]
    return [answer["choices"][0]["text"] for answer in out]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_nobody_finds_what_is_not_theirs(tmp_path, seed):
    file, dice, right = tmp_path / "tenants.json", random.Random(seed), answers()
    assert len(set(right)) > 1  # power: answers differ, so a wrong one would show
    file.write_text(json.dumps({"tenants": [
        {"name": who, "keys": [{"key": KEYS[who], "role": "admin" if who == "admin" else "user"}]} for who in TENANTS]}))
    flags = ["--tenants", str(file), "--cache-dir", str(tmp_path / "cache"), "--kv-type", "bf16", "--kv-bytes", "4MiB"]
    left, seen, step = Left(), collections.Counter(), 0
    while step < STEPS:
        started = left
        with Serve(PROBE, *flags).ready() as server:
            for _ in range(dice.randrange(8, 17)):
                asked = [Asked(dice) for _ in range(AT_ONCE)]
                together(server, asked)
                for one in asked:
                    others = left.behind([other for other in asked if other is not one])
                    theirs = any(place in (others.exact if one.exact else others.places) for place in one.places)
                    assert one.found == 0 or theirs, (step, vars(one))
                    assert not one.exact or one.text == right[one.which], (step, vars(one))
                    seen["nothing"] += one.found == 0
                    seen["exact"] += one.exact and one.found > 0
                    seen["pieces"] += one.usage["reused"] > 0
                    seen["disk"] += one.usage["disk"] > 0
                    seen["memory"] += one.found > 0 and one.usage["disk"] == 0
                    seen["another name"] += one.found > 0 and one.own not in others.places
                    seen["before the restart"] += one.usage["disk"] > 0 and any(place in started.places for place in one.places)
                    seen["others' only"] += not theirs and any(place[-1] == one.which for place in left.places)
                left = left.behind(asked)
                step += 1
            metrics = call(server, "admin", "GET", "/metrics")[1]
            errors = next(line for line in metrics.splitlines() if line.startswith("kvilt:disk_cache_errors_total"))
            assert float(errors.split()[-1]) == 0
            assert server.end() == 0
    print(dict(seen))
    kinds = ("nothing", "exact", "pieces", "disk", "memory", "another name", "before the restart", "others' only")
    assert all(seen[kind] > 0 for kind in kinds), seen  # power: each of them happens
