#!/usr/bin/env python3
"""How many tool calls of a model are well-formed, left alone and forced: BFCL's simple cases against a running server.

usage: bench/bfcl_calls.py URL BFCL_v4_simple_python.json [--answers possible_answer/BFCL_v4_simple_python.json] [--n 40]

Each case is asked twice at temperature 0: with tool_choice "auto", and with "required". An answer is well-formed if it has
a call, of a tool that is there, whose arguments are JSON of the types that the tool's schema says, with all that are
required. It is right if a call's arguments are among BFCL's answers. BFCL's types are Python's and become JSON's.
"""
import argparse
import json
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


def fits(value, schema):
    kind = schema.get("type")
    if kind and (not isinstance(value, CHECKS[kind]) or (isinstance(value, bool) and kind in ("integer", "number"))):
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if isinstance(value, dict) and "properties" in schema:
        if any(name not in value for name in schema["required"]):
            return False
        return all(name in schema["properties"] and fits(one, schema["properties"][name]) for name, one in value.items())
    return not isinstance(value, list) or all(fits(one, schema.get("items", {})) for one in value)


def ask(url, messages, tools, choice):
    body = {"messages": messages, "tools": tools, "tool_choice": choice, "temperature": 0, "max_tokens": 300}
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as reply:
        return json.load(reply)["choices"][0]["message"].get("tool_calls") or []


def judge(calls, tools, truth):
    """(well-formed, right)"""
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    good = right = bool(calls)
    for call in calls:
        name = call["function"]["name"]
        try:
            arguments = json.loads(call["function"]["arguments"])
        except ValueError:
            return False, False
        if name not in schemas or not fits(arguments, schemas[name]):
            return False, False
        wanted = truth.get(name)
        right = right and wanted is not None and all(arguments.get(key, "") in values for key, values in wanted.items())
    return good, right


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("cases")
    parser.add_argument("--answers")
    parser.add_argument("--n", type=int, default=40)
    options = parser.parse_args()
    with open(options.cases) as file:
        cases = [json.loads(line) for line in file][:options.n]
    truths = {}
    if options.answers:
        with open(options.answers) as file:
            for line in file:
                case = json.loads(line)
                truths[case["id"]] = case["ground_truth"][0]
    counts = {"auto": [0, 0], "required": [0, 0]}
    for case in cases:
        tools = [{"type": "function", "function": {"name": one["name"], "description": one["description"],
                                                   "parameters": as_schema(one["parameters"])}}
                 for one in case["function"]]
        for choice, count in counts.items():
            good, right = judge(ask(options.url, case["question"][0], tools, choice), tools, truths.get(case["id"], {}))
            count[0] += good
            count[1] += right
    for choice, (good, right) in counts.items():
        print(f"{choice}: {good} of {len(cases)} well-formed, {right} right")


main()
