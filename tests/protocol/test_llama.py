"""llama.cpp's own routes, as llama.vim, llama.vscode and its Python tests call them."""

import json
import urllib.error

import pytest
from test_openai_client import post


class TestCompletion:
    def test_whole(self, base_url, client, model):
        body = {"prompt": "the red key", "n_predict": 8, "temperature": 0, "ignore_eos": True, "cache_prompt": True}
        reply = post(base_url, "/completion", body)
        theirs = client.completions.create(
            model=model, prompt="the red key", max_tokens=8, temperature=0, extra_body={"ignore_eos": True})
        assert reply["content"] == theirs.choices[0].text
        assert reply["stop"] and reply["stop_type"] == "limit" and reply["tokens_predicted"] == 8
        assert reply["tokens_evaluated"] == theirs.usage.prompt_tokens
        assert reply["timings"]["prompt_n"] + reply["timings"]["cache_n"] == reply["tokens_evaluated"]

    def test_fields(self, base_url):
        body = {"prompt": "the red key", "n_predict": 2, "response_fields": ["content", "timings/predicted_n"]}
        assert set(post(base_url, "/completion", body)) == {"content", "timings/predicted_n"}


class TestTokens:
    def test_round_trip(self, base_url):
        tokens = post(base_url, "/tokenize", {"content": "the red key"})["tokens"]
        text = post(base_url, "/detokenize", {"tokens": tokens})["content"].strip()
        assert tokens and (text == "the red key" or "<pad>" in text), "a small vocabulary has no word for all"
        pieces = post(base_url, "/tokenize", {"content": "the red key", "with_pieces": True})["tokens"]
        assert [piece["id"] for piece in pieces] == tokens

    def test_template(self, base_url, chats):
        body = {"messages": [{"role": "user", "content": "where is the key?"}]}
        tokens = post(base_url, "/tokenize", body)["tokens"]
        reply = post(base_url, "/apply-template", body)
        assert reply["prompt"] == post(base_url, "/detokenize", {"tokens": tokens})["content"] != ""


def test_infill(base_url):
    words = "river stone north lamp quilt seven market winter copper bridge".split()
    extra = "\n".join(f"def {a}_{b}({b}): return {a} + '{b} of the {a}'" for a, b in zip(words * 3, words[3:] + words[1:] + words))
    body = {"input_prefix": "def add(a, b):\n    ", "input_suffix": "\n", "prompt": "return ", "n_predict": 8,
            "temperature": 0, "input_extra": [{"filename": "a.py", "text": extra}], "id_slot": 0,
            "t_max_predict_ms": 500, "samplers": ["top_k", "top_p", "infill"], "n_indent": 4}
    try:
        reply = post(base_url, "/infill", body)
    except urllib.error.HTTPError as refused:
        assert refused.code == 400 and json.load(refused)["error"]["code"] == "unsupported"
        pytest.skip("the model was not made to fill in text")
    assert reply["tokens_predicted"] <= 8
    again = post(base_url, "/infill", {**body, "input_prefix": "def sub(a, b):\n    ", "input_extra": [
        {"filename": "b.py", "text": "y = 2\n" * 10}, *body["input_extra"]]})
    assert again["tokens_evaluated"] > reply["tokens_evaluated"] > 200
    assert again["kvilt"]["reused"] > 100, "a further file is found behind another one"
