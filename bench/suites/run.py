#!/usr/bin/env python3
"""Runs other servers' black-box tests against Kvilt, and counts what passes.

    bench/suites/run.py llama CHECKOUT [--out DIR] [-- PYTEST...]     llama.cpp's tools/server/tests
    bench/suites/run.py vllm CHECKOUT [--out DIR] [-- PYTEST...]      vLLM's tests/entrypoints/openai

CHECKOUT is a folder of the other project at the version that is to be named. Its tests are run as they stand; only what
starts the server, and what they import of the project itself, is replaced (suite_llama.py, suite_vllm.py beside this file). Needs
pytest, pytest-asyncio, pytest-timeout, requests, openai, jsonschema, regex, numpy, prometheus-client, lark, tokenizers, jinja2.
Results: DIR/junit.xml, and a table on stdout. docs/results/suites.md has what came of it.
"""

import argparse
import collections
import os
import pathlib
import subprocess
import sys
import xml.etree.ElementTree

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
FOLDERS = {"llama": "tools/server/tests", "vllm": "."}
# vLLM's that talk to a server alone; the others test its classes, or models that Kvilt does not read.
VLLM = ("basic chat chat_echo chat_logit_bias_validation chat_with_tool_reasoning chunked_prompt completion "
        "completion_with_function_calling embedding metrics models prompt_validation rerank score return_tokens_as_ids "
        "root_path tokenization async_tokenization truncation")
TESTS = {"llama": ["unit", "-m", "not slow"],
         "vllm": ["--noconftest", *(f"tests/entrypoints/openai/test_{name}.py" for name in VLLM.split())]}


def outcome(case):
    for child in case:
        if child.tag in ("failure", "error", "skipped"):
            return child.tag, (child.get("message") or "").splitlines()[:1]
    return "passed", []


def report(path):
    rows = collections.defaultdict(collections.Counter)
    for case in xml.etree.ElementTree.parse(path).iter("testcase"):
        rows[case.get("classname").split(".")[-1]][outcome(case)[0]] += 1
    total = collections.Counter()
    print("| file | tests | passed | failed | skipped |\n|---|---|---|---|---|")
    for name, row in sorted(rows.items()):
        total.update(row)
        print(f"| {name} | {sum(row.values())} | {row['passed']} | {row['failure'] + row['error']} | {row['skipped']} |")
    print(f"| all | {sum(total.values())} | {total['passed']} | {total['failure'] + total['error']} | {total['skipped']} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=FOLDERS)
    parser.add_argument("checkout", type=pathlib.Path)
    parser.add_argument("--kvilt", default=str(ROOT / "build/release/kvilt"))
    parser.add_argument("--small", default=str(ROOT / "tests/data/models/stories260K/derived-stories260K-F32.gguf"))
    parser.add_argument("--real", default=str(ROOT / "models/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"))
    parser.add_argument("--tokenizer", default="", help="folder with Qwen2.5's vocab.json, merges.txt, tokenizer_config.json")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("build/suites"))
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    given, theirs = parser.parse_args(sys.argv[1:split]), sys.argv[split + 1:]
    out = (given.out / given.suite).resolve()
    out.mkdir(parents=True, exist_ok=True)
    env = dict(os.environ, KVILT=str(pathlib.Path(given.kvilt).resolve()), SUITE_SMALL=str(pathlib.Path(given.small).resolve()),
               SUITE_REAL=str(pathlib.Path(given.real).resolve()), LLAMA_SERVER_BIN_PATH=str(HERE / "suite_llama.py"),
               SUITE_TOKENIZER=str(pathlib.Path(given.tokenizer).resolve()), SUITE_OUT=str(out), PYTHONPATH=str(HERE))
    command = [sys.executable, "-m", "pytest", "-p", "suite_" + given.suite, "--timeout", "180", "-q", "--tb=native",
               f"--junitxml={out / 'junit.xml'}", *(theirs or TESTS[given.suite])]
    with open(out / "log.txt", "w") as log:
        subprocess.run(command, cwd=given.checkout / FOLDERS[given.suite], env=env, stdout=log, stderr=log, check=False)
    report(out / "junit.xml")


if __name__ == "__main__":
    main()
