#!/usr/bin/env python3
"""How are near duplicates found with the fewest keys? Over the source files of a folder, in edited forms: minima of
neighbouring grams (what index/near_index.h keeps) against bands of MinHash over windows of 64 tokens; and how much of
each form is in equal runs at all. The figures of docs/design/finding.md#near-duplicates.

  bench/near_study.py KVILT MODEL FOLDER [--files 150] [--tokens FILE]   (FILE keeps the token ids for the next time)
"""
import argparse
import collections
import itertools
import json
import os
import pathlib
import random
import subprocess

FORMS = ["equal", "numbered", "escaped", "indented", "edited", "shuffled"]
MASK = (1 << 64) - 1


def forms_of(text, rng):
    lines = text.split("\n")
    edited = [line if rng.random() > 0.2 else line.replace(" ", " x", 1) + " // changed" for line in lines]
    long = [line for line in lines if len(line) > 40]
    rng.shuffle(long)
    return {
        "numbered": "\n".join(f"{i + 1:6d}\t{line}" for i, line in enumerate(lines)),
        "escaped": json.dumps(text),
        "indented": "\n".join("    " + line for line in lines),
        "edited": "\n".join(edited),
        "shuffled": "\n".join(long),
    }


def tokens_of(o):
    """[{form: ids}]: of every file "equal", of every fifth also the other forms."""
    if o.tokens and os.path.exists(o.tokens):
        return json.load(open(o.tokens))

    def tokenize(text):
        command = [o.kvilt, "tokenize", "--ids", o.model, "-"]
        return [int(x) for x in subprocess.run(command, input=text.encode(), capture_output=True, check=True).stdout.split()]

    rng = random.Random(1)
    names = sorted(p for p in pathlib.Path(o.folder).rglob("*") if p.suffix in (".cc", ".h", ".py", ".c", ".cpp"))
    names = [p for p in names if 3000 < p.stat().st_size < 9000][: o.files]
    out = []
    for i, name in enumerate(names):
        text = name.read_text()
        one = {"equal": tokenize(text)}
        if i % 5 == 0:
            one |= {form: tokenize(edited) for form, edited in forms_of(text, rng).items()}
        out.append(one)
    if o.tokens:
        json.dump(out, open(o.tokens, "w"))
    return out


def mix(x):
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def grams(ids, k):
    out = []
    for i in range(len(ids) - k + 1):
        h = 0
        for token in ids[i : i + k]:
            h = (h * 0x9E3779B97F4A7C15 + token + 1) & MASK
        out.append(mix(h))
    return out


def minima(ids, k, w):
    """Of any w neighbouring grams of k tokens the smallest: (key, place)."""
    keys, out, last = grams(ids, k), [], -1
    for begin in range(max(1, len(keys) - w + 1)):
        best = min(range(begin, min(begin + w, len(keys))), key=lambda i: (keys[i], -i), default=-1)
        if best not in (-1, last):
            out.append((keys[best], best))
            last = best
    return out


def bands(ids, stride, k=4, window=64, bins=32):
    """One-permutation MinHash of windows: a key for each pair of neighbouring bins that are not empty."""
    keys, out = grams(ids, k), []
    for begin in range(0, max(1, len(ids) - window + 1), stride):
        least = [None] * bins
        for key in keys[begin : begin + window - k + 1]:
            place, value = key % bins, key // bins
            least[place] = value if least[place] is None else min(least[place], value)
        for i in range(0, bins, 2):
            if least[i] is not None and least[i + 1] is not None:
                out.append((hash((i, least[i], least[i + 1])), begin))
    return out


def in_runs(prompt, text, least):
    """Lengths of the parts of the prompt that are covered by runs of `least` tokens or more that the text has too."""
    known = {tuple(text[i : i + least]) for i in range(len(text) - least + 1)}
    inside = [False] * len(prompt)
    for i in range(len(prompt) - least + 1):
        if tuple(prompt[i : i + least]) in known:
            inside[i : i + least] = [True] * least
    return [len(list(run)) for equal, run in itertools.groupby(inside) if equal]


def study_keys(files, name, kept, asked, most=8):
    index, postings = collections.defaultdict(list), 0
    for number, one in enumerate(files):
        for key, _ in kept(one["equal"]):
            index[key].append(number)
            postings += 1
    total = sum(len(one["equal"]) for one in files)
    print(f"\n{name}: {postings / total:.3f} postings a token, {len(index) / total:.3f} keys a token")
    for form in FORMS:
        looked = prompts = hits = first = others = asks = 0
        for number, one in enumerate(files):
            if form not in one or number % 5:
                continue
            votes = collections.Counter()
            asks, prompts = asks + 1, prompts + len(one[form])
            for key, _ in asked(one[form]):
                looked += 1
                for file in index.get(key, ())[-most:]:
                    votes[file] += 1
            hits += votes.total()
            first += bool(votes) and votes.most_common(1)[0][0] == number
            others += sum(1 for file, count in votes.items() if file != number and count >= 3)
        print(f"  {form:9s} look-ups a token {looked / prompts:.2f}, hits {hits / prompts:.2f}, "
              f"source found first {first}/{asks}, others with 3 votes {others / asks:.1f}")


def study_runs(files):
    print("\nshare of tokens in equal runs of at least N (and what halos of 8 on both sides leave of it), by brute force")
    leasts = (8, 12, 16, 24, 32)
    print("  form      " + "".join(f"{least:>16d}" for least in leasts))
    for form in FORMS:
        line = f"  {form:9s} "
        for least in leasts:
            inside = left = total = 0
            for one in files[::5]:
                if form in one:
                    runs = in_runs(one[form], one["equal"], least)
                    inside, total = inside + sum(runs), total + len(one[form])
                    left += sum(max(0, run - 16) for run in runs)
            line += f"{f'{inside / total:.2f} ({left / total:.2f})':>16s}"
        print(line)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("kvilt", "model", "folder"):
        parser.add_argument(name)
    parser.add_argument("--files", type=int, default=150)
    parser.add_argument("--tokens")
    files = tokens_of(parser.parse_args())
    print(f"{len(files)} files, {sum(len(one['equal']) for one in files)} tokens")
    study_runs(files)
    for k, w in ((4, 7), (5, 8), (6, 11)):
        study_keys(files, f"smallest of {w} grams of {k}", lambda ids: minima(ids, k, w), lambda ids: minima(ids, k, w))
    study_keys(files, "16 bands of 2, windows of 64", lambda ids: bands(ids, 32), lambda ids: bands(ids, 16))


if __name__ == "__main__":
    main()
