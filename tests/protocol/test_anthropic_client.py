"""What the `anthropic` package sees, unpatched. Nothing here depends on what a model says, only on how."""

import concurrent.futures
import os
import pathlib
import re

import anthropic
import pytest

MESSAGES = [{"role": "user", "content": "hi there, what is the key?"}]
TOOLS = [{
    "name": "look",
    "description": "Looks into a room.",
    "input_schema": {"type": "object", "properties": {"room": {"type": "string"}}, "required": ["room"]},
}]
CALL = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"room": "the \"red\" house"}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "the key is here"}]}

pytestmark = pytest.mark.usefixtures("chats")


def key():
    return os.environ.get("KVILT_API_KEY", "none")


@pytest.fixture(scope="module")
def claude(base_url):
    with anthropic.Anthropic(base_url=base_url, api_key=key(), max_retries=0, timeout=120) as one:
        yield one


def fields(model, extra_body=None, **more):
    """A small model may end its answer at once: answers are as long as max_tokens says, unless a test says else."""
    extra = {"ignore_eos": True, "temperature": 0, "seed": 1, **(extra_body or {})}
    return {"model": model, "messages": MESSAGES, "max_tokens": 12, "extra_body": extra, **more}


def ask(claude, model, **more):
    return claude.messages.create(**fields(model, **more))


def prompt_tokens(usage):
    return usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens


class TestWhole:
    def test_message(self, claude, model):
        reply = ask(claude, model)
        assert reply.type == "message" and reply.role == "assistant" and reply.model == model
        assert reply.id.startswith("msg_") and reply._request_id == reply.id
        assert [block.type for block in reply.content] == ["text"]
        assert reply.stop_reason == "max_tokens" and reply.stop_sequence is None
        assert reply.usage.output_tokens == 12 and prompt_tokens(reply.usage) > 0

    def test_same_as_by_openai(self, claude, client, model):
        theirs = client.chat.completions.create(
            model=model, messages=MESSAGES, max_tokens=12, temperature=0, seed=1, extra_body={"ignore_eos": True})
        reply = ask(claude, model)
        assert reply.content[0].text == theirs.choices[0].message.content
        assert prompt_tokens(reply.usage) == theirs.usage.prompt_tokens
        # A template may say something of its own where there is no system prompt: two of different lengths.
        brief, long = (ask(claude, model, system=text).usage for text in ("be brief", "be brief " * 20))
        assert prompt_tokens(long) > prompt_tokens(brief)

    def test_ends_by_itself(self, claude, model):
        reply = ask(claude, model, max_tokens=200, extra_body={"ignore_eos": False})
        assert reply.stop_reason in ("end_turn", "max_tokens")

    def test_stop_sequence(self, claude, model):
        text = ask(claude, model).content[0].text
        word = next((text[i:i + 3] for i in range(4, len(text) - 3) if text[i:i + 3].isascii()), None)
        if not word:
            pytest.skip("the model says nothing that could be a stop sequence")
        reply = ask(claude, model, stop_sequences=[word])
        assert reply.stop_reason == "stop_sequence" and reply.stop_sequence == word
        assert reply.content[0].text == text[:text.index(word)]

    def test_cached_again(self, claude, model):
        salt = {"cache_salt": f"again {os.urandom(8).hex()}"}
        system = [{"type": "text", "text": "the red key is in the house " * 40, "cache_control": {"type": "ephemeral"}},
                  {"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral", "ttl": "1h"}}]
        first = ask(claude, model, system=system, extra_body=salt).usage
        again = ask(claude, model, system=system, extra_body=salt).usage
        assert first.cache_read_input_tokens == 0 and first.cache_creation_input_tokens == 0
        assert again.cache_read_input_tokens > 0
        assert prompt_tokens(again) == prompt_tokens(first)
        kvilt = again.model_extra["kvilt"]
        assert kvilt["prefix"] + kvilt["reused"] == again.cache_read_input_tokens

    def test_begun_by_the_client(self, claude, client, model):
        begun = MESSAGES + [{"role": "assistant", "content": "the key is"}]
        message = ask(claude, model, messages=begun)
        theirs = client.chat.completions.create(model=model, messages=begun, max_tokens=12, temperature=0, extra_body={
            "ignore_eos": True, "continue_final_message": True})
        assert message.content[0].text == theirs.choices[0].message.content
        assert prompt_tokens(message.usage) == theirs.usage.prompt_tokens

    def test_tools_and_their_results(self, claude, model):
        history = MESSAGES + [
            {"role": "assistant", "content": [{"type": "text", "text": "I look."}, CALL]},
            {"role": "user", "content": [RESULT, {"type": "text", "text": "and now?"}]},
        ]
        try:
            reply = ask(claude, model, messages=history, tools=TOOLS, tool_choice={"type": "auto"})
        except anthropic.BadRequestError as refused:
            assert "no place for tools" in refused.body["error"]["message"]
            pytest.skip("the model's template has no tools")
        without = ask(claude, model, messages=history[:1])
        assert prompt_tokens(reply.usage) > prompt_tokens(without.usage)


class TestStream:
    def test_equals_whole(self, claude, model):
        whole = ask(claude, model)
        with claude.messages.stream(**fields(model)) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        assert text == whole.content[0].text == final.content[0].text
        assert final.stop_reason == whole.stop_reason and final.usage.output_tokens == whole.usage.output_tokens
        assert prompt_tokens(final.usage) == prompt_tokens(whole.usage)

    def test_order_of_events(self, claude, model):
        kinds = []
        for event in ask(claude, model, stream=True):
            if not kinds or kinds[-1] != event.type:
                kinds.append(event.type)
        assert kinds == ["message_start", "content_block_start", "content_block_delta", "content_block_stop",
                         "message_delta", "message_stop"]

    def test_left_early(self, claude, model):
        with claude.messages.stream(**fields(model, max_tokens=100000)) as stream:
            next(iter(stream.text_stream))
        assert ask(claude, model).usage.output_tokens == 12

    def test_many_at_once(self, claude, model):
        alone = ask(claude, model).content[0].text

        def one(_):
            with claude.messages.stream(**fields(model)) as stream:
                return stream.get_final_text()

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            assert set(pool.map(one, range(8))) == {alone}


class TestCountTokens:
    def test_equals_usage(self, claude, model):
        system = [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}]
        counted = claude.messages.count_tokens(model=model, messages=MESSAGES, system=system)
        assert counted.input_tokens == prompt_tokens(ask(claude, model, system=system).usage)
        more = MESSAGES + [{"role": "assistant", "content": "the key"}, {"role": "user", "content": "and now?"}]
        longer = claude.messages.count_tokens(model=model, messages=more, system=system)
        assert longer.input_tokens > counted.input_tokens


class TestErrors:
    @pytest.mark.parametrize(
        ("more", "message"),
        [
            ({"messages": []}, "messages: must not be empty"),
            ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text: "),
            ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role: "),
            ({"messages": MESSAGES + [{"role": "assistant", "content": ""}]}, "messages[1]: "),
            ({"max_tokens": -1}, "max_tokens: "),
            ({"stop_sequences": [""]}, "stop_sequences[0]: "),
            ({"tools": TOOLS, "tool_choice": {"type": "some"}}, "tool_choice.type: "),
            ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type: "),
            ({"extra_body": {"kvilt": {"policy": 5}}}, "kvilt.policy: "),
            ({"extra_body": {"response_format": {"type": "yaml"}}}, "response_format.type: "),
            ({"extra_body": {"output_format": {"type": "json_schema"}}}, "output_format.schema: "),
        ],
    )
    def test_bad_request(self, claude, model, more, message):
        with pytest.raises(anthropic.BadRequestError) as caught:
            ask(claude, model, **more)
        assert caught.value.body["error"]["type"] == "invalid_request_error"
        assert caught.value.body["error"]["message"].startswith(message)

    def test_unknown_model(self, claude):
        with pytest.raises(anthropic.NotFoundError) as caught:
            ask(claude, "claude-nine")
        assert caught.value.body["error"]["type"] == "not_found_error"

    def test_unknown_route(self, claude):
        with pytest.raises(anthropic.NotFoundError):
            claude.messages.batches.list()

    def test_too_long(self, claude, client, model):
        context = client.models.retrieve(model).model_extra["max_model_len"]
        with pytest.raises(anthropic.BadRequestError):
            ask(claude, model, messages=[{"role": "user", "content": "the red key " * context}])

    def test_keys(self, base_url, model):
        if not os.environ.get("KVILT_API_KEY"):
            pytest.skip("the server was started without a key (KVILT_API_KEY)")
        with anthropic.Anthropic(base_url=base_url, api_key="wrong", max_retries=0) as stranger:
            with pytest.raises(anthropic.AuthenticationError) as caught:
                ask(stranger, model)
        assert caught.value.body["error"]["type"] == "authentication_error"
        with anthropic.Anthropic(base_url=base_url, auth_token=key(), max_retries=0) as by_token:
            assert ask(by_token, model).type == "message"


def test_the_recipe(base_url, model, capsys):
    """docs/clients/anthropic.md, as it stands but for the server's address, its key and the model's name."""
    page = pathlib.Path(__file__, "../../../docs/clients/anthropic.md").resolve().read_text()
    code = "\n".join(re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE))
    for stands_for, here in [("http://127.0.0.1:8000", base_url), ('"MODEL"', repr(model)), ('"none"', repr(key()))]:
        assert stands_for in code
        code = code.replace(stands_for, here)
    names = {}
    exec(compile(code, "docs/clients/anthropic.md", "exec"), names)
    names["client"].close()
    printed = capsys.readouterr().out
    assert "messages[0].content[0].text: is required" in printed
    read = [int(tokens) for tokens in re.findall(r"^(\d+) tokens from the cache", printed, re.MULTILINE)]
    assert len(read) == 2 and read[1] > names["counted"].input_tokens // 2
    assert "'policy': 'prefix'" in printed
