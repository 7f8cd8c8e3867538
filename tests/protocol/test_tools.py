"""Tools as the `openai` package sees them. What a model calls is tested where the server is told what to say
(fake_server: what follows FAKE_SAY in a message is its answer); any other must take the fields, or refuse them."""

import json

import openai
import pytest

TOOL = {"type": "function", "function": {"name": "weather", "description": "The weather somewhere.", "parameters": {
    "type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}}}
HOSTILE = {"place": "K\u00f6ln \"}\" </tool_call> \U0001f642\n", "list": [[], {}, "1", 1.5, None]}
ANSWER = "<think>Let me look.</think>I look.\n" + "\n".join(
    "<tool_call>\n" + json.dumps({"name": "weather", "arguments": arguments}, ensure_ascii=False) + "\n</tool_call>"
    for arguments in (HOSTILE, {"place": "Bonn"}))


def fields(model, text, **more):
    return {"model": model, "messages": [{"role": "user", "content": text}], "tools": [TOOL], "max_tokens": 1000,
            "temperature": 0, **more}


def says(model, **more):
    return fields(model, "FAKE_SAY " + ANSWER, **more)


@pytest.fixture(scope="module")
def told(client, model):
    if model != "fake":
        pytest.skip("this server is not told what to say")
    return client


class TestTold:
    def test_whole(self, told, model):
        choice = told.chat.completions.create(**says(model)).choices[0]
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content == "I look."
        assert choice.message.reasoning_content == "Let me look."
        calls = choice.message.tool_calls
        assert [call.function.name for call in calls] == ["weather", "weather"]
        assert [json.loads(call.function.arguments) for call in calls] == [HOSTILE, {"place": "Bonn"}]
        assert calls[0].id != calls[1].id and all(call.type == "function" for call in calls)

    def test_stream_helper(self, told, model):
        with told.chat.completions.stream(**says(model)) as stream:
            for _ in stream:
                pass
            final = stream.get_final_completion().choices[0]
        assert final.finish_reason == "tool_calls" and final.message.content == "I look."
        calls = final.message.tool_calls
        assert [json.loads(call.function.arguments) for call in calls] == [HOSTILE, {"place": "Bonn"}]

    def test_arguments_grow(self, told, model):
        pieces = 0
        for chunk in told.chat.completions.create(**says(model), stream=True):
            pieces += len(chunk.choices[0].delta.tool_calls or [])
        assert pieces > 10

    def test_one_call_and_none(self, told, model):
        one = told.chat.completions.create(**says(model, parallel_tool_calls=False)).choices[0]
        assert len(one.message.tool_calls) == 1
        none = told.chat.completions.create(**says(model, tool_choice="none")).choices[0]
        assert none.finish_reason == "stop" and not none.message.tool_calls and "<tool_call>" in none.message.content

    def test_a_turn_goes_on(self, told, model):
        message = told.chat.completions.create(**says(model)).choices[0].message
        history = [{"role": "user", "content": "weather?"}, message.to_dict()]
        history += [{"role": "tool", "tool_call_id": call.id, "content": "rain"} for call in message.tool_calls]
        history += [{"role": "user", "content": "FAKE_SAY It rains."}]
        choice = told.chat.completions.create(**{**fields(model, ""), "messages": history}).choices[0]
        assert choice.message.content == "It rains." and choice.finish_reason == "stop"


class TestAnyModel:
    def test_tools_are_taken_or_refused(self, client, model, chats):
        try:
            choice = client.chat.completions.create(**fields(model, "hi", max_tokens=8)).choices[0]
        except openai.BadRequestError as refused:
            assert refused.param == "tools" and "no place for tools" in str(refused)
            return
        assert choice.finish_reason in ("stop", "length", "tool_calls")

    def test_only_a_tool_that_is_there_can_be_forced(self, client, model, chats):
        for choice in ({"type": "function", "function": {"name": "nobody"}}, "sometimes"):
            with pytest.raises(openai.BadRequestError) as refused:
                client.chat.completions.create(**fields(model, "hi", tool_choice=choice))
            assert refused.value.param == "tool_choice"
