"""The code of docs/clients/, as it stands but for the server's address, its key and the model's name.

Packages that are not installed skip their page, aloud (scripts/test_clients installs them). The fake server is told what
to say: there a question asks for the tool, and the tool's result holds the last answer. Pages with tools are run there
alone, as any other model may call what it likes.
"""

import importlib.util
import os
import pathlib
import re

import pytest

CLIENTS = pathlib.Path(__file__, "../../../docs/clients").resolve()
CALL = ('FAKE_SAY <tool_call>{\\"name\\": \\"weather\\", \\"arguments\\": {\\"place\\": \\"Bonn\\"}}</tool_call>')
PAGES = {
    "openai": ["openai"],
    "langchain": ["langchain", "langchain_openai"],
    "llamaindex": ["llama_index.core", "llama_index.llms.openai_like"],
    "litellm": ["litellm"],
    "autogen": ["autogen_agentchat", "autogen_ext.models.openai"],
    "ag2": ["ag2", "openai"],
}
WITH_TOOLS = ["openai", "langchain", "autogen", "ag2"]

pytestmark = pytest.mark.usefixtures("chats")


def installed(module):
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def code_of(page, base_url, model):
    text = (CLIENTS / f"{page}.md").read_text()
    code = "\n".join(re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
    key = os.environ.get("KVILT_API_KEY", "none")
    for stands_for, here in [("http://127.0.0.1:8000", base_url), ('"MODEL"', repr(model)), ('"none"', repr(key))]:
        assert stands_for in code, f"docs/clients/{page}.md has no {stands_for}"
        code = code.replace(stands_for, here)
    if model == "fake":
        code = code.replace("How is the weather in Bonn?", CALL).replace("It rains in", "FAKE_SAY It rains in")
    return code


def test_every_page_is_run():
    assert {path.stem for path in CLIENTS.glob("*.md")} == {*PAGES, "anthropic"}


@pytest.mark.parametrize("page", PAGES)
def test_page(page, base_url, model, capsys, monkeypatch):
    missing = [module for module in PAGES[page] if not installed(module)]
    if missing:
        pytest.skip(f"docs/clients/{page}.md was NOT run: {', '.join(missing)} is not installed (scripts/test_clients)")
    if page in WITH_TOOLS and model != "fake":
        pytest.skip("this server is not told what to say")
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    exec(compile(code_of(page, base_url, model), f"docs/clients/{page}.md", "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    assert printed.strip()
    if page in WITH_TOOLS:
        assert "It rains in Bonn." in printed, "the tool was called, and its result came back"
    if page == "langchain":
        read = [int(tokens) for tokens in re.findall(r"^(\d+) tokens from the cache", printed, re.MULTILINE)]
        assert len(read) == 2
    if page == "ag2":
        talk = re.findall(r"^(planner|critic): \S", printed, re.MULTILINE)
        assert talk[:4] == ["planner", "critic", "planner", "critic"]
