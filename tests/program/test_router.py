"""Two servers behind existing cache-aware routers, as docs/deploy/router.md has them: a conversation stays where its
beginning is, a server that is gone and one that is back, a router that is started again, one that goes by KV events.

The routers are not installed by any script of ours: KVILT_ROUTERS is a folder of programs (a virtual environment's bin),
else the PATH has them. Where one is missing its tests are skipped.
"""
import concurrent.futures
import http.client
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import time

import pytest

from test_faults import KVILT, PROBE, Serve, gauge

WORDS = "the red key is in house a blue box on hill near river".split()
# By itself cache_aware looks at loads from 64 requests on, and gives all to one server before that: here from 1 on. It
# knows what was asked and no answers, so a turn matches by less than all of what came before (.3 is its default).
# consistent_hash goes by X-Session-ID.
BALANCED = ["--balance-abs-threshold", "0", "--balance-rel-threshold", "1.0", "--cache-threshold", "0.1"]
ROUTERS = {"sglang-router": ["launch", "--policy", "cache_aware", *BALANCED],
           "vllm-router": ["--policy", "consistent_hash"]}
TRIES = 150


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def serve(port, *more):
    flags = ["--port", str(port), "--threads", "1", "--kv-bytes", "64MiB", "--pack-cache", "off"]
    return Serve.of([KVILT, "serve", str(PROBE), *flags, *more]).ready()


class Router:
    def __init__(self, program, servers, flags=(), log=subprocess.DEVNULL):
        self.port, self.metrics, self.log = free_port(), free_port(), log
        path = shutil.which(program, path=os.environ.get("KVILT_ROUTERS"))
        if not path:
            pytest.skip(f"{program} is not installed")
        urls = [f"http://127.0.0.1:{port}" for port in servers]
        self.command = [path, *(flags or ROUTERS[program]), "--worker-urls", *urls, "--host", "127.0.0.1",
                        "--port", str(self.port), "--prometheus-port", str(self.metrics), "--health-check-interval-secs", "1",
                        "--health-failure-threshold", "1", "--health-success-threshold", "1", "--cb-timeout-duration-secs", "1"]

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stop()

    def start(self):
        # A group of its own: some make a process that does the work.
        self.process = subprocess.Popen(self.command, stdout=self.log, stderr=self.log, start_new_session=True)
        for _ in range(TRIES):
            assert self.process.poll() is None, "the router ended"
            try:
                if json.loads(self.send("GET", "/readiness")[1]).get("healthy_workers") == 2:
                    return
            except (OSError, ValueError):
                pass
            time.sleep(.2)
        raise AssertionError("the router does not find two servers")

    def stop(self):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def send(self, method, path, body=None, **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request(method, path, body, {"Content-Type": "application/json", **headers})
        reply = connection.getresponse()
        return reply.status, reply.read()

    def ask(self, messages, tries=1, tokens=8):
        body = json.dumps({"model": PROBE.name, "messages": messages, "max_tokens": tokens, "temperature": 0,
                           "ignore_eos": True})
        session = {"X-Session-ID": messages[0]["content"][:80]}
        for _ in range(tries):
            status, reply = self.send("POST", "/v1/chat/completions", body, **session)
            if status == 200:
                return json.loads(reply)
            time.sleep(.2)
        raise AssertionError((status, reply))


def text(some, words):
    return " ".join(some.choice(WORDS) for _ in range(words))


def turn(router, conversation, some, tries=1):
    """The usage of one more question and its answer."""
    conversation.append({"role": "user", "content": text(some, 20 if conversation else 120)})
    reply = router.ask(conversation, tries)
    conversation.append({"role": "assistant", "content": reply["choices"][0]["message"]["content"] or "-"})
    return reply["usage"]


def served(server):
    return gauge(server, "kvilt:request_success_total")


@pytest.mark.parametrize("program", ROUTERS)
def test_conversations_stay_and_outlive_a_server_and_the_router(program):
    some = random.Random(7)
    ports = [free_port(), free_port()]
    with serve(ports[0]) as one, serve(ports[1]) as two, Router(program, ports) as router:
        conversations = [[{"role": "user", "content": text(some, 120)}] for _ in range(6)]
        # All at once, with long answers: what it does not know cache_aware sends to who has the least to do.
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            replies = list(pool.map(lambda one: router.ask(one, tokens=400), conversations))
        for conversation, reply in zip(conversations, replies):
            conversation.append({"role": "assistant", "content": reply["choices"][0]["message"]["content"] or "-"})
        before = [reply["usage"]["prompt_tokens"] for reply in replies]
        for _ in range(3):
            for i, conversation in enumerate(conversations):
                usage = turn(router, conversation, some)
                assert usage["kvilt"]["prefix"] >= before[i] - 16, "what the last turn had is where this one goes"
                before[i] = usage["prompt_tokens"]
        assert served(one) >= 4 and served(two) >= 4, "power: both have conversations"

        two.process.kill()
        two.process.wait()
        for conversation in conversations:
            turn(router, conversation, some, TRIES)
        asked = served(one)
        for conversation in conversations:
            turn(router, conversation, some, TRIES)
        assert served(one) == asked + 6

        with serve(ports[1]):  # empty, at its old address
            router.stop()
            router.start()
            before = [turn(router, conversation, some, TRIES)["prompt_tokens"] for conversation in conversations]
            for i, conversation in enumerate(conversations):
                assert turn(router, conversation, some, TRIES)["kvilt"]["prefix"] >= before[i] - 16


def cached(port, path, body):
    """Tokens of a request's beginning that the server had."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("POST", path, json.dumps({"model": PROBE.name, "max_tokens": 4, "temperature": 0, **body}),
                       {"Content-Type": "application/json"})
    reply = connection.getresponse()
    text = reply.read()
    assert reply.status == 200, text
    return json.loads(text)["usage"]["kvilt"]["prefix"]


# Each server has texts of its own before the router is there, which so hears of them by replay only; what it asks a server
# for is cached there afterwards, so each text is asked for once. "credits": what its log says it counted on.
def test_kv_aware_counts_on_the_blocks_that_our_events_name(tmp_path):
    some = random.Random(11)
    ports, events, replays = ([free_port(), free_port()] for _ in range(3))
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    flags = ["--policy", "kv_aware", "--kv-event-model", PROBE.name, "--log-level", "debug"]
    for url, event, replay in zip(urls, events, replays):
        flags += ["--kv-event-source", f"{url}=tcp://127.0.0.1:{event}", "--kv-event-replay-source", f"{url}=tcp://127.0.0.1:{replay}"]
    one, two = (serve(port, "--kv-events", f"tcp://127.0.0.1:{event}", "--kv-events-replay", f"tcp://127.0.0.1:{replay}")
                for port, event, replay in zip(ports, events, replays))
    with one, two, open(tmp_path / "log", "wb") as log:
        def numbers(length):
            return [some.randrange(3, 500) for _ in range(length)]
        texts = [("/v1/completions", {"prompt": numbers(200)}) for _ in range(6)]
        texts += [("/v1/chat/completions", {"messages": [{"role": "user", "content": text(some, 150)}]}) for _ in range(6)]
        for i, (path, body) in enumerate(texts):
            assert cached(ports[i % 2], path, body) < 16
        with Router("vllm-router", ports, flags, log) as router:
            def lines(word):
                plain = re.sub(r"\x1b\[\d*m", "", (tmp_path / "log").read_text())
                return [line for line in plain.splitlines() if word in line]
            for port, url in zip(ports, urls):
                for _ in range(TRIES):  # it asks for what it missed when it hears the next batch
                    if any(url in line for line in lines("kv_index replay sequence advanced")):
                        break
                    cached(port, "/v1/completions", {"prompt": numbers(40)})
                    time.sleep(.1)
                else:
                    raise AssertionError("nothing was replayed: " + "\n".join(lines("kv_index")))
            before = served(one), served(two)
            for path, body in texts:
                assert cached(router.port, path, body) >= 140
            assert (served(one), served(two)) == (before[0] + 6, before[1] + 6)
            credits = [int(line.split("credited_prefix_tokens=")[1].split()[0]) for line in lines("KV prefix decision")]
            assert len(credits) == 12 and min(credits) >= 144, credits
            connection = http.client.HTTPConnection("127.0.0.1", router.metrics, timeout=60)
            connection.request("GET", "/metrics")
            metrics = connection.getresponse().read().decode()
            assert 'vllm_router_kv_placement_lookups_total{result="hit"} 12' in metrics
