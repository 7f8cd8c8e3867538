"""kvilt serve --cache-dir on a disk that is really full, or really read-only, while eight clients ask.

The disk is a file system of a few MiB of the test's own, in a mount namespace of its own: this needs root. It becomes
read-only as a failing disk does, under a server that has files open (ext4's errors=remount-ro): `mount -o remount,ro`
refuses that.
"""
import contextlib
import os
import pathlib
import random
import shutil
import subprocess
import threading
import time

import pytest

from test_disk_cache import KNOWN, KV, ask, wanted
from test_faults import KVILT, PROBE, Serve, gauge

SIZE = 3 << 20  # three of the six known prompts


class Disk:
    """A file system that ends with `keeper`, the process that holds its namespace."""

    def __init__(self, keeper, folder):
        self.keeper, self.folder = keeper, folder
        self.seen = pathlib.Path(f"/proc/{keeper.pid}/root{folder}")  # the same, from out here

    def inside(self, *command):
        return ["nsenter", "-t", str(self.keeper.pid), "-m", *map(str, command)]

    def serve(self):
        return Serve.of(self.inside(KVILT, "serve", PROBE, "--port", "0", "--kv-bytes", "4MiB", "--cache-dir",
                                    self.folder / "cache", "--cache-disk", "1GiB", *KV))

    def do(self, *command):
        return subprocess.run(self.inside(*command), capture_output=True, text=True, timeout=60)

    def fail(self):
        """The file system meets an error and allows no write any more, not to open files either."""
        device = self.do("findmnt", "-n", "-o", "SOURCE", self.folder).stdout.strip()
        trigger = pathlib.Path("/sys/fs/ext4", pathlib.Path(device).name, "trigger_fs_error")
        if not trigger.exists():
            pytest.skip(f"no {trigger}: this kernel makes no errors of ext4")
        trigger.write_text("1")


@contextlib.contextmanager
def disk(tmp_path, mount):
    if os.geteuid() != 0 or not shutil.which("unshare") or not shutil.which("nsenter"):
        pytest.skip("a disk of one's own needs root, unshare and nsenter")
    folder = tmp_path / "disk"
    folder.mkdir()
    script = f"{mount} {folder} && echo mounted && read line"
    with subprocess.Popen(["unshare", "-m", "--propagation", "private", "sh", "-c", script], text=True,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as keeper:
        try:
            if keeper.stdout.readline() != "mounted\n":
                pytest.skip(f"no file system of one's own here: {keeper.stderr.read().strip()}")
            yield Disk(keeper, folder)
        finally:
            keeper.kill()


def load(server, answers, clients=8):
    """Clients ask all known prompts at once, each in another order. Every answer is right; the tokens from disk."""
    wrong, disk_tokens = [], []

    def client(seed):
        order = list(range(len(KNOWN)))
        random.Random(seed).shuffle(order)
        for i in order:
            text, usage = ask(server, KNOWN[i])
            disk_tokens.append(usage["disk"])
            if text != answers[i]:
                wrong.append((seed, i, text))

    def run(seed):
        try:
            client(seed)
        except BaseException as error:  # noqa: BLE001: it is told below
            wrong.append((seed, error))

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong
    return sum(disk_tokens)


@pytest.fixture(scope="module")
def answers():
    out = wanted(*KV)
    assert len(set(out)) > 1  # power: answers differ, so a wrong one would show
    return out


def written(server):
    return gauge(server, "kvilt:disk_cache_written_bytes_total")


def errors(server):
    return gauge(server, "kvilt:disk_cache_errors_total")


def settle(server):
    """Waits until nothing is to be written any more: what was cached is written beside the work."""
    until, quiet = time.time() + 20, 0
    while quiet < 5 and time.time() < until:
        quiet = 0 if gauge(server, "kvilt:disk_cache_queued_bytes") > 0 else quiet + 1
        time.sleep(0.02)


def test_a_disk_that_fills_holds_what_fits(tmp_path, answers):
    with disk(tmp_path, f"mount -t tmpfs -o size={SIZE},mode=700 none") as small:
        with small.serve().ready() as server:
            for _ in range(3):
                load(server, answers)
            assert written(server) > SIZE  # power: far below its limit of 1 GiB it had to make room
            assert 0 < gauge(server, "kvilt:disk_cache_bytes") <= SIZE
            settle(server)
            # Somebody else removes its files and takes all the room; once more, where a file was written meanwhile and
            # went, since it did not fit.
            small.do("sh", "-c", f"rm {small.folder}/cache/kvilt-cache/??/*")
            for _ in range(20):
                taken = small.do("sh", "-c", f"cat /dev/zero >> {small.folder}/others")
                assert "No space left" in taken.stderr
                settle(server)
                if os.statvfs(small.seen).f_bavail == 0:
                    break
            for _ in range(3):
                load(server, answers)
            assert os.statvfs(small.seen).f_bavail == 0
            assert errors(server) > 0
            # And gives it back.
            (small.seen / "others").unlink()
            before = written(server)
            load(server, answers)
            load(server, answers)
            settle(server)
            assert written(server) > before
            assert server.end() == 0
        with small.serve().ready() as server:
            assert load(server, answers) > 0
            assert errors(server) == 0


def test_a_disk_that_becomes_read_only(tmp_path, answers):
    image = tmp_path / "image"
    make = f"truncate -s 24M {image} && mkfs.ext4 -q {image} && mount -o loop,errors=remount-ro {image}"
    with disk(tmp_path, make) as failing:
        with failing.serve().ready() as server:
            load(server, answers)
            load(server, answers)
            assert gauge(server, "kvilt:disk_cache_pieces") > 0 and errors(server) == 0
            failing.fail()
            with pytest.raises(OSError, match="Read-only"):  # power
                (failing.seen / "new").write_bytes(b"")
            before, disk_tokens = written(server), 0
            for i in range(3):
                ask(server, [7 + i + 5 * j % 900 for j in range(700)])  # something new, that cannot be written
                disk_tokens += load(server, answers)
            assert errors(server) > 0 and written(server) == before
            assert disk_tokens > 0  # what is there is read all the same
            assert server.end() == 0
        with failing.serve() as server:  # a start cannot take the folder for itself
            out = server.process.communicate(timeout=60)[0]
            assert server.process.returncode == 1
            assert str(failing.folder / "cache") in out and "Read-only file system" in out
        again = failing.do("sh", "-c", f"umount {failing.folder} && (e2fsck -fy {image}; mount -o loop {image} {failing.folder})")
        assert again.returncode == 0, again.stderr
        with failing.serve().ready() as server:
            assert load(server, answers) > 0
            assert errors(server) == 0
