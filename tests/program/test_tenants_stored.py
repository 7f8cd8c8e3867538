"""The probe of test_tenants.py where the other tenant's texts are on disk, memory is short, or they are documents of a
knowledge base: no question of the other one tells whether they are cached.

KVILT_PROBE_PAIRS: pairs of a known text and a new one (12).
"""
import json
import os
import random
import time

import pytest

from test_faults import PROBE, Serve
from test_knowledge import TEMPLATE, VOCABULARY
from test_tenants import KEYS, account, call, numbers, rank_p

PAIRS = int(os.environ.get("KVILT_PROBE_PAIRS", "12"))
TOKENS = 800
SMALL = "8MiB"  # of bf16: six of these texts
LOOKS = 4  # at waits, by who may see a difference, until one is seen
FAIR = 1e-4  # the chance of a false alarm, of each number that is compared by ranks
# These follow from how full the cache is, which is not hidden (SECURITY.md), and so from the order of the questions.
FULLNESS = ("/evicted_bytes", "/pool/bytes", "/disk/bytes")


def completion(server, who, text, turn):
    """One of ids, of which the text is the beginning."""
    body = {"prompt": text, "max_tokens": 1, "temperature": 0, "ignore_eos": True, "kvilt": {"policy": ("prefix", "mend")[turn % 2]}}
    return call(server, who, "POST", "/v1/completions", body)


def document(server, who, text, turn):
    """A chat with it behind another document, or it is put there."""
    documents = [{"text": " ".join(VOCABULARY[:40])}, {"text": text}]
    if turn % 3 == 2:
        return call(server, who, "POST", "/v1/documents", {"documents": documents[1:]})
    body = {"messages": [{"role": "user", "content": "find the number : 7 ?"}], "documents": documents, "max_tokens": 1,
            "temperature": 0, "ignore_eos": True, "kvilt": {"policy": ("naive", "mend")[turn % 3]}}
    return call(server, who, "POST", "/v1/chat/completions", body)


completion.kinds, document.kinds = 2, 3  # of turns: waits of each are compared among themselves


def base(server, who, texts):
    """A knowledge base of them."""
    assert call(server, who, "POST", "/v1/knowledge_bases", {"name": "base"})[0] == 200
    for i, text in enumerate(texts):
        status, told = call(server, who, "POST", "/v1/knowledge_bases/base/documents", {"documents": [{"id": str(i), "text": text}]})
        assert status == 200, told


class Seen:
    """What a tenant sees of its questions of one kind: the numbers of answers, what they change in /v1/tenants, seconds."""

    def __init__(self, server, who, ask):
        self.server, self.who, self.ask = server, who, ask
        self.numbers, self.seconds = [], []

    def see(self, text, turn):
        before = numbers(account(self.server, self.who))
        start = time.perf_counter()
        status, answer = self.ask(self.server, self.who, text, turn)
        self.seconds.append(time.perf_counter() - start)
        assert status == 200, answer
        told = {at: number for at, number in numbers(answer).items() if not at.endswith(("_s", "/seconds", "/created"))}
        after = numbers(account(self.server, self.who))
        self.numbers.append(told | {"account" + at: number - before[at] for at, number in after.items()})


def probe(server, who, ask, known, new, seen=None):
    """Pairs of a text of `known` and one of `new`, in an order by chance. The numbers that tell them apart; the chance of
    such waits where they do not. seen: two Seen, of pairs of before, which count too.
    """
    dice = random.Random(5)
    of_known, of_new = seen or (Seen(server, who, ask), Seen(server, who, ask))
    for i, pair in enumerate(zip(known, new)):
        turns = [(of_known, pair[0]), (of_new, pair[1])]
        dice.shuffle(turns)
        for kind, text in turns:
            kind.see(text, i)
    telling = set()
    for pair in zip(of_known.numbers, of_new.numbers):
        telling.update(at for at in pair[0].keys() | pair[1].keys() if not at.endswith(FULLNESS) and pair[0].get(at) != pair[1].get(at))
    for at in of_known.numbers[0]:
        columns = [[row.get(at, 0) for row in kind.numbers] for kind in (of_known, of_new)]
        if at.endswith(FULLNESS) and columns[0] != columns[1] and rank_p(*columns, dice) < FAIR:
            telling.add(at)
    return telling, rank_p(of_known.seconds, of_new.seconds, dice, kinds=ask.kinds)


@pytest.mark.parametrize("kind,flags,again", [
    ("ids", ("--cache-dir",), False), ("ids", ("--cache-dir",), True), ("documents", (), False), ("documents", ("--cache-dir",), False)],
    ids=["disk", "disk-restarted", "base", "base-disk"])
def test_nobody_can_tell_what_another_tenant_stored(tmp_path, kind, flags, again):
    dice = random.Random(4)
    (tmp_path / "template").write_text(TEMPLATE)
    (tmp_path / "tenants.json").write_text(json.dumps({"tenants": [
        {"name": "one", "keys": [{"key": KEYS["one"]}]}, {"name": "two", "keys": [{"key": KEYS["two"]}]},
        {"name": "house", "keys": [{"key": KEYS["admin"], "role": "admin"}]}]}))
    stored = bool(flags)
    flags = ["--tenants", str(tmp_path / "tenants.json"), "--chat-template", str(tmp_path / "template"), "--kv-type", "bf16",
             "--kv-bytes", SMALL if stored else "1GiB", *flags, *[str(tmp_path / "cache")] * stored]
    count = (2 + 2 * LOOKS) * PAIRS
    # None begins like another.
    texts = ([[10 + i] + [3 + dice.randrange(900) for _ in range(TOKENS - 1)] for i in range(count)] if kind == "ids" else
             [" ".join([VOCABULARY[i]] + dice.choices(VOCABULARY, k=TOKENS - 1)) for i in range(count)])
    known, new, newer = texts[:PAIRS], texts[PAIRS:2 * PAIRS], texts[2 * PAIRS:]
    ask, other = (completion, [3] * TOKENS) if kind == "ids" else (document, " ".join(VOCABULARY[100:100 + TOKENS // 3]))

    def run(server, store):
        if store and kind == "ids":
            for text in known:
                ask(server, "one", text, 0)
        elif store:
            base(server, "one", known)
        if store and again:
            assert server.end() == 0
            return
        for who in ("one", "two"):  # the first of anybody's is not like the rest
            for turn in range(3):
                ask(server, who, other, turn)
        metrics = call(server, "admin", "GET", "/metrics")[1]
        pieces = next(float(line.split()[-1]) for line in metrics.splitlines() if line.startswith("kvilt:disk_cache_pieces"))
        assert (pieces > 0) == stored  # power

        telling, p = probe(server, "two", ask, known, new)
        assert not telling
        assert p > FAIR

        # Power: who cached them sees it. Waits of some ms may drown in others' work: then as many questions again, and
        # .05 is shared out over the looks.
        seen = Seen(server, "one", ask), Seen(server, "one", ask)
        for look in range(LOOKS):
            telling, p = probe(server, "one", ask, known * 2, newer[2 * PAIRS * look:2 * PAIRS * (look + 1)], seen)
            assert telling & {"/usage/kvilt/disk"} if stored else telling, telling
            assert any(at.startswith("account") for at in telling), telling
            if p < .05 / 2 ** (look + 1):
                return
        raise AssertionError(f"who cached them waits as who did not: {p}")

    with Serve(PROBE, *flags).ready() as server:
        run(server, True)
    if again:
        with Serve(PROBE, *flags).ready() as server:
            run(server, False)
