"""kvilt bench scale: the command's rows, and what it refuses."""
import json

import pytest

from test_eviction import bench_rows, refuses_trace
from test_program import kvilt

TRACE = "".join(json.dumps({"timestamp": 100 * i, "input_length": 1500, "hash_ids": [0, 1 + i % 7, 10 + i]}) + "\n" for i in range(60))


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text(TRACE)
    return path


def rows(tmp_path, *args):
    return {(row["servers"], row["route"], row["redis"]): row for row in bench_rows("scale", tmp_path, *args)}


def test_a_row_for_each_setting(tmp_path, trace):
    got = rows(tmp_path, "--trace", trace, "--servers", "1,5", "--traffic", "split")
    assert len(got) == 2 * 4 * 2
    for (servers, route, redis), row in got.items():
        assert row["hit_share"] == pytest.approx(row["memory_share"] + row.get("redis_share", 0) if redis else row["memory_share"])
        assert row["requests"] == 60 and row["cache"] == ("engine" if servers == 1 else "extents")
        assert ("redis_in_s" in row) == redis
    assert got[5, "round-robin", True]["hit_share"] > got[5, "round-robin", False]["hit_share"]
    assert got[1, "hash", False]["hit_share"] == pytest.approx((60 + 53 - 1) / 180)


def test_the_same_seed_gives_the_same_rows(tmp_path, trace):
    args = ("--trace", trace, "--servers", "4", "--seed")
    assert rows(tmp_path, *args, "3") == rows(tmp_path, *args, "3")
    assert rows(tmp_path, *args, "3") != rows(tmp_path, *args, "4")


@pytest.mark.parametrize("args,word", [
    (("--servers", "0"), "above 0"),
    (("--servers", "1000000"), "at most"),
    (("--routes", "magic"), "round-robin"),
    (("--routes", ","), "at least one"),
    (("--slow", "nan"), "finite"),
    (("--pool", "-1"), "--pool"),
    (("--model", "9b"), "--model"),
])
def test_what_cannot_be_simulated_is_refused(trace, args, word):
    done = kvilt("bench", "scale", "--trace", trace, *args)
    assert done.returncode != 0 and word in done.stderr


@pytest.mark.parametrize("text,word", [
    ("", "no requests"),
    ('{"hash_ids": [1]}\n', "no times"),
    ('{"timestamp": -1, "hash_ids": [1]}\n', "timestamp"),
    ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,600,100\n", "no times"),
])
def test_other_files_are_refused(tmp_path, text, word):
    refuses_trace("scale", tmp_path, text, word)
