#!/usr/bin/env python3
"""Draws docs/pictures/scale.svg: hit rates and what is asked of one Redis, against the number of servers.

usage: bench/scale_picture.py FILE.json ... OUT.svg

FILE.json: rows of `kvilt bench scale --traffic grow --json FILE.json`. Nothing is drawn that is not in them, but for the
lines that say what a network of 10 and of 100 Gbit/s carries.
"""
import json
import math
import sys

COLOURS = {"round-robin": "#8c959f", "least-loaded": "#e8871e", "prefix": "#2da44e", "hash": "#4493f8"}
WIDTH, TOP, HEIGHT, LEFT, GAP = 360, 64, 220, 64, 110
NETWORKS = ((1.25e9, "10 Gbit/s"), (12.5e9, "100 Gbit/s"))


class Axes:
    """A square of the picture; x is the logarithm of the number of servers."""

    def __init__(self, left, most_servers, low, high, log):
        self.left, self.most, self.low, self.high, self.log = left, math.log10(most_servers), low, high, log

    def x(self, servers):
        return self.left + WIDTH * (math.log10(servers) / self.most if self.most else 0)

    def y(self, value):
        low, high, at = self.low, self.high, value
        if self.log:
            low, high, at = math.log10(low), math.log10(high), math.log10(max(value, self.low))
        return TOP + HEIGHT * (1 - (at - low) / (high - low))

    def line(self, points, colour, dashed=False):
        path = " ".join(f"{self.x(n):.1f},{self.y(v):.1f}" for n, v in sorted(points))
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        width = 6 if colour == COLOURS["round-robin"] else 2  # it lies below least-loaded, where both are the same
        return f'  <polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"{dash}/>'

    def grid(self, values, name):
        out = []
        for value in values:
            y = self.y(value)
            out.append(f'  <line class="g" x1="{self.left}" y1="{y:.1f}" x2="{self.left + WIDTH}" y2="{y:.1f}"/>')
            out.append(text(self.left - 8, y + 4, name(value), "end"))
        return out

    def servers(self, numbers):
        return [text(self.x(n), TOP + HEIGHT + 20, f"{n:,}", "middle") for n in numbers]


def text(x, y, words, anchor="start", kind="m", bold=False):
    weight = ' font-weight="600"' if bold else ""
    return f'  <text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{weight}>{words}</text>'


def bytes_name(value):
    return f"{value / 1e9:g} GB/s" if value >= 1e9 else f"{value / 1e6:g} MB/s"


def draw(rows):
    numbers = sorted({row["servers"] for row in rows})
    routes = [route for route in COLOURS if any(row["route"] == route for row in rows)]

    def points(route, redis, value):
        return [(row["servers"], value(row)) for row in rows if row["route"] == route and row["redis"] == redis]

    top = math.ceil(max(row["hit_share"] for row in rows) * 10) / 10
    hits = Axes(LEFT, numbers[-1], 0, top, False)
    asked = [row["redis_in_s"] + row["redis_out_s"] for row in rows if row["redis"]]
    others = [row["redis_records_s"] + row["redis_listed_s"] for row in rows if row["redis"]]
    high = 10 ** math.ceil(math.log10(max(asked + others)))
    flow = Axes(LEFT + WIDTH + GAP, numbers[-1], 1e7, high, True)
    out = [text(LEFT, 24, "share of prompt tokens that need not be computed", kind="t", bold=True),
           text(flow.left, 24, "what is asked of one Redis", kind="t", bold=True),
           text(LEFT, 44, "solid: with one Redis; dashed: without"),
           text(flow.left, 44, "solid: KV in and out; dotted: records and lists")]
    out += hits.grid([i / 10 for i in range(int(top * 10 + 1.5))], lambda v: f"{v:.1f}") + hits.servers(numbers)
    decades = range(7, int(math.log10(high)) + 1)
    out += flow.grid([10.0**d for d in decades], bytes_name) + flow.servers(numbers)
    for rate, name in NETWORKS:
        y = flow.y(rate)
        out.append(f'  <line class="n" x1="{flow.left}" y1="{y:.1f}" x2="{flow.left + WIDTH}" y2="{y:.1f}"/>')
        out.append(text(flow.left + 6, y - 5, name))
    for route in routes:
        for redis in (True, False):
            out.append(hits.line(points(route, redis, lambda row: row["hit_share"]), COLOURS[route], not redis))
        out.append(flow.line(points(route, True, lambda row: row["redis_in_s"] + row["redis_out_s"]), COLOURS[route]))
    metadata = points(routes[0], True, lambda row: row["redis_records_s"] + row["redis_listed_s"])
    path = " ".join(f"{flow.x(n):.1f},{flow.y(v):.1f}" for n, v in sorted(metadata) if v >= flow.low)
    out.append(f'  <polyline class="r" points="{path}"/>')
    for i, route in enumerate(routes):
        x, y = LEFT + 210 * i, TOP + HEIGHT + 56
        out.append(f'  <rect x="{x}" y="{y - 11}" width="24" height="12" rx="2" fill="{COLOURS[route]}"/>')
        out.append(text(x + 32, y, route))
    out.append(text(LEFT + WIDTH / 2, TOP + HEIGHT + 36, "servers", "middle"))
    out.append(text(flow.left + WIDTH / 2, TOP + HEIGHT + 36, "servers", "middle"))
    return out, flow.left + WIDTH + 30, TOP + HEIGHT + 76


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    rows = []
    for path in sys.argv[1:-1]:
        with open(path) as file:
            rows += [row for row in json.load(file)["rows"] if row["traffic"] == "grow"]
    if not any(row["redis"] for row in rows):
        sys.exit("rows of bench scale --traffic grow with Redis are wanted")
    body, width, height = draw(rows)
    head = f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" aria-labelledby="t d" font-family="system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif" font-size="13">
  <title id="t">Hit rates, and what is asked of one Redis, against the number of servers (simulated)</title>
  <desc id="d">Left: the share of prompt tokens that are found in memory or Redis, by the router's rule, with one Redis and without. Right: bytes a second of KV that all servers write to and read from one Redis, and of the records and lists by which each knows what the others stored, on a logarithmic scale, with the rates of two networks.</desc>
  <style>
    .t {{ fill: #24292f }} .m {{ fill: #59636e }} .g {{ stroke: #8c959f; stroke-opacity: .3 }} .n {{ stroke: #cf222e; stroke-dasharray: 2 3 }} .r {{ fill: none; stroke: #59636e; stroke-width: 2; stroke-dasharray: 2 4 }}
    @media (prefers-color-scheme: dark) {{ .t {{ fill: #e6edf3 }} .m {{ fill: #9aa4af }} .r {{ stroke: #9aa4af }} }}
  </style>
"""
    with open(sys.argv[-1], "w") as file:
        file.write(head + "\n".join(body) + "\n</svg>\n")


if __name__ == "__main__":
    main()
