#!/usr/bin/env python3
"""How far is a piece's stored KV from what a prompt needs, layer by layer: computed alone, behind n other contexts, as their mean?

usage: bench/season_layers.py MODEL.gguf --questions FILE.jsonl [--skip 140] [--count 6] [--kvilt build/release/kvilt] [--json out.json]

FILE: JSON lines with "chunks" of "title" and "text" (the sets of docs/eval.md's suite multihop). For each question all passages are computed
in a random order, which is the prompt, and in four others and the same from their ends, which are the contexts, behind one fixed beginning;
and each passage behind that beginning alone. Keys are compared before their rotation. The table has, for K and V of each layer, the energy of
the error over that of the passage computed alone: of one context, of the mean of two and four random ones and of two and four in turned pairs
(over all such choices; all eight: the last line alone), and the share of the error of `alone` that is bias (docs/math/seasoning.md, equations 2 to
4b). The passage that stands first in the prompt is not counted: it is found as it is. A second table has what is left of the error of a mean
of four random ones, at the other tokens, when every seventh token's truth is known: after mend's carry (docs/math/carry.md), and after it
where first the combination of some directions is taken off that is nearest at the known tokens: the contexts' strongest deviations from their
mean; the mean less the passage alone. Last: how well the spread of four contexts says how much a token changes (equation 9).

Needs numpy (.venv/bin/pip install numpy). About a minute a question on two cores.
"""
import argparse
import itertools
import json
import math
import pathlib
import random
import struct
import subprocess
import sys
import tempfile

import numpy as np

HEAD = "<|im_start|>system\nAnswer the question from the passages.<|im_end|>\n<|im_start|>user\n"
CARRIED = ("as it is", "carried", "one direction", "three", "mean - alone", "that and one direction")
EDGE = 2  # tokens at a passage's ends, which the tokenizer may join with what is beside them


def frames(data):
    """The session's parts (docs/formats/session.md): header fields, tokens, and (L, G) pairs of K and V rows."""
    version, kind, L, G, E, N, m, F = struct.unpack_from("<8I", data, 8)
    (runs,) = struct.unpack_from("<Q", data, 40)
    assert version == 1 and kind == 0 and m == 0, "expects an fp32 session of a prompt without pieces"
    at = 64 + 8
    tokens = np.frombuffer(data, "<i4", N + F, at)[:N]
    at += 4 * (N + F) + 8 * L * G + 8
    at += 4 * L + 12 * runs + 8
    K, V = np.empty((L, G, N, E), np.float32), np.empty((L, G, N, E), np.float32)
    for layer in range(L):
        for head in range(G):
            for out in (K, V):
                out[layer, head] = np.frombuffer(data, "<f4", N * E, at).reshape(N, E)
                at += 4 * N * E
            at += 8
    assert at == len(data), f"{at} of {len(data)} bytes read"
    return tokens, K, V


def unrotate(K, theta):
    """Keys before RoPE (pairs e, e + E/2)."""
    N, E = K.shape[-2:]
    angle = np.arange(N)[:, None] * theta ** (-np.arange(0, E, 2)[None] / E)
    cos, sin = np.cos(angle), np.sin(angle)
    a, b = K[..., : E // 2], K[..., E // 2:]
    return np.concatenate([a * cos + b * sin, b * cos - a * sin], -1).astype(np.float32)


def compute(args, text):
    with tempfile.TemporaryDirectory() as folder:
        prompt, out = pathlib.Path(folder, "prompt"), pathlib.Path(folder, "session")
        prompt.write_text(text)
        subprocess.run([args.kvilt, "session", "export", args.model, "--raw", "-f", prompt, "-o", out, "-n", "1", "--kv-type", "f32",
                        "--activations", "f32", "--kv-bytes", "1GiB"], check=True, capture_output=True)
        tokens, K, V = frames(out.read_bytes())
    return tokens.tolist(), unrotate(K, args.theta), V


def place(tokens, wanted):
    """Where `wanted` begins in `tokens`."""
    for i in range(len(tokens) - len(wanted) + 1):
        if tokens[i] == wanted[0] and tokens[i:i + len(wanted)] == wanted:
            return i
    return None


def energy(x):
    return np.square(x, dtype=np.float64).sum(axis=(1, 2, 3))  # by layer


def content_kernel(K):
    """mend's kernel over one piece (docs/math/carry.md, equations 3 and 3a) with its defaults; K: keys before rotation, (L, G, N, E)."""
    L, _, N, _ = K.shape
    x = np.concatenate([K[L * quarter // 4].swapaxes(0, 1).reshape(N, -1) for quarter in (1, 2, 3)], axis=1).astype(np.float64)
    x = (x - x.mean(axis=0)) / (x.std(axis=0) + 1e-12)
    squares = np.square(x).sum(axis=1)
    distance = (squares[:, None] + squares[None] - 2 * x @ x.T) / x.shape[1]
    at = np.arange(N)
    return 1 + np.exp(-np.square(at[:, None] - at[None]) / (2 * 8.0**2)) + 2 * np.exp(-distance / (2 * 0.9**2))


def left_by_carrying(truth, alone, others, kernel):
    """Energy by layer of the error of the others' mean at the tokens that are not known: after each of CARRIED."""
    mean = np.mean(others, axis=0)
    error = (truth - mean).astype(np.float64)
    L, G, N, E = error.shape
    known = np.zeros(N, bool)
    known[3::7] = True
    heads = (L * G, 1, N, E)
    moved = (mean - alone).reshape(heads).astype(np.float64)
    # The strongest directions of the contexts' own deviations, per layer and head: what varies between them.
    D = np.stack([o - mean for o in others], axis=2).reshape(L * G, len(others), N, E).astype(np.float64)
    _, turn = np.linalg.eigh(np.einsum("hine,hjne->hij", D, D))
    D = np.einsum("hij,hine->hjne", turn, D)[:, ::-1]

    def along(directions):
        """`error` less the combination of directions that is nearest to it at the known tokens, per layer and head."""
        e = error.reshape(L * G, N, E)
        seen = directions[:, :, known].reshape(L * G, directions.shape[1], -1)
        least = 1e-6 * np.square(seen).sum(axis=(1, 2), keepdims=True) + 1e-12
        c = np.linalg.solve(seen @ seen.swapaxes(1, 2) + least * np.eye(directions.shape[1]), seen @ e[:, known].reshape(L * G, -1, 1))
        return (e - np.einsum("hk,hkne->hne", c[..., 0], directions)).reshape(error.shape)

    weights = kernel[:, known] @ np.linalg.inv(kernel[np.ix_(known, known)] + 0.5 * np.eye(known.sum()))

    def carried(e):
        return e - np.einsum("uk,lgke->lgue", weights, e[:, :, known])

    left = [error, carried(error)]
    left += [carried(along(which)) for which in (D[:, :1], D[:, :3], moved, np.concatenate([moved, D[:, :1]], 1))]
    return {name: energy(e[:, :, ~known]) for name, e in zip(CARRIED, left)}


MEANS = {  # of contexts 2k and 2k + 1, which is 2k from its end, for k below 4: all choices of them
    "one": [(i,) for i in range(8)],
    "two": [(a, b) for a, b in itertools.combinations(range(8), 2) if a // 2 != b // 2],
    "four": list(itertools.product((0, 1), (2, 3), (4, 5), (6, 7))),
    "turned two": [(2 * k, 2 * k + 1) for k in range(4)],
    "turned four": [(2 * a, 2 * a + 1, 2 * b, 2 * b + 1) for a, b in itertools.combinations(range(4), 2)],
    "turned eight": [tuple(range(8))],
}


def by_token(x):
    return np.square(x, dtype=np.float64).sum(axis=(0, 1, 3))


def question(args, chunks, rng, sums, seen):
    passages = [f"{c['title']}\n{c['text'].strip()}\n\n" for c in chunks]
    numbers = list(range(len(passages)))
    prompt, orders = rng.sample(numbers, len(numbers)), []
    for _ in range(4):
        order = rng.sample(numbers, len(numbers))
        orders += [order, order[::-1]]
    there, *contexts = [compute(args, HEAD + "".join(passages[i] for i in order) + "Question") for order in (prompt, *orders)]
    base = len(compute(args, HEAD + "Question")[0]) - 1
    pieces = 0
    for number in prompt[1:]:
        tokens, K, V = compute(args, HEAD + passages[number] + "Question")
        inner = tokens[base + EDGE:-1 - EDGE]
        at, *spans = [place(t, inner) for t, _, _ in (there, *contexts)]
        if not inner or at is None or None in spans:
            continue
        # A passage that stands first somewhere is computed there as alone.
        kernel = content_kernel(K[:, :, base + EDGE:base + EDGE + len(inner)])
        for name, which in (("K", 1), ("V", 2)):
            alone = (K if which == 1 else V)[:, :, base + EDGE:base + EDGE + len(inner)]
            truth = there[which][:, :, at:at + len(inner)]
            others = [run[which][:, :, s:s + len(inner)] for run, s in zip(contexts, spans)]
            sums["alone", name] += energy(alone - truth)
            for label, choices in MEANS.items():
                sums[label, name] += np.mean([energy(np.mean([others[i] for i in some], axis=0) - truth) for some in choices], axis=0)
            if len(inner) >= 28:
                for label, left in left_by_carrying(truth, alone, others[::2], kernel).items():
                    sums[label, name] += left
            sums["all", name] += energy(truth)
            mean = np.mean(others, axis=0)
            variance = sum(energy(x - mean) for x in others) / len(others)  # of turned pairs, whose mean is that of all
            sums["variance", name] += variance
            sums["bias", name] += energy(alone - mean)
            four = np.mean(others[:4], axis=0)
            seen["spread", name].append(sum(by_token(x - four) for x in others[:4]) / 4)
            seen["change", name].append(by_token(truth - four))
        pieces += 1
    return pieces


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--questions", required=True, action="append")
    parser.add_argument("--skip", type=int, default=140)
    parser.add_argument("--count", type=int, default=6)
    parser.add_argument("--theta", type=float, default=1e6, help="the model's RoPE base")
    parser.add_argument("--kvilt", default="build/release/kvilt")
    parser.add_argument("--json")
    args = parser.parse_args()
    rng = random.Random(1)
    sums, pieces = {}, 0
    seen = {(what, n): [] for what in ("spread", "change") for n in "KV"}  # by passage: of each of its tokens
    for path in args.questions:
        lines = open(path).read().splitlines()[args.skip:args.skip + args.count]
        for line in lines:
            chunks = json.loads(line)["chunks"][:8]
            if not sums:
                L = compute(args, HEAD)[1].shape[0]
                sums = {(k, n): np.zeros(L) for k in ("alone", *MEANS, "variance", "bias", "all", *CARRIED) for n in "KV"}
            pieces += question(args, chunks, rng, sums, seen)
            print(f"{pieces} passages", file=sys.stderr)
    rows = []
    for layer in range(L):
        row = {"layer": layer}
        for n in "KV":
            alone = sums["alone", n][layer]
            for k in (*MEANS, "bias", "variance"):
                # What is rounding alone (layer 0 needs no context) has no ratio.
                row[f"{n}_{k}"] = float(sums[k, n][layer] / alone) if alone > 1e-6 * sums["all", n][layer] else math.nan
            row[f"{n}_share"] = float(alone / sums["alone", n].sum())
        rows.append(row)
    whole = {f"{n}_{k}": float(sums[k, n].sum() / sums["alone", n].sum()) for n in "KV" for k in (*MEANS, "bias", "variance")}
    shown = (*list(MEANS)[:-1], "bias")
    head = " | ".join(f"{n}: {k}" if k == "one" else k for n in "KV" for k in shown)
    print(f"| layer | {head} |\n|---" + "|---" * 2 * len(shown) + "|")
    for row in rows + [{"layer": "all", **whole}]:
        print(f"| {row['layer']} | " + " | ".join("-" if math.isnan(row[f"{n}_{k}"]) else f"{row[f'{n}_{k}']:.2f}" for n in "KV" for k in shown) + " |")
    print("\nturned eight: " + ", ".join(f"{n} {whole[f'{n}_turned eight']:.3f}" for n in "KV"))
    print("\n| left of the mean of four's error | " + " | ".join(CARRIED[1:]) + " |\n|---" + "|---" * len(CARRIED[1:]) + "|")
    for n in "KV":
        print(f"| {n} | " + " | ".join(f"{sums[c, n].sum() / sums[CARRIED[0], n].sum():.2f}" for c in CARRIED[1:]) + " |")
    logs = {key: np.log(np.concatenate(parts) + 1e-12) for key, parts in seen.items()}
    for what in ("spread", "change"):  # equation 9, over all tokens at once
        k, v = (np.exp(logs[what, n]) for n in "KV")
        logs[what, "both"] = np.log(k / k.sum() + v / v.sum()) / 2
    like = {n: float(np.corrcoef(logs["spread", n], logs["change", n])[0, 1]) for n in ("K", "V", "both")}
    print(f"\ncorrelation of the logarithms, over {logs['change', 'both'].size} tokens, of a mean of four turned contexts: their spread, and the "
          f"change that the prompt needs: K {like['K']:.2f}, V {like['V']:.2f}, both {like['both']:.2f}; standard deviation of log change "
          f"{logs['change', 'both'].std():.2f}")
    if args.json:
        json.dump({"passages": pieces, "rows": rows, "all": whole}, open(args.json, "w"), indent=1)


if __name__ == "__main__":
    main()
