#!/usr/bin/env python3
"""Streams of agents (`kvilt bench workloads --suite agents`) under Kvilt and llama-server, stream by stream in turn.

usage: agents.py MODEL.gguf [--kvilt build/release/kvilt] [--work DIR] [--scale 0.1] [--streams tools,pruning]
                 [--policies ...] [--json OUT.json]

llama-server has one slot and reuses shifted pieces of any length from 1 token (`--cache-reuse 1`), which is the most
that it can do for these streams; it is started anew for each. Its time to the first token is what it says itself
(timings.prompt_ms), Kvilt's what the engine says (usage.ttft_s), both without HTTP. Told are the mean, the median and the
90th percentile over a stream's requests. DIR is that of llamacpp.py, which builds llama-server (once).
"""
import argparse
import collections
import json
import pathlib
import statistics
import subprocess
import tempfile

import llamacpp

FLAGS = ["--parallel", "1", "--cache-reuse", "1", "--slot-prompt-similarity", "0"]


def kvilt(args, *words):
    command = [args.kvilt, "bench", "workloads", "--model", args.model, "--suite", "agents", "--scale", str(args.scale),
               "--threads", str(args.threads), *words]
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)


def prompts(args, folder):
    out = collections.defaultdict(list)
    only = ["--workloads", args.streams] if args.streams else []
    kvilt(args, "--prompts", folder / "prompts.jsonl", *only)
    for line in (folder / "prompts.jsonl").open():
        one = json.loads(line)
        out[one["workload"]].append(one["ids"])
    return out


def peer(programs, args, stream):
    """(seconds to the first token, tokens computed) of each prompt."""
    flags = ["-t", str(args.threads), "-c", str(args.context), *FLAGS]
    with llamacpp.serving(programs, args.model, args.work / "agents.log", *flags) as port:
        llamacpp.ask(port, "/completion", {"prompt": [1000, 1001, 1002], "n_predict": 1})
        said = [llamacpp.complete(port, ids)["timings"] for ids in stream]
    return [one["prompt_ms"] / 1000 for one in said], sum(one["prompt_n"] for one in said)


def row(stream, engine, times, prompt, computed):
    ordered = sorted(times)
    return {"stream": stream, "engine": engine, "requests": len(times), "prompt_tokens": prompt, "computed_tokens": computed,
            "mean_s": statistics.mean(times), "p50_s": statistics.median(times),
            "p90_s": ordered[int(.9 * (len(ordered) - 1) + .5)], "ttft_s": times}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--kvilt", type=pathlib.Path, default=pathlib.Path("build/release/kvilt"))
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("build/peers/llamacpp"))
    parser.add_argument("--scale", type=float, default=.1)
    parser.add_argument("--streams", default="", help="some of clock, tools, compaction, pruning, subagents, rag, side and "
                        "completion, joined by commas (default: all)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--context", type=int, default=32768)
    parser.add_argument("--policies", default="prefix,auto:quality=auto,auto:quality=exact")
    parser.add_argument("--no-amx", action="store_true", help="build llama-server without AMX (llamacpp.py finds out by itself)")
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    programs = llamacpp.build(args.work, args.model, args.no_amx)
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        for stream, texts in prompts(args, folder).items():
            kvilt(args, "--workloads", stream, "--policies", args.policies, "--json", folder / "rows.json")
            total = sum(map(len, texts))
            for one in json.loads((folder / "rows.json").read_text())["rows"]:
                computed = one["fresh_tokens"] + one["recomputed_tokens"]
                rows.append(row(stream, one["policy"], one["ttft_s"], total, computed))
            times, computed = peer(programs, args, texts)
            rows.append(row(stream, "llama.cpp", times, total, computed))
            for one in rows:
                if one["stream"] == stream:
                    print(f"{stream:<11} {one['engine']:<22} computed {one['computed_tokens']:6} of {total:6}   mean {one['mean_s']:.3f}"
                          f"   p50 {one['p50_s']:.3f}   p90 {one['p90_s']:.3f}", flush=True)
    if args.json:
        said = {"llamacpp": llamacpp.VERSION, "native": llamacpp.is_native(args.work), "flags": FLAGS, "scale": args.scale}
        args.json.write_text(json.dumps({**said, "rows": rows}, indent=1) + "\n")


main()
