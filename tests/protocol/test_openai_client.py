"""What the `openai` package sees. Runs against any model: nothing here depends on what a model says, only on how."""

import concurrent.futures
import json
import math
import os
import time
import urllib.request

import openai
import pytest

MESSAGES = [{"role": "user", "content": "hi there, what is the key?"}]
GREEDY = {"temperature": 0, "seed": 1}


# A small model may end its answer at once: answers are as long as max_tokens says, unless a test wants otherwise.
def ask(client, model, extra_body=None, **more):
    fields = {"model": model, "messages": MESSAGES, "max_tokens": 12, **GREEDY, **more}
    return client.chat.completions.create(**fields, extra_body={"ignore_eos": True, **(extra_body or {})})


def complete(client, model, extra_body=None, **more):
    fields = {"model": model, "prompt": "the red key", "max_tokens": 12, **GREEDY, **more}
    return client.completions.create(**fields, extra_body={"ignore_eos": True, **(extra_body or {})})


def metrics(base_url):
    key = os.environ.get("KVILT_API_KEY", "none")
    with urllib.request.urlopen(urllib.request.Request(base_url + "/metrics", headers={"Authorization": "Bearer " + key}), timeout=10) as reply:
        lines = reply.read().decode().splitlines()
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if line and line[0] != "#"}


def total(values, name, label=""):
    return sum(value for key, value in values.items() if key.split("{")[0] == name and label in key)


def eventually(holds, seconds=20):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if holds():
            return True
        time.sleep(0.02)
    return False


def post(base_url, path, body):
    key = os.environ.get("KVILT_API_KEY", "none")
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    request = urllib.request.Request(base_url + path, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=120) as reply:
        return json.load(reply)


class TestModels:
    def test_list_and_retrieve(self, client, model):
        listed = client.models.list().data
        assert [m.id for m in listed] == [model]
        one = client.models.retrieve(model)
        assert one.id == model and one.object == "model" and one.owned_by == "kvilt"

    def test_unknown(self, client):
        with pytest.raises(openai.NotFoundError) as caught:
            client.models.retrieve("no-such-model")
        assert caught.value.code == "model_not_found"


@pytest.mark.usefixtures("chats")
class TestChat:
    def test_whole(self, client, model):
        reply = ask(client, model)
        choice = reply.choices[0]
        assert reply.object == "chat.completion" and reply.model == model and reply.id.startswith("chatcmpl-")
        assert choice.message.role == "assistant" and isinstance(choice.message.content, str)
        assert choice.logprobs is None
        assert reply.usage.completion_tokens == 12 and choice.finish_reason == "length"
        assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens

    def test_ends_by_itself(self, client, model):
        reply = ask(client, model, max_tokens=None, extra_body={"ignore_eos": False})
        assert reply.choices[0].finish_reason in ("stop", "length")

    def test_usage_says_where_tokens_came_from(self, client, model):
        ask(client, model)
        usage = ask(client, model).usage
        kvilt = usage.model_extra["kvilt"]
        assert kvilt["prefix"] + kvilt["reused"] + kvilt["fresh"] == usage.prompt_tokens
        assert 0 <= kvilt["recomputed"] <= kvilt["reused"]
        cached = kvilt["prefix"] + kvilt["reused"] - kvilt["recomputed"]
        assert usage.prompt_tokens_details.cached_tokens == cached
        assert kvilt["policy"] and kvilt["ttft_s"] >= 0

    def test_policy_full_reuses_nothing(self, client, model):
        ask(client, model)
        usage = ask(client, model, extra_body={"kvilt": {"policy": "full"}}).usage
        assert usage.model_extra["kvilt"]["policy"] == "full"
        assert usage.prompt_tokens_details.cached_tokens == 0

    def test_salts_do_not_meet(self, client, model):
        salt = f"salt {time.time_ns()}"
        first = ask(client, model, extra_body={"cache_salt": salt}).usage
        again = ask(client, model, extra_body={"cache_salt": salt}).usage
        other = ask(client, model, extra_body={"cache_salt": salt + "x"}).usage
        assert first.prompt_tokens_details.cached_tokens == 0
        assert other.prompt_tokens_details.cached_tokens == 0
        assert again.prompt_tokens_details.cached_tokens >= 0

    def test_stream_equals_whole(self, client, model):
        whole = ask(client, model)
        text, roles, finishes = "", [], []
        for chunk in ask(client, model, stream=True):
            assert chunk.object == "chat.completion.chunk" and chunk.usage is None
            choice = chunk.choices[0]
            text += choice.delta.content or ""
            roles += [choice.delta.role] if choice.delta.role else []
            finishes += [choice.finish_reason] if choice.finish_reason else []
        assert text == whole.choices[0].message.content
        assert roles == ["assistant"] and finishes == [whole.choices[0].finish_reason]

    def test_stream_with_usage(self, client, model):
        chunks = list(ask(client, model, stream=True, stream_options={"include_usage": True}))
        assert all(chunk.usage is None and chunk.choices for chunk in chunks[:-1])
        assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens > 0
        assert chunks[-1].usage.model_extra["kvilt"]["policy"]

    def test_stream_with_usage_in_every_chunk(self, client, model):
        often = {"include_usage": True, "continuous_usage_stats": True}
        chunks = list(ask(client, model, stream=True, stream_options=often))
        counts = [chunk.usage.completion_tokens for chunk in chunks]
        assert counts == sorted(counts) and counts[0] == 0 and counts[-2] == counts[-1] == 12
        assert len({chunk.usage.prompt_tokens for chunk in chunks}) == 1

    def test_stream_helper(self, client, model):
        fields = {"max_tokens": 8, "extra_body": {"ignore_eos": True}, **GREEDY}
        with client.chat.completions.stream(model=model, messages=MESSAGES, **fields) as stream:
            for _ in stream:
                pass
            try:
                final = stream.get_final_completion()
            except openai.LengthFinishReasonError as cut:  # how the helper hands over an answer that max_tokens ended
                final = cut.completion
        assert final.choices[0].message.content == ask(client, model, max_tokens=8).choices[0].message.content

    def test_logprobs(self, client, model):
        reply = ask(client, model, logprobs=True, top_logprobs=2, max_tokens=6)
        content = reply.choices[0].logprobs.content
        assert len(content) == reply.usage.completion_tokens
        for token in content:
            assert token.logprob <= 0 and math.isfinite(token.logprob)
            assert len(token.top_logprobs) == 2
            assert token.top_logprobs[0].logprob >= token.top_logprobs[1].logprob
            # The replaced text of half a character differs from its bytes; nothing else may.
            assert bytes(token.bytes).decode("utf-8", "replace") == token.token or "\ufffd" in token.token
        streamed = []
        for chunk in ask(client, model, logprobs=True, top_logprobs=2, max_tokens=6, stream=True):
            if chunk.choices[0].logprobs:
                streamed += chunk.choices[0].logprobs.content
        assert [t.bytes for t in streamed] == [t.bytes for t in content]

    def test_choices(self, client, model):
        reply = ask(client, model, n=3, temperature=1, seed=7)
        assert [c.index for c in reply.choices] == [0, 1, 2]
        again = ask(client, model, n=3, temperature=1, seed=7)
        assert [c.message.content for c in again.choices] == [c.message.content for c in reply.choices]
        texts, indices = ["", "", ""], set()
        for chunk in ask(client, model, n=3, temperature=1, seed=7, stream=True):
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
                indices.add(choice.index)
        assert indices == {0, 1, 2} and texts == [c.message.content for c in reply.choices]

    def test_content_parts_and_roles(self, client, model):
        parts = [{"type": "text", "text": "hi there, "}, {"type": "text", "text": "what is the key?"}]
        reply = ask(client, model, messages=[{"role": "system", "content": "be short"}, {"role": "user", "content": parts}])
        assert reply.usage.prompt_tokens > 0


class TestCompletions:
    def test_prompts(self, client, model):
        one = complete(client, model)
        assert one.object == "text_completion" and one.choices[0].finish_reason in ("stop", "length")
        several = complete(client, model, prompt=["the red key", "the blue key"])
        assert len(several.choices) == 2 and several.choices[0].text == one.choices[0].text

    def test_ids(self, client, model, base_url):
        ids = post(base_url, "/tokenize", {"model": model, "prompt": "the red key"})["tokens"]
        assert complete(client, model, prompt=ids).choices[0].text == complete(client, model).choices[0].text

    def test_echo(self, client, model):
        assert complete(client, model, echo=True).choices[0].text == "the red key" + complete(client, model).choices[0].text

    # As lm-evaluation-harness (local-completions) asks and reads: prompts as ids, one token or none beyond them.
    @pytest.mark.parametrize("made", [0, 1])
    def test_logprobs_of_the_prompt(self, client, model, base_url, made):
        texts = ["the red key is in the house", "a blue key"]
        ids = [post(base_url, "/tokenize", {"model": model, "prompt": text})["tokens"] for text in texts]
        reply = complete(client, model, prompt=ids, max_tokens=made, logprobs=2, echo=True)
        assert reply.usage.completion_tokens == 2 * made
        for choice, prompt in zip(sorted(reply.choices, key=lambda c: c.index), ids):
            said = choice.logprobs
            assert len(said.tokens) == len(said.token_logprobs) == len(said.text_offset) == len(prompt) + made
            assert said.token_logprobs[0] is None and said.top_logprobs[0] is None
            assert said.text_offset == sorted(said.text_offset) and said.text_offset[-1] <= len(choice.text)
            for own, top in list(zip(said.token_logprobs, said.top_logprobs))[1:]:
                assert own <= 0 and own <= max(top.values()) and 1 <= len(top) <= 3
            assert choice.finish_reason == "length"
        kvilt = reply.usage.model_extra["kvilt"]
        assert kvilt["prefix"] == 0 or kvilt["policy"] == "naive", "nothing cached has logits"
        text = complete(client, model, prompt=texts[0], max_tokens=made, logprobs=2, echo=True).choices[0]
        assert text.text.startswith(texts[0])

    def test_a_stream_begins_with_the_prompt(self, client, model):
        chunks = list(complete(client, model, echo=True, logprobs=1, stream=True))
        first = chunks[0].choices[0]
        assert first.text.startswith("the red key") and first.logprobs.token_logprobs[0] is None
        whole = complete(client, model, echo=True, logprobs=1).choices[0]
        told = [c.choices[0].logprobs for c in chunks if c.choices and c.choices[0].logprobs]
        assert [t for one in told for t in one.tokens] == whole.logprobs.tokens
        assert [o for one in told for o in one.text_offset] == whole.logprobs.text_offset

    def test_prompt_logprobs(self, client, model, base_url):
        ids = post(base_url, "/tokenize", {"model": model, "prompt": "the red key"})["tokens"]
        reply = complete(client, model, prompt=ids, extra_body={"prompt_logprobs": 1})
        listed = reply.choices[0].model_extra["prompt_logprobs"]
        assert len(listed) == len(ids) and listed[0] is None
        for token, entry in list(zip(ids, listed))[1:]:
            assert 1 <= len(entry) <= 2 and entry[str(token)]["rank"] >= 1
            assert min(one["rank"] for one in entry.values()) == 1
            assert set(entry[str(token)]) == {"logprob", "rank", "decoded_token"}
        with pytest.raises(openai.BadRequestError):
            complete(client, model, stream=True, extra_body={"prompt_logprobs": 1})

    def test_stop(self, client, model):
        text = complete(client, model, max_tokens=24).choices[0].text
        assert len(text) > 4
        stop = text[len(text) // 2 : len(text) // 2 + 2]
        cut = complete(client, model, max_tokens=24, stop=[stop, "never said"])
        assert cut.choices[0].text == text[: text.index(stop)]
        assert cut.choices[0].finish_reason == "stop"
        streamed = "".join(
            chunk.choices[0].text
            for chunk in complete(client, model, max_tokens=24, stop=stop, stream=True)
        )
        assert streamed == cut.choices[0].text

    def test_max_tokens(self, client, model):
        reply = complete(client, model, max_tokens=5)
        assert reply.usage.completion_tokens == 5 and reply.choices[0].finish_reason == "length"

    def test_logprobs(self, client, model):
        reply = complete(client, model, logprobs=2, max_tokens=6)
        logprobs = reply.choices[0].logprobs
        assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.text_offset) == 6
        assert all(len(top) >= 2 for top in logprobs.top_logprobs)
        assert logprobs.text_offset == sorted(logprobs.text_offset)

    def test_sampling_fields_are_taken(self, client, model):
        reply = complete(
            client, model, temperature=0.7, top_p=0.9, presence_penalty=0.1, frequency_penalty=0.1, logit_bias={"5": -1},
            user="someone", extra_body={"top_k": 5, "min_p": 0.01, "repetition_penalty": 1.1},
        )
        assert reply.usage.completion_tokens > 0

    def test_seed(self, client, model):
        texts = {complete(client, model, temperature=1, seed=5).choices[0].text for _ in range(3)}
        assert len(texts) == 1


class TestErrors:
    @pytest.mark.parametrize(
        "fields, param",
        [
            ({"temperature": -1}, "temperature"),
            ({"temperature": "hot"}, "temperature"),
            ({"max_tokens": -5}, "max_tokens"),
            ({"n": 0}, "n"),
            ({"n": 100000}, "n"),
            ({"stop": [1]}, "stop[0]"),
            ({"prompt": [[1, -1]]}, "prompt[0][1]"),
            ({"prompt": None}, "prompt"),
            ({"logit_bias": {"x": 1}}, "logit_bias.x"),
            ({"stream_options": {"include_usage": True}}, "stream_options"),
            ({"extra_body": {"kvilt": {"policy": 5}}}, "kvilt.policy"),
            ({"extra_body": {"kvilt": {"policy": "no-such-policy"}}}, "kvilt"),
            ({"extra_body": {"cache_salt": ""}}, "cache_salt"),
            ({"extra_body": {"allowed_token_ids": [1 << 30]}}, "allowed_token_ids"),
        ],
    )
    def test_bad_request(self, client, model, fields, param):
        with pytest.raises(openai.BadRequestError) as caught:
            complete(client, model, **fields)
        assert caught.value.param == param and caught.value.type == "invalid_request_error"

    @pytest.mark.usefixtures("chats")
    @pytest.mark.parametrize("messages", [[], [{"content": "x"}], [{"role": "user", "content": 5}], ["x"], "x"])
    def test_bad_messages(self, client, model, messages):
        with pytest.raises(openai.BadRequestError) as caught:
            ask(client, model, messages=messages)
        assert caught.value.param.startswith("messages")

    @pytest.mark.usefixtures("chats")
    def test_unsupported(self, client, model):
        with pytest.raises(openai.BadRequestError) as caught:
            ask(client, model, response_format={"type": "yaml"})
        assert caught.value.param == "response_format.type" and caught.value.code == "unsupported"

    def test_unknown_model(self, client):
        with pytest.raises(openai.NotFoundError) as caught:
            complete(client, "gpt-nine")
        assert caught.value.code == "model_not_found" and caught.value.param == "model"

    def test_unknown_route(self, client):
        with pytest.raises(openai.NotFoundError):
            client.embeddings.create(model="x", input="x")

    def test_too_long(self, client, model):
        context = client.models.retrieve(model).model_extra["max_model_len"]
        with pytest.raises(openai.BadRequestError) as caught:
            complete(client, model, prompt=[1] * (context + 1))
        assert caught.value.code == "context_length_exceeded"

    def test_oversized(self, client, model):
        with pytest.raises(openai.APIStatusError) as caught:
            complete(client, model, prompt="x" * (64 << 20))
        assert caught.value.status_code == 413

    def test_key(self, base_url, model):
        if not os.environ.get("KVILT_API_KEY"):
            pytest.skip("the server was started without a key (KVILT_API_KEY)")
        with openai.OpenAI(base_url=base_url + "/v1", api_key="wrong", max_retries=0) as stranger:
            with pytest.raises(openai.AuthenticationError):
                complete(stranger, model)


class TestMany:
    def test_concurrent(self, client, model):
        alone = {i: complete(client, model, prompt=f"the key {i}").choices[0].text for i in range(4)}

        def one(i):
            if i % 2:
                return i, complete(client, model, prompt=f"the key {i % 4}").choices[0].text
            return i, "".join(c.choices[0].text for c in complete(client, model, prompt=f"the key {i % 4}", stream=True))

        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            for i, text in pool.map(one, range(24)):
                assert text == alone[i % 4]

    def test_closed_stream_is_cancelled(self, client, model, base_url):
        label = 'finished_reason="abort"'
        before = total(metrics(base_url), "kvilt:request_success_total", label)
        # One may end by itself before it is closed on a fast model with a short context: several, and any counts.
        for _ in range(3):
            stream = complete(client, model, max_tokens=100000, stream=True)
            next(iter(stream))
            stream.close()
        assert eventually(lambda: total(metrics(base_url), "kvilt:num_requests_running") == 0)
        assert eventually(lambda: total(metrics(base_url), "kvilt:request_success_total", label) > before)
        assert complete(client, model).choices[0].text is not None

    def test_impatient_client_is_cancelled(self, client, model, base_url):
        name, label = "kvilt:request_success_total", 'finished_reason="abort"'
        before = total(metrics(base_url), name, label)
        timeouts = 0
        for _ in range(3):
            try:
                complete(client.with_options(timeout=0.1), model, max_tokens=100000)
            except openai.APITimeoutError:
                timeouts += 1
        if not timeouts:
            pytest.skip("the model answers too fast for a client to lose patience")
        assert eventually(lambda: total(metrics(base_url), name, label) > before)


class TestOwnRoutes:
    def test_tokens(self, base_url, model):
        reply = post(base_url, "/tokenize", {"model": model, "prompt": "the red key", "add_special_tokens": False})
        assert reply["count"] == len(reply["tokens"]) and reply["max_model_len"] > 0
        # A vocabulary of whole words may not know these: what comes back then tokenises to the same ids.
        text = post(base_url, "/detokenize", {"model": model, "tokens": reply["tokens"]})["prompt"]
        again = post(base_url, "/tokenize", {"model": model, "prompt": text.strip(), "add_special_tokens": False})
        assert text.strip() == "the red key" or again["tokens"] == reply["tokens"]

    def test_documents(self, base_url, model, chats):
        documents = [{"title": "one", "text": "the red key is here " * 10}, {"title": "two", "text": "the blue key " * 10}]
        reply = post(base_url, "/v1/documents", {"model": model, "documents": documents})
        assert [d["index"] for d in reply["documents"]] == [0, 1]
        for document in reply["documents"]:
            assert document["tokens"] > 0
            assert document["prefix"] + document["reused"] + document["fresh"] == document["prompt_tokens"]

    def test_seasoned_documents(self, base_url, model):
        documents = [{"text": f"the {color} key is in the {place} " * 12} for color, place in
                     [("red", "house"), ("blue", "garden"), ("green", "river")]]
        body = {"model": model, "documents": documents, "kvilt": {"season": 2}, "cache_salt": "seasoned"}
        reply = post(base_url, "/v1/documents", body)
        assert len(reply["documents"]) == 3
        seasoning = reply["seasoning"]
        assert seasoning["contexts"] == 2 and seasoning["passes"] >= 2 and seasoning["seconds"] > 0
        assert seasoning["tokens"] >= 2 * sum(d["tokens"] for d in reply["documents"])
        assert "seasoning" not in post(base_url, "/v1/documents", {"model": model, "documents": documents})

    def test_clear_cache(self, base_url):
        assert post(base_url, "/v1/cache/clear", {})["status"] == "ok"

    def test_metrics(self, client, model, base_url):
        before = metrics(base_url)
        usage = complete(client, model).usage
        after = metrics(base_url)
        for name, value in [("kvilt:prompt_tokens_total", usage.prompt_tokens),
                            ("kvilt:generation_tokens_total", usage.completion_tokens),
                            ("kvilt:time_to_first_token_seconds_count", 1),
                            ("kvilt:e2e_request_latency_seconds_count", 1)]:
            assert total(after, name) - total(before, name) == value, name

    def test_page(self, base_url):
        with urllib.request.urlopen(base_url + "/", timeout=10) as reply:
            assert reply.headers["Content-Type"].startswith("text/html") and b"Kvilt" in reply.read()
