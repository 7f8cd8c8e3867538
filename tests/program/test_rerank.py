"""/v1/rerank where only reuse by content helps: the documents stand behind the query, so that another query leaves no
beginning of their prompts that is known."""
import json
import random
import shutil

import pytest

from test_faults import PROBE, Serve

TOKENS = 200  # of a document


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The probe with words for the two answers, which its vocabulary lacks."""
    folder = shutil.copytree(PROBE, tmp_path_factory.mktemp("probe") / "probe-with-yes")
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    for old, new in ("number", "yes"), ("find", "no"):
        vocabulary[new] = vocabulary.pop(old)
    file.write_text(json.dumps(tokenizer))
    return folder


WORDS = [*json.loads((PROBE / "tokenizer.json").read_text())["model"]["vocab"]][100:]


def document(n):
    return " ".join(random.Random(n).choices(WORDS, k=TOKENS))


def rank(server, query, documents, **kvilt):
    status, reply = server.post("/v1/rerank", json.dumps({"query": query, "documents": documents, "kvilt": kvilt}))
    assert status == 200, reply
    answer = json.loads(reply)
    assert sorted(row["index"] for row in answer["results"]) == list(range(len(documents)))
    return answer["usage"]["kvilt"]


def test_documents_are_found_behind_another_query(model):
    known, others = [document(n) for n in range(3)], [document(n) for n in range(3, 6)]
    assert len({*known, *others}) == 6
    with Serve(model).ready() as server:
        first = rank(server, "what is the answer ?", known, quality="balanced")
        assert first["reused"] == 0 and first["fresh"] > len(known) * TOKENS
        again = rank(server, "find the text", known, quality="balanced")
        assert again["reused"] >= len(known) * TOKENS, "all of the documents"
        assert again["recomputed"] < again["reused"] / 2 and again["fresh"] < TOKENS
        assert again["policy"] == "auto"
        # Power: without consent the same is computed, and other documents are.
        assert rank(server, "the numbers", known)["reused"] == 0
        assert rank(server, "the numbers are", others, quality="balanced")["reused"] == 0
        assert server.end() == 0
