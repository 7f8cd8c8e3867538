#!/usr/bin/env python3
"""One policy over the values of its parameters, as a table: `kvilt eval` runs all of them side by side on the same cases.

    bench/sweep.py --model M --suite multihop:path=hotpotqa.jsonl,n=20 --policy crossquery --values halo=4,8,16
    bench/sweep.py --model M --suite niah:n=20 --policy crossquery:regime=b --values l_cut=4,8,16 --warm-as
    bench/sweep.py --model M --suite vt:n=20 --policy samkv:block=16 --values keep=.149,.3,.5 --values fate=overwrite,fuse
    bench/sweep.py --table sweep.json --policy mend

Several --values are taken in all combinations. The default is a row of its own, `full` and `naive` are the ends of the
scale, and the last column compares with the policy's default, paired (docs/eval.md#paired-ratios). --warm-as: each value
is measured in a run of its own, whose pieces that very policy computed (what `crossquery:regime=b` stores depends on its
`l_cut`). What follows `--` goes to kvilt eval as it is. --table FILE...: no run, only the table of reports that are
there. The reports stay where --json says (sweep.json), with their journals: a sweep that was stopped goes on. Standard
library only.
"""
import argparse
import itertools
import json
import pathlib
import subprocess
import sys

COLUMNS = [  # head ({}: what the reports' ratios are to), field of a row (docs/formats/json.md), with its interval
    ("score", "score", True), ("KL answer", "kl_answer", True), ("same answer", "same_answer", True),
    ("FLOPs / {}", "flops_ratio", False), ("reused", "reused_ratio", False), ("recomputed", "recomputed_ratio", False),
    ("KV kept", "kept_ratio", False), ("TTFT / {}", "ttft_ratio", False),
]


def labels_of(policy, values):
    """The policy as given, then with every combination of values: ["halo=4,8"] gives two."""
    lists = []
    for text in values:
        name, found, rest = text.partition("=")
        if not name or not found or "" in rest.split(","):
            raise ValueError(f"--values is '{text}', not NAME=VALUE,VALUE,...")
        lists.append([f"{name}={value}" for value in rest.split(",")])
    return [policy] + [":".join((policy,) + chosen) for chosen in itertools.product(*lists)] if lists else [policy]


def figure(row, field, interval):
    value = row.get(field)
    if value is None:
        return "-"
    ends = row.get(field + "_ci") if interval else None
    return f"{value:.3f}" + (f" [{ends[0]:.3f},{ends[1]:.3f}]" if ends else "")


def table(reports, policy):
    """Markdown, a part for each suite. Rows of later reports are added unless an earlier one has suite and label."""
    rows, ratios = {}, {}
    bases = sorted({report.get("ratios_to", "full") for report in reports})
    if len(bases) > 1:
        raise ValueError(f"the ratios of some reports are to {bases[0]}, of others to {bases[1]}: make a table of each kind")
    for report in reports:
        for row in report["rows"]:
            rows.setdefault(row["suite"], {}).setdefault(row["label"], row)
        for pair in report.get("pairs", []):
            if pair["b"] == policy:
                ratios[pair["suite"], pair["a"]] = pair
    out = []
    for suite, by_label in rows.items():
        out += [f"## {suite}", "", "| policy | n | " + " | ".join(head.format(bases[0]) for head, _, _ in COLUMNS) + f" | KL by `{policy}`'s |",
                "|---" * (len(COLUMNS) + 3) + "|"]
        for label, row in by_label.items():
            cells = [figure(row, field, interval) for _, field, interval in COLUMNS]
            ratio = figure(ratios.get((suite, label), {}), "kl_ratio", True)
            out.append(f"| `{label}` | {row['n']} | " + " | ".join(cells) + f" | {ratio} |")
        out.append("")
    return "\n".join(out)


def run(of, labels, report, more):
    command = [of.kvilt, "eval", "--model", of.model, "--json", report]
    for suite in of.suite:
        command += ["--suite", suite]
    for cases in of.cases:
        command += ["--cases", cases]
    command += ["--policies", ",".join(["full", "naive"] + labels)]
    for label in labels:
        if label != of.policy and of.policy in labels:
            command += ["--pair", f"{label}/{of.policy}"]
    print("+ " + " ".join(command + more), file=sys.stderr)
    subprocess.run(command + more, check=True, stdout=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", required=True, help="the policy, with what stays: crossquery:regime=b")
    parser.add_argument("--values", action="append", default=[], metavar="NAME=A,B,...")
    parser.add_argument("--model")
    parser.add_argument("--suite", action="append", default=[])
    parser.add_argument("--cases", action="append", default=[])
    parser.add_argument("--warm-as", action="store_true")
    parser.add_argument("--json", default="sweep.json")
    parser.add_argument("--kvilt", default="build/release/kvilt")
    parser.add_argument("--table", nargs="+", metavar="REPORT")
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    of, more = parser.parse_args(sys.argv[1:split]), sys.argv[split + 1:]
    try:
        labels = labels_of(of.policy, of.values)
    except ValueError as wrong:
        parser.error(str(wrong))
    reports = of.table
    if not reports:
        if not of.model or not (of.suite or of.cases) or not of.values:
            parser.error("a run needs --model, --suite or --cases, and --values; or give --table REPORT")
        if of.warm_as:  # without the default among them: its pieces are others
            base = pathlib.Path(of.json)
            reports = [str(base.with_name(f"{base.stem}-{i}{base.suffix}")) for i in range(1, len(labels))]
            for label, report in zip(labels[1:], reports):
                run(of, [label], report, ["--warm-as", label] + more)
        else:
            reports = [of.json]
            run(of, labels, of.json, more)
    try:
        print(table([json.loads(pathlib.Path(report).read_text()) for report in reports], of.policy))
    except ValueError as wrong:
        parser.error(str(wrong))


if __name__ == "__main__":
    main()
