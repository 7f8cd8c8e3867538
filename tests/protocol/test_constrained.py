"""Constrained answers as the `openai` and `anthropic` packages ask for them. Small models have no sense and some no
brackets: a test needs what it asks to be written at all, else it is skipped. (All of it with the real model.)"""

import json
import os
import re

import anthropic
import openai
import pydantic
import pytest


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=20)
    age: int = pydantic.Field(ge=0, le=130)
    languages: list[str] = pydantic.Field(max_length=3)


ABOUT = [{"role": "user", "content": "Ada is 36 and speaks English and French. Her data as JSON: name, age, languages."}]
TOOL = {"type": "function", "function": {"name": "weather", "description": "The weather somewhere.", "parameters": {
    "type": "object", "properties": {"place": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["place", "days"], "additionalProperties": False}}}
ASKED = [{"role": "user", "content": "How is the weather in Bonn in the next three days?"}]


@pytest.fixture(scope="module")
def held(client, model):
    """A server that does hold answers to what they must be."""
    if model == "fake":
        pytest.skip("this server's answers are what it is told")
    try:
        client.completions.create(model=model, prompt="x", max_tokens=9, extra_body={"guided_regex": "[1-9][0-9]{2}"})
    except openai.BadRequestError as refused:
        assert "no token of this model" in str(refused)
        pytest.skip("this model's vocabulary is words with a space before each")
    return client


@pytest.fixture(scope="module")
def writes_json(held, model, chats):
    """The vocabulary has brackets."""
    try:
        held.completions.create(model=model, prompt="x", max_tokens=20, extra_body={"guided_json": {"const": {"a": "b"}}})
    except openai.BadRequestError as refused:
        assert "no token of this model" in str(refused)
        pytest.skip("this model's vocabulary cannot write JSON")
    return held


@pytest.fixture(scope="module")
def calls(writes_json, model):
    try:
        writes_json.chat.completions.create(model=model, messages=ASKED, tools=[TOOL], max_tokens=1)
    except openai.BadRequestError as refused:
        pytest.skip(f"no tools: {refused}")
    return writes_json


class TestText:
    @pytest.mark.parametrize("temperature", [0, 1.5])
    @pytest.mark.parametrize("word", ["guided_regex", "structured_outputs"])
    def test_an_expression(self, held, model, temperature, word):
        pattern = "[1-9][0-9]{2}"
        asked = {"guided_regex": pattern} if word == "guided_regex" else {word: {"regex": pattern}}
        choices = held.completions.create(model=model, prompt="A number:", n=4, seed=3, temperature=temperature,
                                          max_tokens=50, extra_body=asked).choices
        assert all(re.fullmatch(pattern, choice.text) and choice.finish_reason == "stop" for choice in choices)
        free = held.completions.create(model=model, prompt="A number:", temperature=0, max_tokens=20)
        assert not re.fullmatch(pattern, free.choices[0].text)

    def test_a_choice_streamed(self, held, model):
        stream = held.completions.create(model=model, prompt="x", max_tokens=20, stream=True,
                                         extra_body={"guided_choice": ["100", "7"]})
        text = "".join(chunk.choices[0].text for chunk in stream if chunk.choices)
        assert text in ("100", "7")

    def test_a_grammar(self, held, model):
        rules = 'root ::= digit digit\ndigit ::= "1" | "2"'
        text = held.completions.create(model=model, prompt="x", max_tokens=9, extra_body={"guided_grammar": rules})
        assert re.fullmatch("[12][12]", text.choices[0].text)

    def test_logprobs_are_of_what_may_come(self, held, model):
        made = held.completions.create(model=model, prompt="x", max_tokens=9, logprobs=10,
                                       extra_body={"guided_choice": ["1", "2"]})
        assert set(made.choices[0].logprobs.top_logprobs[0]) <= {"1", "2"}

    def test_an_integer(self, held, model):
        text = held.completions.create(model=model, prompt="x", max_tokens=20, extra_body={
            "guided_json": {"type": "integer", "minimum": 3, "maximum": 5}}).choices[0].text
        assert 3 <= json.loads(text) <= 5


class TestObjects:
    def test_parse(self, writes_json, model):
        for temperature in (0, 1):
            choice = writes_json.chat.completions.parse(model=model, messages=ABOUT, response_format=Person, seed=5,
                                                        temperature=temperature, max_tokens=400).choices[0]
            assert choice.finish_reason == "stop" and isinstance(choice.message.parsed, Person)

    def test_parse_streamed(self, writes_json, model):
        with writes_json.chat.completions.stream(model=model, messages=ABOUT, response_format=Person, temperature=0,
                                                 max_tokens=400) as stream:
            final = stream.get_final_completion()
        assert isinstance(final.choices[0].message.parsed, Person)

    def test_cut(self, writes_json, model):
        choice = writes_json.chat.completions.create(model=model, messages=ABOUT, temperature=0, max_tokens=3,
                                                     response_format={"type": "json_object"}).choices[0]
        assert choice.finish_reason == "length" and choice.message.content.startswith("{")


class TestForcedTools:
    @pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
    def test_a_call_comes(self, calls, model, choice):
        made = calls.chat.completions.create(model=model, messages=[{"role": "user", "content": "Tell a joke."}],
                                             tools=[TOOL], tool_choice=choice, temperature=0, max_tokens=300).choices[0]
        assert made.finish_reason == "tool_calls" and not made.message.content
        arguments = json.loads(made.message.tool_calls[0].function.arguments)
        assert set(arguments) == {"place", "days"} and 1 <= arguments["days"] <= 9

    def test_anthropic(self, calls, base_url, model):
        tool = {"name": "weather", "description": "The weather.", "input_schema": TOOL["function"]["parameters"]}
        with anthropic.Anthropic(base_url=base_url, api_key=os.environ.get("KVILT_API_KEY", "none")) as claude:
            for choice in ({"type": "any"}, {"type": "tool", "name": "weather"}):
                reply = claude.messages.create(model=model, messages=ASKED, tools=[tool], max_tokens=300,
                                               tool_choice={**choice, "disable_parallel_tool_use": True},
                                               extra_body={"temperature": 0})
                assert reply.stop_reason == "tool_use"
                assert [block.type for block in reply.content] == ["tool_use"]  # a drawn answer may hold several
                assert set(reply.content[0].input) == {"place", "days"}


def nested(levels):
    schema = {"type": "integer"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    "asked",
    [
        {"guided_json": {"not": {"type": "string"}}},
        {"guided_json": {"type": "array", "uniqueItems": True}},
        {"guided_json": "{"},
        {"guided_json": nested(25)["items"] | {"minItems": 2**40}},
        {"guided_regex": "(" * 5000},
        {"guided_regex": "(a|b)*a" + "(a|b)" * 60 + "\0"},
        {"guided_regex": "[a-z]{1,999999999999}"},
        {"guided_regex": "(a)\\1"},
        {"guided_grammar": "no rules"},
        {"guided_grammar": "root ::= nobody"},
    ],
)
def test_hostile_constraints(held, model, asked):
    with pytest.raises(openai.BadRequestError) as refused:
        held.completions.create(model=model, prompt="x", max_tokens=5, extra_body=asked)
    assert refused.value.param == list(asked)[0]
    assert held.completions.create(model=model, prompt="x", max_tokens=1).choices
