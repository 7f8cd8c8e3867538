"""kvilt cache: what a folder of --cache-dir holds is shown, removed, made in advance, and carried to another folder."""
import json
import re

from test_faults import PROBE, Serve, run

KV = ["--kv-type", "bf16"]  # whatever the machine would choose


def numbers(n, count=90):
    """Words that the model knows: others are all one token."""
    return " ".join(str(1 + (37 * n + i * i * (2 * n + 3)) % 290) for i in range(count))


DOCUMENTS = [numbers(n) for n in range(3)]
HEAD = [{"role": "system", "content": "the answer is 7"}]


def cache(*args, code=0):
    done = run("cache", *args)
    assert done.returncode == code, done
    return done


def pieces(store, *flags):
    return json.loads(cache("show", store, "--all", "--json", *flags).stdout)


def pieces_of(store, *choice):
    return json.loads(cache("show", store, "--json", *choice).stdout)


def ask(server, document, **kvilt):
    """usage.kvilt of a question about a document."""
    body = {"messages": HEAD + [{"role": "user", "content": "How long?"}], "documents": [{"text": document}], "max_tokens": 1,
            "temperature": 0, "kvilt": kvilt}
    status, text = server.post("/v1/chat/completions", json.dumps(body))
    assert status == 200, text
    return json.loads(text)["usage"]["kvilt"]


def fill(store, documents=DOCUMENTS, *flags, **kvilt):
    """A server puts documents there."""
    with Serve(PROBE, "--cache-dir", str(store), *KV, *flags).ready() as server:
        body = {"messages": HEAD, "documents": [{"text": text} for text in documents], "kvilt": kvilt}
        status, text = server.post("/v1/documents", json.dumps(body))
        assert status == 200, text
        assert server.end() == 0


def found(store, documents=DOCUMENTS, *flags, **kvilt):
    """How many tokens of each a new server reads from the folder."""
    with Serve(PROBE, "--cache-dir", str(store), *KV, *flags).ready() as server:
        return [ask(server, document, **kvilt)["disk"] for document in documents]


def key_file(folder, name="key", digits="6b"):
    key = folder / name
    key.write_text(digits * 32)
    key.chmod(0o600)
    return str(key)


def test_show_tells_what_is_known_and_no_text(tmp_path):
    fill(tmp_path / "a")
    rows = pieces(tmp_path / "a")
    assert len(rows) >= 3 and {row["kind"] for row in rows} <= {"prefix", "exact"}
    listed = cache("list", tmp_path / "a", "--pieces").stdout
    for row in rows:
        assert row["piece"] in listed and row["tokens"] > 0 and row["bytes"] > row["tokens"] and row["sealed"] is False
        assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", row["stored"]) and len(row["domain"]) == len(row["model"]) == 32
    assert any(row.get("continues") in {other["piece"] for other in rows} for row in rows)  # behind the system message
    one = cache("show", tmp_path / "a", rows[0]["piece"]).stdout
    assert f"piece          {rows[0]['piece']}" in one and rows[1]["piece"] not in one.replace(rows[0].get("continues", ""), "")
    assert DOCUMENTS[0][:20] not in one and not re.search(r"\d+, ?\d+, ?\d+", one)
    wrong = cache("show", tmp_path / "a", "123", code=1).stderr
    assert "there is no piece 0000000000000123" in wrong
    assert "--all" in cache("show", tmp_path / "a", code=1).stderr
    assert "holds no cache" in cache("show", tmp_path / "b", "--all", code=1).stderr


def test_names_choose_pieces_and_are_never_shown(tmp_path):
    fill(tmp_path)
    fill(tmp_path, DOCUMENTS[:1], namespaces=["rivers"])
    rows, common = pieces(tmp_path), pieces_of(tmp_path, "--model", PROBE)
    named = pieces_of(tmp_path, "--model", PROBE, "--namespace", "rivers")
    assert len(common) > len(named) > 0 and len(common) + len(named) == len(rows)
    assert not {row["piece"] for row in common} & {row["piece"] for row in named}
    assert "rivers" not in json.dumps(rows)
    wrong = cache("show", tmp_path, "--model", PROBE, "--namespace", "lakes", code=1).stderr
    assert "namespace 'lakes'" in wrong
    wrong = cache("show", tmp_path, "--model", PROBE, "--tenant", "anna", code=1).stderr
    assert "tenant 'anna'" in wrong


def test_what_is_removed_is_gone(tmp_path):
    fill(tmp_path)
    assert min(found(tmp_path)) > 0  # power
    rows = pieces(tmp_path)
    last = max(rows, key=lambda row: row["piece"])["piece"]
    assert "1 pieces removed" in cache("rm", tmp_path, "--only", last).stdout
    assert last not in {row["piece"] for row in pieces(tmp_path)} and len(pieces(tmp_path)) == len(rows) - 1
    assert "give --only, --model or --all" in cache("rm", tmp_path, code=1).stderr
    assert "holds nothing of model '123456123456'" in cache("rm", tmp_path, "123456123456", code=1).stderr
    assert len(pieces(tmp_path)) == len(rows) - 1
    cache("rm", tmp_path, rows[0]["model"][:12])
    assert pieces(tmp_path) == [] and found(tmp_path) == [0, 0, 0]


def test_a_running_servers_folder_is_left_alone(tmp_path):
    fill(tmp_path)
    rows = pieces(tmp_path)
    with Serve(PROBE, "--cache-dir", str(tmp_path), *KV).ready() as server:
        for args in (["list", tmp_path], ["show", tmp_path, "--all"], ["rm", tmp_path, "--all"]):
            assert "another process uses this cache folder" in cache(*args, code=1).stderr
        assert server.end() == 0
    assert {row["piece"] for row in rows} <= {row["piece"] for row in pieces(tmp_path)}


def test_a_sealed_folder_needs_its_key(tmp_path):
    key = key_file(tmp_path)
    fill(tmp_path / "a", DOCUMENTS, "--cache-key", key)
    assert all(row["sealed"] for row in pieces(tmp_path / "a", "--cache-key", key))
    assert "--cache-key" in cache("show", tmp_path / "a", "--all", code=1).stderr
