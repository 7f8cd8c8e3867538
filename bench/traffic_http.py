#!/usr/bin/env python3
"""Plays the workloads of `kvilt bench traffic` over HTTP, against one or two programs: an old one has no such command.

usage: bench/traffic_http.py MODEL.gguf [--kvilt build/release/kvilt] [--other PROGRAM] [--only chat,burst,mixed,wait,interrupted] [--quick]
       [--rounds 3] [--json out.json]     about a quarter of an hour a program on two cores

Sizes and shapes are those of apps/bench/traffic_chat.cc and traffic_load.cc. Texts are the same for both programs: facts
from the same seed, documents as parts with cache_control. One server is alive at a time, and every conversation, burst
and so on has a fresh one; the programs take turns.
  chat         six turns over ten known passages in a new order, under --ask and under quality `exact`; the last prompt
               again; `exact` in the middle; four choices
  burst        20 questions over the same six cold documents at once
  mixed        50 fresh tokens over known documents behind a cold prompt of 16k
  wait         cold prompts in a pool of 1.3 of them, from two clients, and a small request
  interrupted  a client gives up after five seconds and asks again, until it has the answer
Times are the client's: from its request to the first piece of text. Work is counted in tokens computed, from the usage of
answers and, where there is no answer, from the counters of /metrics: HTTP tells no FLOPs.
"""
import argparse
import http.client
import json
import os
import pathlib
import random
import re
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[1]
SYSTEM = "You answer questions about the notes that you are given."
CHUNK = 512  # prefill rows of one step: the servers' default
UNNOTICED = 0.05  # s: a turn that is answered so soon is not compared
SHORT = 8  # tokens of an answer
EXACT = {"quality": "exact"}
WORDS = ("amber anchor apple arrow barley basket beacon birch blanket bottle branch bridge broom bucket cabin candle canal carpet castle cedar chapel "
         "cherry cider clay cliff coast copper cotton cradle creek crown dairy drum dune eagle ember fable falcon feather ferry fiddle flute forest "
         "fountain frost garden ginger glove granite guitar hammer harbour hazel heron honey island ivory kettle ladder lantern lemon linen maple "
         "market meadow mill mountain needle oak olive orchard oven").split()
GOALS = {"chat_sum_ratio": "at most .6", "chat_later_turn_ratio": "at most 1.3", "switch_later_turn_ratio": "at most 1.3", "n4_prefill_ratio": "at most 1.1",
         "regenerate_rows": "one step", "burst_tokens_ratio": "at most 1.15", "mixed_ttft_ratio": "at most 3", "mixed_long_loss": "at most .1",
         "wait_max_over_mean": "at most 4", "retry_work_ratio": "at most 1.1"}


class Server:
    def __init__(self, program, model, *flags, log=subprocess.DEVNULL):
        self.process = subprocess.Popen([program, "serve", model, "--port", "0", *flags], stdout=subprocess.PIPE, stderr=log, text=True)
        for line in self.process.stdout:
            if found := re.match(r"serving on http://([\d.]+):(\d+)", line):
                self.address = found[1], int(found[2])
                self.url = f"http://{found[1]}:{found[2]}"
                return
        sys.exit(f"traffic_http: {program} did not start")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.communicate()

    def call(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}), timeout=900) as answer:
            return json.load(answer)

    def counters(self):
        """Sums of /metrics: steps, ended requests, known and computed tokens of those, and work (0: older programs do not say)."""
        with urllib.request.urlopen(self.url + "/metrics", timeout=60) as answer:
            text = answer.read().decode()
        values = re.findall(r"^kvilt:(\w+)\{(.*)\} (\S+)$", text, re.M)

        def total(name, *labels):
            return sum(float(number) for at, of, number in values if at == name and (not labels or any(label in of for label in labels)))

        tokens = "prompt_tokens_by_source_total"
        return {"steps": total("engine_steps_total"), "flops": total("prefill_flops_total"), "ended": total("request_success_total"), "prefix": total(tokens, 'source="prefix"'),
                "rows": total(tokens, 'source="recomputed"', 'source="fresh"')}

    def counters_after(self, before, requests):
        """The counters once so many more requests have ended: one that was given up ends with its step."""
        while (now := self.counters())["ended"] < before["ended"] + requests:
            time.sleep(0.02)
        return now


class Reply:
    """What a client sees of one request; gave_up: it closed the connection before there was any text."""

    def __init__(self):
        self.text, self.usage, self.first, self.gave_up, self.refused = "", None, None, False, 0

    def rows(self):
        return self.usage["kvilt"]["fresh"] + self.usage["kvilt"]["recomputed"]


def read_stream(answer, reply, begin):
    for line in answer:
        if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
            continue
        event = json.loads(line[6:])
        if "error" in event:
            raise RuntimeError(event["error"]["message"])
        reply.usage = event.get("usage") or reply.usage
        for choice in event["choices"]:
            if choice["delta"].get("content") or choice.get("finish_reason"):
                reply.first = reply.first or time.monotonic() - begin
                reply.text += choice["delta"].get("content") or ""


def ask(server, body, patience=None):
    """Streams one chat. A server that is too full is asked again after a second: the time goes on."""
    reply, begin = Reply(), time.monotonic()
    data = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}})
    while reply.first is None and not reply.gave_up:
        connection = http.client.HTTPConnection(*server.address, timeout=900)
        connection.connect()
        hang_up = threading.Timer(patience or 3600, lambda at=connection.sock: (setattr(reply, "gave_up", True), at.shutdown(socket.SHUT_RDWR)))
        hang_up.daemon = True
        hang_up.start()
        try:
            connection.request("POST", "/v1/chat/completions", data, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            if answer.status == 503:
                reply.refused += 1
                time.sleep(1)
            elif answer.status != 200:
                raise RuntimeError(f"{answer.status} {answer.read().decode()}")
            else:
                read_stream(answer, reply, begin)
        except (OSError, http.client.HTTPException):
            if not reply.gave_up:
                raise
        finally:
            hang_up.cancel()
            connection.close()
    if reply.usage:
        reply.gave_up = False  # the answer was there before the client hung up
    elif not reply.gave_up:
        raise RuntimeError("the stream ended without its usage")
    return reply


class Asked(threading.Thread):
    """A request in a thread of its own."""

    def __init__(self, server, body):
        super().__init__(daemon=True)
        self.server, self.body, self.reply, self.problem = server, body, None, None
        self.start()

    def run(self):
        try:
            self.reply = ask(self.server, self.body)
        except Exception as problem:  # told by wait()
            self.problem = problem

    def wait(self):
        self.join()
        if self.problem:
            raise self.problem
        return self.reply


class Texts:
    """A stream of text, cut as needed into parts of so many tokens; no part of it comes twice."""

    def __init__(self, server, seed):
        self.server, self.rng, self.ids = server, random.Random(seed * 1000003), []

    def sentence(self):  # words in no order: rows that look alike would be computed more than most texts are
        return " ".join(self.rng.choices(WORDS, k=11)) + ". "

    def next(self, tokens):
        while len(self.ids) < tokens:
            text = "".join(self.sentence() for _ in range(max(4096, tokens) // 12 + 4))
            self.ids += self.server.call("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]
        cut, self.ids = self.ids[:tokens], self.ids[tokens:]
        return self.server.call("/detokenize", {"tokens": cut})["prompt"]

    def several(self, count, tokens):
        return [self.next(tokens) for _ in range(count)]


def first_turn(documents, question):
    parts = [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}} for text in documents]
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": parts + [{"type": "text", "text": question}]}]


def chat_body(messages, answer, kvilt, **more):
    return {"messages": messages, "max_tokens": answer, "temperature": 0, "part_separator": "", "kvilt": kvilt, **more}


def shuffled(texts, seed):
    order = list(range(len(texts)))
    random.Random(seed).shuffle(order)
    if order[0] == 0:  # the first one would be a plain prefix
        order[0], order[1] = order[1], order[0]
    return [texts[i] for i in order]


class Bench:
    def __init__(self, args):
        self.model, self.quick, self.asks = args.model, args.quick, json.loads(args.ask)
        self.rounds, self.seed = args.rounds or (1 if args.quick else 3), args.seed
        self.programs = {"kvilt": args.kvilt, **({"other": args.other} if args.other else {})}
        self.figures, self.details, self.alternate = [], [], 0

    def size(self, whole, quick):
        return quick if self.quick else whole

    def each(self):
        """The programs; each time another one comes first."""
        names = sorted(self.programs, reverse=self.alternate % 2 == 0)
        self.alternate += 1
        return names

    def open(self, name, *flags):
        return Server(self.programs[name], self.model, *flags)

    def figure(self, workload, name, program, value):
        self.figures.append({"workload": workload, "figure": name, "program": program, "value": value})
        print(f"{workload:12} {name:26} {program:8} {value:12.4g}", file=sys.stderr, flush=True)

    def detail(self, workload, what, program, reply):
        usage = reply.usage and {"prompt_tokens": reply.usage["prompt_tokens"], **reply.usage["kvilt"]}
        self.details.append({"workload": workload, "what": what, "program": program, "first_s": reply.first, "refused": reply.refused, "usage": usage})


class Conversation:
    """A server that knows the passages, and what was said."""

    def __init__(self, bench, server, first):
        self.bench, self.server, self.texts = bench, server, Texts(server, bench.seed)
        self.answer = 24
        passages = self.texts.several(bench.size(10, 6), bench.size(400, 128))
        ask(server, chat_body(first_turn(passages, self.texts.next(20)), self.answer, first))
        self.messages = first_turn(shuffled(passages, bench.seed), self.texts.next(20))
        self.asked = None

    def turn(self, kvilt):
        reply = ask(self.server, chat_body(self.messages, self.answer, kvilt))
        self.asked = self.messages
        self.messages = self.messages + [{"role": "assistant", "content": reply.text}, {"role": "user", "content": self.texts.next(20)}]
        return reply

    def regenerate(self, kvilt):
        return ask(self.server, chat_body(self.asked, self.answer, kvilt))

    def choices(self, count, kvilt):
        """Prompt tokens computed for so many choices of the next turn."""
        before = self.server.counters()
        self.server.call("/v1/chat/completions", chat_body(self.messages, self.answer, kvilt, n=count, temperature=1, seed=self.bench.seed))
        return self.server.counters_after(before, count)["rows"] - before["rows"]


def talk(bench, name, asks, label):
    """Replies of one conversation: its turns, and the last prompt once more."""
    with bench.open(name) as server:
        conversation = Conversation(bench, server, asks[0])
        replies = [conversation.turn(kvilt) for kvilt in asks]
        again = conversation.regenerate(asks[-1])
    for t, reply in enumerate(replies):
        bench.detail("chat", f"{label} turn {t + 1}", name, reply)
    bench.detail("chat", f"{label} regenerate", name, again)
    return replies, again


def worst(ours, exact, first):
    return max([a / b for a, b in list(zip(ours, exact))[first:] if a > UNNOTICED], default=0)


def chat(bench):
    turns = bench.size(6, 4)
    middle = turns // 2 - 1
    switching = [EXACT if t == middle else bench.asks for t in range(turns)]
    lanes = {(name, lane): [] for name in bench.programs for lane in ("default", "exact")}
    for _ in range(bench.rounds):
        for lane, kvilt in (("default", bench.asks), ("exact", EXACT)):
            for name in bench.each():
                lanes[name, lane].append(talk(bench, name, [kvilt] * turns, lane))
    switched = {name: talk(bench, name, switching, "switching")[0] for name in bench.each()}
    for name in bench.programs:
        a, b = ([statistics.median(replies[t].first for replies, _ in lanes[name, lane]) for t in range(turns)] for lane in ("default", "exact"))
        for t in range(turns):
            bench.figure("chat", f"turn_{t + 1}_default_s", name, a[t])
            bench.figure("chat", f"turn_{t + 1}_exact_s", name, b[t])
        bench.figure("chat", "chat_sum_ratio", name, sum(a) / sum(b))
        bench.figure("chat", "chat_later_turn_ratio", name, worst(a, b, 1))
        bench.figure("chat", "switch_later_turn_ratio", name, worst([reply.first for reply in switched[name]], b, middle + 1))
        bench.figure("chat", "regenerate_rows", name, lanes[name, "default"][0][1].rows())
    for name in bench.each():
        rows = []
        for count in (1, 4):
            with bench.open(name) as server:
                rows.append(Conversation(bench, server, bench.asks).choices(count, bench.asks))
        bench.figure("chat", "n4_prefill_ratio", name, rows[1] / rows[0])


def one_burst(bench, name):
    with bench.open(name) as server:
        texts = Texts(server, bench.seed + 1)
        documents = texts.several(6, bench.size(256, 128))
        bodies = [chat_body(first_turn(documents, texts.next(24)), SHORT, bench.asks, ignore_eos=True) for _ in range(bench.size(20, 8))]
        prompts = [server.call("/tokenize", {"messages": body["messages"], "part_separator": ""})["tokens"] for body in bodies[:2]]
        shared = next(i for i, (a, b) in enumerate(zip(*prompts)) if a != b)
        replies = [asked.wait() for asked in [Asked(server, body) for body in bodies]]
    for reply in replies:
        bench.detail("burst", "question", name, reply)
    union = shared + sum(reply.usage["prompt_tokens"] - shared for reply in replies)
    return sum(reply.rows() for reply in replies) / union, [reply.first for reply in replies]


def burst(bench):
    rounds = {name: [] for name in bench.programs}
    for _ in range(bench.rounds):
        for name in bench.each():
            rounds[name].append(one_burst(bench, name))
    for name, bursts in rounds.items():
        bench.figure("burst", "burst_tokens_ratio", name, statistics.median(ratio for ratio, _ in bursts))
        bench.figure("burst", "burst_ttft_median_s", name, statistics.median(statistics.median(first) for _, first in bursts))
        bench.figure("burst", "burst_ttft_max_s", name, statistics.median(max(first) for _, first in bursts))


def mixed(bench):
    for name in bench.each():
        with bench.open(name) as server:
            texts, orders = Texts(server, bench.seed + 2), iter(range(1, 100))
            known = texts.several(8, bench.size(256, 128))
            ask(server, chat_body(first_turn(known, texts.next(16)), 0, bench.asks))

            def cold():
                return chat_body(first_turn([texts.next(bench.size(16384, 4096))], texts.next(16)), SHORT, bench.asks, ignore_eos=True)

            def reuse():
                # five more fresh tokens end the user's turn and begin the answer
                return chat_body(first_turn(shuffled(known, next(orders)), texts.next(45)), SHORT, bench.asks, ignore_eos=True)

            def alone(body, what):
                reply = ask(server, body)
                bench.detail("mixed", what, name, reply)
                return reply.first

            small = [alone(reuse(), "reuse alone") for _ in range(3)]
            undisturbed = [alone(cold(), "long alone")]
            bodies = cold(), reuse()
            first = Asked(server, bodies[0])
            time.sleep(undisturbed[0] / 4)  # it is under way
            second = Asked(server, bodies[1])
            replies = second.wait(), first.wait()
            for reply, what in zip(replies, ("reuse behind long", "long disturbed")):
                bench.detail("mixed", what, name, reply)
            undisturbed.append(alone(cold(), "long alone"))
        bench.figure("mixed", "mixed_ttft_alone_s", name, statistics.median(small))
        bench.figure("mixed", "mixed_ttft_s", name, replies[0].first)
        bench.figure("mixed", "mixed_long_alone_s", name, statistics.mean(undisturbed))
        bench.figure("mixed", "mixed_ttft_ratio", name, replies[0].first / statistics.median(small))
        bench.figure("mixed", "mixed_long_loss", name, replies[1].first / statistics.mean(undisturbed) - 1)


def wait(bench):
    tokens, count = bench.size(2048, 1024), bench.size(16, 12)
    for name in bench.each():
        with bench.open(name) as server:
            token_bytes = server.call("/v1/models")["data"][0]["kvilt"]["kv_bytes_per_token"]
        with bench.open(name, "--kv-bytes", str(int(1.3 * (tokens + 64) * token_bytes))) as server:
            texts = Texts(server, bench.seed + 3)
            known = texts.several(4, 3 * tokens // 64)
            ask(server, chat_body(first_turn(known, texts.next(16)), 0, bench.asks))
            small = chat_body(first_turn(shuffled(known, 1), texts.next(16)), SHORT, bench.asks, ignore_eos=True)
            stream = [chat_body(first_turn([texts.next(tokens)], texts.next(16)), SHORT, bench.asks, ignore_eos=True) for _ in range(count)]
            asked = []
            for body in (stream[0], small, stream[1]):
                asked.append(Asked(server, body))
                time.sleep(0.02)  # they arrive in this order
            for i in range(2, count):  # the client whose answer is there asks again
                asked[0 if i == 2 else i - 1].wait()
                asked.append(Asked(server, stream[i]))
            replies = [one.wait() for one in asked]
        for i, reply in enumerate(replies):
            bench.detail("wait", "small" if i == 1 else "cold", name, reply)
        waits = [reply.first for reply in replies]
        bench.figure("wait", "wait_small_s", name, waits[1])
        bench.figure("wait", "wait_mean_s", name, statistics.mean(waits))
        bench.figure("wait", "wait_refusals", name, sum(reply.refused for reply in replies))
        bench.figure("wait", "wait_max_over_mean", name, max(waits) / statistics.mean(waits))


def interrupted(bench):
    patience = bench.size(5, 1)
    for name in bench.each():
        with bench.open(name) as server:
            texts = Texts(server, bench.seed + 4)

            def cold():
                return chat_body(first_turn([texts.next(bench.size(16384, 4096))], texts.next(16)), SHORT, bench.asks, ignore_eos=True)

            nothing = server.counters()
            whole = ask(server, cold())
            undisturbed = server.counters_after(nothing, 1)
            bench.detail("interrupted", "undisturbed", name, whole)
            prompt, body = whole.usage["prompt_tokens"], cold()
            # Twice as often as it should take, the client gives up; then it waits, however long.
            most = 2 * -int(-whole.first // patience) + 2
            attempts, rows, begin, reply, counted = 0, 0, time.monotonic(), None, undisturbed
            while reply is None or reply.gave_up:
                attempts += 1
                reply = ask(server, body, patience if attempts < most else None)
                before, counted = counted, server.counters_after(counted, 1)
                known, steps = counted["prefix"] - before["prefix"], counted["steps"] - before["steps"]
                # Of an attempt that was given up: what its steps held. The last one's rows are all that it took over too.
                rows += min(prompt - known, CHUNK * steps) if reply.gave_up else reply.rows() - reply.usage["kvilt"].get("joined", 0)
                bench.detail("interrupted", "gave up" if reply.gave_up else "answered", name, reply)
                bench.details[-1].update(steps=steps, prefix=known, begun_s=time.monotonic() - begin)
        work = undisturbed["flops"] - nothing["flops"]
        bench.figure("interrupted", "retry_attempts", name, attempts)
        bench.figure("interrupted", "retry_patience_ran_out", name, int(attempts >= most))
        bench.figure("interrupted", "retry_work_ratio", name, (counted["flops"] - undisturbed["flops"]) / work if work else rows / whole.rows())
        bench.figure("interrupted", "retry_time_ratio", name, (time.monotonic() - begin) / whole.first)


WORKLOADS = {"chat": chat, "burst": burst, "mixed": mixed, "wait": wait, "interrupted": interrupted}


def table(figures, programs):
    names = list(dict.fromkeys((row["workload"], row["figure"]) for row in figures))
    value = {(row["workload"], row["figure"], row["program"]): row["value"] for row in figures}
    out = ["| workload | figure | should be | " + " | ".join(programs) + " |", "|---" * (3 + len(programs)) + "|"]
    for workload, figure in names:
        cells = [f"{value[workload, figure, name]:.3g}" if (workload, figure, name) in value else "" for name in programs]
        out.append(f"| {workload} | `{figure}` | {GOALS.get(figure, '')} | " + " | ".join(cells) + " |")
    return "\n".join(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--kvilt", default=str(ROOT / "build/release/kvilt"))
    parser.add_argument("--other", help="the second program")
    parser.add_argument("--only", default=",".join(WORKLOADS), help="separated by commas")
    parser.add_argument("--ask", default='{"quality": "balanced"}', help="the field `kvilt` of the default's requests; {} asks for nothing")
    parser.add_argument("--rounds", type=int, default=0, help="of chat and burst, by turns (3; with --quick 1)")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="smaller sizes: for a look, not for a table")
    parser.add_argument("--json", help="write all rows to this file")
    args = parser.parse_args()
    if unknown := set(args.only.split(",")) - set(WORKLOADS):
        parser.error(f"--only: no workload {', '.join(sorted(unknown))}; there are {', '.join(WORKLOADS)}")
    bench = Bench(args)
    for name in args.only.split(","):
        try:
            WORKLOADS[name](bench)
        except KeyboardInterrupt:  # the table is of what ended
            break
    if args.json:
        with open(args.json, "w") as out:
            json.dump({"model": os.path.basename(args.model), "seed": args.seed, "quick": args.quick, "figures": bench.figures, "details": bench.details}, out, indent=1)
    print(table(bench.figures, [name for name in ("other", "kvilt") if name in bench.programs]))


if __name__ == "__main__":
    main()
