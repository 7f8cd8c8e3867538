"""kvilt serve --cache-dir: killed at any moment it serves no wrong KV, and a full disk or a folder in use is survived.

KVILT_KILL_ROUNDS: how often it is killed (20; 200 takes some minutes). With a key, and where only what was written is
counted, a quarter as often.
"""
import http.client
import json
import os
import random
import signal
import threading
import time

import pytest

from test_faults import KVILT, PROBE, Serve, gauge, run

ROUNDS = int(os.environ.get("KVILT_KILL_ROUNDS", "20"))
KV = ["--kv-type", "bf16"]  # whatever the machine would choose, so that pool and folder hold as many tokens everywhere
KNOWN = [[3 + (31 * i + 7 * j * j) % 900 for j in range(700)] for i in range(6)]


def ask(server, prompt, **more):
    body = {"prompt": prompt, "max_tokens": 6, "temperature": 0, "ignore_eos": True, "kvilt": {"policy": "prefix"}, **more}
    status, text = server.post("/v1/completions", json.dumps(body))
    assert status == 200, text
    answer = json.loads(text)
    return answer["choices"][0]["text"], answer["usage"]["kvilt"]


def wanted(*flags):
    """What a server without a folder answers."""
    with Serve(PROBE, "--no-cache", *flags).ready() as server:
        return [ask(server, prompt)[0] for prompt in KNOWN]


def key_file(folder):
    key = folder / "key"
    key.write_text("6b" * 32)
    key.chmod(0o600)
    return str(key)


def check(server, answers):
    """Every answer is right; returns the tokens that came from disk."""
    disk = 0
    for prompt, answer in zip(KNOWN, answers):
        text, usage = ask(server, prompt)
        assert text == answer
        disk += usage["disk"]
    return disk


def prompts_of(round_):
    return [[3 + (i * 13 + j * (round_ + 2)) % 900 for j in range(600)] for i in range(40)]


def load_in(server, round_):
    """A client whose prompts differ from round to round, until the server is killed: evictions write all the time."""
    def ask_all():
        for prompt in prompts_of(round_):
            body = {"prompt": prompt, "max_tokens": 6, "temperature": 0, "ignore_eos": True, "kvilt": {"policy": "prefix"}}
            try:
                status, text = server.post("/v1/completions", json.dumps(body))
            except (OSError, http.client.HTTPException):
                return
            assert status in (200, 503), text  # 503: it is shutting down

    client = threading.Thread(target=ask_all)
    client.start()
    return client


def has_open(process, path):
    for fd in os.listdir(f"/proc/{process.pid}/fd"):
        try:
            if os.readlink(f"/proc/{process.pid}/fd/{fd}") == str(path):
                return True
        except OSError:  # closed since it was listed
            pass
    return False


def killed_on_its_way_up(folder, flags, seconds):
    """Kills a server so long after it has taken the folder. Whether it served nobody yet."""
    with Serve(PROBE, *flags) as server:
        while not has_open(server.process, folder / "kvilt-cache/lock"):
            assert server.process.poll() is None, server.process.stdout.read()
        time.sleep(seconds)
        server.process.kill()
        return "serving on" not in server.process.communicate()[0]


@pytest.mark.parametrize("sealed", [False, True])
def test_killed_at_any_moment_it_serves_no_wrong_kv(tmp_path, sealed):
    rounds = max(5, ROUNDS // 4) if sealed else ROUNDS
    answers = wanted(*KV)
    assert len(set(answers)) > 1  # power: answers differ, so a wrong one would show
    dice = random.Random(11)
    flags = ["--cache-dir", str(tmp_path), "--kv-bytes", "4MiB", "--cache-disk", "12MiB", *KV]
    if sealed:
        flags += ["--cache-key", key_file(tmp_path)]
    disk = starts = 0
    for round_ in range(rounds):
        if round_ % 3 == 2:  # a start reads the folder, removes what nobody names, and writes the journal anew
            starts += killed_on_its_way_up(tmp_path, flags, 0.03 * dice.random() ** 2)
        with Serve(PROBE, *flags).ready() as server:
            disk += check(server, answers)
            client = load_in(server, round_)
            client.join(dice.random() * 0.8)
            # Also while it writes all that is cached.
            if dice.random() < 0.3:
                server.process.send_signal(signal.SIGTERM)
                client.join(dice.random() * 0.1)
            server.process.kill()
            server.process.wait()
            client.join()
    # A few rounds may all end before anything is evicted, or find the start over.
    assert (disk > 0 or rounds < 20) and (starts > 0 or rounds < 100)
    print(f"{rounds} rounds, {disk} tokens from disk, {starts} killed before they served")
    with Serve(PROBE, *flags).ready() as server:
        check(server, answers)
        assert server.end() == 0
    with Serve(PROBE, *flags).ready() as server:
        assert check(server, answers) > 0
        assert gauge(server, "kvilt:disk_cache_errors_total") == 0


def stored(server):
    while gauge(server, "kvilt:kv_cache_pages") == 0:  # it serves before the engine has told its first numbers
        time.sleep(0.001)
    return gauge(server, "kvilt:disk_cache_pieces"), gauge(server, "kvilt:disk_cache_bytes")


def test_what_was_counted_as_written_outlives_the_kill(tmp_path):
    """Nothing is evicted from these folders, so all that /metrics named before a kill is there after it."""
    dice = random.Random(12)
    written = disk = 0
    rounds = max(5, ROUNDS // 4)
    with Serve(PROBE, "--no-cache", *KV).ready() as dense:
        for round_ in range(rounds):
            folder = tmp_path / str(round_ // 5)
            flags = ["--cache-dir", str(folder), "--kv-bytes", "4MiB", "--cache-disk", "4GiB", *KV]
            with Serve(PROBE, *flags).ready() as server:
                before = stored(server)
                client = load_in(server, round_)
                goal = before[0] + dice.randrange(1, 9)
                while stored(server)[0] < goal and client.is_alive():
                    pass
                time.sleep(dice.random() * 0.02)
                named = stored(server)
                server.process.kill()
                server.process.wait()
                client.join()
            written += named[0] - before[0]
            with Serve(PROBE, *flags).ready() as server:
                there = stored(server)
                assert there[0] >= named[0] and there[1] >= named[1], (round_, named, there)
                for prompt in prompts_of(round_)[:6]:
                    text, usage = ask(server, prompt)
                    assert text == ask(dense, prompt)[0]
                    disk += usage["disk"]
                assert gauge(server, "kvilt:disk_cache_errors_total") == 0
                server.process.kill()
    print(f"{rounds} rounds, {written} pieces named, {disk} tokens read again")
    assert written >= rounds and disk > 0
    # Power: a file that is lost is missed.
    with Serve(PROBE, *flags).ready() as server:
        there = stored(server)
        server.process.kill()
    values = [path for path in (folder / "kvilt-cache").glob("??/*")]
    assert len(values) == there[0] > 0
    values[0].unlink()
    with Serve(PROBE, *flags).ready() as server:
        assert stored(server)[0] == there[0] - 1


def test_what_never_left_memory_outlives_the_kill(tmp_path):
    """The pool holds it all, so nothing is evicted: it is written all the same, a long text and one that goes on."""
    flags = ["--cache-dir", str(tmp_path), *KV]
    answers = wanted(*KV)
    turn = KNOWN[0] + KNOWN[1][:300]
    with Serve(PROBE, *flags).ready() as server:
        assert check(server, answers) == 0
        goes_on = ask(server, turn)[0]
        assert gauge(server, "kvilt:cache_evicted_tokens_total") == 0
        until = time.time() + 20
        while time.time() < until:
            if stored(server)[0] >= len(KNOWN) + 1 and gauge(server, "kvilt:disk_cache_queued_bytes") == 0:
                break
            time.sleep(0.02)
        server.process.kill()
        server.process.wait()
    with Serve(PROBE, *flags).ready() as server:
        assert check(server, answers) >= len(KNOWN) * (len(KNOWN[0]) - 20)
        text, usage = ask(server, turn)
        assert text == goes_on and usage["prefix"] >= len(turn) - 20, usage


def test_a_full_disk_is_no_error_of_a_request(tmp_path):
    answers = wanted(*KV)
    # No file may grow beyond 1 MiB: as a full disk says.
    limited = f"ulimit -f 1024; exec {KVILT} serve {PROBE} --port 0 --kv-bytes 4MiB --cache-dir {tmp_path} {' '.join(KV)}"
    with Serve.of(["bash", "-c", limited]).ready() as server:
        for _ in range(2):
            check(server, answers)
        assert gauge(server, "kvilt:disk_cache_errors_total") > 0
        assert server.end() == 0
    with Serve(PROBE, "--cache-dir", str(tmp_path), *KV).ready() as server:
        check(server, answers)


def test_a_folder_in_use_is_an_error(tmp_path):
    with Serve(PROBE, "--cache-dir", str(tmp_path)).ready():
        second = run("generate", PROBE, "a b", "--raw", "-n", "2", "--cache-dir", tmp_path)
        assert second.returncode == 1 and "another process uses this cache folder" in second.stderr


def test_keys(tmp_path):
    """What a key needs, and what a folder says to whoever comes without its own."""
    key, store = key_file(tmp_path), tmp_path / "store"
    ask_once = ("generate", PROBE, "a b", "--raw", "-n", "2", "--cache-dir", store)
    assert run(*ask_once, "--cache-key", key).returncode == 0
    (tmp_path / "key").chmod(0o644)
    out = run(*ask_once, "--cache-key", key)
    assert out.returncode == 1 and "chmod 600" in out.stderr, out.stderr
    out = run(*ask_once)
    assert out.returncode == 1 and "--cache-key FILE" in out.stderr, out.stderr
    out = run("cache", "list", store)
    assert out.returncode == 1 and "--cache-key FILE" in out.stderr, out.stderr
    os.environ["KVILT_CACHE_KEY"] = "6b" * 32
    try:
        assert run(*ask_once).returncode == 0  # the variable is as good as the file
        assert run("cache", "list", store).returncode == 0
        assert run("generate", PROBE, "a b", "--raw", "-n", "2").returncode == 0  # nothing is kept, so it is not needed
        os.environ["KVILT_CACHE_KEY"] = "6c" * 32
        out = run(*ask_once)
        assert out.returncode == 1 and "another key" in out.stderr and "6c6c" not in out.stderr, out.stderr
        os.environ["KVILT_CACHE_KEY"] = ""
        out = run(*ask_once)
        assert out.returncode == 1 and "KVILT_CACHE_KEY is empty" in out.stderr, out.stderr
    finally:
        del os.environ["KVILT_CACHE_KEY"]
