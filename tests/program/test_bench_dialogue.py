"""`kvilt bench dialogue`: the rows that docs/results/dialogue.md is made of. No time is compared with another."""
import json
import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
KVILT = os.environ.get("KVILT_PROGRAM", str(ROOT / "build/release/kvilt"))
PROBE = ROOT / "tests/data/models/probe-1M"
NUMBERS = ["prompt_tokens", "prefill_s", "decode_s", "attend_decode_s", "cells_ratio", "bound_s"]
ANSWER = 8
EVICTS = "prefix:decode=snapkv:decode_evict=yes"


def dialogue(*args):
    words = ["bench", "dialogue", "--model", PROBE, "--threads", "1", "--kv-bytes", "64MiB", "--answer", ANSWER, *args]
    return subprocess.run([KVILT, *map(str, words)], capture_output=True, text=True, timeout=900, cwd=ROOT)


def rows_of(tmp_path, *args):
    out = tmp_path / "dialogue.json"
    done = dialogue("--json", out, *args)
    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_text())
    assert report["version"] and report["command"] and report["model"]["fingerprint"]
    return report["rows"], done.stdout


def test_a_row_a_policy_and_turn(tmp_path):
    few = "prefix:decode=streamingllm:decode_budget=32"
    sparse = "loopserve:alpha=0.3"
    rows, table = rows_of(tmp_path, "--lengths", "1200,1500", "--rounds", "2", "--mass", "--policies", f"{few},{sparse}")
    policies = ["prefix", few, sparse]  # dense is always there: the others are compared with it
    assert [(row["policy"], row["turn"]) for row in rows] == [(p, t) for _ in range(2) for t in (1, 2, 3) for p in policies]
    for at, row in enumerate(rows):
        assert all(isinstance(row[name], (int, float)) for name in [*NUMBERS, "recovered_mass", "decode_recovered_mass"]), row
        assert row["prefill_s"] > 0 and row["decode_s"] > 0 and row["bound_s"] > 0
        assert row["rounds"] == 2
        turn, size = row["turn"], ([1200, 1500][at // 9]) // 3 - ANSWER
        assert row["prompt_tokens"] == turn * size + (turn - 1) * (ANSWER + 1), "new text, and the answers before it"
        assert 0 <= row["prefix_tokens"] < row["prompt_tokens"] and (row["prefix_tokens"] > 0) == (turn > 1)
        assert row["policy"] in table and str(row["prompt_tokens"]) in table
        if row["policy"] == "prefix":
            assert row["cells_ratio"] == 1 and row["prefill_cells_ratio"] == 1
            assert row["recovered_mass"] == pytest.approx(1, abs=1e-3)
            assert row["decode_recovered_mass"] == pytest.approx(1, abs=1e-3)
        elif row["policy"] == few:
            assert row["cells_ratio"] < .5, "a row sees 32 keys"
            # Such an answer is not kept: the next turn computes it again.
            assert row["prefill_cells_ratio"] == pytest.approx(1) if turn == 1 else 1 < row["prefill_cells_ratio"] < 1.1
            assert row["decode_recovered_mass"] < .999 and row["recovered_mass"] == pytest.approx(1, abs=1e-3)
        else:
            assert row["cells_ratio"] == pytest.approx(1) and row["decode_recovered_mass"] == pytest.approx(1, abs=1e-3)
            assert row["recovered_mass"] < .999


def test_without_mass_there_is_none_and_answers_may_stand_alone(tmp_path):
    rows, _ = rows_of(tmp_path, "--lengths", "600", "--rounds", "1", "--answers-only", "--policies", "prefix,prefix:decode=snapkv")
    assert [(row["policy"], row["turn"]) for row in rows] == [(p, t) for t in (1, 2, 3) for p in ("prefix", "prefix:decode=snapkv")]
    assert all(row["recovered_mass"] is None and row["decode_recovered_mass"] is None for row in rows)
    sizes = [row["prompt_tokens"] for row in rows if row["policy"] == "prefix"]
    assert sizes == [turn * (600 // 3 - ANSWER) for turn in (1, 2, 3)], "no answer is said before the next turn"


@pytest.mark.parametrize("args,words", [
    (["--lengths", "30"], ["--lengths", "30"]),
    (["--lengths", "many"], ["--lengths", "many"]),
    (["--lengths", "600,30"], ["--lengths", "30"]),
    (["--lengths", "600,5000"], ["--lengths", "5000", "context", "4096"]),
    (["--mass", "--answers-only"], ["--mass", "--answers-only", "of its own"]),
    (["--mass", "--policies", EVICTS], [f"'{EVICTS}'", "leave 'decode_evict' out"]),
    (["--rounds", "0"], ["--rounds"]),
    (["--policies", "prefix:decode=best"], ["decode", "best", "streamingllm"]),
    (["--policies", "nothing"], ["nothing", "loopserve"]),
    (["--text", "/nowhere/novel.txt"], ["/nowhere/novel.txt"]),
], ids=lambda words: words[0] if isinstance(words, list) else "")
def test_what_is_wrong_is_named_before_any_round(args, words):
    done = dialogue("--lengths", "600", *args) if "--lengths" not in args else dialogue(*args)
    assert done.returncode == 1 and done.stdout == "", "before the table begins"
    assert all(word in done.stderr for word in words), done.stderr


def test_a_text_that_is_too_short_for_the_second_length_is_named_before_any_round(tmp_path):
    novel = tmp_path / "novel.txt"
    novel.write_text("stup vig stir clak plem kob . " * 100)
    flags = ["--text", novel, "--rounds", "1", "--policies", "prefix"]
    done = dialogue("--lengths", "600,3000", *flags)
    assert done.returncode == 1 and done.stdout == "" and "novel.txt" in done.stderr, done.stderr
    assert dialogue("--lengths", "600", *flags).returncode == 0, "power: it is long enough for the first"
