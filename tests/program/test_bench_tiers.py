"""kvilt bench tiers on a small model: which rows it has, what is in them, and that it compares the bits of the logits."""
import json
import pathlib
import sys

import pytest

from test_faults import PROBE, run

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
from redis_server import PROGRAM, Redis  # noqa: E402

ROUNDS = 1
FIELDS = {"from", "prompt_tokens", "prefix_tokens", "disk_tokens", "remote_tokens", "read_bytes", "plain_gb_s", "ttft_s",
          "ttft_spread_s", "bound_s", "bound_at_once_s", "rounds", "page_cache"}


def bench(out, *flags):
    done = run("bench", "tiers", "-m", PROBE, "--synthetic", "2x64", "--rounds", ROUNDS, "--kv-type", "bf16", "--json", out, *flags)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "first logits: equal to the bit" in done.stdout
    report = json.loads(out.read_text())
    assert report["command"].startswith("kvilt bench tiers") and report["model"]["name"] == "probe-1M"
    rows = {row["from"]: row for row in report["rows"]}
    assert all(set(row) == FIELDS and row["rounds"] == ROUNDS and row["ttft_s"] > 0 for row in rows.values())
    assert all(row["from"] in done.stdout for row in report["rows"]) and len(rows) == len(report["rows"])
    return rows


def check(row, disk, remote, prompt):
    """What a store gave: nearly all of the prompt, and the bytes that this takes."""
    assert row["prompt_tokens"] == prompt > 128
    assert (row["disk_tokens"] > 128, row["remote_tokens"] > 128) == (disk, remote)
    read = row["disk_tokens"] + row["remote_tokens"]
    assert row["read_bytes"] == read * 1536  # of K and V, in bf16
    assert (row["plain_gb_s"] > 0 and row["bound_s"] > row["bound_at_once_s"] > 0) == (read > 0)


@pytest.mark.parametrize("flags", [(), ("--page-cache",)], ids=["dropped", "kept"])
def test_rows_of_disk(tmp_path, flags):
    rows = bench(tmp_path / "rows.json", *flags)
    assert list(rows) == ["computed", "disk", "disk first", "memory"]
    assert all(row["page_cache"] == bool(flags) for row in rows.values())
    prompt = rows["computed"]["prompt_tokens"]
    assert rows["computed"]["prefix_tokens"] == 0 and rows["memory"]["prefix_tokens"] > 128
    for name, row in rows.items():
        check(row, name.startswith("disk"), False, prompt)
    assert rows["disk"]["prefix_tokens"] == rows["disk first"]["prefix_tokens"] == rows["memory"]["prefix_tokens"]


@pytest.mark.skipif(not PROGRAM, reason="neither redis-server nor valkey-server is installed")
def test_a_row_of_redis(tmp_path):
    with Redis() as redis:
        rows = bench(tmp_path / "rows.json", "--cache-redis", f"unix:{redis.socket}", "--cache-redis-timeout", "60000")
    assert list(rows) == ["computed", "disk", "disk first", "redis", "memory"]
    check(rows["redis"], False, True, rows["computed"]["prompt_tokens"])
    assert rows["redis"]["prefix_tokens"] == rows["disk"]["prefix_tokens"]
