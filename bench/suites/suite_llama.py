#!/usr/bin/env python3
"""llama.cpp's server tests against Kvilt: a stand-in for llama-server, and a pytest plugin that needs no hub.

Run by bench/suites/run.py. As a program it takes llama-server's flags and becomes `kvilt serve` with those that mean the
same; a flag for which Kvilt has nothing is left out, so that the test which needs it fails. What a test asks of a model
that is not to be had is refused with status 3, and counts as such.

Environment: KVILT (the program), SUITE_SMALL and SUITE_REAL (models).
"""

import os
import subprocess
import sys
import tempfile
import types

CHATML = ("{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
SWITCHES = {"--offline", "--cont-batching", "--embedding", "--reranking", "--metrics", "--kv-unified", "--slots",
            "--no-slots", "--verbose", "--context-shift", "--no-ui", "--no-models-autoload", "--jinja", "--no-jinja",
            "--no-cache-idle-slots", "--ui-mcp-proxy", "--backend_sampling"}


def read(words):
    """llama-server's flags as a dictionary; switches are True."""
    given, at = {}, 0
    while at < len(words):
        if words[at] in SWITCHES:
            given[words[at]] = True
            at += 1
        else:
            given[words[at]] = words[at + 1]
            at += 2
    return given


def model_of(given):
    """A model that can stand for the one that is asked for; none: only that one would do."""
    asked = " ".join(str(given.get(flag, "")) for flag in ("--model", "--hf-repo", "--hf-file")).lower()
    if any(word in asked for word in ("split", "tinygemma", "stories15m")) or not asked.strip():
        return None
    small = ("stories260k" in asked and "infill" not in asked) or "bert" in asked
    return os.environ["SUITE_SMALL" if small else "SUITE_REAL"]


def template_of(given):
    """A file with the chat template that is asked for; llama-server knows some by name."""
    text = given.get("--chat-template")
    if text is None:
        return given.get("--chat-template-file")
    if text in ("llama3", "command-r"):
        print(f"the template '{text}' is llama.cpp's own", file=sys.stderr)
        sys.exit(3)
    with tempfile.NamedTemporaryFile("w", suffix=".jinja", delete=False) as file:
        file.write(CHATML if text == "chatml" else text)
    return file.name


def serve(words):
    given = read(words)
    model = model_of(given)
    if model is None:
        print("no model here stands for the one that is asked for", file=sys.stderr)
        sys.exit(3)
    kvilt = os.environ["KVILT"]
    known = subprocess.run([kvilt, "serve", "--help"], capture_output=True, text=True, check=False).stdout
    args = [kvilt, "serve", model, "--host", given["--host"], "--port", given["--port"], "--threads", "2",
            "--shutdown-seconds", "1", "--kv-bytes", "256MiB"]
    slots = 1 if "--kv-unified" in given else int(given.get("--parallel", 1))
    if "--ctx-size" in given and model == os.environ["SUITE_SMALL"]:
        args += ["--context", str(min(512, int(given["--ctx-size"]) // slots))]
    if "--batch-size" in given:
        args += ["--chunk", str(min(256, int(given["--batch-size"])))]
    for theirs, ours in (("--temp", "--temperature"), ("--seed", "--seed")):
        if theirs in given and ours in known:
            args += [ours, given[theirs]]
    thinks = {"on": "true", "off": "false"}.get(given.get("--reasoning"))
    if thinks and "--chat-template-kwargs" in known:
        args += ["--chat-template-kwargs", f'{{"enable_thinking": {thinks}}}']
    if "--alias" in given:
        args += ["--alias", given["--alias"]]
    if "--any-model" in known:  # llama-server takes every name
        args += ["--any-model"]
    if "--api-key" in given:
        args += ["--api-key", given["--api-key"]]
    if "--cors-origins" in given:
        args += ["--allow-origin", given["--cors-origins"]]
    template = template_of(given)
    if template and "--chat-template" in known:
        args += ["--chat-template", template]
    elif template:
        print("this program takes no chat template", file=sys.stderr)
        sys.exit(3)
    os.execv(kvilt, args)


def pytest_configure(config):
    """Its presets are not loaded beforehand: that would download all models."""
    import utils
    utils.ServerPreset.load_all = staticmethod(lambda: None)


if __name__ == "__main__":
    serve(sys.argv[1:])
else:  # before their conftest.py, which imports both
    sys.path.insert(0, os.getcwd())
    sys.modules["wget"] = types.ModuleType("wget")
