#!/usr/bin/env python3
"""What do means over contexts cost that POST /v1/documents makes (docs/server.md#seasoned-documents)?

usage: bench/season_cost.py MODEL.gguf --passages FILE.jsonl [--counts 10,50,200] [--contexts 4] [--kvilt build/release/kvilt] [--threads N]

FILE: JSON lines with "chunks" of "title" and "text" (the sets of docs/eval.md's suite multihop); its first distinct passages are taken. For
each count, on an empty cache: the passages are sent without seasoning, then again with it, and a table has their tokens; the tokens that
contexts took, by these (passes over the set), and in how many prompts; the seconds of either, by this client's clock (and, in brackets, of
all the server's threads by the processor's, which a busy machine changes less); the bytes of KV that each leaves in the pool. About four
minutes on two cores.
"""
import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "demo"))
from client import call  # noqa: E402


def passages(path, count):
    out = {}
    with open(path) as lines:
        for line in lines:
            for chunk in json.loads(line)["chunks"]:
                out.setdefault(chunk["text"], chunk["title"])
    if len(out) < count:
        sys.exit(f"season_cost: {path} has {len(out)} distinct passages, not {count}")
    return [{"title": title, "text": text} for text, title in list(out.items())[:count]]


def metric(url, name):
    with urllib.request.urlopen(url + "/metrics") as reply:
        return float(re.search(rf"^kvilt:{name}{{[^}}]*}} (\S+)", reply.read().decode(), re.M)[1])


def used_bytes(url, pool_bytes):
    return metric(url, "kv_cache_pages_used") / metric(url, "kv_cache_pages") * pool_bytes


def cpu_seconds(process):
    fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def timed(process, act):
    begin, cpu = time.monotonic(), cpu_seconds(process)
    answer = act()
    return answer, f"{time.monotonic() - begin:.1f} ({cpu_seconds(process) - cpu:.1f})"


def one_row(url, process, documents, contexts, pool_bytes):
    call(url, "/v1/cache/clear", {})
    plain, alone = timed(process, lambda: call(url, "/v1/documents", {"documents": documents}))
    size = sum(row["tokens"] for row in plain["documents"])
    before = used_bytes(url, pool_bytes)
    # The documents are known now: what this takes, contexts take.
    seasoned, seconds = timed(process, lambda: call(url, "/v1/documents", {"documents": documents, "kvilt": {"season": contexts}}))
    made = seasoned["seasoning"]
    after = used_bytes(url, pool_bytes)
    return (f"| {len(documents)} | {size:,} | {alone} | {made['passes']} | {made['tokens']:,} | {made['tokens'] / size:.2f} | {seconds} "
            f"| {before / 1e6:.1f} MB | {metric(url, 'seasoned_tokens'):,.0f} | {(after - before) / 1e6:.1f} MB |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--passages", required=True)
    parser.add_argument("--counts", default="10,50,200")
    parser.add_argument("--contexts", type=int, default=4)
    parser.add_argument("--kvilt", default=ROOT / "build/release/kvilt")
    parser.add_argument("--threads", type=int, help="of the server (all cores)")
    args = parser.parse_args()
    flags = ["--threads", str(args.threads)] if args.threads else []
    process = subprocess.Popen([args.kvilt, "serve", args.model, "--port", "0", *flags], stdout=subprocess.PIPE, text=True)
    try:
        url = next((found[1] for line in process.stdout if (found := re.match(r"serving on (http\S+)", line))), None)
        if not url:
            sys.exit("season_cost: the server did not start")
        with urllib.request.urlopen(url + "/v1/models") as reply:
            model = json.load(reply)["data"][0]
        print("| passages | tokens | seconds alone | prompts | their tokens | by the set's | seconds | KV alone | tokens of means | KV of means |")
        print("|---" * 10 + "|")
        for count in map(int, args.counts.split(",")):
            print(one_row(url, process, passages(args.passages, count), args.contexts, model["kvilt"]["kv_pool_bytes"]), flush=True)
    finally:
        process.terminate()
        process.communicate()


if __name__ == "__main__":
    main()
