"""The soak of bench/soak.py: a short one, and that each of its checks can fail."""
import subprocess
import sys

import pytest

from test_faults import KVILT, PROBE, ROOT

sys.path.append(str(ROOT / "bench"))
import redis_server  # noqa: E402
from soak_checks import (Answer, Judge, Sample, counter_problems, differs, growth, load_problems, memory_problems,  # noqa: E402
                         quiet_problems)


@pytest.mark.skipif(not redis_server.PROGRAM, reason="neither redis-server nor valkey-server is installed")
def test_a_short_soak(tmp_path):
    out = subprocess.run(
        [sys.executable, ROOT / "bench/soak.py", PROBE, "--kvilt", KVILT, "--minutes", "0.25", "--size", "0.5", "--kv-bytes", "16MiB",
         "--cache-disk", "24MiB", "--redis-bytes", "16mb", "--json", tmp_path / "rows.json"],
        capture_output=True, text=True, timeout=900)
    assert out.returncode == 0 and "all checks passed" in out.stdout, out.stdout + out.stderr
    assert (tmp_path / "rows.json").is_file()


def answer(text="a b", **more):
    return Answer(**{"texts": (text,), "finishes": ("length",), "logprobs": (-0.5, -0.25), "usage": {"completion_tokens": 2}, **more})


@pytest.mark.parametrize("wrong", [
    answer("a b b"), answer("a"), answer("a c"), answer(finishes=("stop",)), answer(usage={"completion_tokens": 3}), answer(logprobs=(-0.5, -0.26))])
def test_another_answer_is_a_problem(wrong):
    judge = Judge()
    judge.exact("chat", "key", answer())
    judge.exact("chat", "key", answer())
    judge.exact("chat", "key", answer(logprobs=()))  # it was not asked for them
    assert not judge.problems and judge.compared["chat"] == 2
    judge.exact("chat", "key", wrong)
    assert len(judge.problems) == 1 and differs(answer(), wrong)


def test_log_probabilities_are_kept_from_whoever_asked_first():
    judge = Judge()
    judge.exact("chat", "key", answer(logprobs=()))
    judge.exact("chat", "key", answer())
    assert not judge.problems
    judge.exact("chat", "key", answer(logprobs=(-0.5, -0.26)))
    assert judge.problems


@pytest.mark.parametrize("status,code,good", [
    (200, "", True), (429, "rate_limit_exceeded", True), (503, "overloaded", True), (503, "unavailable", False), (500, "internal_error", False),
    (400, "", False), (502, "", False)])
def test_statuses_of_what_is_right(status, code, good):
    judge = Judge()
    assert judge.saw("chat", Answer(status=status, code=code)) == (status == 200)
    assert bool(judge.problems) == (not good) and judge.statuses["chat", status] == 1


@pytest.mark.parametrize("status,good", [(400, True), (429, True), (503, True), (200, False), (500, False), (None, False)])
def test_statuses_of_what_is_wrong(status, good):
    judge = Judge()
    judge.refused("malformed", status, {400})
    assert bool(judge.problems) == (not good)


@pytest.mark.parametrize("text,good", [("", True), ("a", True), ("a b", True), ("b", False), ("a b c", False)])
def test_what_a_cut_stream_began_with(text, good):
    judge = Judge()
    judge.exact("chat", "key", answer())
    judge.beginning("leaves", "key", text)
    assert bool(judge.problems) == (not good)


@pytest.mark.parametrize("got,good", [(answer(), True), (answer(usage={"completion_tokens": 1}), False), (answer(finishes=("stop",)), False)])
def test_as_many_tokens_as_were_asked_for(got, good):
    judge = Judge()
    judge.complete("balanced", got, 2)
    assert bool(judge.problems) == (not good)


def samples(a_second=0, fds=20, threads=9):
    """Ten minutes; what is added begins after the warm-up, of two."""
    late = [at >= 120 for at in range(600)]
    return [Sample(at, (100 << 20) + a_second * max(0, at - 120), 20 + (fds - 20) * late[at], 9 + (threads - 9) * late[at]) for at in range(600)]


def test_memory_that_grows():
    def of(*args, **more):
        return memory_problems(samples(*args, **more), 120, 8 << 20, 240)
    assert growth(samples(1000)[120:]) == pytest.approx(600 * 1000)
    assert not of() and not of(10000) and of(20000)
    assert of(fds=30) and of(threads=20) and not of(fds=26)
    assert memory_problems([], 120, 1, 1)
    assert not memory_problems(samples(20000), 400, 8 << 20, 240)  # too short to say


GOOD = {"num_requests_running": 0, "num_requests_waiting": 0, "prefills_lingering": 0, "fds": 21, "disk_cache_errors_total": 0,
        "requests_with_error": 0, "responses_500": 0, "redis_cache_up": 1, "redis_cache_errors_total": 3,
        "redis_cache_written_bytes_total": 5, "disk_cache_written_bytes_total": 5}


@pytest.mark.parametrize("name,value", [
    ("num_requests_running", 1), ("num_requests_waiting", 1), ("prefills_lingering", 1), ("fds", 30), ("disk_cache_errors_total", 1),
    ("requests_with_error", 1), ("responses_500", 1), ("redis_cache_up", 0), ("redis_cache_errors_total", 0),
    ("redis_cache_written_bytes_total", 0), ("disk_cache_written_bytes_total", 0)])
def test_counters(name, value):
    assert not quiet_problems(GOOD, 20) and not counter_problems(GOOD, True)
    bad = {**GOOD, name: value}
    assert len(quiet_problems(bad, 20) + counter_problems(bad, True)) == 1


def test_a_load_that_says_nothing():
    judge = Judge()
    assert len(load_problems(judge, ["chat"])) == 2  # none answered, none compared
    for i in range(8):
        judge.saw("chat", answer())
        judge.exact("chat", i // 2, answer(str(i // 2)))
    assert not load_problems(judge, ["chat"])
    for i in range(100, 120):
        judge.exact("chat", i, answer("0"))
    assert len(load_problems(judge, ["chat"])) == 1
