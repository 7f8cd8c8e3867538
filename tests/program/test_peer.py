"""kvilt serve --role prefill and --role decode: two processes, in two network namespaces where that can be, answer as one."""
import contextlib
import ctypes
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading

import pytest

from test_disk_cache import KNOWN, ask, check, key_file, wanted
from test_faults import KVILT, PROBE, Serve, gauge, run

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
from redis_server import until  # noqa: E402

CLONE_NEWNET = 0x40000000
LONG = [[4 + (29 * i + 11 * j * j + 5 * j) % 900 for j in range(3500)] for i in range(6)]


class Place:
    """Where a server runs: a network namespace, or here."""

    def __init__(self, address, namespace=None):
        self.address, self.namespace = address, namespace

    def serve(self, *flags):
        enter = ["ip", "netns", "exec", self.namespace] if self.namespace else []
        return Serve.of([*enter, KVILT, "serve", str(PROBE), "--port", "0", *flags])

    def do(self, work, *args, **named):
        """What work(*args, **named) returns, as seen from there."""
        if not self.namespace:
            return work(*args, **named)
        out = []

        def inside():
            with open(f"/var/run/netns/{self.namespace}") as file:
                assert ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET) == 0
            try:
                out.append(work(*args, **named))
            except BaseException as error:  # noqa: BLE001: it is raised where it is waited for
                out.append(error)

        thread = threading.Thread(target=inside)
        thread.start()
        thread.join()
        if isinstance(out[0], BaseException):
            raise out[0]
        return out[0]


def ip(*words):
    return subprocess.run(["ip", *words], capture_output=True, text=True)


@contextlib.contextmanager
def namespaces():
    if os.geteuid() != 0 or not shutil.which("ip"):
        pytest.skip("network namespaces need root and iproute2")
    names = [f"kvilt_{which}_{os.getpid()}" for which in ("p", "d")]
    try:
        for name in names:
            made = ip("netns", "add", name)
            if made.returncode != 0:
                pytest.skip(f"no network namespaces here: {made.stderr.strip()}")
        made = ip("link", "add", "kv0", "netns", names[0], "type", "veth", "peer", "name", "kv1", "netns", names[1])
        if made.returncode != 0:
            pytest.skip(f"no veth pair here: {made.stderr.strip()}")
        for i, name in enumerate(names):
            for words in (["addr", "add", f"10.99.7.{i + 1}/24", "dev", f"kv{i}"], ["link", "set", f"kv{i}", "up"],
                          ["link", "set", "lo", "up"]):
                done = ip("-n", name, *words)
                assert done.returncode == 0, done.stderr
        yield Place("10.99.7.1", names[0]), Place("10.99.7.2", names[1])
    finally:
        for name in names:
            ip("netns", "del", name)


@pytest.fixture(params=["namespaces", "loopback"])
def places(request):
    if request.param == "loopback":
        yield Place("127.0.0.1"), Place("127.0.0.1")
    else:
        with namespaces() as both:
            yield both


def prefill_server(place, key, port=0, *flags):
    server = place.serve("--role", "prefill", "--peer-listen", f"{place.address}:{port}", "--peer-key", key, *flags)
    server.peer_port = int(server.until("role prefill").split("port")[1])
    return server.ready()


def decode_server(place, prefill_place, port, key, *flags):
    return place.serve("--role", "decode", "--peer", f"{prefill_place.address}:{port}", "--peer-key", key, *flags).ready()


def is_up(place, server):
    return place.do(gauge, server, "kvilt:peer_up") == 1


def test_two_servers_answer_as_one(places, tmp_path):
    here, there = places
    key = key_file(tmp_path)
    sampled = {"temperature": 1, "seed": 9, "max_tokens": 24}
    with Serve(PROBE, "--no-cache").ready() as alone:
        answers = [ask(alone, prompt)[0] for prompt in KNOWN + LONG]
        drawn = ask(alone, LONG[0], **sampled)[0]
    assert len(set(answers)) == len(answers)  # power
    with prefill_server(here, key, 0, "--chunk", "256") as prefill, \
            decode_server(there, here, prefill.peer_port, key) as decode:
        until(lambda: is_up(there, decode))
        for prompt, answer in zip(KNOWN + LONG, answers):
            text, usage = there.do(ask, decode, prompt)
            assert text == answer
            assert usage["remote"] == len(prompt) - 1 and usage["fresh"] == 1
        assert there.do(lambda: ask(decode, LONG[0], **sampled)[0]) == drawn
        tokens = sum(len(prompt) - 1 for prompt in KNOWN + LONG)
        token_bytes = here.do(gauge, prefill, 'kvilt:peer_sent_bytes_total{') / tokens
        assert token_bytes == int(token_bytes) > 0
        assert here.do(gauge, prefill, "kvilt:peer_sent_tokens_total") == tokens
        assert there.do(gauge, decode, "kvilt:peer_received_bytes_total") == tokens * token_bytes
        early = here.do(gauge, prefill, "kvilt:peer_early_tokens_total")
        assert 0 < early < tokens  # KV is on its way before its prompt is computed; the last part cannot be
        assert there.do(ask, decode, KNOWN[0])[1]["remote"] == 0  # it is there now
        assert here.do(ask, prefill, KNOWN[0])[1]["prefix"] == 0  # and not for the other's own clients
        assert decode.end() == 0
        assert prefill.end() == 0


def test_heads_with_windows_keep_their_saving(places, tmp_path):
    here, there = places
    key, layers, heads, window, sink = key_file(tmp_path), 6, 2, 96, 4
    local = [[(layer, head) not in [(0, 1), (3, 0)] for head in range(heads)] for layer in range(layers)]
    file = tmp_path / "heads.json"
    file.write_text(json.dumps({
        "num_layers": layers, "num_kv_heads": heads,
        "kv_head_classification": [["local" if is_local else "global" for is_local in layer] for layer in local],
        "kv_head_max_distance": [[window if is_local else -1 for is_local in layer] for layer in local],
        "kv_head_sink_size": [[sink if is_local else 0 for is_local in layer] for layer in local]}))
    maps, by_heads, tokens = ("--head-map", str(file)), {"kvilt": {"policy": "redknot"}}, len(LONG[0]) - 1
    with Serve(PROBE, "--no-cache", *maps).ready() as alone:
        answer, dense = ask(alone, LONG[0], **by_heads)[0], ask(alone, LONG[0])[0]
    assert answer != dense  # power
    with prefill_server(here, key, 0, *maps) as prefill, \
            decode_server(there, here, prefill.peer_port, key, *maps) as decode:
        until(lambda: is_up(there, decode))
        text, usage = there.do(ask, decode, LONG[0], **by_heads)
        assert text == answer and usage["remote"] == tokens and usage["fresh"] == 1
        def sent(of):
            return here.do(gauge, prefill, f'kvilt:peer_sent_bytes_total{{heads="{of}",')
        assert sent("dense") == 0
        head_bytes = sent("global") / (2 * tokens)
        assert head_bytes == int(head_bytes) > 0
        assert sent("local") == 10 * (sink + window) * head_bytes
        assert there.do(ask, decode, LONG[0])[0] == dense
        assert sent("dense") == layers * heads * tokens * head_bytes
        assert decode.end() == 0
        assert prefill.end() == 0


def test_the_prefill_server_is_killed_in_the_middle(places, tmp_path):
    here, there = places
    key = key_file(tmp_path)
    with Serve(PROBE, "--no-cache").ready() as alone:
        answers = [ask(alone, prompt)[0] for prompt in LONG]
    slow = ("--chunk", "64", "--threads", "1")
    cut = 0
    with contextlib.ExitStack() as servers:
        prefill = servers.enter_context(prefill_server(here, key, 0, *slow))
        port = prefill.peer_port
        decode = servers.enter_context(decode_server(there, here, port, key))
        for prompt, answer in zip(LONG, answers):
            until(lambda: is_up(there, decode))
            before = there.do(gauge, decode, "kvilt:peer_received_tokens_total")
            out = []
            client = threading.Thread(target=lambda: out.append(there.do(ask, decode, prompt)))
            client.start()
            until(lambda: there.do(gauge, decode, "kvilt:peer_received_tokens_total") > before or out)
            prefill.process.send_signal(signal.SIGKILL)
            client.join(timeout=120)
            text, usage = out[0]
            assert text == answer
            cut += 0 < usage["remote"] < len(prompt) - 1
            prefill.process.wait()
            until(lambda: not is_up(there, decode))
            prefill = servers.enter_context(prefill_server(here, key, port, *slow))
        assert cut > 0  # at least one was in the middle
        assert there.do(gauge, decode, "kvilt:peer_unanswered_total") >= cut
        until(lambda: is_up(there, decode))
        prefill.process.send_signal(signal.SIGKILL)
        until(lambda: not is_up(there, decode))
        fresh = [2 + (17 * j * j) % 900 + 1 for j in range(1200)]
        usage = there.do(ask, decode, fresh)[1]  # nobody is there: it is computed
        assert usage["remote"] == 0 and usage["fresh"] == len(fresh)
        assert decode.end() == 0


def test_a_stopped_prefill_server_is_not_waited_for(tmp_path):
    key, answers = key_file(tmp_path), wanted()
    place = Place("127.0.0.1")
    with prefill_server(place, key) as prefill, decode_server(place, place, prefill.peer_port, key) as decode:
        until(lambda: is_up(place, decode))
        ask(decode, [3 + 7 * j % 900 for j in range(400)])  # it knows how long computing takes
        prefill.process.send_signal(signal.SIGSTOP)
        check(decode, answers)
        assert gauge(decode, "kvilt:peer_late_total") > 0
        prefill.process.send_signal(signal.SIGCONT)
        assert decode.end() == 0


def test_a_key_in_the_environment_is_the_same_key(tmp_path, monkeypatch):
    place, key = Place("127.0.0.1"), key_file(tmp_path)
    with prefill_server(place, key) as prefill:
        monkeypatch.setenv("KVILT_PEER_KEY", pathlib.Path(key).read_text().strip())
        with place.serve("--role", "decode", "--peer", f"127.0.0.1:{prefill.peer_port}").ready() as decode:
            until(lambda: is_up(place, decode))
        # An address of another machine is taken with it, and the end does not wait for the way there.
        with place.serve("--role", "decode", "--peer", "10.255.255.1:9").ready() as decode:
            assert decode.end() == 0


def test_wrong_flags_are_errors(tmp_path, monkeypatch):
    def error_of(*flags):
        out = run("serve", PROBE, "--port", "0", *flags)
        assert out.returncode == 1
        return out.stderr

    assert "go together" in error_of("--role", "prefill")
    assert "go together" in error_of("--peer", "127.0.0.1:1")
    assert "--peer-key FILE" in error_of("--role", "decode", "--peer", "10.0.0.1:1")
    assert "no port" in error_of("--role", "decode", "--peer", "127.0.0.1")
    assert "--no-cache" in error_of("--role", "prefill", "--peer-listen", "127.0.0.1:0", "--no-cache")
    assert "keep-no-text" in error_of("--role", "prefill", "--peer-listen", "127.0.0.1:0", "--keep-no-text")
    key = tmp_path / "key"
    key.write_text("6b" * 32)
    monkeypatch.setenv("KVILT_PEER_KEY", "6b" * 31)
    assert "KVILT_PEER_KEY" in error_of("--role", "decode", "--peer", "10.0.0.1:1")
    monkeypatch.setenv("KVILT_PEER_KEY", "")
    assert "KVILT_PEER_KEY is empty" in error_of("--role", "decode", "--peer", "10.0.0.1:1")
    monkeypatch.delenv("KVILT_PEER_KEY")
    key.chmod(0o644)
    assert "chmod 600" in error_of("--role", "prefill", "--peer-listen", "127.0.0.1:0", "--peer-key", str(key))
