"""OpenAI's Responses as the `openai` package sees them, unpatched. Nothing here depends on what a model says, but for
TestTold, where the server is told (fake_server: what follows FAKE_SAY in a message is its answer)."""

import json

import openai
import pytest

INPUT = "hi there, what is the key?"
TOOL = {"type": "function", "name": "weather", "description": "The weather somewhere.", "strict": False, "parameters": {
    "type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}}
ARGUMENTS = {"place": "K\u00f6ln \"}\" </tool_call> \U0001f642\n"}
SAID = ("FAKE_SAY <think>Let me look.</think>I look.\n<tool_call>\n"
        + json.dumps({"name": "weather", "arguments": ARGUMENTS}, ensure_ascii=False) + "\n</tool_call>")

pytestmark = pytest.mark.usefixtures("chats")


def fields(model, extra_body=None, **more):
    """A small model may end its answer at once: answers are as long as max_output_tokens says."""
    extra = {"ignore_eos": True, "seed": 1, **(extra_body or {})}
    return {"model": model, "input": INPUT, "max_output_tokens": 12, "temperature": 0, "extra_body": extra, **more}


def ask(client, model, **more):
    return client.responses.create(**fields(model, **more))


class TestWhole:
    def test_response(self, client, model):
        reply = ask(client, model, metadata={"a": "b"}, instructions="be brief")
        assert reply.object == "response" and reply.model == model and reply.id.startswith("resp_")
        assert reply.status == "incomplete" and reply.incomplete_details.reason == "max_output_tokens"
        assert reply.metadata == {"a": "b"} and reply.instructions == "be brief"
        assert reply.usage.output_tokens == 12 and reply.usage.total_tokens == reply.usage.input_tokens + 12
        assert reply.usage.model_extra["kvilt"]["fresh"] >= 0

    def test_same_as_chat(self, client, model):
        chat = client.chat.completions.create(
            model=model, messages=[{"role": "system", "content": "be brief"}, {"role": "user", "content": INPUT}],
            max_tokens=12, temperature=0, seed=1, extra_body={"ignore_eos": True})
        reply = ask(client, model, instructions="be brief")
        assert reply.usage.input_tokens == chat.usage.prompt_tokens
        if not getattr(chat.choices[0].message, "reasoning_content", None):
            assert reply.output_text == (chat.choices[0].message.content or "")

    def test_cached_again(self, client, model):
        document = {"type": "input_text", "text": "the red key is in the house " * 40,
                    "cache_control": {"type": "ephemeral"}}
        items = [{"role": "user", "content": [document, {"type": "input_text", "text": "where?"}]}]
        salt = {"cache_salt": "responses again"}
        first = ask(client, model, input=items, extra_body=salt).usage
        again = ask(client, model, input=items, extra_body=salt).usage
        assert again.input_tokens_details.cached_tokens > first.input_tokens_details.cached_tokens
        assert again.input_tokens == first.input_tokens

    def test_count(self, client, model):
        counted = client.responses.input_tokens.count(model=model, input=INPUT)
        assert counted.input_tokens == ask(client, model).usage.input_tokens


class TestStored:
    def test_found_and_deleted(self, client, model):
        reply = ask(client, model)
        assert reply.store is True
        found = client.responses.retrieve(reply.id)
        assert found.to_dict() == reply.to_dict()
        items = client.responses.input_items.list(reply.id).data
        assert items[0].content[0].text == INPUT
        client.responses.delete(reply.id)
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(reply.id)

    def test_thread(self, client, model):
        first = ask(client, model)
        second = ask(client, model, input="and now?", previous_response_id=first.id)
        history = [{"role": "user", "content": INPUT}, *[item.to_dict() for item in first.output],
                   {"role": "user", "content": "and now?"}]
        again = ask(client, model, input=history, store=False)
        assert again.output_text == second.output_text
        assert again.usage.input_tokens == second.usage.input_tokens > first.usage.input_tokens
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(again.id)
        with pytest.raises(openai.NotFoundError) as lost:
            ask(client, model, previous_response_id="resp_nobody")
        assert lost.value.param == "previous_response_id"


class TestStream:
    def test_equals_whole(self, client, model):
        whole = ask(client, model)
        with client.responses.stream(**fields(model)) as stream:
            events = list(stream)
        text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        final = events[-1].response  # the package's own get_final_response() takes completed ones alone
        assert text == final.output_text == whole.output_text
        assert final.usage.output_tokens == 12
        assert client.responses.retrieve(final.id).output_text == text

    def test_order_of_events(self, client, model):
        numbers, kinds = [], []
        for event in ask(client, model, stream=True):
            numbers.append(event.sequence_number)
            kinds.append(event.type)
        assert numbers == list(range(len(numbers)))
        assert kinds[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
        assert kinds[-2:] == ["response.output_item.done", "response.incomplete"]

    def test_left_early(self, client, model):
        for _ in ask(client, model, stream=True, max_output_tokens=2000):
            break
        assert ask(client, model).usage.output_tokens == 12


@pytest.fixture(scope="module")
def told(client, model):
    if model != "fake":
        pytest.skip("this server is not told what to say")
    return client


class TestTold:
    def says(self, model, **more):
        return {"model": model, "input": SAID, "tools": [TOOL], "max_output_tokens": 1000, "temperature": 0, **more}

    def test_items(self, told, model):
        for reply in (told.responses.create(**self.says(model)), self.streamed(told, model)):
            thought, message, call = reply.output
            assert reply.status == "completed"
            assert thought.type == "reasoning" and thought.content[0].text == "Let me look."
            assert message.content[0].text == reply.output_text == "I look."
            assert call.type == "function_call" and call.name == "weather" and json.loads(call.arguments) == ARGUMENTS
            assert reply.usage.output_tokens_details.reasoning_tokens > 0

    def streamed(self, told, model):
        with told.responses.stream(**self.says(model)) as stream:
            pieces = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
            final = stream.get_final_response()
        assert len(pieces) > 10 and json.loads("".join(pieces)) == ARGUMENTS
        return final

    def test_a_turn_goes_on(self, told, model):
        reply = told.responses.create(**self.says(model))
        result = {"type": "function_call_output", "call_id": reply.output[-1].call_id, "output": "rain"}
        question = {"role": "user", "content": "FAKE_SAY It rains."}
        stored = told.responses.create(model=model, input=[result, question], previous_response_id=reply.id)
        items = [{"role": "user", "content": SAID}, *[item.to_dict() for item in reply.output], result, question]
        sent = told.responses.create(model=model, input=items, store=False)
        assert stored.usage.input_tokens == sent.usage.input_tokens


class TestNamespace:
    """Codex groups the tools of its sub-agents, and of each MCP server, and finds them by both names."""

    TEAM = {"type": "namespace", "name": "team", "description": "Helpers.", "tools": [
        {**TOOL, "name": "ask"}, {"type": "custom", "name": "tell", "description": "Tells one."}]}
    SAID = ('FAKE_SAY <tool_call>{"name": "team__ask", "arguments": {"place": "Bonn"}}</tool_call>\n'
            '<tool_call>{"name": "team__tell", "arguments": {"input": "hi"}}</tool_call>')

    def test_names_are_apart(self, told, model):
        fields = {"model": model, "tools": [TOOL, self.TEAM], "max_output_tokens": 1000, "temperature": 0}
        whole = told.responses.create(input=self.SAID, **fields)
        ended = list(told.responses.create(input=self.SAID, stream=True, **fields))[-1].response
        for reply in (whole, ended):
            ask, tell = reply.output
            assert (ask.type, ask.namespace, ask.name) == ("function_call", "team", "ask")
            assert json.loads(ask.arguments) == {"place": "Bonn"}
            assert (tell.type, tell.namespace, tell.name, tell.input) == ("custom_tool_call", "team", "tell", "hi")
        results = [{"type": "function_call_output", "call_id": ask.call_id, "output": "rain"},
                   {"type": "custom_tool_call_output", "call_id": tell.call_id, "output": "told"},
                   {"role": "user", "content": "FAKE_SAY It rains."}]
        items = [{"role": "user", "content": self.SAID}, *[item.to_dict() for item in ended.output], *results]
        sent = told.responses.create(input=items, store=False, **fields)
        stored = told.responses.create(input=results, previous_response_id=ended.id, **fields)
        assert sent.output_text == stored.output_text == "It rains."
        assert sent.usage.input_tokens == stored.usage.input_tokens

    def test_any_model_can_be_forced(self, client, model, takes_tools):
        if model == "fake":
            pytest.skip("this server says what it is told")
        reply = client.responses.create(
            model=model, input=INPUT, tools=[self.TEAM], max_output_tokens=200, temperature=0,
            tool_choice={"type": "function", "name": "ask", "namespace": "team"})
        call, = reply.output
        assert (call.type, call.namespace, call.name) == ("function_call", "team", "ask")


class TestErrors:
    @pytest.mark.parametrize(
        ("more", "param"),
        [
            ({"input": []}, "input"),
            ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content[0]"),
            ({"max_output_tokens": -1}, "max_output_tokens"),
            ({"background": True}, "background"),
            ({"truncation": "auto"}, "truncation"),
            ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
            ({"extra_body": {"kvilt": {"policy": 5}}}, "kvilt.policy"),
        ],
    )
    def test_bad_request(self, client, model, more, param):
        with pytest.raises(openai.BadRequestError) as caught:
            ask(client, model, **more)
        assert caught.value.param == param

    def test_unknown_model(self, client):
        with pytest.raises(openai.NotFoundError):
            ask(client, "gpt-nine")
