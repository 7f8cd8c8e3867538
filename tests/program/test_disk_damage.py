"""kvilt serve --cache-dir whose files are cut and changed while clients ask, and before a start: a miss each, no wrong KV.

KVILT_DAMAGE_ROUNDS: how many damaged reads are waited for under load, and how often it is at least started on a damaged folder (4).
"""
import os
import random
import time

import pytest

from clients import Clients
from test_disk_cache import KV, check, key_file, wanted
from test_faults import PROBE, Serve, gauge

ROUNDS = int(os.environ.get("KVILT_DAMAGE_ROUNDS", "4"))
PATIENCE = 300 + 30 * ROUNDS  # seconds until a test that waits for nothing ends


def damage(path, dice):
    """Cuts it, or flips one bit, or makes up a stretch of it. False: it has gone meanwhile."""
    try:
        size = path.stat().st_size
        how = dice.choice(("cut", "bit", "stretch"))
        if how == "cut":
            os.truncate(path, dice.randrange(size))
            return True
        with open(path, "r+b") as file:
            at = dice.randrange(size)
            file.seek(at)
            old = file.read(1 if how == "bit" else 1 << 16)
            file.seek(at)
            file.write(bytes([old[0] ^ 1 << dice.randrange(8)]) if how == "bit" else dice.randbytes(len(old)))
            return True
    except (FileNotFoundError, ValueError):  # ValueError: it was empty
        return False


def values(folder):
    return list((folder / "kvilt-cache").glob("??/*"))


@pytest.mark.parametrize("sealed", [False, True])
def test_files_are_damaged_while_clients_ask(tmp_path, sealed):
    answers = wanted(*KV)
    assert len(set(answers)) > 1  # power: answers differ, so a wrong one would show
    dice, done = random.Random(17), 0
    flags = ["--cache-dir", str(tmp_path), "--kv-bytes", "4MiB", "--cache-disk", "1GiB", *KV]
    if sealed:
        flags += ["--cache-key", key_file(tmp_path)]

    def errors():
        return gauge(server, "kvilt:disk_cache_errors_total")

    with Serve(PROBE, *flags).ready() as server:
        with Clients(server, answers) as clients:
            deadline = time.monotonic() + PATIENCE
            while (clients.disk == 0 or not values(tmp_path)) and not clients.wrong:
                assert time.monotonic() < deadline, f"reading never paid: {clients.answered} answers, {len(values(tmp_path))} files"
                time.sleep(0.01)
            assert errors() == 0  # power: nothing is wrong by itself
            deadline = time.monotonic() + PATIENCE
            while errors() < ROUNDS and done < 1000 * ROUNDS and not clients.wrong:
                assert time.monotonic() < deadline, f"damage was not read: {done} files damaged, {len(values(tmp_path))} there"
                there = values(tmp_path)
                done += bool(there) and damage(dice.choice(there), dice)
                time.sleep(0.02)
            clients.wait()
        assert done >= errors() >= ROUNDS and clients.disk > 0
        print(f"{done} files damaged, {errors():.0f} errors, {clients.answered} answers, {clients.disk} tokens from disk")
        assert server.end() == 0  # what is cached goes to disk, so each start below finds something

    # A start reads what it is asked for only where reading pays: a file it computes instead shows nothing. One in four saw no
    # damage on two busy cores, and four of four one time in 200, so starts go on until one does.
    found, starts = 0, 0
    while starts < ROUNDS or found == 0 and starts < 10 * ROUNDS:
        starts += 1
        there = values(tmp_path)
        for path in dice.sample(there, max(1, len(there) // 3)):
            damage(path, dice)
        if dice.random() < 0.5:
            damage(tmp_path / "kvilt-cache/journal", dice)
        with Serve(PROBE, *flags).ready() as server:
            check(server, answers)
            found += errors()
            assert server.end() == 0
    assert found > 0, f"none of {starts} starts saw the damage"  # power
