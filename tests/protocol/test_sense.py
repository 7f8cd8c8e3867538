"""Whether what clients get makes sense, with the real model: the place that was named is the argument of a call, what a
tool or a document said is in the answer, an object has the right value. Every check has its power beside it: without
that tool, document or word the same question must not have that value.

At temperature 0, in several wordings, of what half a billion parameters know for sure; other models skip it. What
LangChain and LlamaIndex make of the same answers stands at the end, where they are installed (scripts/test_clients).
"""

import json
import os

import pytest

WEATHER = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
TOOL = {"type": "function", "function": {"name": "weather", "description": "The weather somewhere.",
                                         "parameters": WEATHER}}
PLACES = ("Bonn", "Oslo")
HANDBOOK = ("The handbook of the Aldermoor lighthouse. The tower was built in 1874 of grey granite. The lamp is lit at "
            "dusk. The door code of the tower is 7391. Visitors come on Sundays, and leave before the tide.")
OTHER = ("The handbook of the Brackwater mill. The wheel turns from April to October. Flour is sold in sacks of ten "
         "kilograms. The miller's dog is called Pepper. Visitors come on Saturdays.")
CODE = "7391"
# Nobody computes a piece of a few tokens anew more slowly than it is looked up.
RULES = (" Each evening the keeper writes down the wind, the height of the sea, and every ship that passes. Oil is kept in "
         "the cellar, never in the tower. Children hold the hand of a grown person on the stairs. The bell is rung in "
         "fog, three times each minute. Letters come with the boat on Tuesdays. The kitchen is for all, and who cooks does "
         "not wash up. In winter the path is strewn with ash. Nobody feeds the gulls.")


@pytest.fixture(scope="module", autouse=True)
def real(model):
    if "qwen2.5" not in model.lower():
        pytest.skip("this model need not know anything")


@pytest.fixture(scope="module")
def claude(base_url):
    anthropic = pytest.importorskip("anthropic")
    key = os.environ.get("KVILT_API_KEY", "none")
    with anthropic.Anthropic(base_url=base_url, api_key=key, max_retries=0, timeout=120) as one:
        yield one


@pytest.fixture(scope="module")
def chat(client, model):
    def ask(*messages, **more):
        messages = [{"role": "user", "content": one} if isinstance(one, str) else one for one in messages]
        return client.chat.completions.create(model=model, messages=messages, temperature=0,
                                              **{"max_tokens": 60, **more})
    return ask


def said(reply):
    return reply.choices[0].message.content


class TestCalls:
    @pytest.mark.parametrize("place", PLACES)
    @pytest.mark.parametrize("wording", ["How is the weather in {}?", "Do I need an umbrella in {} today?"])
    def test_a_forced_call_has_the_place(self, chat, wording, place):
        """Each place is the others' power check."""
        forced = {"type": "function", "function": {"name": "weather"}}
        call, = chat(wording.format(place), tools=[TOOL], tool_choice=forced).choices[0].message.tool_calls
        assert place in json.loads(call.function.arguments)["place"]

    def test_so_has_one_that_is_streamed(self, chat):
        forced = {"type": "function", "function": {"name": "weather"}}
        pieces = [call.function.arguments or "" for chunk in chat("How is the weather in Oslo?", tools=[TOOL],
                                                                  tool_choice=forced, stream=True)
                  for call in chunk.choices[0].delta.tool_calls or []]
        assert "Oslo" in json.loads("".join(pieces))["place"]


@pytest.mark.parametrize("name", ["surface", "total"])
def test_what_is_filled_in_fits_the_text_behind_it(client, model, name):
    """Each name is the other's power check: nothing in front of the gap says it."""
    filled = client.completions.create(model=model, prompt="def area(width, height):\n    ",
                                       suffix=f"\n    return {name}\n", temperature=0, max_tokens=16)
    assert f"{name} =" in filled.choices[0].text


def turn(degrees):
    """A question, the call it led to, and what the tool said."""
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"place": "Bonn"}'}}
    return ("What is the temperature in Bonn?", {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": json.dumps({"place": "Bonn", "celsius": degrees})})


class TestResults:
    @pytest.mark.parametrize("degrees", [17, 31])
    def test_the_answer_has_the_tools_value(self, chat, degrees):
        assert str(degrees) in said(chat(*turn(degrees), tools=[TOOL], tool_choice="none"))

    def test_power(self, chat):
        guess = said(chat(turn(17)[0])) or ""
        assert "17" not in guess and "31" not in guess

    @pytest.mark.parametrize("degrees", [17, 31])
    def test_so_by_messages(self, claude, model, degrees):
        reply = claude.messages.create(
            model=model, max_tokens=60, extra_body={"temperature": 0},
            tools=[{"name": "weather", "description": "The weather somewhere.", "input_schema": WEATHER}],
            tool_choice={"type": "none"}, messages=[{"role": "user", "content": turn(degrees)[0]},
                      {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "weather",
                                                         "input": {"place": "Bonn"}}]},
                      {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1",
                                                    "content": turn(degrees)[2]["content"]}]}])
        assert str(degrees) in "".join(block.text for block in reply.content if block.type == "text")


class TestDocuments:
    QUESTIONS = ["What is the door code of the tower?", "Which code opens the door of the lighthouse's tower?",
                 "I stand before the tower's door. Tell me its code."]

    @pytest.mark.parametrize("question", QUESTIONS)
    def test_the_answer_has_the_fact(self, chat, question):
        assert CODE in said(chat(f"{HANDBOOK}\n\n{question}"))

    @pytest.mark.parametrize("question", QUESTIONS)
    def test_power(self, chat, question):
        assert CODE not in said(chat(f"{OTHER}\n\n{question}"))
        assert CODE not in said(chat(question))

    def test_a_marked_document_at_another_place_is_understood(self, chat):
        """It was computed behind nothing, and is reused behind another one (`balanced`)."""
        part = {"type": "text", "text": HANDBOOK + RULES, "cache_control": {"type": "ephemeral"}}
        before = {"type": "text", "text": OTHER, "cache_control": {"type": "ephemeral"}}
        balanced = {"extra_body": {"kvilt": {"quality": "balanced"}, "cache_salt": "another place"}}
        chat({"role": "user", "content": [part, {"type": "text", "text": "\n\nWhen was it built?"}]}, **balanced)
        reused = 0
        for question in self.QUESTIONS:
            asked = {"role": "user", "content": [before, part, {"type": "text", "text": "\n\n" + question}]}
            reply = chat(asked, **balanced)
            assert CODE in said(reply)
            reused += reply.usage.model_extra["kvilt"]["reused"]
        assert reused > 0


class TestForms:
    SCHEMA = {"type": "object", "properties": {"capital": {"type": "string"}}, "required": ["capital"],
              "additionalProperties": False}

    @pytest.mark.parametrize(("country", "capital"), [("France", "Paris"), ("Italy", "Rome"), ("Spain", "Madrid")])
    @pytest.mark.parametrize("wording", ["What is the capital of {}?", "Name the capital of {} as JSON."])
    def test_an_object_has_the_value(self, chat, wording, country, capital):
        """Each country is the others' power check."""
        form = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": self.SCHEMA}}
        assert json.loads(said(chat(wording.format(country), response_format=form))) == {"capital": capital}


class TestThread:
    def test_what_was_said_before_is_known(self, client, model):
        fields = {"model": model, "temperature": 0, "max_output_tokens": 40}
        for word in ("Marigold", "Juniper"):
            first = client.responses.create(input=f"Remember this word: {word}. Say only OK.", **fields)
            again = "Which word did I ask you to remember?"
            assert word in client.responses.create(input=again, previous_response_id=first.id, **fields).output_text
            assert word not in client.responses.create(input=again, **fields).output_text


class TestLangChain:
    @pytest.fixture
    def lang(self, model, base_url):
        package = pytest.importorskip("langchain_openai")
        return package.ChatOpenAI(model=model, base_url=base_url + "/v1", temperature=0, max_tokens=60,
                                  api_key=os.environ.get("KVILT_API_KEY", "none"))

    @pytest.mark.parametrize("place", PLACES)
    def test_a_forced_call_has_the_place(self, lang, place):
        reply = lang.bind_tools([TOOL], tool_choice="weather").invoke(f"How is the weather in {place}?")
        assert place in reply.tool_calls[0]["args"]["place"]

    @pytest.mark.parametrize("degrees", [17, 31])
    def test_the_answer_has_the_tools_value(self, lang, degrees):
        messages = pytest.importorskip("langchain_core.messages")
        question, _, result = turn(degrees)
        call = {"id": "c1", "name": "weather", "args": {"place": "Bonn"}}
        reply = lang.bind_tools([TOOL], tool_choice="none").invoke([messages.HumanMessage(question),
                                                messages.AIMessage("", tool_calls=[call]),
                                                messages.ToolMessage(result["content"], tool_call_id="c1")])
        assert str(degrees) in reply.content

    def test_a_chain_answers_from_its_document(self, lang):
        prompts = pytest.importorskip("langchain_core.prompts")
        parsers = pytest.importorskip("langchain_core.output_parsers")
        prompt = prompts.ChatPromptTemplate.from_template("{context}\n\n{question}")
        chain = prompt | lang | parsers.StrOutputParser()
        for question in TestDocuments.QUESTIONS:
            assert CODE in chain.invoke({"context": HANDBOOK, "question": question})
            assert CODE not in chain.invoke({"context": OTHER, "question": question})


class TestLlamaIndex:
    def test_a_forced_call_has_the_place(self, model, base_url):
        tools = pytest.importorskip("llama_index.core.tools")
        likes = pytest.importorskip("llama_index.llms.openai_like")
        llm = likes.OpenAILike(model=model, api_base=base_url + "/v1", api_key=os.environ.get("KVILT_API_KEY", "none"),
                               is_chat_model=True, max_tokens=60, is_function_calling_model=True, context_window=4096,
                               temperature=0)

        def weather(place: str) -> str:
            """The weather somewhere."""

        for place in PLACES:
            reply = llm.chat_with_tools([tools.FunctionTool.from_defaults(weather)], tool_required=True,
                                        user_msg=f"How is the weather in {place}?")
            call, = llm.get_tool_calls_from_response(reply)
            assert place in call.tool_kwargs["place"]
