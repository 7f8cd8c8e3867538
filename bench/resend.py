#!/usr/bin/env python3
"""A client that gives up after some seconds and sends the same long prompt again: tries and work until its answer.

usage: resend.py MODEL [--kvilt build/release/kvilt] [--tokens 16000] [--timeout 20] [--json OUT.json]

Starts `kvilt serve` twice: the prompt (random tokens, temperature 0) is answered undisturbed by the first, and by the
second for a client that closes its connection after --timeout seconds and sends again at once. Work is
kvilt:prefill_flops_total of /metrics, of all prefills; both answers must be the same text.
"""
import argparse
import http.client
import json
import pathlib
import random
import re
import time
import urllib.request

from traffic_http import Server


def prefill_flops(server):
    with urllib.request.urlopen(server.url + "/metrics", timeout=60) as answer:
        return float(re.search(r"^kvilt:prefill_flops_total(?:{[^}]*})? (\S+)$", answer.read().decode(), re.M).group(1))


def ask(server, body, timeout):
    """The answer, or None when `timeout` seconds passed without one."""
    connection = http.client.HTTPConnection(*server.address, timeout=timeout)
    try:
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read()
        if response.status != 200:
            raise SystemExit(f"HTTP {response.status}: {text.decode()}")
        return json.loads(text)
    except TimeoutError:
        return None
    finally:
        connection.close()


def run(args, body, timeout):
    with Server(args.kvilt, args.model, "--threads", str(args.threads), "--kv-bytes", "2GiB") as server:
        begin, tries, answer = time.monotonic(), 0, None
        while answer is None and tries < 20:
            tries += 1
            answer = ask(server, body, timeout)
        seconds = time.monotonic() - begin
        return {"tries": tries, "seconds": round(seconds, 2), "flops": prefill_flops(server),
                "joined": answer and answer["usage"]["kvilt"].get("joined", 0), "text": answer and answer["choices"][0]["text"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--kvilt", type=pathlib.Path, default=pathlib.Path("build/release/kvilt"))
    parser.add_argument("--tokens", type=int, default=16000)
    parser.add_argument("--timeout", type=float, default=20)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    draw = random.Random(1)
    ids = [draw.randrange(1000, 100000) for _ in range(args.tokens)]
    body = json.dumps({"prompt": ids, "max_tokens": 8, "temperature": 0})
    result = {"undisturbed": run(args, body, 600), "sent_again": run(args, body, args.timeout)}
    once, again = result["undisturbed"], result["sent_again"]
    result["work_ratio"] = again["flops"] / once["flops"]
    result["same_text"] = once["text"] == again["text"]
    print(json.dumps(result, indent=1))
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
