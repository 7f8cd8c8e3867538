"""What coding agents sent, once more (tests/data/traffic): each request has its answer, and what the turns of a session
share is computed once."""

import json
import pathlib

import openai
import pytest

TRAFFIC = pathlib.Path(__file__, "../../data/traffic").resolve()
# Of an agent's turn, the share of the turn before that stays where it was: aider moves the files behind the history.
SHARED = {"mini_swe_agent": 0.9, "aider": 0.5}

pytestmark = pytest.mark.usefixtures("chats")


def ask(client, model, body):
    """The answer's usage; a stream is read to its end."""
    body = {**body, "model": model, "max_tokens": 8}
    if not body.get("stream"):
        answer = client.chat.completions.create(**body)
        assert answer.choices[0].finish_reason in ("stop", "length", "tool_calls")
        return answer.usage
    chunks = list(client.chat.completions.create(**body, stream_options={"include_usage": True}))
    assert sum(chunk.choices[0].finish_reason is not None for chunk in chunks if chunk.choices) == 1
    return chunks[-1].usage


@pytest.mark.parametrize("agent", SHARED)
def test_session(agent, client, model):
    before = None
    for line in (TRAFFIC / f"{agent}.jsonl").read_text().splitlines():
        recorded = json.loads(line)
        assert recorded["path"] == "/v1/chat/completions"
        try:
            usage = ask(client, model, recorded["body"])
        except openai.BadRequestError as refused:
            if refused.code != "context_length_exceeded" and "has no place for tools" not in str(refused):
                raise
            pytest.skip(f"not with this model: {refused}")
        if before:
            cached = usage.prompt_tokens_details.cached_tokens
            assert cached >= SHARED[agent] * before.prompt_tokens, f"{cached} of {before.prompt_tokens} tokens"
        before = usage


def test_every_recording_is_sent():
    assert {path.stem for path in TRAFFIC.glob("*.jsonl")} == set(SHARED)
