"""Two servers behind existing cache-aware routers, as docs/deploy/router.md has them: a conversation stays where its
beginning is, a server that is gone and one that is back, a router that is started again.

The routers are not installed by any script of ours: KVILT_ROUTERS is a folder of programs (a virtual environment's bin),
else the PATH has them. Where one is missing its tests are skipped.
"""
import concurrent.futures
import http.client
import json
import os
import random
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


def serve(port):
    flags = ["--port", str(port), "--threads", "1", "--kv-bytes", "64MiB", "--pack-cache", "off"]
    return Serve.of([KVILT, "serve", str(PROBE), *flags]).ready()


class Router:
    def __init__(self, program, servers):
        self.port = free_port()
        path = shutil.which(program, path=os.environ.get("KVILT_ROUTERS"))
        if not path:
            pytest.skip(f"{program} is not installed")
        urls = [f"http://127.0.0.1:{port}" for port in servers]
        self.command = [path, *ROUTERS[program], "--worker-urls", *urls, "--host", "127.0.0.1",
                        "--port", str(self.port), "--prometheus-port", str(free_port()), "--health-check-interval-secs", "1",
                        "--health-failure-threshold", "1", "--health-success-threshold", "1", "--cb-timeout-duration-secs", "1"]

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stop()

    def start(self):
        # A group of its own: some make a process that does the work.
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
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
