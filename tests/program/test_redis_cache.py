"""kvilt serve --cache-redis: two servers share what either computed, and whatever happens to Redis, answers are right."""
import contextlib
import os
import pathlib
import random
import signal
import socket
import sys
import tempfile
import threading

import pytest

from clients import Clients
from test_disk_cache import KNOWN, KV, ask, check, load_in, prompts_of, wanted
from test_faults import PROBE, Serve, gauge, run

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
from redis_server import PROGRAM, Redis, until  # noqa: E402

pytestmark = pytest.mark.skipif(not PROGRAM, reason="neither redis-server nor valkey-server is installed")


def remote(server, prompt):
    return ask(server, prompt)[1]["remote"]


def test_two_servers_share_what_either_computed():
    answers = wanted()
    assert len(set(answers)) > 1  # power: answers differ, so a wrong one would show
    with Redis() as redis:
        flags = ("--cache-redis", f"unix:{redis.socket}", "--cache-redis-timeout", "60000")
        with Serve(PROBE, *flags).ready() as one, Serve(PROBE, *flags).ready() as two:
            check(one, answers)
            until(lambda: gauge(two, "kvilt:redis_cache_tokens") >= sum(len(prompt) for prompt in KNOWN) - len(KNOWN))
            assert all(remote(two, prompt) > 0 for prompt in KNOWN)
            check(two, answers)
            assert gauge(two, "kvilt:redis_cache_errors_total") == 0
            assert one.end() == 0
            with Serve(PROBE, *flags).ready() as three:
                check(three, answers)
                assert gauge(three, "kvilt:redis_cache_loaded_tokens_total") > 0
        with Serve(PROBE).ready() as alone:
            assert remote(alone, KNOWN[0]) == 0


def test_redis_is_killed_stalled_and_started_again_under_load():
    """Three clients ask side by side all the while, and in each state of Redis they get answers."""
    answers, rounds = wanted(*KV), 3
    assert len(set(answers)) > 1  # power: answers differ, so a wrong one would show
    with Redis() as redis:
        # Long: on a loaded machine a Redis that is there answers late, which is no outage.
        flags = ("--cache-redis", f"unix:{redis.socket}", "--cache-redis-timeout", "2000", "--kv-bytes", "4MiB", *KV)
        with Serve(PROBE, *flags).ready() as server:
            with Clients(server, answers) as clients:
                until(lambda: clients.remote > 0 or clients.wrong)  # power: what comes from there is used
                for _ in range(rounds):
                    clients.wait()
                    redis.kill()
                    clients.wait()
                    until(lambda: gauge(server, "kvilt:redis_cache_up") == 0)
                    redis.start()
                    clients.wait()
                    until(lambda: gauge(server, "kvilt:redis_cache_up") == 1)
                    clients.wait()
                    redis.stall()
                    clients.wait()
                    redis.go_on()
                    clients.wait()
            errors = gauge(server, "kvilt:redis_cache_errors_total")
            print(f"{clients.answered} answers, {clients.remote} tokens from Redis, {errors:.0f} errors")
            assert 0 < errors <= 10 * 2 * rounds  # they follow from outages: what is gone is tried ever more seldom
            redis.stall()
            assert server.end() == 0  # also while nothing can be written


def half_written(redis):
    """Chunks in Redis whose piece has no record: their writer died before it named them."""
    keys = redis.ask("KEYS", "kvilt:*").split()
    named = {key.split(":")[-1] for key in keys if ":r:" in key}
    return sum(key.split(":")[3] not in named for key in keys if ":v:" in key)


class Cut:
    """A way to Redis that passes on so many bytes of what a server says, kills the server, and passes on no more."""

    def __init__(self, redis, count):
        self.redis, self.left, self.victim, self.lock = redis, count, None, threading.Lock()
        self.path = pathlib.Path(tempfile.mkdtemp(dir=redis.folder)) / "cut"
        self.listening = socket.socket(socket.AF_UNIX)
        self.listening.bind(str(self.path))
        self.listening.listen()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                near = self.listening.accept()[0]
            except OSError:
                return
            far = socket.socket(socket.AF_UNIX)
            far.connect(str(self.redis.socket))
            for turn in ((near, far, True), (far, near, False)):
                threading.Thread(target=self.carry, args=turn, daemon=True).start()

    def carry(self, here, there, counted):
        with contextlib.suppress(OSError):
            while data := here.recv(1 << 16):
                with self.lock:  # a server says it on several connections
                    if counted and self.victim:
                        data = data[:self.left]
                        self.left -= len(data)
                there.sendall(data)
                if counted and self.left == 0:
                    self.victim.kill()
                    break
        for end in (here, there):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


def test_a_server_is_killed_again_and_again_while_it_writes():
    """At any byte of what it says to Redis, and in every other round surely within a piece, whose first chunk is there.
    What it left serves the other one, and the one that is started again.

    KVILT_KILL_ROUNDS: how often (5).
    """
    rounds, dice = int(os.environ.get("KVILT_KILL_ROUNDS", "5")), random.Random(13)
    answers = wanted(*KV)
    assert len(set(answers)) > 1  # power: answers differ, so a wrong one would show
    left = beside = 0
    with Redis() as redis, Serve(PROBE, "--no-cache", *KV).ready() as dense:
        def serve(path):
            return Serve(PROBE, "--cache-redis", f"unix:{path}", "--cache-redis-timeout", "60000", "--kv-bytes", "4MiB", *KV).ready()
        with serve(redis.socket) as other:
            for round_ in range(rounds):
                piece = 605 * 1536  # bytes of a prompt and its answer
                cut = Cut(redis, int((dice.randrange(6) + 0.7) * piece) if round_ % 2 else dice.randrange(1, 6 * piece))
                with Clients(other, answers, 1) as clients, serve(cut.path) as server:
                    cut.victim = server.process
                    load_in(server, round_).join()
                    assert server.process.wait(timeout=120) == -signal.SIGKILL
                    clients.wait()
                cut.listening.close()
                beside += clients.answered
                with serve(redis.socket) as again:
                    check(again, answers)
                    for prompt in prompts_of(round_)[:6]:  # what the killed one wrote, and what it had no time to write
                        right = ask(dense, prompt)[0]
                        for server in (other, again):
                            text, usage = ask(server, prompt)
                            assert text == right, (round_, usage)
                            left += usage["remote"]
                    assert gauge(again, "kvilt:redis_cache_errors_total") == 0
                    assert again.end() == 0
            assert gauge(other, "kvilt:redis_cache_errors_total") == 0
        halves = half_written(redis)
    print(f"{rounds} rounds, {halves} chunks without a record, {left} tokens of the killed ones, {beside} answers beside it")
    assert left > 0 and halves > 0  # power: it is killed while it writes, and what it wrote is used


def test_what_is_no_redis_is_an_error(tmp_path):
    for address, words in [("rediss://cache", "TLS"), ("cache:port", "no port"), (f"unix:{tmp_path}/none", "start it first")]:
        out = run("generate", PROBE, "a b", "--raw", "-n", "2", "--cache-redis", address)
        assert out.returncode == 1 and words in out.stderr, out.stderr
    key = tmp_path / "key"
    key.write_text("ab" * 32)
    key.chmod(0o600)
    out = run("generate", PROBE, "a b", "--raw", "-n", "2", "--cache-redis", f"unix:{tmp_path}/none", "--cache-redis-key", key)
    assert out.returncode == 0, out.stderr  # with a key it may come later
