#!/usr/bin/env python3
"""A soak: one server with a folder and a Redis under a mixed load of many clients, and everything it says is checked.

usage: bench/soak.py MODEL [--kvilt build/release/kvilt] [--minutes 30] [--clients 64] [--json OUT.json]
       exit status 1 with the reasons if a check fails; a redis-server is needed (package redis-server)

First a server without any cache is asked, one request at a time: its answers are what every later one of the same prompt
must be. Then `kvilt serve --cache-dir --cache-redis --tenants` is, by --clients clients at once: chats that grow, documents
in known and new orders, long prompts that evict others, streams and whole answers, several tenants, namespaces and salts;
clients that leave in the middle; requests that are too large, malformed or cut short (soak_load.py). Meanwhile Redis is
killed at two fifths of the time and started again, and stopped for up to 20 s at seven tenths. Checked (soak_checks.py):
  answers   at temperature 0 and quality `exact` each equals the first of its prompt, streamed or whole, whoever asks:
            text, number of tokens, log probabilities; of prompts that came under load, some are asked of a server without
            a cache afterwards; after the load all of the quiet ones again, and again after a restart, from the folder
  statuses  200, 429 or 503 as documented to what is right, the documented 4xx to what is wrong; no request hangs
  memory    RSS from the end of the warm-up (a fifth) on: a line through a sample a second; open files, threads
  counters  of /metrics; nothing runs, waits or lingers when nobody asks
  the end   SIGTERM ends it with status 0
"""
import argparse
import contextlib
import json
import os
import pathlib
import re
import signal
import statistics
import sys
import tempfile
import threading
import time
import urllib.request

import redis_server
from soak_checks import Judge, Sample, counter_problems, growth, load_problems, memory_problems, quiet_problems
from soak_load import (ADMIN, ANSWERED, CHAT, KEYS, KINDS, Catalogue, Client, Connection, key_of, tenants)
from traffic_http import ROOT, Server

BODY_BYTES = 256 << 10  # the largest
SAMPLED = 150  # prompts of the load that are asked again
GAUGES = ("num_requests_running", "num_requests_waiting", "prefills_lingering", "num_preemptions_total", "cache_evicted_tokens_total", "cached_runs",
          "disk_cache_errors_total", "disk_cache_written_bytes_total", "disk_cache_loaded_tokens_total", "disk_cache_pieces",
          "disk_cache_dropped_total", "redis_cache_errors_total", "redis_cache_written_bytes_total", "redis_cache_loaded_tokens_total",
          "redis_cache_late_total", "redis_cache_dropped_total", "redis_cache_up", "http_connections_refused_total")


class Soaked(Server):
    """The server under test, and what the system and /metrics say of it."""

    def __init__(self, args, folder, *flags):
        (folder / "tenants.json").write_text(json.dumps(tenants()))
        self.log = open(folder / "log", "a")
        super().__init__(args.kvilt, args.model, "--tenants", str(folder / "tenants.json"), "--max-body", str(BODY_BYTES),
                         "--threads", str(args.threads), *flags, log=self.log)
        self.most_body = BODY_BYTES
        self.too_many = self.get("/v1/models")["data"][0]["max_model_len"] + 100

    def get(self, path):
        request = urllib.request.Request(self.url + path, headers={"Authorization": f"Bearer {ADMIN.secret}"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read().decode()
        return json.loads(text) if path.startswith("/v1") else text

    def gauges(self):
        values = re.findall(r"^kvilt:(\w+)\{(.*)\} (\S+)$", self.get("/metrics"), re.M)
        out = {name: sum(float(value) for at, _, value in values if at == name) for name in GAUGES}
        out["requests_with_error"] = sum(float(value) for at, of, value in values if at == "request_success_total" and '"error"' in of)
        out["responses_500"] = sum(float(value) for at, of, value in values if at == "http_responses_total" and 'status="500"' in of)
        return out

    def sample(self, begin):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        rss, threads = (int(re.search(rf"^{name}:\s+(\d+)", status, re.M)[1]) for name in ("VmRSS", "Threads"))
        return Sample(time.monotonic() - begin, rss << 10, len(os.listdir(f"/proc/{self.process.pid}/fd")), threads)

    def end(self):
        """SIGTERM; the status with which it ended, and how long that took."""
        begin = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=180)
        return self.process.returncode, time.monotonic() - begin

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()
        self.log.close()


class Soak:
    def __init__(self, args, folder):
        self.args, self.folder, self.judge = args, folder, Judge()
        self.catalogue, self.seconds = Catalogue(args.seed, args.size), args.minutes * 60
        self.samples, self.asked_late, self.events, self.report = [], [], [], {}
        self.sample_lock, self.seen_late = threading.Lock(), 0

    def flags(self, redis):
        args = self.args
        return ["--cache-dir", str(self.folder / "cache"), "--cache-disk", args.cache_disk, "--kv-bytes", args.kv_bytes, "--cache-redis",
                f"unix:{redis.socket}", "--cache-redis-timeout", "500", "--linger", "2"]

    def say(self, words):
        print(f"soak: {words}", file=sys.stderr, flush=True)

    def ask_quietly(self, server, kind, newest_first=False):
        """Every prompt of the catalogue, one after the other; the tokens that came from disk. newest_first: what was asked last comes first, as
        a pool and a folder that are smaller than the catalogue hold that alone."""
        connection, disk, keys = Connection(server.address, self.args.patience), 0, [KEYS[0], KEYS[1]]

        def ask(path, base, i):
            nonlocal disk
            answer = connection.ask(path, {**base, "logprobs": 1 if path != CHAT else True}, keys[i % 2])
            if self.judge.saw(kind, answer):
                self.judge.exact(kind, key_of(path, base), answer)
                disk += answer.usage["kvilt"]["disk"]
                return answer.texts[0]
            return None

        def talk(which):
            answers = []
            while len(answers) < 6 and None not in answers:
                answers.append(ask(CHAT, self.catalogue.chat(which, answers), which))

        jobs = [lambda i=i, path=path, base=base: ask(path, base, i) for i, (path, base) in enumerate(self.catalogue.quiet())]
        jobs += [lambda which=which: talk(which) for which in range(len(self.catalogue.talks))]
        for job in reversed(jobs) if newest_first else jobs:
            job()
        connection.close()
        return disk

    def keep_late(self, path, base, answer):
        """An even sample of the prompts that came under load (a reservoir)."""
        with self.sample_lock:
            self.seen_late += 1
            if len(self.asked_late) < SAMPLED:
                self.asked_late.append((path, base, answer))
            elif (at := self.catalogue.rng.randrange(self.seen_late)) < SAMPLED:
                self.asked_late[at] = (path, base, answer)

    def ask_late(self, server):
        connection = Connection(server.address, self.args.patience)
        for path, base, answer in self.asked_late:
            self.judge.first[key_of(path, base)] = connection.ask(path, base, KEYS[0])
            self.judge.exact("late", key_of(path, base), answer)
        connection.close()

    def disturb(self, redis, begin):
        """Redis is killed and comes again; then it is stopped for a while."""
        down, stopped = min(10.0, 0.1 * self.seconds), min(20.0, 0.1 * self.seconds)
        for at, words, do in [(0.4, "Redis is killed", redis.kill), (0.4 + down / self.seconds, "Redis is started again", redis.start),
                              (0.7, "Redis is stopped", redis.stall), (0.7 + stopped / self.seconds, "Redis goes on", redis.go_on)]:
            time.sleep(max(0.0, begin + at * self.seconds - time.monotonic()))
            self.say(words)
            self.events.append({"at_s": round(time.monotonic() - begin, 1), "what": words})
            do()

    def load(self, server, redis):
        begin = time.monotonic()
        clients = [Client(self.args.seed * 1000 + i, server, self.catalogue, self.judge, begin + self.seconds, self.args.patience, self.keep_late)
                   for i in range(self.args.clients)]
        disturber = threading.Thread(target=self.disturb, args=(redis, begin), daemon=True)
        for thread in [disturber, *clients]:
            thread.start()
        self.watch(server, begin)
        disturber.join(60)
        for client in clients:
            client.join(self.args.patience + 100)
            if client.is_alive():
                self.judge.problem(f"{client.kind}: a request has no end")
        self.report["load_s"] = time.monotonic() - begin

    def watch(self, server, begin):
        """A sample a second. Where a second took much longer, all of us stood still, and no time means anything."""
        every = min(1.0, self.seconds / 40)
        while server.process.poll() is None:
            with contextlib.suppress(OSError, TypeError):  # it ended just now
                self.samples.append(server.sample(begin))
            if time.monotonic() > begin + self.seconds:
                return
            before = time.monotonic()
            time.sleep(every)
            if (late := time.monotonic() - before - every) > 2:
                self.events.append({"at_s": round(before - begin, 1), "what": f"this program stood still for {late:.1f} s"})

    def settle(self, server):
        """Until nothing runs and Redis is back, half a minute at most."""
        gauges = {}
        for _ in range(60):
            gauges = {**server.gauges(), "fds": server.sample(0).fds}
            if gauges["redis_cache_up"] and not any(gauges[name] for name in ("num_requests_running", "num_requests_waiting", "prefills_lingering")):
                break
            time.sleep(0.5)
        return gauges

    def ended(self, server, what):
        """It ends when it is told to."""
        status, seconds = server.end()
        self.report[f"{what}_end_s"] = seconds
        if status != 0:
            self.judge.problem(f"the end ({what}): SIGTERM, and its status is {status}")

    def run(self):
        args, judge = self.args, self.judge
        warm = args.warm_share * self.seconds
        with Soaked(args, self.folder, "--no-cache", "--linger", "0") as alone, redis_server.Redis(
                "--maxmemory", args.redis_bytes, "--maxmemory-policy", "volatile-lru") as redis:
            self.say("the quiet run")
            self.ask_quietly(alone, "quiet")
            with Soaked(args, self.folder, *self.flags(redis)) as server:
                opened = server.sample(0).fds
                self.say(f"{args.clients} clients for {self.seconds:.0f} s")
                self.load(server, redis)
                if server.process.poll() is not None:
                    judge.problem(f"the server ended by itself with status {server.process.returncode}")
                    return
                gauges = self.settle(server)
                self.ask_quietly(server, "afterwards")
                for words in [*quiet_problems(gauges, opened), *counter_problems(gauges, True), *load_problems(judge, ANSWERED),
                              *memory_problems(self.samples, warm, args.memory_growth * 2**20, args.memory_seconds)]:
                    judge.problem(words)
                self.report["gauges"], self.report["opened"] = gauges, opened
                self.ended(server, "first")
            with Soaked(args, self.folder, *self.flags(redis)) as again:
                self.report["disk_tokens_after_restart"] = self.ask_quietly(again, "restarted", newest_first=True)
                if not self.report["disk_tokens_after_restart"]:
                    judge.problem("restarted: nothing came from the folder")
                self.ended(again, "second")
            self.ask_late(alone)
            self.ended(alone, "alone")

    def rows(self):
        out = []
        for kind in ["quiet", *KINDS, "afterwards", "restarted"]:
            statuses = {status: n for (of, status), n in self.judge.statuses.items() if of == kind}
            times = {which: quantiles(self.judge.times[kind, which]) for which in ("first", "whole")}
            out.append({"kind": kind, "statuses": statuses, "compared": self.judge.compared[kind], **times})
        return out

    def print(self):
        print("| asked | answers by status | compared | first token s: p50 | p90 | p99 | whole s: p50 | p90 | p99 |\n" + "|---" * 9 + "|")
        for row in self.rows():
            statuses = ", ".join(f"{n:,} x {status}" for status, n in sorted(row["statuses"].items(), key=str))
            times = " | ".join(f"{value:.3f}" if value is not None else "" for which in ("first", "whole") for value in row[which])
            print(f"| {row['kind']} | {statuses} | {row['compared']:,} | {times} |")
        late = [s for s in self.samples if s.at >= self.args.warm_share * self.seconds]
        if late:
            print(f"\nmemory: {late[0].rss / 2**20:.1f} MiB when warm, {late[-1].rss / 2**20:.1f} at the end, {growth(late) / 2**20:+.2f} in ten minutes; "
                  f"files {max(s.fds for s in late)} at most, threads {max(s.threads for s in late)}")
        for event in self.events:
            print(f"{event['at_s']:.1f} s: {event['what']}")
        for name, value in self.report.get("gauges", {}).items():
            print(f"{name} {value:g}")
        for name in ("first_end_s", "disk_tokens_after_restart"):
            print(f"{name} {self.report.get(name, 0):.4g}")
        print(f"asked of a server without a cache afterwards: {len(self.asked_late)} of {self.seen_late}")


def quantiles(times):
    if len(times) < 2:
        return [times[0]] * 3 if times else [None] * 3
    cuts = statistics.quantiles(times, n=100, method="inclusive")
    return [cuts[49], cuts[89], cuts[98]]


def parsed(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--kvilt", default=str(ROOT / "build/release/kvilt"))
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2, help="of each server")
    parser.add_argument("--size", type=float, default=1.0, help="of prompts: 1 are some 600 tokens")
    parser.add_argument("--kv-bytes", default="64MiB", help="the pool: small enough that texts leave it")
    parser.add_argument("--cache-disk", default="128MiB")
    parser.add_argument("--redis-bytes", default="64mb", help="Redis' maxmemory")
    parser.add_argument("--memory-growth", type=float, default=8, help="MiB in ten minutes that are flat")
    parser.add_argument("--memory-seconds", type=float, default=240, help="less than this says nothing of memory")
    parser.add_argument("--warm-share", type=float, default=0.2, help="of the time, until memory should be flat")
    parser.add_argument("--patience", type=float, default=300, help="s: an answer that takes longer hangs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=pathlib.Path)
    return parser.parse_args(arguments)


def main(arguments=None):
    args = parsed(arguments)
    if not redis_server.PROGRAM:
        sys.exit("soak: neither redis-server nor valkey-server is installed")
    with tempfile.TemporaryDirectory(prefix="kvilt_soak_") as folder:
        soak = Soak(args, pathlib.Path(folder))
        try:
            soak.run()
        except Exception as problem:
            soak.judge.problem(f"the soak itself: {type(problem).__name__}: {problem}")
        log = (pathlib.Path(folder) / "log").read_text().splitlines()
    soak.print()
    problems = soak.judge.problems + ([f"... and {soak.judge.more} more"] if soak.judge.more else [])
    if args.json:
        args.json.write_text(json.dumps({
            "model": os.path.basename(args.model.rstrip("/")), "minutes": args.minutes, "clients": args.clients, "seed": args.seed,
            "rows": soak.rows(), "report": soak.report, "events": soak.events, "problems": problems, "log": log[-50:],
            "samples": [vars(sample) for sample in soak.samples]}, indent=1) + "\n")
    for line in problems:
        print(f"FAILED: {line}")
    if problems:
        print("\n".join(["the servers' log:", *log[-20:]]))
        sys.exit(1)
    print("all checks passed")


if __name__ == "__main__":
    main()
