#!/usr/bin/env python3
"""The tables and the picture of docs/results/quality-by-method.md, from the journals of `kvilt eval`.

JOURNAL: FILE.json.journal next to a report (docs/eval.md); several are read as one study of the same cases.

Policies are compared by the paired geometric mean of (KL + .001) / (KL of the other + .001), since KL is heavy-tailed
(docs/eval.md#paired-ratios). Brackets: 95 % of 2,000 bootstrap samples of the cases, drawn with a fixed seed. Standard
library only.
"""
import argparse
import json
import math
import random
import sys

FLOOR = 0.001
SUITES = ["hotpotqa", "2wikimultihopqa", "musique", "story", "agent-order", "niah-2k", "niah-4k"]
QUESTIONS = SUITES[:3]
ANSWERED = QUESTIONS + ["agent-order"]
# label in the journal, name in a table, curve in the picture
POLICIES = [
    ("full", "full", None),
    ("naive", "naive", "naive"),
    ("naive:align=no", "naive, not realigned", None),
    ("random", "random .15", "random"),
    ("oracle", "oracle .15 (a full pass chooses)", None),
    ("sparsex:l_star=0", "sparsex without hybrid", None),
    ("sparsex:k=0.05", "sparsex .05", "sparsex"),
    ("sparsex", "sparsex (.15)", "sparsex"),
    ("sparsex:k=0.3", "sparsex .30", "sparsex"),
    ("cacheblend", "cacheblend (.15)", "cacheblend"),
    ("cacheblend:r=0.3", "cacheblend .30", "cacheblend"),
    ("epic", "epic (16)", "epic"),
    ("epic:k=32", "epic 32", "epic"),
    ("prophetkv:r=0.1", "prophetkv .10", "prophetkv"),
    ("prophetkv", "prophetkv (.20)", "prophetkv"),
    ("prophetkv:r=0.3", "prophetkv .30", "prophetkv"),
    ("mend:r=0.05", "mend .05", "mend"),
    ("mend:r=0.1", "mend .10", "mend"),
    ("mend", "**mend (.15)**", "mend"),
    ("mend:r=0.3", "mend .30", "mend"),
    ("mend:r=0.5", "mend .50", "mend"),
    ("auto:quality=draft", "auto, draft", "auto"),
    ("auto", "**auto, balanced**", "auto"),
]
NAMES = {label: name.replace("**", "") for label, name, _ in POLICIES}
PAIRS = [
    ("mend", "prophetkv"), ("mend:r=0.1", "prophetkv"), ("mend", "sparsex"), ("mend", "epic"), ("mend", "epic:k=32"),
    ("mend", "cacheblend"), ("mend:r=0.1", "epic"), ("mend:r=0.3", "cacheblend:r=0.3"), ("mend:r=0.3", "epic:k=32"),
    ("mend", "oracle"), ("auto", "mend:r=0.3"), ("sparsex", "sparsex:l_star=0"),
]


def mean(values):
    return sum(values) / len(values)


def interval(values, draws=2000):
    rng = random.Random(1)
    means = sorted(mean(rng.choices(values, k=len(values))) for _ in range(draws))
    return means[draws // 40], means[draws - draws // 40 - 1]


def short(value, digits=2):
    return f"{value:.{digits}f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.{digits}f}"


def with_interval(values, digits=2, of=lambda x: x):
    if not values:
        return "-"
    low, high = interval(values)
    return f"{short(of(mean(values)), digits)} [{short(of(low), digits)},{short(of(high), digits)}]"


class Study:
    def __init__(self, paths, suites, measure="kl_answer"):
        self.rows, self.measure = {}, measure
        for path in paths:
            with open(path) as lines:
                for line in lines:
                    row = json.loads(line)
                    if "policy" in row and row["suite"] in suites:
                        self.rows[row["policy"], row["suite"], row["id"]] = row
        self.suites = [s for s in suites if self.of("naive", [s])]

    def of(self, policy, suites):
        return [r for (p, s, _), r in self.rows.items() if p == policy and s in suites]

    def has(self, policy, suite, case):
        """Whether the measure was taken there: kl_prompt is null without --prompt-rows, or where no row was computed."""
        return self.rows.get((policy, suite, case), {}).get(self.measure) is not None

    def kls(self, policy, suites):
        return [r[self.measure] for (p, s, i), r in self.rows.items() if p == policy and s in suites and self.has(p, s, i)]

    def ratios(self, policy, base, suites):
        """Logarithms of the paired KL ratios."""
        return [
            math.log((r[self.measure] + FLOOR) / (self.rows[base, s, i][self.measure] + FLOOR))
            for (p, s, i), r in self.rows.items()
            if p == policy and s in suites and self.has(p, s, i) and self.has(base, s, i)
        ]

    def flops(self, policy, suites):
        return mean([r["flops_ratio"] for r in self.of(policy, suites)] or [0])

    def same(self, policy, suites):
        return [float(r["same_answer"]) for r in self.of(policy, suites)]


def table(head, rows):
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print()


def measured(study):
    """Policies that ran on every case that naive ran on."""
    cases = len(study.of("naive", study.suites))
    return [p for p in POLICIES if len(study.of(p[0], study.suites)) == cases]


def policy_table(study):
    rows = []
    for label, name, _ in measured(study):
        ratio = {"full": "0", "naive": "1"}.get(label) or with_interval(study.ratios(label, "naive", study.suites), 2, math.exp)
        distance = ["0" if label == "full" else with_interval(study.kls(label, [s]), 3) for s in study.suites]
        rows.append([
            name, short(study.flops(label, study.suites), 3), ratio,
            short(mean([float(r["top1"]) for r in study.of(label, study.suites)])),
            with_interval(study.same(label, QUESTIONS)), with_interval(study.same(label, ANSWERED)), *distance,
        ])
    counts = {s: len(study.of("naive", [s])) for s in study.suites}
    table(["policy", "FLOPs / full", "KL / naive, paired", "top-1", "same answer: questions", "and tools",
           *(f"KL {s} ({counts[s]})" for s in study.suites)], rows)


def pair_table(study):
    rows = []
    for a, b in PAIRS:
        if not study.of(a, study.suites) or not study.of(b, study.suites):
            continue
        cell = lambda suites: with_interval(study.ratios(a, b, suites), 2, math.exp)
        rows.append([f"{NAMES[a]} / {NAMES[b]}", cell(study.suites), cell(QUESTIONS), cell(["story"]), cell(["agent-order"]),
                     f"{short(study.flops(a, study.suites), 3)}, {short(study.flops(b, study.suites), 3)}"])
    table(["KL of / of", "all", "multi-hop questions", "story", "tools", "FLOPs"], rows)


def score_table(study):
    suites = [s for s in study.suites if s != "story"]
    rows = [[name, *(with_interval([r["score"] for r in study.of(label, [s])]) for s in suites)] for label, name, _ in measured(study)]
    table(["policy", *suites], rows)
    lost = []
    for s in suites:
        full = {i: r["score"] for (p, t, i), r in study.rows.items() if p == "full" and t == s}
        if len(full) < len(study.of("auto", [s])):
            continue
        lost.append([s, with_interval([r["score"] - full[r["id"]] for r in study.of("auto", [s])])])
    table(["suite", "score of auto less full's, paired"], lost)


class Panel:
    """One plot: FLOPs / full on x, a measure on y."""
    WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 430, 380, 62, 16, 40, 48
    COLOURS = {"naive": "#8c959f", "random": "#8c959f", "sparsex": "#a475f9", "cacheblend": "#d4a72c", "epic": "#2da44e",
               "prophetkv": "#4493f8", "mend": "#e8871e", "auto": "#d1242f"}
    WIDEST = 0.55

    def __init__(self, offset, title, ticks, place):
        self.offset, self.title, self.ticks, self.place = offset, title, ticks, place

    def x(self, flops):
        return self.offset + self.LEFT + flops / self.WIDEST * (self.WIDTH - self.LEFT - self.RIGHT)

    def y(self, value):
        return self.TOP + (1 - self.place(value)) * (self.HEIGHT - self.TOP - self.BOTTOM)

    def draw(self, curves):
        left, right, bottom = self.x(0), self.x(self.WIDEST), self.HEIGHT - self.BOTTOM
        out = [f'<text class="t" x="{left}" y="22" font-weight="600">{self.title}</text>']
        for tick in self.ticks:
            out.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{self.y(tick):.1f}" y2="{self.y(tick):.1f}"/>'
                       f'<text class="m" x="{left - 8}" y="{self.y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
        for tick in (0, 0.1, 0.2, 0.3, 0.4, 0.5):
            out.append(f'<text class="m" x="{self.x(tick):.1f}" y="{bottom + 18}" text-anchor="middle">{tick:g}</text>')
        out.append(f'<text class="m" x="{(left + right) / 2:.1f}" y="{bottom + 38}" text-anchor="middle">FLOPs of the prefill / full</text>')
        for name, points in curves.items():
            colour = self.COLOURS[name]
            line = " ".join(f"{self.x(f):.1f},{self.y(v):.1f}" for f, v, _, _ in points)
            out.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
            for flops, value, low, high in points:
                x = self.x(flops)
                out.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{self.y(low):.1f}" y2="{self.y(high):.1f}" stroke="{colour}" opacity="0.45"/>'
                           f'<circle cx="{x:.1f}" cy="{self.y(value):.1f}" r="{5 if name == "auto" else 3.5}" fill="{colour}"/>')
        return out


def picture(study, path):
    def curves(measure):
        out = {}
        for label, _, curve in POLICIES:
            if curve and study.ratios(label, "naive", QUESTIONS):
                out.setdefault(curve, []).append((study.flops(label, QUESTIONS), *measure(label)))
        return {name: sorted(points) for name, points in out.items()}

    def distance(label):
        logs = study.ratios(label, "naive", QUESTIONS)
        low, high = interval(logs) if label != "naive" else (0, 0)
        return math.exp(mean(logs)), math.exp(low), math.exp(high)

    def same(label):
        values = study.same(label, QUESTIONS)
        return (mean(values), *interval(values))

    least = math.log(0.01)
    panels = [
        (Panel(0, "KL to full / naive's, questions", (0.01, 0.03, 0.1, 0.3, 1), lambda v: 1 - math.log(max(v, 0.01)) / least), curves(distance)),
        (Panel(Panel.WIDTH, "full's own answer to questions", (0.2, 0.4, 0.6, 0.8, 1), lambda v: (v - 0.2) / 0.8), curves(same)),
    ]
    body = [line for panel, series in panels for line in panel.draw(series)]
    for i, name in enumerate(panels[0][1]):
        y = 60 + 20 * i
        body.append(f'<circle cx="{2 * Panel.WIDTH + 14}" cy="{y - 4}" r="4" fill="{Panel.COLOURS[name]}"/>'
                    f'<text class="t" x="{2 * Panel.WIDTH + 26}" y="{y}">{name}</text>')
    width = 2 * Panel.WIDTH + 120
    with open(path, "w") as out:
        out.write(f'''<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {Panel.HEIGHT}" width="{width}" height="{Panel.HEIGHT}" role="img" aria-labelledby="t d" font-family="system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif" font-size="13">
  <title id="t">Quality against cost, every method over its budgets</title>
  <desc id="d">Left: KL to the full pass as a part of naive reuse's, log scale, lower is nearer. Right: share of questions with full's own answer. Both over the FLOPs of the prefill; bars are 95 % intervals.</desc>
  <style>.t {{ fill: #24292f }} .m {{ fill: #59636e }} .grid {{ stroke: #d0d7de }} @media (prefers-color-scheme: dark) {{ .t {{ fill: #e6edf3 }} .m {{ fill: #9aa4af }} .grid {{ stroke: #30363d }} }}</style>
''')
        out.writelines(f"  {line}\n" for line in body)
        out.write("</svg>\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("journals", nargs="+", metavar="JOURNAL")
    parser.add_argument("--suites", default=",".join(SUITES), help="those to read, comma-separated")
    parser.add_argument("--measure", default="kl_answer", choices=["kl_answer", "kl_first", "kl_prompt"], help="of each row")
    parser.add_argument("--svg", metavar="FILE", help="where the picture goes")
    given = parser.parse_args()
    study = Study(given.journals, given.suites.split(","), given.measure)
    if not study.suites:
        sys.exit("quality_tables: naive ran on no case of these suites; every table is paired with it")
    if not study.kls("naive", study.suites):
        sys.exit(f"quality_tables: no row of naive has {given.measure}; kl_prompt takes kvilt eval --prompt-rows N")
    policy_table(study)
    pair_table(study)
    score_table(study)
    if given.svg:
        picture(study, given.svg)


main()
