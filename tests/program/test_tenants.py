"""Two tenants on one server: whether a text is cached for one, no question of the other tells, be it asked for its usage,
for the counters that the other may read, or for the time of its answer.
"""
import http.client
import json
import random
import time

import pytest

from test_faults import PROBE, Serve

KEYS = {"one": "sk-one-0123456789abcdef", "two": "sk-two-0123456789abcdef", "admin": "sk-adm-0123456789abcdef"}
PAIRS = 40
TOKENS = 1500  # computing them takes many times as long as all else of an answer


@pytest.fixture
def server(tmp_path):
    file = tmp_path / "tenants.json"
    file.write_text(json.dumps({"tenants": [
        {"name": "one", "keys": [{"key": KEYS["one"]}]},
        {"name": "two", "keys": [{"key": KEYS["two"]}]},
        {"name": "house", "keys": [{"key": KEYS["admin"], "role": "admin"}]}]}))
    with Serve(PROBE, "--tenants", str(file), "--kv-type", "bf16", "--kv-bytes", "1GiB").ready() as running:
        yield running


def call(server, who, method, path, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
    connection.request(method, path, body and json.dumps(body),
                       {"Content-Type": "application/json", "Authorization": f"Bearer {KEYS[who]}"})
    reply = connection.getresponse()
    return reply.status, json.loads(reply.read()) if path != "/metrics" else reply.read().decode()


def ask(server, who, prompt, policy):
    """Usage without its times, and the seconds that the client waited for its one token."""
    body = {"prompt": prompt, "max_tokens": 1, "temperature": 0, "ignore_eos": True, "kvilt": {"policy": policy}}
    start = time.perf_counter()
    status, answer = call(server, who, "POST", "/v1/completions", body)
    seconds = time.perf_counter() - start
    assert status == 200, answer
    usage = answer["usage"]
    usage["kvilt"] = {name: value for name, value in usage["kvilt"].items() if not name.endswith("_s")}
    return usage, seconds


def account(server, who):
    """What /v1/tenants says once nothing runs: an answer's place is given back just after it was sent."""
    for _ in range(1000):
        status, told = call(server, who, "GET", "/v1/tenants")
        assert status == 200, told
        if all(tenant["running"] == 0 for tenant in told["data"]):
            return told
        time.sleep(0.01)
    raise AssertionError(told)


def rank_p(a, b, dice, kinds=1, shuffles=20000):
    """The chance that equal waits differ in their ranks as much as these: a permutation test of the sum of ranks. Question
    i has its rank among those of its kind, i % kinds.
    """
    ranked = []
    for of_a, of_b in ((a[kind::kinds], b[kind::kinds]) for kind in range(kinds)):
        ranks = {x: i for i, x in enumerate(sorted(of_a + of_b))}
        ranked.append(([ranks[x] for x in of_a + of_b], len(of_a)))

    def off():
        return abs(sum(sum(row[:count]) - sum(row) * count / len(row) for row, count in ranked))
    seen, more = off(), 0
    for _ in range(shuffles):
        for row, _ in ranked:
            dice.shuffle(row)
        more += off() >= seen - 1e-9
    return (more + 1) / (shuffles + 1)


def numbers(told, path=""):
    """All numbers of an answer, by where they stand."""
    if isinstance(told, dict):
        return {at: number for name, value in told.items() for at, number in numbers(value, f"{path}/{name}").items()}
    if isinstance(told, list):
        return {at: number for i, value in enumerate(told) for at, number in numbers(value, f"{path}/{i}").items()}
    return {path: told} if isinstance(told, (int, float)) else {}


class Probe:
    """What a tenant can see of its questions of one kind."""

    def __init__(self, server, who):
        self.server, self.who = server, who
        self.seconds, self.usages, self.counted = [], [], []

    def ask(self, prompt, policy):
        before = numbers(account(self.server, self.who))
        usage, seconds = ask(self.server, self.who, prompt, policy)
        after = numbers(account(self.server, self.who))
        self.usages.append(usage)
        self.seconds.append(seconds)
        self.counted.append({at: number - before[at] for at, number in after.items()})


def probe(server, who, known, new):
    """Pairs of a text of `known` and one of `new`, in an order by chance."""
    dice = random.Random(5)
    of_known, of_new = Probe(server, who), Probe(server, who)
    for i, pair in enumerate(zip(known, new)):
        policy = ("prefix", "mend")[i % 2]
        turns = [(of_known, pair[0]), (of_new, pair[1])]
        dice.shuffle(turns)
        for kind, prompt in turns:
            kind.ask(prompt, policy)
    return of_known, of_new, rank_p(of_known.seconds, of_new.seconds, dice, kinds=2)


def test_nobody_can_tell_what_another_tenant_cached(server):
    dice = random.Random(4)
    texts = [[10 + i] + [3 + dice.randrange(900) for _ in range(TOKENS - 1)] for i in range(3 * PAIRS)]  # none begins alike
    known, new, newer = texts[:PAIRS], texts[PAIRS:2 * PAIRS], texts[2 * PAIRS:]
    for who in ("one", "two"):  # the first of anybody's is not like the rest
        ask(server, who, [3] * TOKENS, "prefix")
    for prompt in known:
        ask(server, "one", prompt, "prefix")

    of_known, of_new, p = probe(server, "two", known, new)
    assert of_known.usages == of_new.usages
    assert of_known.counted == of_new.counted
    assert p > 1e-4, (p, sorted(of_known.seconds), sorted(of_new.seconds))

    # Power: who cached them sees it in each of the three.
    of_known, of_new, p = probe(server, "one", known, newer)
    assert all(a != b for a, b in zip(of_known.usages, of_new.usages))
    assert all(a != b for a, b in zip(of_known.counted, of_new.counted))
    assert p < 1e-3, (p, sorted(of_known.seconds), sorted(of_new.seconds))


def test_what_tells_of_all_tenants_is_for_admins(server):
    for method, path in [("GET", "/metrics"), ("GET", "/slots"), ("POST", "/v1/cache/clear")]:
        assert call(server, "two", method, path, {} if method == "POST" else None)[0] == 403, path
    assert call(server, "admin", "GET", "/metrics")[0] == 200  # power
    names = [tenant["name"] for tenant in account(server, "two")["data"]]
    assert names == ["two"]
    assert len(account(server, "admin")["data"]) == 3


def test_what_is_not_published_nobody_finds(server):
    prompt = [5] + [3 + 7 * j * j % 900 for j in range(400)]

    def prefix(publish):
        body = {"prompt": prompt, "max_tokens": 1, "temperature": 0, "kvilt": {"policy": "prefix", "publish": publish}}
        status, answer = call(server, "one", "POST", "/v1/completions", body)
        assert status == 200, answer
        return answer["usage"]["kvilt"]["prefix"]
    assert [prefix(False), prefix(False), prefix(True), prefix(False)] == [0, 0, 0, len(prompt) - 1]


@pytest.mark.parametrize("share", [0.5, 0])
def test_a_tenant_keeps_its_share_of_the_folder(tmp_path, share):
    file, folder = tmp_path / "tenants.json", tmp_path / "cache"
    file.write_text(json.dumps({"tenants": [
        {"name": "one", "disk_share": share, "keys": [{"key": KEYS["one"]}]},
        {"name": "two", "keys": [{"key": KEYS["two"]}]},
        {"name": "house", "keys": [{"key": KEYS["admin"], "role": "admin"}]}]}))
    flags = ["--tenants", str(file), "--cache-dir", str(folder), "--cache-disk", "4MiB", "--kv-type", "bf16"]
    texts = [[10 + i] + [3 + (7 * j * j + i) % 900 for j in range(699)] for i in range(8)]  # about 1 MiB each

    def turn(who, prompts):
        with Serve(PROBE, *flags).ready() as server:
            # What the turns before left: what this one asks is written whenever there is time.
            disks = {tenant["name"]: tenant["disk"] for tenant in account(server, "admin")["data"]}
            metrics = call(server, "admin", "GET", "/metrics")[1]
            found = [ask(server, who, prompt, "prefix")[0]["kvilt"]["disk"] for prompt in prompts]
            server.process.terminate()
            server.process.wait()
        return found, disks, metrics

    turn("one", texts[:1])
    turn("two", texts[1:])
    found, disks, metrics = turn("one", texts[:1])
    assert (found[0] > 0) == (share > 0), "power: without a share age decides"
    assert disks["one"]["share_bytes"] == int(share * (4 << 20))
    assert (disks["one"]["bytes"] > 1 << 20) == (share > 0)
    lines = [line for line in metrics.splitlines() if line.startswith("kvilt:disk_tenant_bytes{") and 'tenant="one"' in line]
    assert [float(line.split()[-1]) for line in lines] == ([disks["one"]["bytes"]] if share > 0 else [])


def test_the_start_says_who_shares_the_cache(server):
    assert any("3 tenants: none finds what another left in the cache" in line for line in server.lines)
    for flags, words in [((), "one tenant, no key needed: all callers share the cache"),
                         (("--api-key", KEYS["one"]), "one tenant: all callers share the cache")]:
        with Serve(PROBE, *flags).ready() as alone:
            assert any(words in line for line in alone.lines), alone.lines
