"""kvilt cache: what a folder of --cache-dir holds is shown, removed, made in advance, and carried to another folder."""
import http.client
import json
import pathlib
import re
import stat
import subprocess

import pytest

from test_faults import KVILT, PROBE, Serve, run

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


def texts(folder, documents=DOCUMENTS):
    paths = []
    for i, text in enumerate(documents):
        paths.append(folder / f"{i}.txt")
        paths[-1].write_text(text)
    return paths


def test_a_server_finds_what_was_built(tmp_path):
    store = tmp_path / "store"
    lines = tmp_path / "more.jsonl"
    lines.write_text("\n".join(json.dumps({"text": text}) for text in DOCUMENTS[1:]) + "\n\n")
    files = texts(tmp_path, DOCUMENTS[:1])
    done = cache("build", PROBE, *files, "--jsonl", lines, "--system", HEAD[0]["content"], "--cache-dir", store, *KV)
    assert re.match(r"3 documents, \d+ tokens \(\d+ computed\) in .*; .* holds \d+ pieces", done.stdout), done.stdout
    assert re.search(r"3 of 3 documents, [1-9]\d* tokens, \d+ s\n", done.stderr), done.stderr
    shape = lambda folder: sorted((row["tokens"], row["kind"], row["marks"], row["clean_copies"]) for row in pieces(folder))
    built = shape(store)
    fill(tmp_path / "warmed")  # what the server's own route leaves
    assert built == shape(tmp_path / "warmed")
    with Serve(PROBE, "--cache-dir", str(store), *KV).ready() as server:
        first = ask(server, DOCUMENTS[0], trust="clean")
        assert first["disk"] > 0 and first["fresh"] + first["recomputed"] < first["prefix"] + first["reused"]
        other = ask(server, numbers(9))
        assert other["disk"] == 0 or other["disk"] < first["disk"]  # power: the system message alone
        # All of them in one prompt, in another order.
        body = {"messages": HEAD + [{"role": "user", "content": "Which?"}], "max_tokens": 1, "temperature": 0,
                "documents": [{"text": text} for text in reversed(DOCUMENTS)]}
        status, text = server.post("/v1/chat/completions", json.dumps(body))
        usage = json.loads(text)["usage"]["kvilt"]
        assert status == 200 and usage["reused"] + usage["prefix"] > 4 * usage["fresh"], usage
    # Once more: it is computed again, and nothing is stored twice.
    before = pieces(store)
    cache("build", PROBE, *files, "--jsonl", lines, "--system", HEAD[0]["content"], "--cache-dir", store, *KV)
    assert pieces(store) == before


def test_whose_it_is_is_the_servers_affair_too(tmp_path):
    """Namespace, tenant and salt, and what a server without them finds."""
    store, tenants, rest = tmp_path / "store", tmp_path / "tenants.json", tmp_path / "rest.json"
    tenants.write_text(json.dumps({"tenants": [{"name": name, "keys": [{"key": f"sk-3f1c9a07b2d84e65-{name}"}]} for name in ("anna", "ben")]}))
    tenants.chmod(0o600)
    rest.write_text(json.dumps({"messages": HEAD, "cache_salt": "pepper"}))
    file = texts(tmp_path, DOCUMENTS[:1])
    cache("build", PROBE, *file, "--system", HEAD[0]["content"], "--namespace", "rivers", "--cache-dir", store, *KV)
    assert found(store, DOCUMENTS[:1])[0] == 0 < found(store, DOCUMENTS[:1], namespaces=["rivers"])[0]
    salted = tmp_path / "salted"
    cache("build", PROBE, *file, "--request", rest, "--cache-dir", salted, *KV)
    body = {"messages": HEAD + [{"role": "user", "content": "How long?"}], "documents": [{"text": DOCUMENTS[0]}], "max_tokens": 1}
    with Serve(PROBE, "--cache-dir", str(salted), *KV).ready() as server:
        for salt, finds in (("salt", False), ("pepper", True)):
            usage = json.loads(server.post("/v1/chat/completions", json.dumps(body | {"cache_salt": salt}))[1])["usage"]["kvilt"]
            assert (usage["disk"] > 0) == finds, (salt, usage)
        assert server.end() == 0
    assert "pepper" not in cache("show", salted, "--all").stdout
    annas = tmp_path / "annas"
    cache("build", PROBE, *file, "--system", HEAD[0]["content"], "--tenant", "anna", "--cache-dir", annas, *KV)
    assert pieces_of(annas, "--model", PROBE, "--tenant", "anna")
    assert found(annas, DOCUMENTS[:1]) == [0]
    with Serve(PROBE, "--cache-dir", str(annas), *KV, "--tenants", str(tenants)).ready() as server:
        for name, finds in (("ben", False), ("anna", True)):
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
            connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Authorization": f"Bearer sk-3f1c9a07b2d84e65-{name}"})
            usage = json.loads(connection.getresponse().read())["usage"]["kvilt"]
            assert (usage["disk"] > 0) == finds, (name, usage)


def test_a_bad_document_is_named_and_the_others_are_built(tmp_path):
    store, lines = tmp_path / "store", tmp_path / "d.jsonl"
    lines.write_text(json.dumps({"text": DOCUMENTS[0]}) + '\n{"title": "no text"}\nnonsense\n' + json.dumps({"text": ""}) + "\n"
                     + json.dumps({"text": numbers(4, 40000)}) + "\n" + json.dumps({"text": DOCUMENTS[1]}) + "\n")
    latin = tmp_path / "latin.txt"
    latin.write_bytes(b"caf\xe9")
    done = cache("build", PROBE, latin, tmp_path / "none.txt", "--jsonl", lines, "--system", HEAD[0]["content"], "--cache-dir", store,
                 *KV, code=1)
    assert f"{latin}: not UTF-8" in done.stderr and f"{tmp_path / 'none.txt'}: " in done.stderr
    assert f"{lines}:2: text: is required" in done.stderr and f"{lines}:3: no JSON" in done.stderr
    assert f"{lines}:4: " in done.stderr and f"{lines}:5: " in done.stderr and f"{lines}:1:" not in done.stderr
    assert "error: 6 of 8 documents failed" in done.stderr and done.stdout.startswith("2 documents,")
    assert min(found(store, DOCUMENTS[:2])) > 0


def test_what_cannot_be_built_is_said_before(tmp_path):
    file, rest = texts(tmp_path)[0], tmp_path / "rest.json"
    assert "--cache-dir" in cache("build", PROBE, file, code=1).stderr
    assert "--jsonl" in cache("build", PROBE, "--cache-dir", tmp_path / "a", code=1).stderr
    for body, word in (({"kvilt": {"season": 4}}, "kvilt.season"), ({"documents": []}, "--jsonl"), ([], "JSON object"),
                       ({"kvilt": {"policy": "magic"}}, "magic")):
        rest.write_text(json.dumps(body))
        assert word in cache("build", PROBE, file, "--request", rest, "--cache-dir", tmp_path / "a", code=1).stderr
    fill(tmp_path / "b")
    with Serve(PROBE, "--cache-dir", str(tmp_path / "b"), *KV).ready():
        done = cache("build", PROBE, file, "--cache-dir", tmp_path / "b", code=1)
        assert "another process uses this cache folder" in done.stderr


def test_more_than_the_pool_holds_is_built(tmp_path):
    many = [numbers(n, 400) for n in range(12)]
    lines = tmp_path / "many.jsonl"
    lines.write_text("".join(json.dumps({"text": text}) + "\n" for text in many))
    flags = ["--kv-bytes", "4MiB"]
    cache("build", PROBE, "--jsonl", lines, "--system", HEAD[0]["content"], "--cache-dir", tmp_path / "a", *KV, *flags)
    assert sum(row["bytes"] for row in pieces(tmp_path / "a")) > 4 << 20  # power
    assert min(found(tmp_path / "a", many, *flags)) > 0


@pytest.mark.parametrize("sealed", [False, True])
def test_an_export_is_found_elsewhere(tmp_path, sealed):
    key = ["--cache-key", key_file(tmp_path)] if sealed else []
    secret = [] if sealed else ["--with-secret"]
    fill(tmp_path / "a", DOCUMENTS, *key)
    file = tmp_path / "export"
    assert "pieces" in cache("export", tmp_path / "a", file, *secret, *key).stdout
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    rows = pieces(tmp_path / "a", *key)
    assert f"{len(rows)} pieces are new" in cache("import", tmp_path / "b", file, *key).stdout
    assert pieces(tmp_path / "b", *key) == rows
    there, here = (found(tmp_path / folder, DOCUMENTS, *key) for folder in "ba")  # who asks leaves more there
    assert there == here and min(there) > 0
    again = cache("import", tmp_path / "b", file, *key).stdout
    assert again.startswith("0 pieces are new") and "0 are damaged" in again
    with Serve(PROBE, "--cache-dir", str(tmp_path / "b"), *KV, *key).ready():
        assert "another process" in cache("import", tmp_path / "b", file, *key, code=1).stderr
        assert "another process" in cache("export", tmp_path / "b", tmp_path / "c", *key, code=1).stderr
    if sealed:
        assert "it is sealed" in cache("import", tmp_path / "c", file, code=1).stderr
        other = ["--cache-key", key_file(tmp_path, "other", "6c")]
        assert "another key" in cache("import", tmp_path / "c", file, *other, code=1).stderr
        assert "follows from its key" in cache("export", tmp_path / "a", file, "--with-secret", *key, code=1).stderr
    assert not (tmp_path / "c").exists()


def test_an_export_without_its_secret_is_for_its_own_folder(tmp_path):
    fill(tmp_path / "a")
    fill(tmp_path / "b", DOCUMENTS[:1])
    file, full = tmp_path / "export", tmp_path / "full"
    cache("export", tmp_path / "a", file)
    cache("export", tmp_path / "a", full, "--with-secret")
    assert "--with-secret" in cache("import", tmp_path / "c", file, code=1).stderr and not (tmp_path / "c").exists()
    assert "another secret" in cache("import", tmp_path / "b", full, code=1).stderr
    rows = pieces(tmp_path / "a")
    cache("rm", tmp_path / "a", "--all")
    assert f"{len(rows)} pieces are new" in cache("import", tmp_path / "a", file).stdout
    assert pieces(tmp_path / "a") == rows and min(found(tmp_path / "a")) > 0


def test_a_part_is_exported(tmp_path):
    fill(tmp_path / "a")
    fill(tmp_path / "a", DOCUMENTS[:1], namespaces=["rivers"])
    file, rows = tmp_path / "export", pieces(tmp_path / "a")
    cache("export", tmp_path / "a", file, "--with-secret", "--model", PROBE, "--namespace", "rivers")
    cache("import", tmp_path / "b", file)
    assert found(tmp_path / "b", DOCUMENTS[:1], namespaces=["rivers"])[0] > 0 == found(tmp_path / "b", DOCUMENTS[:1])[0]
    child = next(row for row in rows if "continues" in row)
    cache("export", tmp_path / "a", file, "--with-secret", "--only", child["piece"])
    cache("import", tmp_path / "c", file)
    assert {child["piece"], child["continues"]} <= {row["piece"] for row in pieces(tmp_path / "c")}
    assert len(pieces(tmp_path / "c")) < len(rows)


@pytest.mark.parametrize("sealed", [False, True])
def test_a_damaged_export_brings_no_damage(tmp_path, sealed):
    key = ["--cache-key", key_file(tmp_path)] if sealed else []
    fill(tmp_path / "a", DOCUMENTS, *key)
    file, bad = tmp_path / "export", tmp_path / "bad"
    cache("export", tmp_path / "a", file, *([] if sealed else ["--with-secret"]), *key)
    whole, rows = file.read_bytes(), {row["piece"]: row for row in pieces(tmp_path / "a", *key)}
    partly = 0
    for n, at in enumerate([0, 9, 20, 50, 75, 81, 90, 105, 130, len(whole) // 3, len(whole) // 2, len(whole) - 9]):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << n % 8
        bad.write_bytes(damaged)
        store = tmp_path / f"store{n}"
        done = run("cache", "import", store, bad, *key)
        assert done.returncode == 1 and "error: " in done.stderr, (at, done)
        if not (store / "kvilt-cache").is_dir():
            assert at < 80
            continue
        assert at >= 80 and "damaged" in done.stderr
        left = pieces(store, *key)
        partly += len(left) > 0
        assert len(left) < len(rows) and {row["piece"] for row in left} <= set(rows)
    assert partly > 0
    bad.write_bytes(whole[:-5000])
    assert "damaged" in cache("import", tmp_path / "cut", bad, *key, code=1).stderr
    later = whole[8] + 1
    bad.write_bytes(whole[:8] + bytes([later]) + whole[9:])
    assert f"format {later}" in cache("import", tmp_path / "later", bad, *key, code=1).stderr
    bad.write_bytes(b"{}")
    assert "export" in cache("import", tmp_path / "later", bad, *key, code=1).stderr
    assert not (tmp_path / "later").exists()
    cache("import", tmp_path / "good", file, *key)  # power
    answers = []
    for store in ("good", "a"):
        with Serve(PROBE, "--cache-dir", str(tmp_path / store), *KV, *key).ready() as server:
            body = {"messages": HEAD + [{"role": "user", "content": "How long?"}], "documents": [{"text": DOCUMENTS[0]}],
                    "max_tokens": 8, "temperature": 0, "ignore_eos": True}
            answers.append(json.loads(server.post("/v1/chat/completions", json.dumps(body))[1])["choices"][0]["message"]["content"])
    assert answers[0] == answers[1]


def test_the_commands_of_the_page(tmp_path):
    """docs/server.md#knowledge-in-advance as it stands, but for folders, the model and the servers, which run on."""
    page = pathlib.Path(__file__, "../../../docs/server.md").resolve()
    section = re.search(r"^### Knowledge in advance$(.*?)^### ", page.read_text(), re.DOTALL | re.MULTILINE)[1]
    blocks = re.findall(r"^```sh\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 2
    (tmp_path / "handbook.txt").write_text(DOCUMENTS[0])
    (tmp_path / "faq.txt").write_text(DOCUMENTS[1])
    (tmp_path / "articles.jsonl").write_text(json.dumps({"text": DOCUMENTS[2]}) + "\n")
    for code in blocks:
        code = re.sub(r"^kvilt serve .*\n", "", code, flags=re.MULTILINE)
        for stands_for, ours in [("/srv/cache", f"{tmp_path}/srv"), ("DIR", f"{tmp_path}/dir"), ("MODEL", PROBE)]:
            code = code.replace(stands_for, str(ours))
        done = subprocess.run(["bash", "-euc", f'kvilt() {{ command {KVILT} "$@"; }}\n' + code], capture_output=True,
                              text=True, timeout=300, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
    here, there = pieces(tmp_path / "dir"), pieces(tmp_path / "srv")
    assert len(here) >= len(DOCUMENTS) and sorted(piece["tokens"] for piece in here) == sorted(piece["tokens"] for piece in there)
