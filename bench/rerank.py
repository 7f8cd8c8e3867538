#!/usr/bin/env python3
"""The same passages ranked for one query after another: seconds a request, and how near to exact scores.

usage: rerank.py MODEL PASSAGES.jsonl [--kvilt build/release/kvilt] [--questions 3] [--skip 240] [--qualities exact,balanced,draft]
       [--threads 2] [--json OUT.json]

PASSAGES.jsonl: questions with `chunks` (docs/eval.md). The passages of --questions questions are one pool. Each quality
has a server of its own, which ranks the pool for another question first (everything is new then), and then for each of
its own. A prefix cache finds only the instruction again, since the passages stand behind the query. Shown: seconds of the
first request and the median of the others, the share of their prompt tokens that was computed, Spearman's correlation
with the exact scores, the largest difference of a score, and how many passages that answer are among the first as exact
and by this quality (a chat model is no trained ranker: read it beside exact's).
"""
import argparse
import json
import pathlib
import statistics
import time

from traffic_http import Server


def ranks(scores):
    order = sorted(range(len(scores)), key=lambda i: -scores[i])
    out = [0.0] * len(scores)
    begin = 0
    while begin < len(order):
        end = begin
        while end < len(order) and scores[order[end]] == scores[order[begin]]:
            end += 1
        for i in order[begin:end]:
            out[i] = (begin + end - 1) / 2
        begin = end
    return out


def spearman(a, b):
    a, b = ranks(a), ranks(b)
    return statistics.correlation(a, b) if len(set(a)) > 1 and len(set(b)) > 1 else float("nan")


def ask(server, quality, query, passages):
    body = {"query": query, "documents": passages, "return_documents": False, "kvilt": {"quality": quality}}
    begin = time.monotonic()
    answer = server.call("/v1/rerank", body)
    seconds = time.monotonic() - begin
    scores = [0.0] * len(passages)
    for row in answer["results"]:
        scores[row["index"]] = row["relevance_score"]
    return seconds, scores, answer["usage"]


def computed(usage):
    known = usage["kvilt"]
    return usage["prompt_tokens"] - known["prefix"] - known["reused"] + known["recomputed"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("passages", type=pathlib.Path)
    parser.add_argument("--kvilt", type=pathlib.Path, default=pathlib.Path("build/release/kvilt"))
    parser.add_argument("--questions", type=int, default=3)
    parser.add_argument("--skip", type=int, default=240)
    parser.add_argument("--qualities", default="exact,balanced,draft")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    lines = [json.loads(line) for line in args.passages.read_text().splitlines()[args.skip:args.skip + args.questions + 1]]
    first, questions = lines[0], lines[1:]
    passages, answering = [], []
    for line in questions:
        at = len(passages)
        answering.append([at + i for i, chunk in enumerate(line["chunks"]) if chunk["is_supporting"]])
        passages += [f"{chunk['title']}\n{chunk['text']}" for chunk in line["chunks"]]
    exact, rows = None, []
    for quality in args.qualities.split(","):
        with Server(args.kvilt, args.model, "--threads", str(args.threads), "--kv-bytes", "2GiB") as server:
            cold, _, usage = ask(server, quality, first["question"], passages)
            asked = [ask(server, quality, line["question"], passages) for line in questions]
        exact = exact or asked
        hits = [sum(i in sorted(range(len(scores)), key=lambda i: -scores[i])[:2 * len(wanted)] for i in wanted)
                for (_, scores, _), wanted in zip(asked, answering)]
        rows.append({
            "quality": quality, "passages": len(passages), "prompt_tokens": usage["prompt_tokens"], "first_s": round(cold, 2),
            "later_s": round(statistics.median(one[0] for one in asked), 2),
            "computed": round(sum(computed(one[2]) for one in asked) / sum(one[2]["prompt_tokens"] for one in asked), 3),
            "spearman": round(statistics.mean(spearman(a[1], b[1]) for a, b in zip(asked, exact)), 3),
            "largest_difference": round(max(abs(x - y) for a, b in zip(asked, exact) for x, y in zip(a[1], b[1])), 4),
            "answering_found": sum(hits), "answering": sum(map(len, answering))})
        print(json.dumps(rows[-1]), flush=True)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
