#!/usr/bin/env python3
"""How much of a prompt's pieces looks alike (src/index/look_alikes.h), in texts of several kinds?

usage: bench/look_alike_shares.py URL KIND:PATH... [--prompts N] [--seed S]

URL: a server, which tokenizes; its model computes nothing. A prompt is a set of pieces. KIND says which:
  chunks   a line of PATH, JSON with "chunks" of "title" and "text" (the sets of docs/eval.md's suite multihop)
  tools    eight random tools of PATH, JSON lines with "function" (BFCL)
  lines    the first sixteen lines of PATH, which is a pattern: a prompt for each file
  files    six random files that PATH, a pattern, finds, up to 3,000 characters of each
  text     six random places of PATH, 1,500 characters each
  table    a table of N rows in five pieces among four places of PATH, 1,000 characters each; N is 20 or 60 in turn: a
           staff list, invoices, a log, a price list. Two rows: the table's pieces, and the others
For each kind, of its pieces: tokens (median); the share of a piece by itself (median); among all of its prompt (10th, 50th and 95th
percentile); the share of their tokens in pieces of 64 tokens and more above .28, which `auto` takes for look-alikes. Seconds.
"""
import argparse
import collections
import glob
import json
import pathlib
import random
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "demo"))
from client import call  # noqa: E402

STRETCH = 2048
PEOPLE = ("Anna Boris Clara David Elena Felix Greta Henrik Irene Jonas".split(),
          "Abel Berger Conrad Dorn Ebert Falk Graf Hansen Ivers Jansen".split())
JOBS, PARTS = "backup index report mail sync import export".split(), "screw washer bolt bracket hinge spring".split()


def shares(pieces):
    """Of each piece, as look_alikes() has it."""
    all_of, alike, windows = [0] * len(pieces), [0] * len(pieces), []

    def count():
        after = collections.defaultdict(list)
        for piece, *tokens in windows:
            after[tuple(tokens[:3])].append((piece, tokens[3]))
        for group in after.values():
            differ = len({token for _, token in group}) > 1
            for piece, _ in group:
                all_of[piece] += 1
                alike[piece] += differ
        windows.clear()

    for i, ids in enumerate(pieces):
        for at in range(len(ids) - 3):
            windows.append((i, *ids[at:at + 4]))
            if len(windows) == STRETCH:
                count()
    count()
    return [a / max(1, n) for a, n in zip(alike, all_of)]


def table(kind, rows, dice):
    name = (lambda: " ".join(map(dice.choice, PEOPLE)), lambda: f"R-{dice.randrange(20000, 30000)}",
            lambda: f"{dice.choice(JOBS)}-{dice.randrange(100, 1000)}", lambda: f"{dice.choice(PARTS)} M{dice.randrange(2, 99)}")[kind]
    form = ("{}, room {}, extension {}, deputy: {}\n", "Invoice {}: due in {} days, total {} EUR, follows invoice {}\n",
            "Job {} began at minute {} and finished after {} ms, started by job {}\n", "| {} | {} | {} | {} |\n")[kind]
    lines = [form.format(name(), dice.randrange(10, 999), dice.randrange(1000, 9999), name()) for _ in range(rows)]
    return ["".join(lines[rows * i // 5:rows * (i + 1) // 5]) for i in range(5)]


def places(text, count, size, dice):
    return [text[at:at + size] for at in (dice.randrange(len(text) - size) for _ in range(count))]


def prompts_of(kind, path, count, dice):
    """Lists of (group, text)."""
    plain = lambda texts: [("", text) for text in texts]  # noqa: E731
    if kind == "chunks":
        rows = [json.loads(line) for line in open(path)][:count]
        return [plain(f"{one['title']}\n{one['text']}" for one in row["chunks"]) for row in rows]
    if kind == "tools":
        tools = [json.dumps(tool) for line in open(path) for tool in json.loads(line)["function"]]
        return [plain(dice.sample(tools, 8)) for _ in range(count)]
    if kind in ("lines", "files"):
        found = sorted(glob.glob(path, recursive=True)) or sys.exit(f"look_alike_shares: no file is called {path}")
        texts = [open(name).read() for name in found]
        if kind == "lines":
            return [plain(text.splitlines()[:16]) for text in texts]
        return [plain(text[:3000] for text in dice.sample(texts, min(6, len(texts)))) for _ in range(count)]
    text = open(path).read()
    if kind == "text":
        return [plain(places(text, 6, 1500, dice)) for _ in range(count)]
    if kind == "table":
        made = []
        for i in range(count):
            made.append([("table", one) for one in table(i % 4, (20, 60)[i // 4 % 2], dice)])
            made[-1] += [("others", one) for one in places(text, 4, 1000, dice)]
            dice.shuffle(made[-1])
        return made
    sys.exit(f"look_alike_shares: '{kind}' is not chunks, tools, lines, files, text or table")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("kinds", nargs="+", metavar="KIND:PATH")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    print("| texts | pieces | tokens | by itself | among all | above .28 |\n|---|---|---|---|---|---|")
    for word in args.kinds:
        kind, _, path = word.partition(":")
        dice, groups = random.Random(args.seed), collections.defaultdict(list)
        for prompt in prompts_of(kind, path, args.prompts, dice):
            ids = [call(args.url, "/tokenize", {"content": text})["tokens"] for _, text in prompt]
            for (group, _), own, among in zip(prompt, ids, shares(ids)):
                groups[group].append((len(own), shares([own])[0], among))
        for group, rows in groups.items():
            at = lambda i, share: sorted(row[i] for row in rows)[int(share * (len(rows) - 1))]  # noqa: E731
            taken = sum(n for n, _, among in rows if n >= 64 and among > .28) / sum(n for n, _, _ in rows)
            print(f"| {kind} {pathlib.Path(path).name} {group} | {len(rows)} | {at(0, .5)} | {at(1, .5):.2f} "
                  f"| {at(2, .1):.2f}, {at(2, .5):.2f}, {at(2, .95):.2f} | {taken:.2f} |")


if __name__ == "__main__":
    main()
