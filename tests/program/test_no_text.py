"""kvilt serve --keep-no-text: a secret word of a prompt is in nothing that the program prints or tells later, nor on disk.

Power: without the flag the same requests leave it in each of these places.
"""
import http.client
import json
import pathlib
import resource

import pytest

from test_faults import GGUF, KVILT, Serve, run

WORD = "Zanzibar"


def get(server, path):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
    connection.request("GET", path)
    return connection.getresponse().read().decode()


def on_disk(folder):
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def session(tmp_path, *flags):
    """Asks with the word in every way; returns what was printed, what routes tell afterwards, and the prompt's ids."""
    with Serve(GGUF, "--cache-dir", str(tmp_path / "cache"), *flags).ready() as server:
        secret = f"Once upon a time there was a cat whose name was {WORD} " * 8
        for end in ("and slept.", "and ran."):
            status, _ = server.post("/v1/completions", json.dumps({"prompt": secret + end, "max_tokens": 4, "kvilt": {"diagnostics": True}}))
            assert status == 200
        status, text = server.post("/v1/responses", json.dumps({"input": secret, "max_output_tokens": 4}))
        stored = json.loads(text)["id"] if status == 200 else "none"
        server.post("/v1/completions", secret)  # not JSON
        server.post(f"/v1/{WORD}", "{}")
        _, text = server.post("/tokenize", json.dumps({"content": secret}))
        told = [get(server, path) for path in ("/v1/requests", f"/v1/responses/{stored}", "/metrics", "/slots", "/props", "/v1/models")]
        told += [get(server, "/v1/requests/" + record["id"]) for record in json.loads(told[0])["data"]]
        assert server.end() == 0
        printed = "".join(server.lines) + server.process.stdout.read()
    return printed, "\n".join(told), json.loads(text)["tokens"]


def test_a_secret_word_is_nowhere(tmp_path):
    key = tmp_path / "key"
    key.write_text("6b" * 32)
    key.chmod(0o600)
    printed, told, ids = session(tmp_path, "--keep-no-text", "--cache-key", str(key))
    assert WORD not in printed and WORD not in told, printed + told
    run_of_ids = b"".join(i.to_bytes(4, "little") for i in ids[4:12])
    stored = on_disk(tmp_path / "cache")
    assert len(stored) > 10_000 and run_of_ids not in stored and WORD.encode() not in stored


def test_without_the_flag_it_is_there(tmp_path):
    _, told, ids = session(tmp_path, "--show-text")
    assert "slept" in told or "ran" in told or WORD in told
    assert b"".join(i.to_bytes(4, "little") for i in ids[4:12]) in on_disk(tmp_path / "cache")


@pytest.mark.parametrize("flags, word", [
    (("--show-text",), "--show-text"),
    (("--knowledge-dir", "KB"), "--knowledge-dir"),
    (("--kv-events", "tcp://127.0.0.1:0"), "--kv-events"),
    (("--cache-dir", "C"), "--cache-key"),
    (("--cache-redis", "127.0.0.1:1"), "--cache-key"),
])
def test_what_contradicts_it_is_an_error(tmp_path, flags, word):
    given = [str(tmp_path / flag) if flag in ("KB", "C") else flag for flag in flags]
    out = run("serve", GGUF, "--port", "0", "--keep-no-text", *given)
    assert out.returncode == 1 and word in out.stderr and "--keep-no-text" in out.stderr, out.stderr


def core_limit(*flags):
    command = f"ulimit -c 100; exec {KVILT} serve {GGUF} --port 0 " + " ".join(flags)
    with Serve.of(["bash", "-c", command]).ready() as server:
        limits = pathlib.Path(f"/proc/{server.process.pid}/limits").read_text()
        return limits.split("Max core file size")[1].split()[:2]


def test_no_core_dumps():
    if resource.getrlimit(resource.RLIMIT_CORE)[1] == 0:
        pytest.skip("nothing here may dump core")
    assert core_limit() != ["0", "0"]  # power
    assert core_limit("--keep-no-text") == ["0", "0"]
