"""The fenced blocks of docs/server.md, as they stand but for the server's address, its key and the model's name.

Shell and Python are run against the server; a block of JSON has the fields of what the server answers, and no others.
`kvilt serve` in a block starts the server, which runs already here: tests/program/test_program.py runs that line, and
test_cache.py there the blocks that ask no server. The YAML is another program's configuration.
"""

import json
import os
import pathlib
import re
import runpy
import shutil
import subprocess
import urllib.request

import openai
import pytest
from test_openai_client import post

PAGE = pathlib.Path(__file__, "../../../docs/server.md").resolve()
KEY = os.environ.get("KVILT_API_KEY", "none")
# curl says nothing of an error's status by itself, and a key is in the header, which the page leaves out.
CURL = f'curl() {{ command curl --fail-with-body -H "Authorization: Bearer {KEY}" "$@" && echo; }}\n'

pytestmark = pytest.mark.usefixtures("chats")


def blocks(language):
    """{section: code}"""
    found, section, text = {}, "", PAGE.read_text()
    for heading, kind, code in re.findall(r"^#+ ([^\n]*)$|^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        section = heading or section
        if code and kind == language and (kind != "sh" or "http://" in code):
            assert section not in found, f"{section} has two blocks of {language}: give one its own section"
            found[section] = code
    return found


# A row of /v1/documents, as its section has it.
DOCUMENT_ROW = ["index", "tokens", "prompt_tokens", "prefix", "reused", "recomputed", "fresh", "seconds"]
SHELL, PYTHON, JSON = blocks("sh"), blocks("python"), blocks("json")
COMMANDS = [code for code in re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE) if "http://" not in code]


def here(code, base_url, model):
    assert "http://127.0.0.1:8000" in code
    for stands_for, ours in [("http://127.0.0.1:8000", base_url), ('"MODEL"', repr(model)), ('"none"', repr(KEY))]:
        code = code.replace(stands_for, ours)
    return code


def run_shell(code, folder=None):
    """What it printed, as JSON, a value for each command; of a stream the last event's."""
    if not shutil.which("curl"):
        pytest.skip("blocks of docs/server.md were NOT run: curl is not installed")
    commands = re.sub(r"^build/release/kvilt serve .*\n", "", code, flags=re.MULTILINE)
    done = subprocess.run(["bash", "-euc", CURL + commands], capture_output=True, text=True, timeout=300, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    out, event = [], None
    for line in filter(None, done.stdout.splitlines()):
        if line == "data: [DONE]":
            out.append(event)
        elif line.startswith("data: "):
            event = json.loads(line.removeprefix("data: "))
        elif not line.startswith(":"):
            out.append(json.loads(line))
    return out


def run_python(code, folder):
    program = folder / "block.py"
    program.write_text(code)
    runpy.run_path(str(program), run_name="__main__")


def shape(value):
    """Which fields there are, whatever their values."""
    return {name: shape(inner) for name, inner in value.items()} if isinstance(value, dict) else None


def usage_is_whole(usage):
    ours = usage["kvilt"]
    return (ours["prefix"] + ours["reused"] + ours["fresh"] == usage["prompt_tokens"]
            and usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - ours["fresh"] - ours["recomputed"])


def test_every_block_is_run():
    fences = re.findall(r"^```.*$", PAGE.read_text(), re.MULTILINE)
    elsewhere = len(COMMANDS) + fences.count("```yaml")
    assert len(fences) == 2 * (len(SHELL) + len(PYTHON) + len(JSON) + elsewhere), "another language, or an odd fence"
    assert "{%s}" % ", ".join(f'"{name}"' for name in DOCUMENT_ROW) in PAGE.read_text()
    assert len(SHELL) >= 4 and len(PYTHON) >= 3 and set(JSON) == {"What an answer says about its prompt", "Diagnostics"}


@pytest.mark.parametrize("section", SHELL)
def test_shell(section, base_url, model, tmp_path):
    code = SHELL[section]
    answers = run_shell(here(code, base_url, model), tmp_path)
    assert len(answers) == len(re.findall(r"^curl ", code, re.MULTILINE)) > 0
    for path, answer in zip(re.findall(r"^curl -s http://127.0.0.1:8000(\S+)", code, re.MULTILINE), answers):
        if path == "/v1/chat/completions":
            assert answer["object"] == "chat.completion" and usage_is_whole(answer["usage"])
        if path == "/v1/documents":
            assert {*answer["documents"][0]} == {*DOCUMENT_ROW} and answer["documents"][0]["tokens"] > 0


@pytest.mark.parametrize("section", PYTHON)
def test_python(section, base_url, model, capsys, tmp_path):
    run_python(here(PYTHON[section], base_url, model), tmp_path)
    assert capsys.readouterr().out.strip()


def test_what_is_wrong_fails(base_url, model, tmp_path):
    code = here(SHELL["The server"], base_url, model)
    with pytest.raises(AssertionError, match="error"):
        run_shell(code.replace("/v1/chat/completions", "/v1/chat/completion"))
    with pytest.raises(AssertionError, match="messages"):
        run_shell(code.replace('"messages"', '"message"'))
    with pytest.raises(openai.NotFoundError):
        run_python(here(PYTHON["Responses"], base_url + "/v2", model), tmp_path)
    with pytest.raises(NameError):
        run_python(PYTHON["Responses"].replace("openai.OpenAI", "OpenAI"), tmp_path)


def test_usage_has_the_page_s_fields(base_url, model):
    """Of the first request of the page."""
    on_page = json.loads("{" + JSON["What an answer says about its prompt"] + "}")["usage"]
    ours = run_shell(here(SHELL["The server"], base_url, model))[0]["usage"]
    assert shape(on_page) == shape(ours)
    assert usage_is_whole(on_page)
    del on_page["kvilt"]["near"]  # power
    assert shape(on_page) != shape(ours)


def test_diagnostics_have_the_page_s_fields(base_url, model):
    """Of a conversation whose second request lacks a part of the first one, as on the page."""
    on_page = json.loads(JSON["Diagnostics"])
    text = ["the red key is in the north hall. " * 12, "the blue key is by the river. " * 12]
    for order in (text, text[::-1]):
        parts = [{"type": "text", "text": part, "cache_control": {"type": "ephemeral"}} for part in order]
        answer = post(base_url, "/v1/chat/completions", {
            "messages": [{"role": "user", "content": [*parts, {"type": "text", "text": "where is the key?"}]}],
            "max_tokens": 1, "cache_salt": "page", "kvilt": {"policy": "naive", "diagnostics": True}})
    ours = answer["usage"]["kvilt"]["diagnostics"]
    for diagnostics in (on_page, ours):
        assert sum(patch["count"] for patch in diagnostics["quilt"]) == diagnostics["prompt_tokens"]
    shown = {patch["kind"]: shape(patch) for patch in on_page["quilt"]}
    kinds = {patch["kind"] for patch in ours["quilt"]}
    assert kinds >= ({"fresh"} if model == "fake" else {"reused", "fresh"}) and kinds <= set(shown)
    for patch in ours["quilt"]:
        assert {name: field for name, field in shape(patch).items() if name != "evicted"} == shown[patch["kind"]]
    del on_page["fresh"], ours["fresh"]  # by reason, of which each request has its own
    assert shape(on_page) == shape(ours)
    del on_page["seconds"]["find"]  # power
    assert shape(on_page) != shape(ours)


def test_a_request_is_kept_as_it_was_told(base_url, model):
    """What `usage` has and what the route of the page has are the same."""
    answer = post(base_url, "/v1/chat/completions", {
        "messages": [{"role": "user", "content": "where is the key?"}], "max_tokens": 1, "kvilt": {"diagnostics": True}})
    request = urllib.request.Request(f"{base_url}/v1/requests/{answer['id']}", headers={"Authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(request) as reply:
        assert shape(json.load(reply)) == shape(answer["usage"]["kvilt"]["diagnostics"])
