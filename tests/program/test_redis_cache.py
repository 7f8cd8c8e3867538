"""kvilt serve --cache-redis: two servers share what either computed, and whatever happens to Redis, answers are right."""
import pathlib
import sys

import pytest

from test_disk_cache import KNOWN, ask, check, wanted
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
    answers = wanted()
    with Redis() as redis:
        flags = ("--cache-redis", f"unix:{redis.socket}", "--cache-redis-timeout", "100", "--kv-bytes", "4MiB")
        with Serve(PROBE, *flags).ready() as server:
            for _ in range(3):
                check(server, answers)
                redis.kill()
                check(server, answers)
                until(lambda: gauge(server, "kvilt:redis_cache_up") == 0)
                redis.start()
                check(server, answers)
                until(lambda: gauge(server, "kvilt:redis_cache_up") == 1)
                redis.stall()
                check(server, answers)
                redis.go_on()
                check(server, answers)
            assert gauge(server, "kvilt:redis_cache_errors_total") > 0
            redis.stall()
            assert server.end() == 0  # also while nothing can be written


def test_what_is_no_redis_is_an_error(tmp_path):
    for address, words in [("rediss://cache", "TLS"), ("cache:port", "no port"), (f"unix:{tmp_path}/none", "start it first")]:
        out = run("generate", PROBE, "a b", "--raw", "-n", "2", "--cache-redis", address)
        assert out.returncode == 1 and words in out.stderr, out.stderr
    key = tmp_path / "key"
    key.write_text("ab" * 32)
    key.chmod(0o600)
    out = run("generate", PROBE, "a b", "--raw", "-n", "2", "--cache-redis", f"unix:{tmp_path}/none", "--cache-redis-key", key)
    assert out.returncode == 0, out.stderr  # with a key it may come later
