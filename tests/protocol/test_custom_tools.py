"""OpenAI's custom tools, whose input is a text, as the `openai` package sees them and as Codex sends apply_patch. The
server is told what to say (fake_server: what follows FAKE_SAY in a message is its answer)."""

import json

import openai
import pytest

PATCH = "*** Begin Patch\n*** Add File: caf\u00e9 \"a\\b\".txt\n+\tone \U0001f642\n*** End Patch"
SAY = ("FAKE_SAY I edit.\n<tool_call>\n" + json.dumps({"name": "apply_patch", "arguments": {"input": PATCH}}, ensure_ascii=False)
       + "\n</tool_call>")
TOOL = {"type": "custom", "name": "apply_patch", "description": "Edits files."}
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "start: \"*** Begin Patch\\n\" LINE+\nLINE: /[^\\n]*\\n?/"}
CHAT_TOOL = {"type": "custom", "custom": {"name": "apply_patch", "description": "Edits files.", "format": {"type": "text"}}}


@pytest.fixture(scope="module")
def told(client, model):
    if model != "fake":
        pytest.skip("this server is not told what to say")
    return client


def chat(model, messages, **more):
    return {"model": model, "messages": messages, "tools": [CHAT_TOOL], "max_tokens": 1000, "temperature": 0, **more}


def respond(model, **more):
    return {"model": model, "input": SAY, "tools": [TOOL], "max_output_tokens": 1000, "temperature": 0, **more}


class TestChat:
    def test_whole_and_a_turn_more(self, told, model):
        question = {"role": "user", "content": SAY}
        choice = told.chat.completions.create(**chat(model, [question])).choices[0]
        call, = choice.message.tool_calls
        assert choice.finish_reason == "tool_calls" and choice.message.content == "I edit."
        assert call.type == "custom" and call.custom.name == "apply_patch" and call.custom.input == PATCH
        history = [question, choice.message.to_dict(), {"role": "tool", "tool_call_id": call.id, "content": "done"},
                   {"role": "user", "content": "FAKE_SAY It is done."}]
        assert told.chat.completions.create(**chat(model, history)).choices[0].message.content == "It is done."

    def test_stream(self, told, model):
        pieces, names = [], []
        for chunk in told.chat.completions.create(**chat(model, [{"role": "user", "content": SAY}]), stream=True):
            for call in chunk.choices[0].delta.tool_calls or []:
                custom = call.to_dict()["custom"]
                names += [custom["name"]] if "name" in custom else []
                pieces.append(custom["input"])
        assert names == ["apply_patch"] and len(pieces) > 10 and "".join(pieces) == PATCH


class TestResponses:
    def test_items_and_a_turn_more(self, told, model):
        reply = told.responses.create(**respond(model))
        message, call = reply.output
        assert reply.status == "completed" and message.content[0].text == "I edit."
        assert call.type == "custom_tool_call" and call.name == "apply_patch" and call.input == PATCH
        result = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "done"}
        again = {"role": "user", "content": "FAKE_SAY It is done."}
        stored = told.responses.create(**respond(model, input=[result, again], previous_response_id=reply.id))
        history = [{"role": "user", "content": SAY}, *[item.to_dict() for item in reply.output], result, again]
        sent = told.responses.create(**respond(model, input=history, store=False))
        assert stored.output_text == sent.output_text == "It is done."
        assert stored.usage.input_tokens == sent.usage.input_tokens

    def test_events(self, told, model):
        with told.responses.stream(**respond(model)) as stream:
            events = list(stream)
        pieces = [event.delta for event in events if event.type == "response.custom_tool_call_input.delta"]
        done, = [event for event in events if event.type == "response.custom_tool_call_input.done"]
        assert len(pieces) > 10 and "".join(pieces) == done.input == PATCH
        assert not any("function_call" in event.type for event in events)

    def test_a_grammar_is_taken_and_a_wrong_one_named(self, told, model):
        reply = told.responses.create(**respond(model, tools=[{**TOOL, "format": GRAMMAR}],
                                                tool_choice={"type": "custom", "name": "apply_patch"}))
        assert reply.output[-1].input == PATCH and reply.tools[0].format.syntax == "lark"
        with pytest.raises(openai.BadRequestError) as refused:
            told.responses.create(**respond(model, tools=[{**TOOL, "format": {**GRAMMAR, "syntax": "gbnf"}}]))
        assert refused.value.param == "tools[0].format.syntax"
