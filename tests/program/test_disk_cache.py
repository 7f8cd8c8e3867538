"""kvilt serve --cache-dir: killed at any moment it serves no wrong KV, and a full disk or a folder in use is survived.

KVILT_KILL_ROUNDS: how often it is killed (20; 200 takes some minutes). With a key, a quarter as often.
"""
import json
import os
import random
import signal
import threading

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


@pytest.mark.parametrize("sealed", [False, True])
def test_killed_at_any_moment_it_serves_no_wrong_kv(tmp_path, sealed):
    rounds = max(5, ROUNDS // 4) if sealed else ROUNDS
    answers = wanted(*KV)
    assert len(set(answers)) > 1  # power: answers differ, so a wrong one would show
    dice = random.Random(11)
    flags = ["--cache-dir", str(tmp_path), "--kv-bytes", "4MiB", "--cache-disk", "12MiB", *KV]
    if sealed:
        flags += ["--cache-key", key_file(tmp_path)]
    disk = 0
    for round_ in range(rounds):
        with Serve(PROBE, *flags).ready() as server:
            disk += check(server, answers)

            def load():
                for i in range(40):  # until it is killed: evictions write all the time
                    try:
                        ask(server, [3 + (i * 13 + j * (round_ + 2)) % 900 for j in range(600)])
                    except OSError:
                        return

            client = threading.Thread(target=load)
            client.start()
            client.join(dice.random() * 0.8)
            # Also while it writes all that is cached.
            if dice.random() < 0.3:
                server.process.send_signal(signal.SIGTERM)
                client.join(dice.random() * 0.1)
            server.process.kill()
            server.process.wait()
            client.join()
    assert disk > 0 or rounds < 20  # on a busy machine a few rounds may all end before anything is evicted
    with Serve(PROBE, *flags).ready() as server:
        check(server, answers)
        assert server.end() == 0
    with Serve(PROBE, *flags).ready() as server:
        assert check(server, answers) > 0
        assert gauge(server, "kvilt:disk_cache_errors_total") == 0


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
