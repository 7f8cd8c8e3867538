#!/usr/bin/env python3
"""How many tool calls of a model are well-formed, left alone and held to the tools' schemas: BFCL's cases against a
running server.

usage: bench/bfcl_calls.py URL FOLDER [--files simple_python,multiple,live_simple] [--n 30] [--seed 1] [--at-once 4]

FOLDER holds BFCL_v4_FILE.json, and possible_answer/ beside them. Of each file --n cases are drawn with --seed. A case is
asked twice at temperature 0: with tool_choice "auto", where the model writes what it likes, and with "required", where
the answer is constrained. It is well-formed if it has a call, of tools that are there, whose arguments are JSON of the
types that the tool's schema says, with all that are required and no others. It is right if BFCL's answer has the same
call with the same arguments. BFCL's types are Python's and become JSON's. Intervals are Wilson's, 95 %.
"""
import argparse
import collections
import concurrent.futures
import json
import math
import os
import random
import time
import urllib.error
import urllib.request

TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": None}
CHECKS = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float)}


def as_schema(schema):
    """BFCL's types to JSON Schema's; only the words that a type check needs."""
    if not isinstance(schema, dict):
        return schema
    out = {}
    for key, value in schema.items():
        if key == "type":
            kind = TYPES.get(value, value)
            if kind:
                out["type"] = kind
        elif key == "properties":
            out[key] = {name: as_schema(one) for name, one in value.items()}
        elif key == "items":
            out[key] = as_schema(value)
        elif key in ("description", "enum", "required"):
            out[key] = value
    if "properties" in out:
        out["required"] = [name for name in out.get("required", []) if name in out["properties"]]
    return out


def misfit(value, schema, at="arguments"):
    """What is wrong with the value; None if it fits."""
    kind = schema.get("type")
    if kind and (not isinstance(value, CHECKS[kind]) or (isinstance(value, bool) and kind in ("integer", "number"))):
        return f"{at} is no {kind}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{at} is not in its enum"
    if isinstance(value, dict) and "properties" in schema:
        for name in schema["required"]:
            if name not in value:
                return f"{at} lacks {name}"
        for name, one in value.items():
            if name not in schema["properties"]:
                return f"{at} has {name}"
            wrong = misfit(one, schema["properties"][name], f"{at}.{name}")
            if wrong:
                return wrong
    if isinstance(value, list):
        for one in value:
            wrong = misfit(one, schema.get("items", {}), f"{at}[]")
            if wrong:
                return wrong
    return None


def plain(value):
    """As BFCL compares strings: without case, spaces and some signs."""
    return "".join(c for c in value.lower() if c not in " ,./-_*^'\"") if isinstance(value, str) else value


def agrees(value, wanted):
    """Whether the value is one of those wanted; "" among them: it may be left out."""
    for one in wanted:
        if isinstance(one, dict) and isinstance(value, dict):
            if all(agrees(value.get(key, ""), values) for key, values in one.items()) and set(value) <= set(one):
                return True
        elif isinstance(one, list) and isinstance(value, list):
            if [plain(v) for v in one] == [plain(v) for v in value]:
                return True
        elif plain(value) == plain(one):
            return True
    return False


def ask(url, messages, tools, choice):
    body = {"messages": messages, "tools": tools, "tool_choice": choice, "temperature": 0, "max_tokens": 300}
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=300) as reply:
            return json.load(reply)
    except urllib.error.HTTPError as error:
        said = error.read().decode()
        if error.code != 400:
            raise SystemExit(f"{url} says {error.code}: {said}")
        return {"refused": said}


def judge(answer, tools, truth):
    """What is wrong with the calls, None if they are well-formed; and whether they are right."""
    if "refused" in answer:
        return "refused: " + answer["refused"], False
    choice = answer["choices"][0]
    calls = choice["message"].get("tool_calls") or []
    if not calls:
        return "no call" + (", cut at max_tokens" if choice["finish_reason"] == "length" else ""), False
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    right = len(calls) == 1
    for call in calls:
        name = call["function"]["name"]
        if name not in schemas:
            return "no such tool", False
        try:
            arguments = json.loads(call["function"]["arguments"])
        except ValueError:
            return "arguments are no JSON", False
        wrong = misfit(arguments, schemas[name])
        if wrong:
            return wrong, False
        wanted = truth.get(name)
        right = right and wanted is not None and set(arguments) <= set(wanted) and all(
            agrees(arguments.get(key, ""), values) for key, values in wanted.items())
    return None, right


def wilson(k, n):
    z, p = 1.96, k / n
    middle, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return f"{p:.2f} [{(middle - half) / (1 + z * z / n):.2f}, {(middle + half) / (1 + z * z / n):.2f}]"


def read_cases(folder, name, n, seed):
    with open(os.path.join(folder, f"BFCL_v4_{name}.json")) as file:
        cases = [json.loads(line) for line in file]
    with open(os.path.join(folder, "possible_answer", f"BFCL_v4_{name}.json")) as file:
        truths = {one["id"]: one["ground_truth"][0] for one in map(json.loads, file)}
    for case in random.Random(seed).sample(cases, min(n, len(cases))):
        # A name with other signs than these is none in OpenAI's API.
        safe = {one["name"]: one["name"].replace(".", "_") for one in case["function"]}
        tools = [{"type": "function", "function": {"name": safe[one["name"]], "description": one["description"],
                                                   "parameters": as_schema(one["parameters"])}}
                 for one in case["function"]]
        yield case["question"][0], tools, {safe.get(name, name): one for name, one in truths[case["id"]].items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("folder")
    parser.add_argument("--files", default="simple_python,multiple,live_simple")
    parser.add_argument("--n", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=4)
    options = parser.parse_args()
    begin = time.time()
    sums = collections.defaultdict(lambda: [0, 0, 0])
    reasons = collections.Counter()
    used = collections.Counter()
    with concurrent.futures.ThreadPoolExecutor(options.at_once) as pool:
        for name in options.files.split(","):
            cases = list(read_cases(options.folder, name, options.n, options.seed))
            for choice in ("auto", "required"):
                answers = pool.map(lambda case: ask(options.url, case[0], case[1], choice), cases)
                for answer, (_, tools, truth) in zip(answers, cases):
                    wrong, right = judge(answer, tools, truth)
                    for key in ((name, choice), ("all", choice)):
                        sums[key][0] += 1
                        sums[key][1] += wrong is None
                        sums[key][2] += right
                    if wrong:
                        reasons[choice, wrong] += 1
                    usage = answer.get("usage", {"completion_tokens": 0})
                    used[choice, "tokens"] += usage["completion_tokens"]
                    used[choice, "accepted"] += usage.get("kvilt", {}).get("accepted", 0)
    print(f"seed {options.seed}, {time.time() - begin:.0f} s")
    for (name, choice), (n, good, right) in sums.items():
        print(f"{name:14} {choice:9} {n:3} cases: well-formed {good:3} {wilson(good, n)}, right {right:3} {wilson(right, n)}")
    for choice in ("auto", "required"):
        tokens, accepted = used[choice, "tokens"], used[choice, "accepted"]
        print(f"{choice}: {tokens} tokens, {accepted} of them drafted and right")
    for (choice, reason), times in reasons.most_common():
        print(f"{choice}: {times} x {reason}")


main()
