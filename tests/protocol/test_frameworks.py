"""Tool calls and answers of a form, as frameworks over the `openai` package ask for them and hand them on. They are
forced, so any model gives them, however little it knows: what the framework makes of them is checked, unpatched.

Pages of docs/clients/ run in test_recipes.py; scripts/test_clients installs the frameworks.
"""

import asyncio
import enum
import os

import pydantic
import pytest

ASKED = "How is the weather in Bonn?"
SAID = 'FAKE_SAY <tool_call>{"name": "weather", "arguments": {"place": "Bonn"}}</tool_call>'


class Place(str, enum.Enum):
    BONN = "Bonn"
    ROME = "Rome"


class Town(pydantic.BaseModel):
    """A town of a country."""

    place: Place
    large: bool


def weather(place: Place) -> str:
    """The weather somewhere."""
    return f"It rains in {place.value}."


@pytest.fixture
def asked(model):
    return SAID if model == "fake" else ASKED


@pytest.fixture
def where(base_url):
    return base_url + "/v1", os.environ.get("KVILT_API_KEY", "none")


def is_a_place(arguments):
    assert set(arguments) == {"place"} and arguments["place"] in ("Bonn", "Rome"), arguments


@pytest.mark.usefixtures("takes_tools")
class TestLangChain:
    @pytest.fixture
    def chat(self, model, where):
        package = pytest.importorskip("langchain_openai")
        return package.ChatOpenAI(model=model, base_url=where[0], api_key=where[1], temperature=0, max_tokens=200)

    def test_a_forced_call(self, chat, asked):
        reply = chat.bind_tools([weather], tool_choice="weather").invoke(asked)
        assert [call["name"] for call in reply.tool_calls] == ["weather"] and not reply.invalid_tool_calls
        is_a_place(reply.tool_calls[0]["args"])

    def test_a_forced_call_streamed(self, chat, asked):
        chunks = list(chat.bind_tools([weather], tool_choice="weather").stream(asked))
        whole = sum(chunks[1:], chunks[0])
        assert len(chunks) > 3 and [call["name"] for call in whole.tool_calls] == ["weather"]
        is_a_place(whole.tool_calls[0]["args"])

    @pytest.mark.parametrize("method", ["json_schema", "function_calling"])
    def test_structured_output(self, chat, model, method):
        if (model, method) == ("tiny", "json_schema"):
            pytest.skip("this model writes blanks between two words of JSON without end")
        town = '{"place": "Bonn", "large": false}'
        if method == "function_calling":
            town = f'<tool_call>{{"name": "Town", "arguments": {town}}}</tool_call>'
        told = chat.with_structured_output(Town, method=method).invoke("FAKE_SAY " + town if model == "fake" else ASKED)
        assert isinstance(told, Town) and told.place in Place

    def test_a_call_goes_round_a_graph(self, chat, asked):
        """LangGraph's node of tools runs what the model called for."""
        prebuilt = pytest.importorskip("langgraph.prebuilt")
        graph = pytest.importorskip("langgraph.graph")
        forced = chat.bind_tools([weather], tool_choice="weather")
        app = graph.StateGraph(graph.MessagesState)
        app.add_node("guide", lambda state: {"messages": [forced.invoke(state["messages"])]})
        app.add_node("tools", prebuilt.ToolNode([weather]))
        app.add_edge(graph.START, "guide")
        app.add_edge("guide", "tools")
        told = app.compile().invoke({"messages": [("user", asked)]})["messages"][-1]
        assert told.type == "tool" and told.content in ("It rains in Bonn.", "It rains in Rome.")


@pytest.mark.usefixtures("takes_tools")
class TestLlamaIndex:
    def test_a_forced_call(self, model, where, asked):
        tools = pytest.importorskip("llama_index.core.tools")
        likes = pytest.importorskip("llama_index.llms.openai_like")
        llm = likes.OpenAILike(model=model, api_base=where[0], api_key=where[1], is_chat_model=True, max_tokens=200,
                               is_function_calling_model=True, context_window=4096, temperature=0)
        reply = llm.chat_with_tools([tools.FunctionTool.from_defaults(weather)], user_msg=asked, tool_required=True)
        calls = llm.get_tool_calls_from_response(reply)
        assert [call.tool_name for call in calls] == ["weather"]
        is_a_place(calls[0].tool_kwargs)


@pytest.mark.usefixtures("takes_tools")
class TestLitellm:
    @pytest.mark.parametrize("stream", [False, True])
    def test_a_forced_call(self, model, where, asked, stream, monkeypatch):
        monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        litellm = pytest.importorskip("litellm")
        schema = {"type": "object", "properties": {"place": {"type": "string", "enum": ["Bonn", "Rome"]}},
                  "required": ["place"], "additionalProperties": False}
        question = [{"role": "user", "content": asked}]
        reply = litellm.completion(
            model="openai/" + model, api_base=where[0], api_key=where[1], messages=question, max_tokens=200, stream=stream,
            tools=[{"type": "function", "function": {"name": "weather", "parameters": schema}}],
            tool_choice={"type": "function", "function": {"name": "weather"}})
        if stream:
            reply = litellm.stream_chunk_builder(list(reply), messages=question)
        calls = reply.choices[0].message.tool_calls
        assert [call.function.name for call in calls] == ["weather"]
        is_a_place(pydantic.TypeAdapter(dict).validate_json(calls[0].function.arguments))


@pytest.mark.usefixtures("takes_tools")
class TestAutoGen:
    def test_a_forced_call(self, model, where, asked):
        core = pytest.importorskip("autogen_core.tools")
        models = pytest.importorskip("autogen_core.models")
        extension = pytest.importorskip("autogen_ext.models.openai")
        info = {"vision": False, "function_calling": True, "json_output": False, "family": "unknown",
                "structured_output": False}
        tool = core.FunctionTool(weather, description="The weather somewhere.")

        async def call():
            client = extension.OpenAIChatCompletionClient(
                model=model, base_url=where[0], api_key=where[1], temperature=0, max_tokens=200, model_info=info)
            question = [models.UserMessage(content=asked, source="user")]
            reply = await client.create(question, tools=[tool], tool_choice=tool)
            await client.close()
            return reply

        reply = asyncio.run(call())
        assert reply.finish_reason == "function_calls" and [one.name for one in reply.content] == ["weather"]
        is_a_place(pydantic.TypeAdapter(dict).validate_json(reply.content[0].arguments))
