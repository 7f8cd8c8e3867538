#!/usr/bin/env python3
"""How far is a piece's stored KV from what a prompt needs, layer by layer: computed alone, behind n other contexts, as their mean?

usage: bench/season_layers.py MODEL.gguf --questions FILE.jsonl [--skip 140] [--count 6] [--kvilt build/release/kvilt] [--json out.json]

FILE: JSON lines with "chunks" of "title" and "text" (the sets of docs/eval.md's suite multihop). For each question all passages are computed
in six random orders behind one fixed beginning, and each passage behind that beginning alone. One order is the prompt; the others are
contexts. Keys are compared before their rotation. The table has, for K and V of each layer, the energy of the error over that of the passage
computed alone: of one other context, of the mean of two and four of them (over all choices of them), and the share of the error of `alone` that is bias
(docs/math/seasoning.md, equations 2 to 4). A second table has what is left of the mean of four's error, at the other tokens, when every
seventh token's truth is known: after mend's carry (docs/math/carry.md), and after it where first the combination of some directions is taken
off that is nearest at the known tokens: the contexts' strongest deviations from their mean; the mean less the passage alone.

Needs numpy (.venv/bin/pip install numpy). About 50 s a question on two cores.
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


def question(args, chunks, rng, sums):
    passages = [f"{c['title']}\n{c['text'].strip()}\n\n" for c in chunks]
    orders = []
    for _ in range(6):
        order = passages[:]
        rng.shuffle(order)
        orders.append(compute(args, HEAD + "".join(order) + "Question"))
    base = len(compute(args, HEAD + "Question")[0]) - 1
    pieces = 0
    for passage in passages:
        tokens, K, V = compute(args, HEAD + passage + "Question")
        inner = tokens[base + EDGE:-1 - EDGE]
        spans = [place(t, inner) for t, _, _ in orders]
        if not inner or None in spans:
            continue
        # A passage that stands first somewhere is computed there as alone.
        kernel = content_kernel(K[:, :, base + EDGE:base + EDGE + len(inner)])
        for name, which in (("K", 1), ("V", 2)):
            alone = (K if which == 1 else V)[:, :, base + EDGE:base + EDGE + len(inner)]
            seen = [orders[i][which][:, :, s:s + len(inner)] for i, s in enumerate(spans)]
            truth, others = seen[0], seen[1:]
            mean = np.mean(seen, axis=0)
            sums["alone", name] += energy(alone - truth)
            sums["one", name] += np.mean([energy(o - truth) for o in others], axis=0)
            for label, n in (("two", 2), ("four", 4)):
                drawn = [energy(np.mean(some, axis=0) - truth) for some in itertools.combinations(others, n)]
                sums[label, name] += np.mean(drawn, axis=0)
            if len(inner) >= 28:
                for label, left in left_by_carrying(truth, alone, others[:4], kernel).items():
                    sums[label, name] += left
            sums["all", name] += energy(truth)
            variance = sum(energy(s - mean) for s in seen) / (len(seen) - 1)
            sums["variance", name] += variance
            sums["bias", name] += np.maximum(energy(alone - mean) - variance / len(seen), 0)
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
    for path in args.questions:
        lines = open(path).read().splitlines()[args.skip:args.skip + args.count]
        for line in lines:
            chunks = json.loads(line)["chunks"][:8]
            if not sums:
                L = compute(args, HEAD)[1].shape[0]
                sums = {(k, n): np.zeros(L) for k in ("alone", "one", "two", "four", "variance", "bias", "all", *CARRIED) for n in "KV"}
            pieces += question(args, chunks, rng, sums)
            print(f"{pieces} passages", file=sys.stderr)
    rows = []
    for layer in range(L):
        row = {"layer": layer}
        for n in "KV":
            alone = sums["alone", n][layer]
            for k in ("one", "two", "four", "bias", "variance"):
                # What is rounding alone (layer 0 needs no context) has no ratio.
                row[f"{n}_{k}"] = float(sums[k, n][layer] / alone) if alone > 1e-6 * sums["all", n][layer] else math.nan
            row[f"{n}_share"] = float(alone / sums["alone", n].sum())
        rows.append(row)
    whole = {f"{n}_{k}": float(sums[k, n].sum() / sums["alone", n].sum()) for n in "KV" for k in ("one", "two", "four", "bias", "variance")}
    print("| layer | K: one | two | four | bias | V: one | two | four | bias |\n|---|---|---|---|---|---|---|---|---|")
    for row in rows + [{"layer": "all", **whole}]:
        print(f"| {row['layer']} | " + " | ".join("-" if math.isnan(row[f"{n}_{k}"]) else f"{row[f'{n}_{k}']:.2f}" for n in "KV" for k in ("one", "two", "four", "bias")) + " |")
    print("\n| left of the mean of four's error | " + " | ".join(CARRIED[1:]) + " |\n|---" + "|---" * len(CARRIED[1:]) + "|")
    for n in "KV":
        print(f"| {n} | " + " | ".join(f"{sums[c, n].sum() / sums[CARRIED[0], n].sum():.2f}" for c in CARRIED[1:]) + " |")
    if args.json:
        json.dump({"passages": pieces, "rows": rows, "all": whole}, open(args.json, "w"), indent=1)


if __name__ == "__main__":
    main()
