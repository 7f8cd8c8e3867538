"""What coding agents sent, once more (tests/data/traffic): each request has its answer, in the events of its API, and
what the turns of a session share is computed once."""

import json
import os
import pathlib
import re
import urllib.parse

import anthropic
import openai
import pytest

TRAFFIC = pathlib.Path(__file__, "../../data/traffic").resolve()
# Of an agent's turn, the share of the turn before that stays where it was: aider moves the files behind the history.
SHARED = {"mini_swe_agent": 0.9, "aider": 0.5, "claude_code": 0.9, "codex": 0.9}
TOO_MUCH = "context_length_exceeded|this model('s context| takes)|has no place for tools"
# Fields that the packages want as arguments; the rest goes as it was sent.
NAMED = ("model", "messages", "input", "max_tokens", "max_output_tokens", "stream")

pytestmark = pytest.mark.usefixtures("chats")


@pytest.fixture(scope="module")
def claude(base_url):
    key = os.environ.get("KVILT_API_KEY", "none")
    with anthropic.Anthropic(base_url=base_url, api_key=key, max_retries=0, timeout=120) as one:
        yield one


def ask_chat(client, body):
    """Tokens of the prompt, and those of them that were cached; a stream is read to its end."""
    body = {**body, "max_tokens": 8}
    if not body.get("stream"):
        answer = client.chat.completions.create(**body)
        assert answer.choices[0].finish_reason in ("stop", "length", "tool_calls")
        usage = answer.usage
    else:
        chunks = list(client.chat.completions.create(**body, stream_options={"include_usage": True}))
        assert sum(chunk.choices[0].finish_reason is not None for chunk in chunks if chunk.choices) == 1
        usage = chunks[-1].usage
    return usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens


def parted(body):
    """The arguments of the packages' create()."""
    named = {name: value for name, value in body.items() if name in NAMED}
    return {**named, "extra_body": {name: value for name, value in body.items() if name not in NAMED}}


def ask_messages(claude, body, query):
    events = list(claude.messages.create(**parted({**body, "max_tokens": 8}), extra_query=query))
    kinds = [event.type for event in events]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
    started = [event for event in events if event.type == "content_block_start"]
    assert [event.index for event in started] == list(range(len(started)))
    assert kinds.count("content_block_stop") == len(started)
    end = events[-2]
    assert end.delta.stop_reason in ("end_turn", "max_tokens", "tool_use") and end.usage.output_tokens <= 8
    usage = end.usage
    cached = usage.cache_read_input_tokens
    return usage.input_tokens + cached + usage.cache_creation_input_tokens, cached


def ask_responses(client, body):
    """Codex reads `created`, each item when it is done, and the end with its usage."""
    events = list(client.responses.create(**parted({**body, "max_output_tokens": 8})))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created" and events[0].response.status == "in_progress"
    end = events[-1]
    assert end.type in ("response.completed", "response.incomplete"), end.type
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert done and [item.to_dict() for item in done] == [item.to_dict() for item in end.response.output]
    assert end.response.store is False and not end.response.error
    assert [tool.to_dict() for tool in end.response.tools] == body["tools"]
    usage = end.response.usage
    assert 0 < usage.output_tokens <= 8 and usage.total_tokens == usage.input_tokens + usage.output_tokens
    return usage.input_tokens, usage.input_tokens_details.cached_tokens


def ask(recorded, client, claude, model):
    path, _, query = recorded["path"].partition("?")
    body = {**recorded["body"], "model": model}
    if path == "/v1/messages":
        return ask_messages(claude, body, dict(urllib.parse.parse_qsl(query)))
    assert not query and path in ("/v1/chat/completions", "/v1/responses")
    return (ask_chat if path == "/v1/chat/completions" else ask_responses)(client, body)


@pytest.mark.parametrize("agent", SHARED)
def test_session(agent, client, claude, model):
    before = None
    for line in (TRAFFIC / f"{agent}.jsonl").read_text().splitlines():
        try:
            prompt, cached = ask(json.loads(line), client, claude, model)
        except (openai.BadRequestError, anthropic.BadRequestError) as refused:
            if not re.search(TOO_MUCH, str(refused)):
                raise
            pytest.skip(f"not with this model: {refused}")
        if before:
            assert cached >= SHARED[agent] * before, f"{cached} of {before} tokens"
        before = prompt


def test_every_recording_is_sent():
    assert {path.stem for path in TRAFFIC.glob("*.jsonl")} == set(SHARED)
