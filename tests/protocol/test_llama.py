"""llama.cpp's own routes, as llama.vim, llama.vscode and its Python tests call them."""

import json
import os
import urllib.error
import urllib.request

import pytest
from test_openai_client import post

KEY = os.environ.get("KVILT_API_KEY", "none")


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

    def test_tokens_and_probabilities(self, base_url):
        body = {"prompt": {"prompt_string": "the red key"}, "n_predict": 4, "temperature": 0, "ignore_eos": True,
                "n_probs": 3, "return_tokens": True}
        reply = post(base_url, "/completions", body)
        assert len(reply["tokens"]) == len(reply["completion_probabilities"]) == 4
        for token, one in zip(reply["tokens"], reply["completion_probabilities"]):
            assert one["id"] == token and one["logprob"] <= 0 and len(one["top_logprobs"]) == 3
        assert "completion_probabilities" not in post(base_url, "/completion", {**body, "n_probs": 0})

    def test_biased_texts(self, base_url):
        body = {"prompt": "the red key", "n_predict": 1, "temperature": 0, "return_tokens": True}
        with pytest.raises(urllib.error.HTTPError):
            post(base_url, "/completion", {**body, "logit_bias": [["key", 1000]]})
        first = post(base_url, "/completion", body)["tokens"]
        other = post(base_url, "/completion", {**body, "logit_bias": [[first[0], False]]})["tokens"]
        if other == first:
            pytest.skip("the test double has no logits")
        text = post(base_url, "/detokenize", {"tokens": first})["content"]
        biases = {text: -100, text.strip(): -100}  # some vocabularies have a word with its space, some without
        assert post(base_url, "/completion", {**body, "logit_bias": biases})["tokens"] != first

    def test_fields(self, base_url):
        body = {"prompt": "the red key", "n_predict": 2, "response_fields": ["content", "timings/predicted_n"]}
        assert set(post(base_url, "/completion", body)) == {"content", "timings/predicted_n"}


def end_token(base_url):
    """The word of a control token, and its id."""
    request = urllib.request.Request(f"{base_url}/props", headers={"Authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(request) as reply:
        word = json.load(reply)["eos_token"]
    ids = post(base_url, "/tokenize", {"prompt": word, "add_special_tokens": False})["tokens"]
    if len(ids) != 1:
        pytest.skip("the test double has no words for control tokens")
    return word, ids[0]


class TestTokens:
    def test_round_trip(self, base_url):
        tokens = post(base_url, "/tokenize", {"content": "the red key"})["tokens"]
        text = post(base_url, "/detokenize", {"tokens": tokens})["content"].strip()
        assert tokens and (text == "the red key" or "<pad>" in text), "a small vocabulary has no word for all"
        pieces = post(base_url, "/tokenize", {"content": "the red key", "with_pieces": True})["tokens"]
        assert [piece["id"] for piece in pieces] == tokens

    def test_control_tokens_in_a_text(self, base_url, client, model):
        """Whose text is one: the caller of a prompt may write it, the caller of a chat may not (docs/server.md#fields)."""
        word, end = end_token(base_url)
        text = f"the red {word} key"
        ids = post(base_url, "/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]
        assert ids.count(end) == 1
        assert post(base_url, "/tokenize", {"content": text})["tokens"] == ids
        plain = post(base_url, "/tokenize", {"content": text, "parse_special": False})["tokens"]
        assert plain.count(end) == 0, "power"
        counts = [
            client.completions.create(
                model=model, prompt=prompt, max_tokens=1, extra_body={"add_special_tokens": False}).usage.prompt_tokens
            for prompt in (text, ids, plain)
        ]
        assert counts == [len(ids), len(ids), len(plain)]

    def test_control_tokens_in_a_chat_are_text(self, base_url, chats):
        word, end = end_token(base_url)

        def ends(content):
            return post(base_url, "/tokenize", {"messages": [{"role": "user", "content": content}]})["tokens"].count(end)

        assert ends(f"the {word} key") == ends("the red key")

    def test_template(self, base_url, chats):
        body = {"messages": [{"role": "user", "content": "where is the key?"}]}
        tokens = post(base_url, "/tokenize", body)["tokens"]
        reply = post(base_url, "/apply-template", body)
        assert reply["prompt"] == post(base_url, "/detokenize", {"tokens": tokens})["content"] != ""


class TestChat:
    BODY = {"messages": [{"role": "user", "content": "where is the key?"}], "temperature": 0, "max_tokens": 4}

    def test_without_version(self, base_url, chats):
        reply, theirs = post(base_url, "/chat/completions", self.BODY), post(base_url, "/v1/chat/completions", self.BODY)
        assert reply["choices"] == theirs["choices"] and reply["system_fingerprint"] == theirs["system_fingerprint"]
        counted = post(base_url, "/chat/completions/input_tokens", self.BODY)
        assert counted == {"input_tokens": theirs["usage"]["prompt_tokens"]}

    def test_names(self, base_url, chats):
        body = {**self.BODY, "max_tokens": None, "n_predict": 3, "repeat_penalty": 1.1, "ignore_eos": True}
        assert post(base_url, "/chat/completions", body)["usage"]["completion_tokens"] == 3

    def test_begun_answers_go_on(self, base_url, chats):
        begun = [*self.BODY["messages"], {"role": "assistant", "content": "the key is"}]
        prompt = post(base_url, "/apply-template", {"messages": begun, "continue_final_message": True})["prompt"]
        whole = post(base_url, "/apply-template", {"messages": begun, "add_generation_prompt": False})["prompt"]
        assert whole.startswith(prompt) and prompt.rstrip().endswith("is") and "is" in prompt
        reply = post(base_url, "/v1/chat/completions", {**self.BODY, "messages": begun, "continue_final_message": True})
        ids = post(base_url, "/tokenize", {"messages": begun, "continue_final_message": True})["tokens"]
        assert reply["usage"]["prompt_tokens"] == len(ids)
        with pytest.raises(urllib.error.HTTPError):
            post(base_url, "/v1/chat/completions", {**self.BODY, "continue_final_message": True})


def test_rerank_in_other_words(base_url, chats):
    body = {"query": "the red key", "texts": ["the key is red", "a lamp"]}
    try:
        rows = post(base_url, "/rerank", body)
    except urllib.error.HTTPError as refused:
        assert json.load(refused)["error"]["code"] == "unsupported"
        pytest.skip("the vocabulary has no words for yes and no")
    theirs = post(base_url, "/v1/rerank", {"query": body["query"], "documents": body["texts"]})["results"]
    assert rows == [{"index": row["index"], "score": row["relevance_score"]} for row in theirs]


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
