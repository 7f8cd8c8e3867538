"""kvilt serve --cache-dir: killed at any moment it serves no wrong KV, and a full disk or a folder in use is survived.

KVILT_KILL_ROUNDS: how often it is killed (20; 200 takes some minutes).
"""
import json
import os
import random
import signal
import threading

from test_faults import KVILT, PROBE, Serve, gauge, run

ROUNDS = int(os.environ.get("KVILT_KILL_ROUNDS", "20"))
KNOWN = [[3 + (31 * i + 7 * j * j) % 900 for j in range(700)] for i in range(6)]


def ask(server, prompt, **more):
    body = {"prompt": prompt, "max_tokens": 6, "temperature": 0, "ignore_eos": True, "kvilt": {"policy": "prefix"}, **more}
    status, text = server.post("/v1/completions", json.dumps(body))
    assert status == 200, text
    answer = json.loads(text)
    return answer["choices"][0]["text"], answer["usage"]["kvilt"]


def wanted():
    """What a server without a folder answers."""
    with Serve(PROBE, "--no-cache").ready() as server:
        return [ask(server, prompt)[0] for prompt in KNOWN]


def check(server, answers):
    """Every answer is right; returns the tokens that came from disk."""
    disk = 0
    for prompt, answer in zip(KNOWN, answers):
        text, usage = ask(server, prompt)
        assert text == answer
        disk += usage["disk"]
    return disk


def test_killed_at_any_moment_it_serves_no_wrong_kv(tmp_path):
    answers = wanted()
    assert len(set(answers)) > 1  # power: answers differ, so a wrong one would show
    dice = random.Random(11)
    flags = ("--cache-dir", str(tmp_path), "--kv-bytes", "4MiB", "--cache-disk", "12MiB")
    disk = 0
    for round_ in range(ROUNDS):
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
    assert disk > 0 or ROUNDS < 5
    with Serve(PROBE, *flags).ready() as server:
        check(server, answers)
        assert server.end() == 0
    with Serve(PROBE, *flags).ready() as server:
        assert check(server, answers) > 0
        assert gauge(server, "kvilt:disk_cache_errors_total") == 0


def test_a_full_disk_is_no_error_of_a_request(tmp_path):
    answers = wanted()
    # No file may grow beyond 1 MiB: as a full disk says.
    limited = f"ulimit -f 1024; exec {KVILT} serve {PROBE} --port 0 --kv-bytes 4MiB --cache-dir {tmp_path}"
    with Serve.of(["bash", "-c", limited]).ready() as server:
        for _ in range(2):
            check(server, answers)
        assert gauge(server, "kvilt:disk_cache_errors_total") > 0
        assert server.end() == 0
    with Serve(PROBE, "--cache-dir", str(tmp_path)).ready() as server:
        check(server, answers)


def test_a_folder_in_use_is_an_error(tmp_path):
    with Serve(PROBE, "--cache-dir", str(tmp_path)).ready():
        second = run("generate", PROBE, "a b", "--raw", "-n", "2", "--cache-dir", tmp_path)
        assert second.returncode == 1 and "another process uses this cache folder" in second.stderr
