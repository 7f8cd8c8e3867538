"""Knowledge bases of kvilt serve on a real model: what was put into one is reused, after other traffic and a restart too."""
import json
import random

import pytest

from test_faults import PROBE, Serve, gauge

TEMPLATE = ("<bos> {% for document in documents or [] %}{{ document['text'] }} {% endfor %}"
            "{% for message in messages %}{{ message['content'] }} {% endfor %}answer :")
VOCABULARY = [word for word in json.loads((PROBE / "tokenizer.json").read_text())["model"]["vocab"] if word.isalpha()]
BASES = "/v1/knowledge_bases"
POOL = "4MiB"  # of bf16: 2,730 tokens of this model


def text_of(seed, words=400):
    dice = random.Random(seed)
    return " ".join(dice.choice(VOCABULARY) for _ in range(words))


@pytest.fixture(name="serve")
def serving(tmp_path):
    template = tmp_path / "template"
    template.write_text(TEMPLATE)
    return lambda *flags, pool=POOL: Serve(PROBE, "--chat-template", str(template), "--kv-type", "bf16", "--kv-bytes", pool, *flags)


def post(server, path, body, status=200):
    got, text = server.post(path, json.dumps(body))
    assert got == status, text
    return json.loads(text)


def ask(server, documents):
    """What the prompt of a chat over documents was made of, the documents behind a text that none was computed behind."""
    body = {"messages": [{"role": "user", "content": "find the number : 7 ?"}], "documents": [{"text": text_of(0, 40)}, *documents],
            "max_tokens": 1, "temperature": 0, "kvilt": {"policy": "naive"}}
    return post(server, "/v1/chat/completions", body)["usage"]["kvilt"]


def known(usage):
    return usage["prefix"] + usage["reused"]


def flood(server):
    """Other texts, of five times as many tokens as the pool has."""
    for seed in range(100, 120):
        post(server, "/v1/completions", {"prompt": text_of(seed, 700), "max_tokens": 1})


def fill(server, *documents):
    post(server, BASES, {"name": "base"})
    put = [{"id": name, "text": text} for name, text in documents]
    return post(server, BASES + "/base/documents", {"documents": put})["documents"]


def test_a_document_is_reused_by_id_and_by_its_text(serve):
    with serve().ready() as server:
        rows = fill(server, ("a", text_of(1)), ("b", text_of(2)))
        assert all(row["tokens"] >= 390 and row["fresh"] >= 390 for row in rows), rows
        assert known(ask(server, [{"text": text_of(3)}])) < 50  # power: this one is in no base
        assert known(ask(server, [{"knowledge_base": "base", "id": "b"}])) >= 390
        assert known(ask(server, [{"text": text_of(1)}])) >= 390
        body = {"prompt": f"the answer is {text_of(2)} ?", "max_tokens": 1, "kvilt": {"policy": "naive"}}
        assert known(post(server, "/v1/completions", body)["usage"]["kvilt"]) >= 390
        assert json.loads(server.get(BASES + "/base")[1])["hits"] == 1


def test_documents_of_a_base_outlive_other_traffic(serve):
    with serve().ready() as server:
        fill(server, ("a", text_of(1)))
        post(server, "/v1/documents", {"documents": [{"text": text_of(2)}]})
        flood(server)
        assert known(ask(server, [{"text": text_of(2)}])) < 50  # power: in no base it has left
        assert known(ask(server, [{"knowledge_base": "base", "id": "a"}])) >= 390
        assert gauge(server, "kvilt:kv_cache_frozen_bytes") > 0
        status, text = server.request("DELETE", BASES + "/base/documents/a")
        assert status == 200, text
        assert gauge(server, "kvilt:kv_cache_frozen_bytes") == 0


def test_a_restart_keeps_documents_and_what_was_computed_of_them(serve, tmp_path):
    flags = ["--cache-dir", str(tmp_path / "cache"), "--knowledge-dir", str(tmp_path / "bases")]
    names = [f"d{i}" for i in range(4)]
    with serve(*flags).ready() as server:
        fill(server, *[(name, text_of(name, 600)) for name in names])
        assert server.end() == 0
    with serve(*flags).ready() as server:
        listed = json.loads(server.get(BASES + "/base/documents")[1])["data"]
        assert [document["id"] for document in listed] == names
        unknown = ask(server, [{"text": text_of("other", 600)}])
        assert unknown["disk"] == 0 and known(unknown) < 50  # power
        # Each is read where that is faster than computing.
        usages = [ask(server, [{"knowledge_base": "base", "id": name}]) for name in names]
        assert sum(usage["disk"] for usage in usages) >= 590, usages
        assert max(known(usage) for usage in usages) >= 590, usages


def bytes_below(folder):
    return b"".join(file.name.encode() + file.read_bytes() for file in folder.rglob("*") if file.is_file())


@pytest.mark.parametrize("tier", [True, False])
def test_the_caches_key_seals_the_folder_too(serve, tmp_path, tier):
    """With a cache on disk and without: no word of a text is in it, it opens with its key only, and deleted texts go."""
    (tmp_path / "key").write_text("5a" * 32)
    (tmp_path / "key").chmod(0o600)
    bases, text = tmp_path / "bases", text_of("sealed", 60)
    flags = ["--knowledge-dir", str(bases), *(["--cache-dir", str(tmp_path / "cache")] if tier else [])]
    key = ["--cache-key", str(tmp_path / "key")]
    words = [text.encode(), b"the-id"]
    with serve(*flags, *key).ready() as server:
        fill(server, ("the-id", text))
        assert [word for word in words if word in bytes_below(bases)] == []
        assert server.end() == 0
    with serve(*flags) as server:
        said = server.process.communicate(timeout=120)[0]
        line = next(line for line in said.splitlines() if "written with a key: give that" in line)
        assert server.process.returncode == 1 and f"{bases}/" in line, said  # the cache's folder would say so too
    with serve(*flags, *key).ready() as server:
        assert json.loads(server.get(BASES + "/base/documents/the-id")[1])["text"] == text
        sealed = bytes_below(bases)
        assert server.request("DELETE", BASES + "/base/documents/the-id")[0] == 200
        assert len(bytes_below(bases)) >= len(sealed) and bytes_below(bases).count(b" ") >= len(text)
        assert server.end() == 0
    clear = ["--knowledge-dir", str(tmp_path / "clear")]
    with serve(*clear).ready() as server:
        fill(server, ("the-id", text))
        assert text.encode() in bytes_below(tmp_path / "clear")  # power
        assert server.request("DELETE", BASES + "/base/documents/the-id")[0] == 200
        assert text.encode() not in bytes_below(tmp_path / "clear")
        assert server.end() == 0
    with serve(*clear, *key) as server:
        said = server.process.communicate(timeout=120)[0]
        assert server.process.returncode == 1 and "written without a key" in said, said


def test_many_documents_in_bulk(serve):
    """Some 300 lines: progress is told, a bad line loses no other, and what is in is reused."""
    count = 300
    lines = [json.dumps({"id": f"d{i}", "text": text_of(f"bulk {i}", 40)}) for i in range(count)]
    lines[7:7] = ["no JSON", json.dumps({"id": "long", "text": text_of("long", 5000)})]
    with serve(pool="64MiB").ready() as server:  # which holds them all
        post(server, BASES, {"name": "base"})
        status, text = server.request("POST", BASES + "/base/documents?stream=true", "\n".join(lines), {"Content-Type": "application/x-ndjson"})
        events = [json.loads(line[6:]) for line in text.decode().splitlines() if line.startswith("data: {")]
        assert status == 200 and text.endswith(b"data: [DONE]\n\n")
        done = [event["done"] for event in events[:-1]]
        assert done == sorted(done) and done[-1] == count and len(set(done)) > 100
        assert [bad["line"] for event in events[:-1] for bad in event["bad"]] == [8, 9]
        summary = events[-1]
        assert summary["stored"] == summary["computed"] == count and summary["bad_count"] == 2, summary
        assert "context" in summary["bad"][1]["message"] and summary["tokens"] >= 40 * count
        usage = ask(server, [{"knowledge_base": "base", "id": f"d{i}"} for i in (5, 250, 17)])
        assert usage["reused"] >= 110, usage
        assert ask(server, [{"text": text_of("in none", 40)}])["reused"] < 20  # power
