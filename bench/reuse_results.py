#!/usr/bin/env python3
"""Measures reuse on a real model; writes docs/results/reuse.md and docs/results/parity.md, tables with commands.

usage: bench/reuse_results.py MODEL.gguf [--kvilt build/release/kvilt] [--rounds 5]      about ten minutes on two cores
"""
import argparse
import json
import os
import subprocess
import tempfile
import textwrap

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
POLICIES = "full,prefix,naive,sparsex,sparsex:l_star=0,sparsex:phase1=all"
COLUMNS = [("policy", "policy", "{}"), ("prompt_tokens", "prompt", "{}"), ("prefix_tokens", "prefix", "{}"), ("reused_tokens", "reused", "{}"),
           ("recomputed_tokens", "recomputed", "{}"), ("fresh_tokens", "fresh", "{}"), ("ttft_s", "TTFT s", "{:.3f}"), ("ttft_spread_s", "±", "{:.3f}"),
           ("ratio", "of full", "{:.3f}"), ("flops_ratio", "FLOPs of full", "{:.3f}"), ("over_bound", "TTFT / bound", "{:.2f}"),
           ("kl_first", "KL first", "{:.3f}"), ("top1_same", "top-1", "{}")]


def run(args, *arguments):
    """Returns (command as a reader would type it, report)."""
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        command = [args.kvilt, *arguments, "--model", args.model, "--json", out.name]
        print("$", " ".join(command), flush=True)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        report = json.load(open(out.name))
    return "build/release/kvilt " + " ".join(arguments) + " --model $MODEL --json out.json", report


def table(rows, columns):
    lines = ["| " + " | ".join(title for _, title, _ in columns) + " |", "|" + "---|" * len(columns)]
    for row in rows:
        lines.append("| " + " | ".join(form.format(row[key]) for key, _, form in columns) + " |")
    return "\n".join(lines)


def with_ratios(rows):
    full = {row["case"]: row for row in rows if row["policy"] == "full"}
    for row in rows:
        base = full[row["case"]]
        row.update(ratio=row["ttft_s"] / base["ttft_s"], flops_ratio=row["flops"] / base["flops"], over_bound=row["ttft_s"] / row["bound_s"])
        row["top1_same"] = "same" if row["top1_same"] else "other"
    return rows


def prose(words):
    return textwrap.fill(words, 120, break_long_words=False, break_on_hyphens=False)


def section(title, command, body, words=""):
    return f"## {title}\n\n{prose(words) + chr(10) * 2 if words else ''}```\n{command}\n```\n\n{body}\n"


def write(page, text):
    with open(os.path.join(ROOT, "docs/results", page), "w") as out:
        out.write(text)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--kvilt", default=os.path.join(ROOT, "build/release/kvilt"))
    parser.add_argument("--rounds", default="5")
    args = parser.parse_args()
    parts, report = [], None
    orders = [("shuffle", "Eight known documents of 256 tokens in a new order"), ("reverse", "In reverse"),
              ("insert", "With a new document in front"), ("drop", "Without the first document")]
    for order, title in orders:
        command, report = run(args, "bench", "reuse", "--synthetic", "8x256", "--order", order, "--policies", POLICIES, "--rounds", args.rounds)
        parts.append(section(title, command, table(with_ratios(report["rows"]), COLUMNS)))
    command, other = run(args, "bench", "reuse", "--synthetic", "8x256", "--order", "shuffle", "--unmarked", "--policies", "full,naive,sparsex", "--rounds", args.rounds)
    parts.append(section("The same without marks: the pieces are discovered", command, table(with_ratios(other["rows"]), COLUMNS)))
    command, other = run(args, "bench", "reuse", "--synthetic", "3x500", "--order", "3-1-2", "--policies", "full,prefix,naive,sparsex", "--rounds", args.rounds)
    parts.append(section("Three documents of 500 tokens, order 3-1-2", command, table(with_ratios(other["rows"]), COLUMNS),
                         "llama.cpp's `--cache-reuse` was tried on a prompt of this shape: it reused 554 of 1,596 tokens in its best setting, none by "
                         "default."))
    rows, commands = [], []
    for pieces in ["8x256", "64x32"]:
        for placement in ["zero-copy", "copy"]:
            command, other = run(args, "bench", "reuse", "--synthetic", pieces, "--order", "shuffle", "--policies", "full,naive,sparsex", "--decode", "32",
                                 "--placement", placement, "--rounds", args.rounds)
            commands.append(command)
            rows += with_ratios(other["rows"])
    columns = [("case", "documents", "{}"), ("placement", "placement", "{}"), *COLUMNS[:1], *COLUMNS[6:9], ("decode_tok_s", "decode tokens/s", "{:.1f}")]
    parts.append(section("Zero-copy against copying, prefill and decode", "\n".join(commands), table(rows, columns),
                         "Zero-copy costs a rotated query per piece and spans cut where tokens were recomputed; copying costs memory per request "
                         "(24 KiB a token of this model) and a pass over the pieces before the first step. The default is zero-copy: a concurrent request "
                         "then costs its own text and what it recomputed, for a tenth of the speed at most."))
    cases = os.path.join(ROOT, "demo/hotpotqa.jsonl")
    command, other = run(args, "bench", "reuse", "--cases", os.path.relpath(cases, os.getcwd()), "--order", "shuffle", "--policies", POLICIES, "--rounds", "3")
    parts.append(section("HotpotQA passages (the demo's cases)", command, table(with_ratios(other["rows"]), [("case", "case", "{}"), *COLUMNS])))
    parity = os.path.relpath(os.path.join(ROOT, "tests/data/parity/qwen2.5-coder-0.5b.json"), os.getcwd())
    command, other = run(args, "eval", "--parity", parity)
    parity_table = table(other["rows"], [
        ("name", "case", "{}"), ("max_abs_logit_diff", "max abs logit difference", "{:.3f}"), ("top1_same", "top-1 same", "{}"),
        ("greedy_same", "equal greedy tokens", "{}"), ("greedy_tokens", "of", "{}")])
    name, machine = report["model"]["name"], report["machine"]
    write("parity.md", "# Does the engine compute what Transformers computes?\n\n" + prose(
        f"Made by `bench/reuse_results.py`. {name} ({report['model']['description']}) against Transformers in fp32 on the dequantised weights. The "
        "difference comes from rounding activations to int8: with `--activations f32` it is at most .00004, and the KL at the prompt's end below 1e-10 "
        "([linear](../design/linear.md#what-rounding-costs-and---activations)).") + f"\n\n```\n{command}\n```\n\n{parity_table}\n")
    write("reuse.md", "# What does each order of known documents cost?\n\n" + prose(
        f"Made by `bench/reuse_results.py`. {name} ({report['model']['description']}); {machine['cpu']}, {machine['cores']} cores, {machine['backend']} kernels, "
        f"{machine['threads']} threads. TTFT is the median of {args.rounds} rounds in which the policies take turns; ± is half the distance of the quartiles. "
        "The bound is what the same work would take at the matmul, attention and read rates measured in the same run ([time](time-to-first-token.md)). KL "
        "first is KL(full || policy) in nats at the first answer token; synthetic documents are words in no order: quality is measured on "
        "real tasks ([by method](quality-by-method.md)).") + "\n\n" + "\n".join(parts))


main()
