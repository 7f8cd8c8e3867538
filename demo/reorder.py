"""usage: reorder.py URL CASES.jsonl

For each case: ask cold; let another question make the documents known, in another order; then ask again under each policy. Only that
other question is published, so every policy finds the documents as it left them and nothing else.
"""
import json
import sys

from client import call, stream_chat

SEEN = "seen before"
HEADER = f"{'documents':<12} {'policy':<8} {'TTFT s':>7} {'sooner':>7} {'prompt':>7} {'prefix':>7} {'reused':>7} {'again':>6} {'fresh':>6}  answer"


def ask(url, case, order, policy, publish):
    documents = [{"title": case["segments"][i].get("title", ""), "text": case["segments"][i]["text"]} for i in order]
    body = {
        "messages": [{"role": "system", "content": case["system"]}, {"role": "user", "content": case["question"]}],
        "documents": documents,
        "temperature": 0,
        "max_tokens": 24,
        "kvilt": {"policy": policy, "publish": publish},
    }
    return stream_chat(url, body)


def main(url, path):
    with open(path) as file:
        cases = [json.loads(line) for line in file if line.strip()]
    ratios = {}
    for case in cases:
        call(url, "/v1/cache/clear", {})
        print(f"\n{case['question']}   (right: {' or '.join(case['answers'])})\n{HEADER}")
        seen = list(range(len(case["segments"])))
        other = seen[1::2] + seen[0::2][::-1]
        cold = None
        for name, order, policy in [("cold", other, "full"), (SEEN, seen, "full"), ("same order", seen, "prefix"),
                                    ("new order", other, "prefix"), *(("new order", other, policy) for policy in ("naive", "mend", "auto"))]:
            question = dict(case, question="Which of the documents above is the longest?") if name == SEEN else case
            text, seconds, usage = ask(url, question, order, policy, publish=name == SEEN)
            cold = cold or seconds
            by = usage["kvilt"]
            ratios.setdefault((name, policy), []).append(cold / seconds)
            shown = "(another question, so that the documents are known)" if name == SEEN else " ".join(text.split())
            print(f"{name:<12} {policy:<8} {seconds:7.2f} {cold / seconds:6.1f}x {usage['prompt_tokens']:7d} {by['prefix']:7d} {by['reused']:7d} "
                  f"{by['recomputed']:6d} {by['fresh']:6d}  {shown}", flush=True)
    print("\nSooner than cold, median of the cases: " + ", ".join(
        f"{name} with {policy} {sorted(values)[len(values) // 2]:.1f}x" for (name, policy), values in ratios.items() if policy != "full"))
    print("prefix: exact, as engines of today; naive: pieces as they were; mend: what the question looks at is computed again, and its change\n"
          "carried over to the rest; auto: the default, mend with a second look and twice the budget (--quality balanced).")


main(*sys.argv[1:])
