"""usage: tiny.py URL

The 1.3 M probe model: each segment is known alone, then the whole prompt is asked. With full attention it tracks variables over
segments; with naive reuse a segment never saw the others, and the answers go.
"""
import json
import os
import sys

from client import call

MODELS = os.path.join(os.path.dirname(__file__), "..", "tests", "data", "models", "probe-1M")
POLICIES = ["full", "naive", "sparsex", "mend", "auto"]


def main(url, limit=60):
    print(f"{'task':<16} {'policy':<8} {'right':>7} {'reused':>7} {'again':>7} {'TTFT ms':>8}")
    for task in ["niah", "vt-value"]:
        with open(os.path.join(MODELS, f"cases-{task}.jsonl")) as file:
            cases = [json.loads(line) for line in file][:limit]
        table = {name: [0, 0, 0, 0.0] for name in POLICIES}
        for case in cases:
            call(url, "/v1/cache/clear", {})
            for segment in case["segments"]:
                call(url, "/v1/completions", {"prompt": segment["text"], "max_tokens": 0, "kvilt": {"policy": "full"}})
            prompt = " ".join([case["system"], *(segment["text"] for segment in case["segments"]), case["question"]])
            for name in POLICIES:
                answer = call(url, "/v1/completions", {"prompt": prompt, "max_tokens": 24, "temperature": 0,
                                                       "kvilt": {"policy": name, "publish": False}})
                row, by = table[name], answer["usage"]["kvilt"]
                row[0] += all(wanted in answer["choices"][0]["text"].split() for wanted in case["answers"])
                row[1] += by["reused"] / answer["usage"]["prompt_tokens"]
                row[2] += by["recomputed"] / answer["usage"]["prompt_tokens"]
                row[3] += by["ttft_s"] * 1000
        for name, row in table.items():
            n = len(cases)
            print(f"{task:<16} {name:<8} {row[0] / n:7.2f} {row[1] / n:6.0%} {row[2] / n:6.0%} {row[3] / n:8.2f}", flush=True)


main(sys.argv[1])
