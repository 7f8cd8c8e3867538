"""The code of docs/clients/, as it stands but for the server's address, its key and the model's name.

Packages that are not installed skip their page, aloud (scripts/test_clients installs them). The fake server is told what
to say: there a question asks for the tool, and the tool's result holds the last answer. Any other model may call what it
likes, or nothing: there a page must come to its end and say something, and a framework's own limit of turns is an end.
(test_frameworks.py has calls that are forced.) What agents do on this machine is run with the fake server alone.
"""

import importlib.util
import os
import pathlib
import re
import runpy
import subprocess
import sys

import pytest

CLIENTS = pathlib.Path(__file__, "../../../docs/clients").resolve()
CALL = ('FAKE_SAY <tool_call>{\\"name\\": \\"weather\\", \\"arguments\\": {\\"place\\": \\"Bonn\\"}}</tool_call>')
PAGES = {
    "openai": ["openai"],
    "langchain": ["langchain", "langchain_openai"],
    "langgraph": ["langgraph", "langchain_openai"],
    "llamaindex": ["llama_index.core", "llama_index.llms.openai_like"],
    "litellm": ["litellm"],
    "instructor": ["instructor"],
    "haystack": ["haystack"],
    "lm_eval": ["lm_eval"],
    "autogen": ["autogen_agentchat", "autogen_ext.models.openai"],
    "ag2": ["ag2", "openai"],
    "openai_agents": ["agents"],
    "pydantic_ai": ["pydantic_ai"],
    "smolagents": ["smolagents"],
    "mini_swe_agent": ["minisweagent"],
    "claude_code": ["claude_agent_sdk"],
    "codex": ["openai_codex", "codex_cli_bin"],
}
WITH_TOOLS = [
    "openai", "langchain", "langgraph", "haystack", "autogen", "ag2", "openai_agents", "pydantic_ai", "smolagents",
]
# How a framework ends a model that calls its tool again and again.
LIMITS = ("GraphRecursionError", "MaxTurnsExceeded", "UnexpectedModelBehavior", "UsageLimitExceeded")
TOO_MUCH_FOR_TINY = {
    "instructor": "writes blanks between two words of JSON without end",
    "smolagents": "has no room for so long a prompt in its tokens",
}
# What agents are told to do on this machine; each has one question.
COMMANDS = ["mini_swe_agent", "claude_code", "codex"]
# The commands print what the fake server says next. It does not find that in the question, where the words are apart.
SAYS = {
    "smolagents": 'FAKE_SAY <code>\\nfinal_answer(weather(\'Bonn\'))\\n</code>',
    "mini_swe_agent": 'FAKE_SAY <tool_call>{\\"name\\": \\"bash\\", \\"arguments\\": {\\"command\\": '
    '\\"echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && echo three files\\"}}</tool_call>',
    "claude_code": 'FAKE_SAY <tool_call>{\\"name\\": \\"Bash\\", \\"arguments\\": {\\"command\\": '
    "\\\"echo FAKE''_SAY three files\\\", \\\"description\\\": \\\"counts\\\"}}</tool_call>",
    "codex": 'FAKE_SAY <tool_call>{\\"name\\": \\"exec_command\\", \\"arguments\\": {\\"cmd\\": '
    "\\\"echo FAKE''_SAY three files\\\"}}</tool_call>",
}

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
        for question in ("How is the weather in Bonn?", "How many files are here?"):
            code = code.replace(question, SAYS.get(page, CALL))
        code = code.replace("It rains in", "FAKE_SAY It rains in")
        code = code.replace("Bonn has 330,000 inhabitants.", 'FAKE_SAY {\\"name\\": \\"Bonn\\", \\"inhabitants\\": 330000}')
    return code


def test_every_page_is_run():
    assert {path.stem for path in CLIENTS.glob("*.md")} - {"README"} == {*PAGES, "anthropic", "aider"}


@pytest.mark.parametrize("page", PAGES)
def test_page(page, base_url, model, request, capsys, monkeypatch, tmp_path):
    missing = [module for module in PAGES[page] if not installed(module)]
    if missing:
        pytest.skip(f"docs/clients/{page}.md was NOT run: {', '.join(missing)} is not installed (scripts/test_clients)")
    if page in COMMANDS and model != "fake":
        pytest.skip("this server is not told what to say")
    if model == "tiny" and page in TOO_MUCH_FOR_TINY:
        pytest.skip(f"this model {TOO_MUCH_FOR_TINY[page]}")
    if page in WITH_TOOLS:
        request.getfixturevalue("takes_tools")
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    monkeypatch.setenv("HOME", str(tmp_path))  # agents leave notes there
    program = tmp_path / f"{page}.py"  # a file: smolagents reads the source of a tool
    program.write_text(code_of(page, base_url, model))
    try:
        runpy.run_path(str(program), run_name="__main__")
    except Exception as end:
        if model == "fake" or page not in WITH_TOOLS or type(end).__name__ not in LIMITS:
            raise
        return
    printed = capsys.readouterr().out
    assert printed.strip()
    if page in WITH_TOOLS and model == "fake":
        assert "It rains in Bonn." in printed, "the tool was called, and its result came back"
    if page in COMMANDS:
        assert "three files" in printed, "the command ran, and what it printed came back"
    if page in ("pydantic_ai", "instructor") and model == "fake":
        assert "name='Bonn' inhabitants=330000" in printed
    if page == "lm_eval":
        assert "'acc,none': " in printed
    if page in ("langchain", "haystack"):
        read = [int(tokens) for tokens in re.findall(r"^(\d+) tokens from the cache", printed, re.MULTILINE)]
        assert len(read) == 2 and (model == "fake" or read[1] > 0), "the second question finds the first one's text"
    if page == "ag2":
        talk = re.findall(r"^(planner|critic): \S", printed, re.MULTILINE)
        assert talk[:4] == ["planner", "critic", "planner", "critic"]


def git(folder, *arguments):
    who = ["-c", "user.name=kvilt", "-c", "user.email=kvilt@example.org"]
    return subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


def test_aider_edits_a_file(base_url, model, tmp_path):
    """The command of docs/clients/aider.md, with one message."""
    aider = pathlib.Path(sys.executable).parent / "aider"
    if not aider.exists():
        pytest.skip("docs/clients/aider.md was NOT run: aider-chat is not installed (scripts/test_clients)")
    if model != "fake":
        pytest.skip("this server is not told what to say")
    work = tmp_path / "work"
    work.mkdir()
    (work / "f.py").write_text("def f(): return 1\n")
    git(work, "init", "-q")
    git(work, "add", "-A")
    git(work, "commit", "-qm", "one")
    edit = "FAKE_SAY f.py\n```\n<<<<<<< SEARCH\ndef f(): return 1\n=======\ndef f(): return 2\n>>>>>>> REPLACE\n```\n"
    quiet = ["--no-show-model-warnings", "--analytics-disable", "--no-check-update", "--yes-always", "--no-auto-commits"]
    environment = {
        **os.environ,
        "HOME": str(tmp_path),
        "OPENAI_API_BASE": f"{base_url}/v1",
        "OPENAI_API_KEY": os.environ.get("KVILT_API_KEY", "none"),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    command = [aider, "--model", f"openai/{model}", "--edit-format", "diff", *quiet, "--message", edit, "f.py"]
    subprocess.run(command, cwd=work, env=environment, check=True, timeout=300, stdin=subprocess.DEVNULL)
    assert (work / "f.py").read_text() == "def f(): return 2\n"
