#!/usr/bin/env python3
"""Drafts without a draft model: `kvilt bench drafts` beside llama-server's n-gram speculation, on the same prompts.

usage: lookup.py MODEL.gguf [--kvilt build/release/kvilt] [--work DIR] [--kinds quote,edit,call,free] [--prompts 3]
                 [--types ngram-simple,ngram-cache,ngram-mod] [--tokens 192] [--rounds 3] [--json OUT.json]

Each type of speculation is a server of its own, and one has none; their answers take turns. Of a prompt whose call another
conversation has made, that conversation is answered first. Tokens a step: tokens after the first by the steps that they took,
which are as many less those drafted and right. Times are the server's own (timings.predicted_ms), without HTTP. DIR is that of
llamacpp.py, which builds llama-server (once).
"""
import argparse
import collections
import contextlib
import json
import pathlib
import statistics
import subprocess
import tempfile

import llamacpp


def kvilt(args, *words):
    command = [args.kvilt, "bench", "drafts", "--model", args.model, "--kinds", args.kinds, "--prompts", args.prompts,
               "--tokens", args.tokens, "--rounds", args.rounds, "--threads", args.threads, *words]
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)


def ask(port, ids, tokens, free):
    body = {"prompt": ids, "n_predict": tokens, "cache_prompt": True, "temperature": 1 if free else 0, "seed": 1}
    if free:
        body |= {"ignore_eos": True, "samplers": ["temperature"]}
    return llamacpp.ask(port, "/completion", body)


def compare(args, ports, prompt):
    """Rows of one prompt: seconds a token (medians), and what was drafted and right."""
    seconds, last = collections.defaultdict(list), {}
    for port in ports.values():
        if "before" in prompt:
            ask(port, prompt["before"], args.tokens, False)
        ask(port, prompt["ids"], 1, prompt["free"])  # its prompt is cached
    for n in range(args.rounds):
        order = list(ports)
        for name in order if n % 2 == 0 else order[::-1]:
            timings = ask(ports[name], prompt["ids"], args.tokens, prompt["free"])["timings"]
            seconds[name].append(timings["predicted_ms"] / 1000 / max(1, timings["predicted_n"] - 1))
            last[name] = timings
    for name, timings in last.items():
        after, right = timings["predicted_n"] - 1, timings.get("draft_n_accepted", 0)
        yield {"engine": name, "kind": prompt["kind"], "prompt": prompt["prompt"], "tokens": timings["predicted_n"],
               "token_s": statistics.median(seconds[name]), "drafted": timings.get("draft_n", 0), "accepted": right,
               "tokens_per_step": after / max(1, after - right),
               "speed_up": statistics.median(seconds["plain"]) / statistics.median(seconds[name])}


def peers(args, programs, prompts):
    rows = []
    with contextlib.ExitStack() as stack:
        ports = {}
        for name in ["plain", *args.types.split(",")]:
            flags = ["-t", str(args.threads), "-c", "8192", "--parallel", "1"] + (["--spec-type", name] if name != "plain" else [])
            ports[name] = stack.enter_context(llamacpp.serving(programs, args.model, args.work / f"{name}.log", *flags))
        for prompt in prompts:
            rows.extend(compare(args, ports, prompt))
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--kvilt", type=pathlib.Path, default=pathlib.Path("build/release/kvilt"))
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("build/peers/llamacpp"))
    parser.add_argument("--kinds", default="quote,edit,call,free")
    parser.add_argument("--types", default="ngram-simple,ngram-cache,ngram-mod")
    for flag, default in (("--prompts", 3), ("--tokens", 192), ("--rounds", 3), ("--threads", 2)):
        parser.add_argument(flag, type=int, default=default)
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    programs = llamacpp.build(args.work, args.model)
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        kvilt(args, "--prompt-file", folder / "prompts.jsonl")
        prompts = [json.loads(line) for line in (folder / "prompts.jsonl").open()]
        rows = peers(args, programs, prompts)
        kvilt(args, "--json", folder / "rows.json")
        for one in json.loads((folder / "rows.json").read_text())["rows"]:
            rows.append({"engine": "kvilt", **{name: one[name] for name in ("kind", "prompt", "tokens", "drafted", "accepted",
                         "tokens_per_step", "speed_up")}, "token_s": one["token_s_with"]})
    for kind in args.kinds.split(","):
        for engine in ["kvilt", "plain", *args.types.split(",")]:
            of = [row for row in rows if row["kind"] == kind and row["engine"] == engine]
            middle = {name: statistics.median(row[name] for row in of) for name in ("tokens_per_step", "speed_up", "token_s", "tokens")}
            print(f"{kind:<6} {engine:<14} tokens {middle['tokens']:6.0f}   tokens a step {middle['tokens_per_step']:5.2f}"
                  f"   speed-up {middle['speed_up']:5.2f}   {1000 * middle['token_s']:6.1f} ms a token", flush=True)
    if args.json:
        args.json.write_text(json.dumps({"llamacpp": llamacpp.VERSION, "rows": rows}, indent=1) + "\n")


main()
