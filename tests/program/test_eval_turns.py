"""`kvilt eval --turns`: what ratios are to, in all that it writes, and which journals it goes on with."""
import json
import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
KVILT = os.environ.get("KVILT_PROGRAM", str(ROOT / "build/release/kvilt"))
PROBE = ROOT / "tests/data/models/probe-1M"
EVICTS = "prefix:decode=h2o:decode_evict=yes"


@pytest.fixture
def evaluate(tmp_path):
    cases = tmp_path / "told.jsonl"
    text = "stup vig stir clak plem kob . " * 12
    turns = [{"text": text, "question": "vig ?", "answers": ["kob"]}, {"question": "stir ?", "answers": ["vig"]}]
    cases.write_text(json.dumps({"id": "d", "turns": turns}) + "\n")

    def run(*flags, policies="naive"):
        words = ["eval", "--model", PROBE, "--threads", "1", "--kv-bytes", "64MiB", "--cases", cases, "--prompt", "plain", "--policies", policies,
                 "--answer-tokens", "3", "--json", tmp_path / "out.json", "--markdown", tmp_path / "out.md", "--html", tmp_path / "out.html", *flags]
        return subprocess.run([KVILT, *map(str, words)], capture_output=True, text=True, timeout=900, cwd=ROOT)
    return run


@pytest.mark.parametrize("flags,base,other", [(["--turns"], "prefix", "full"), ([], "full", "prefix")], ids=["turns", "whole"])
def test_ratios_are_to_what_the_run_says(flags, base, other, evaluate, tmp_path):
    done = evaluate(*flags)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["ratios_to"] == base
    assert [(row["label"], row["n"]) for row in report["rows"]] == [("full", 2), ("naive", 2)], "a case a turn"
    assert f" /{base} " in done.stdout and f"/{other}" not in done.stdout
    for name in ("out.md", "out.html"):
        text = (tmp_path / name).read_text()
        assert f"TTFT / {base}" in text and f"FLOPs / {base}" in text and f"/ {other}" not in text


@pytest.mark.parametrize("flags,goes_on", [(["--turns"], False), ([], True)], ids=["turns", "whole"])
def test_a_journal_that_does_not_say_it_has_ratios_to_full(flags, goes_on, evaluate, tmp_path):
    assert evaluate(*flags).returncode == 0
    journal = tmp_path / "out.json.journal"
    setup, results = journal.read_text().split("\n", 1)
    setup = json.loads(setup)
    assert setup["setup"].pop("ratios_to") == ("prefix" if flags else "full")
    journal.write_text(json.dumps(setup) + "\n" + results)
    done = evaluate(*flags)
    assert (done.returncode == 0) == goes_on, done.stderr
    if not goes_on:
        assert 'ratios_to = "full", this run has "prefix"' in done.stderr and "--fresh" in done.stderr
    assert journal.read_text().split("\n", 1)[1] == results, "nothing is measured again"


def test_mass_that_cannot_be_weighed_is_refused_before_anything_runs(evaluate, tmp_path):
    done = evaluate("--recovered-mass", policies=f"naive,{EVICTS}")
    assert done.returncode == 1 and f"'{EVICTS}'" in done.stderr and "leave 'decode_evict' out" in done.stderr, done.stderr
    assert not (tmp_path / "out.json.journal").exists()
