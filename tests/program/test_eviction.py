"""kvilt bench eviction: traces are read or refused, and the orders stand where they must."""
import json

import pytest

from test_program import kvilt


def bench_rows(bench, tmp_path, *args):
    done = kvilt("bench", bench, *args, "--json", tmp_path / "out.json")
    assert done.returncode == 0, done.stderr
    return json.loads((tmp_path / "out.json").read_text())["rows"]


def refuses_trace(bench, tmp_path, text, word):
    path = tmp_path / "trace"
    path.write_text(text)
    done = kvilt("bench", bench, "--trace", path)
    assert done.returncode == 1 and word in done.stderr


def rows(tmp_path, *args):
    return {(row["trace"], row["pool_tokens"], row["order"]): row for row in bench_rows("eviction", tmp_path, *args)}


def test_nothing_is_better_than_knowing_the_future(tmp_path):
    got = rows(tmp_path, "--mixed", "600", "--pools", "50000,400000,100000000")
    for (trace, pool, order), row in got.items():
        assert 0 <= row["hit_share"] <= 1 and 0 <= row["saved_share"] <= 1
        assert row["hit_share"] <= got[trace, pool, "belady"]["hit_share"] + 1e-9, order
    shares = {order: got["mixed", 400000, order]["hit_share"] for order in ("lru", "slru", "adaptive", "belady")}
    assert len(set(shares.values())) > 2, "the orders differ"
    assert len({row["hit_share"] for (_, pool, _), row in got.items() if pool == 100000000}) == 1, "where all fits they do not"
    assert got["mixed", 400000, "lru"]["regret_share"] > 0


def test_the_default_is_at_least_slru(tmp_path):
    """In the sizes of docs/results/eviction.md, over a tenth of its mixed requests."""
    got = rows(tmp_path, "--mixed", "2000", "--pools", "125000,500000,2000000")
    for pool in (125000, 500000, 2000000):
        adaptive, slru, lru = (got["mixed", pool, order]["hit_share"] for order in ("adaptive", "slru", "lru"))
        assert adaptive >= slru and slru != lru, pool


def test_recorded_traces_are_read(tmp_path):
    blocks = tmp_path / "blocks.jsonl"
    blocks.write_text('{"hash_ids": [1, 2, 3]}\n{"hash_ids": [1, 2, 4]}\n{"hash_ids": []}\n')
    lengths = tmp_path / "lengths.csv"
    lengths.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,600,100\n2023-11-16 18:15:50,900,10\n")
    got = rows(tmp_path, "--trace", blocks, "--trace", lengths, "--pools", "1000000")
    assert got["blocks.jsonl", 1000000, "lru"]["hit_share"] == pytest.approx(2 / 6)
    assert ("lengths.csv", 1000000, "lru") in got


@pytest.mark.parametrize("text,word", [
    ("", "no requests"),
    ("nonsense\n", "hash_ids"),
    ('{"hash_ids": [-1]}\n', "whole numbers"),
    ('{"hash_ids": 7}\n', "hash_ids"),
    ("TIMESTAMP,ContextTokens,GeneratedTokens\nx,y,z\n", "context tokens"),
    ("TIMESTAMP,ContextTokens,GeneratedTokens\nx,-5,1\n", "context tokens"),
])
def test_other_files_are_refused(tmp_path, text, word):
    refuses_trace("eviction", tmp_path, text, word)


def test_something_to_simulate_is_wanted():
    assert kvilt("bench", "eviction").returncode == 1
    assert kvilt("bench", "eviction", "--trace", "no/such/file").returncode == 1
