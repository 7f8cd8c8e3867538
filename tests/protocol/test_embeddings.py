"""/v1/embeddings as the `openai` package sees it, and /v1/rerank as Jina's and Cohere's clients would."""

import json
import math
import urllib.error

import openai
import pytest
from test_openai_client import post

TEXTS = ["the red key", "the blue house on the hill", "the red key"]


def embed(client, model, texts, **more):
    return client.embeddings.create(model=model, input=texts, **more)


class TestEmbeddings:
    def test_batch(self, client, model):
        reply = embed(client, model, TEXTS)
        rows = [row.embedding for row in reply.data]
        assert [row.index for row in reply.data] == [0, 1, 2] and reply.usage.prompt_tokens > 0
        assert all(abs(math.hypot(*row) - 1) < 1e-4 for row in rows)
        assert rows[0] == rows[2] != rows[1]
        assert embed(client, model, TEXTS[1]).data[0].embedding == rows[1], "alone as in a batch"

    def test_formats_and_dimensions(self, client, model):
        # The package asks for base64 where nothing is said, and decodes it.
        packed, plain = (embed(client, model, TEXTS[0], **more).data[0].embedding for more in ({}, {"encoding_format": "float"}))
        assert packed == pytest.approx(plain, abs=1e-6)
        few = embed(client, model, TEXTS[0], dimensions=8, encoding_format="float").data[0].embedding
        assert len(few) == 8 and abs(math.hypot(*few) - 1) < 1e-4
        assert few[1] * plain[0] == pytest.approx(few[0] * plain[1], abs=1e-5)

    def test_errors(self, client, model):
        for more, param in [({"dimensions": 10**6}, "dimensions"), ({"encoding_format": "int8"}, "encoding_format")]:
            with pytest.raises(openai.BadRequestError) as caught:
                embed(client, model, TEXTS[0], **more)
            assert caught.value.param == param


@pytest.mark.usefixtures("chats")
class TestRerank:
    def test_order(self, base_url, model):
        documents = ["The Rhine is a river. " * 8, {"text": "Cats sleep a lot. " * 8}, "The Elbe is a river. " * 8]
        body = {"model": model, "query": "Which rivers are there?", "documents": documents}
        try:
            reply = post(base_url, "/v1/rerank", {**body, "return_documents": True})
        except urllib.error.HTTPError as refused:
            assert refused.code == 400 and json.load(refused)["error"]["code"] == "unsupported"
            pytest.skip("the model's vocabulary has neither yes nor no")
        scores = [row["relevance_score"] for row in reply["results"]]
        assert scores == sorted(scores, reverse=True) and all(0 <= score <= 1 for score in scores)
        assert sorted(row["index"] for row in reply["results"]) == [0, 1, 2]
        assert all(row["document"]["text"] == (documents[row["index"]]["text"] if row["index"] == 1 else
                                               documents[row["index"]]) for row in reply["results"])
        again = post(base_url, "/v2/rerank", {**body, "top_n": 1})
        assert again["results"] == [{key: reply["results"][0][key] for key in ("index", "relevance_score")}]
