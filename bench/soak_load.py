"""The clients of the soak (soak.py): what they ask, how they read answers, and how they misbehave.

A Catalogue holds the prompts that come again and again, the same in every run of one seed. A Client is one thread with one
connection, which does one thing of KINDS after the other until its time is over.
"""
import dataclasses
import http.client
import itertools
import json
import pathlib
import random
import socket
import threading
import time

from soak_checks import Answer

ROOT = pathlib.Path(__file__).resolve().parents[1]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
TOKENS = 16  # of an answer
LONG_TOKENS = 96
NAMESPACES = [None, None, ["north"], ["south", "north"], ["north", "south", ""]]


@dataclasses.dataclass(frozen=True)
class Key:
    """A tenant's."""
    tenant: str
    secret: str


KEYS = [Key(name, f"sk-soak-{name}-0123456789") for name in ("red", "green", "slow")]
ADMIN = Key("admin", "sk-soak-admin-0123456789")


def tenants():
    rows = [{"name": key.tenant, "keys": [{"key": key.secret}]} for key in KEYS]
    rows[0]["pool_share"] = 0.25
    rows[2].update(requests_per_minute=120, max_requests=4)
    return {"tenants": rows + [{"name": ADMIN.tenant, "keys": [{"key": ADMIN.secret, "role": "admin"}]}]}


def words():
    """Short ones that the tiny model knows, each a token or two of any other."""
    vocabulary = json.loads((ROOT / "tests/data/models/probe-1M/tokenizer.json").read_text())["model"]["vocab"]
    return sorted(word for word in vocabulary if word.isalpha() and word.islower() and 3 <= len(word) <= 4)


class Catalogue:
    def __init__(self, seed, size=1.0):
        self.rng, self.words, self.size = random.Random(seed), words(), size
        self.documents = [self.text(100) for _ in range(12)]
        self.orders = [self.order() for _ in range(24)]
        self.talks = [[self.text(40) for _ in range(6)] for _ in range(32)]
        self.texts = [self.text(60) for _ in range(24)]
        self.questions = [self.text(12) for _ in range(16)]

    def text(self, count, rng=None):
        return " ".join((rng or self.rng).choices(self.words, k=max(4, int(count * self.size))))

    def order(self, rng=None):
        return (rng or self.rng).sample(range(12), 5)

    def chat(self, talk, answers):
        """The next turn of a talk, after so many answers."""
        messages = [{"role": "system", "content": "find the numbers in the text"}]
        for said, answer in zip(self.talks[talk], answers):
            messages += [{"role": "user", "content": said}, {"role": "assistant", "content": answer}]
        return body({"messages": messages + [{"role": "user", "content": self.talks[talk][len(answers)]}]})

    def rag(self, order, question, marked):
        """Documents in the field of that name, or as marked parts."""
        texts = [self.documents[i] for i in order]
        if not marked:
            return body({"messages": [{"role": "user", "content": question}], "documents": [{"text": text} for text in texts]})
        parts = [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}} for text in texts]
        return body({"messages": [{"role": "user", "content": parts + [{"type": "text", "text": question}]}]})

    def completion(self, i):
        return body({"prompt": self.texts[i], "n": 1 + i % 2})

    def quiet(self):
        """All that has one answer before the load begins; chats come turn by turn (soak.py)."""
        for i, order in enumerate(self.orders):
            yield CHAT, self.rag(order, self.questions[i % len(self.questions)], i % 2 == 0)
        for i in range(len(self.texts)):
            yield TEXT, self.completion(i)


def body(fields, tokens=TOKENS):
    return {**fields, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "kvilt": {"quality": "exact"}}


def key_of(path, base):
    return path + json.dumps(base, sort_keys=True)


def logprobs_of(path, choice):
    part = choice.get("logprobs") or {}
    return tuple(part.get("token_logprobs", ())) if path == TEXT else tuple(row["logprob"] for row in part.get("content", ()))


def whole_answer(path, status, reply, begin):
    answer = Answer(status=status, whole_s=time.monotonic() - begin)
    if status != 200:
        answer.code = (json.loads(reply).get("error") or {}).get("code") or ""
        return answer
    reply = json.loads(reply)
    choices = sorted(reply["choices"], key=lambda choice: choice["index"])
    answer.texts = tuple(choice["text"] if path == TEXT else choice["message"]["content"] for choice in choices)
    answer.finishes = tuple(choice["finish_reason"] for choice in choices)
    answer.logprobs = tuple(itertools.chain.from_iterable(logprobs_of(path, choice) for choice in choices))
    answer.usage = reply["usage"]
    return answer


def streamed_answer(path, response, begin, pieces=None):
    """pieces: its client leaves after so many."""
    answer, texts, finishes, logprobs, done, seen = Answer(), {}, {}, {}, False, 0
    for line in response:
        if not line.startswith(b"data: "):
            continue
        if line.startswith(b"data: [DONE]"):
            done = True
            break
        event = json.loads(line[6:])
        if "error" in event:
            answer.status, answer.code = 503, event["error"].get("code") or "an error in a stream"
            return answer
        answer.usage = event.get("usage") or answer.usage
        for choice in event["choices"]:
            at = choice["index"]
            piece = choice["text"] if path == TEXT else choice["delta"].get("content") or ""
            if piece and not answer.first_s:
                answer.first_s = time.monotonic() - begin
            texts[at] = texts.get(at, "") + piece
            finishes[at] = choice["finish_reason"] or finishes.get(at)
            logprobs[at] = logprobs.get(at, ()) + logprobs_of(path, choice)
            seen += piece != ""
        if pieces is not None and seen >= pieces:
            break
    answer.cut = not done
    answer.texts = tuple(texts[at] for at in sorted(texts))
    answer.finishes = tuple(finishes[at] for at in sorted(finishes))
    answer.logprobs = tuple(itertools.chain.from_iterable(logprobs[at] for at in sorted(logprobs)))
    answer.whole_s = time.monotonic() - begin
    return answer


class Connection:
    """To one server, kept open between requests where that goes."""

    def __init__(self, address, patience):
        self.address, self.patience, self.http = address, patience, None

    def close(self):
        if self.http:
            self.http.close()
        self.http = None

    def send(self, method, path, data, headers):
        """The answer's head. A kept connection that the server has closed meanwhile is opened again."""
        for kept in ([True, False] if self.http else [False]):
            if not kept:
                self.close()
                self.http = http.client.HTTPConnection(*self.address, timeout=self.patience)
            try:
                self.http.request(method, path, data, headers)
                return self.http.getresponse()
            except (ConnectionError, http.client.BadStatusLine):
                if not kept:
                    raise

    def ask(self, path, fields, key, pieces=None):
        """One answer, streamed if fields say so; pieces: as for streamed_answer."""
        begin = time.monotonic()
        response = self.send("POST", path, json.dumps(fields), headers_of(key))
        if response.status == 200 and fields.get("stream"):
            answer = streamed_answer(path, response, begin, pieces)
            if answer.cut:
                self.close()
            else:
                response.read()
            return answer
        return whole_answer(path, response.status, response.read(), begin)


def headers_of(key):
    return {"Content-Type": "application/json", "Authorization": f"Bearer {key.secret}"}


class Client(threading.Thread):
    """until: when it stops. sample: takes (path, body, answer) of prompts that no quiet run had."""

    def __init__(self, number, server, catalogue, judge, until, patience, sample):
        super().__init__(daemon=True)
        self.rng, self.server, self.catalogue, self.judge = random.Random(number), server, catalogue, judge
        self.until, self.sample, self.kind = until, sample, "chat"
        self.connection = Connection(server.address, patience)

    def run(self):
        names, weights = zip(*((name, weight) for name, (_, weight) in KINDS.items()))
        while time.monotonic() < self.until and self.server.process.poll() is None:
            self.kind = self.rng.choices(names, weights)[0]
            try:
                KINDS[self.kind][0](self)
            except Exception as problem:  # it did not answer, or not as HTTP and JSON are
                self.connection.close()
                self.judge.problem(f"{self.kind}: {type(problem).__name__}: {problem}")
                time.sleep(0.1)
        self.connection.close()

    def fields(self, base):
        """The same prompt with what must not change its answer."""
        fields = {**base, "kvilt": dict(base["kvilt"])}
        if names := self.rng.choice(NAMESPACES):
            fields["kvilt"]["namespaces"] = names
        if self.rng.random() < 0.1:
            fields["cache_salt"] = self.rng.choice(["salt", "pepper"])
        return fields

    def more(self, path, base):
        fields = self.fields(base)
        if self.rng.random() < 0.5:
            fields.update({"logprobs": 1} if path == TEXT else {"logprobs": True})
        if self.rng.random() < 0.5:
            fields.update(stream=True, stream_options={"include_usage": True})
        return fields

    def ask(self, path, fields, pieces=None):
        if self.rng.random() < 0.2:
            self.connection.close()
        answer = self.connection.ask(path, fields, self.rng.choices(KEYS, [4, 4, 1])[0], pieces)
        if answer.status in (429, 503):
            time.sleep(0.2)
        return answer

    def exact(self, path, base, keep=True, key=None):
        """Asks, and compares with what the prompt had before. The answer, or nothing."""
        answer = self.ask(path, self.more(path, base))
        if not self.judge.saw(self.kind, answer):
            if answer.cut:
                self.judge.problem(f"{self.kind}: a stream ended without [DONE]")
            return None
        self.judge.complete(self.kind, answer, base["max_tokens"])
        self.judge.exact(self.kind, key or key_of(path, base), answer, keep)
        return answer

    def chat(self):
        talk, answers = self.rng.randrange(len(self.catalogue.talks)), []
        for _ in range(self.rng.randint(1, 6)):
            answer = self.exact(CHAT, self.catalogue.chat(talk, answers))
            if answer is None or time.monotonic() > self.until:
                return
            answers.append(answer.texts[0])

    def rag(self):
        i = self.rng.randrange(24)
        question = self.catalogue.questions[i % len(self.catalogue.questions)]
        self.exact(CHAT, self.catalogue.rag(self.catalogue.orders[i], question, i % 2 == 0))

    def both_ways(self, base):
        """A prompt that nobody asked before, whole and streamed; the pieces joined are the whole."""
        one = self.ask(CHAT, self.fields(base))
        two = self.ask(CHAT, {**self.fields(base), "stream": True, "stream_options": {"include_usage": True}})
        if self.judge.saw(self.kind, one) and self.judge.saw(self.kind, two):
            key = ("both", key_of(CHAT, base))
            self.judge.exact(self.kind, key, one)
            self.judge.exact(self.kind, key, two)
            self.judge.first.pop(key)
            self.sample(CHAT, base, one)

    def rag_new_order(self):
        base = self.catalogue.rag(self.catalogue.order(self.rng), self.catalogue.text(12, self.rng), self.rng.random() < 0.5)
        self.both_ways(base)

    def long_prompt(self):
        self.both_ways(body({"messages": [{"role": "user", "content": self.catalogue.text(1500, self.rng)}]}, LONG_TOKENS))

    def balanced(self):
        base = self.catalogue.rag(self.catalogue.order(self.rng), self.rng.choice(self.catalogue.questions), True)
        fields = {**self.more(CHAT, base), "kvilt": {"quality": "balanced"}}
        answer = self.ask(CHAT, fields)
        if self.judge.saw(self.kind, answer):
            self.judge.complete(self.kind, answer, TOKENS)

    def completion(self):
        self.exact(TEXT, self.catalogue.completion(self.rng.randrange(24)))

    def leaves(self):
        """A client that goes away in the middle of a stream, of a whole answer, or before there is any."""
        base = self.catalogue.chat(self.rng.randrange(len(self.catalogue.talks)), [])
        fields = {**self.fields(base), "stream": True}
        way = self.rng.randrange(3)
        if way == 0:
            answer = self.ask(CHAT, fields, pieces=self.rng.randint(1, 10))
            self.judge.saw(self.kind, answer)  # it may have come whole, in fewer pieces
            if answer.texts:
                self.judge.beginning(self.kind, key_of(CHAT, base), answer.texts[0])
            return
        if way == 1:
            fields = {**body({"messages": [{"role": "user", "content": self.catalogue.text(1200, self.rng)}]}, 400), "stream": self.rng.random() < 0.5}
        with socket.create_connection(self.server.address, timeout=60) as plain:
            plain.sendall(raw(json.dumps(fields).encode()))
            time.sleep(self.rng.random() * 0.3)

    def oversized(self):
        if self.rng.random() < 0.5:  # longer than the context; the body is small enough
            text = self.catalogue.words[0] + " "
            fields = body({"messages": [{"role": "user", "content": text * self.server.too_many}]})
            self.wrong("POST", CHAT, json.dumps(fields).encode(), {400})
        else:
            self.wrong("POST", CHAT, b'{"prompt": "' + b"a " * (self.server.most_body // 2) + b'"}', {413})

    def malformed(self):
        method, path, data, wanted = self.rng.choice(MALFORMED)
        self.wrong(method, path, data, wanted)

    def wrong(self, method, path, data, wanted):
        try:
            response = self.connection.send(method, path, data, headers_of(KEYS[0]))
            response.read()
            self.judge.refused(self.kind, response.status, wanted)
        except (ConnectionError, http.client.BadStatusLine):
            # A server that does not read a body to its end may close before its answer is read.
            self.connection.close()
            self.judge.refused(self.kind, 413 if 413 in wanted else None, wanted)

    def half_body(self):
        """Less than it says; then the client is gone, or only does not send any more."""
        data = json.dumps(body({"prompt": "a b c"})).encode()
        with socket.create_connection(self.server.address, timeout=90) as plain:
            plain.sendall(raw(data, len(data) + 100))
            if self.rng.random() < 0.5:
                return
            plain.shutdown(socket.SHUT_WR)
            head = plain.recv(4096)
        self.judge.refused(self.kind, int(head.split()[1]) if head else None, {400, 408, None})


def raw(data, length=None):
    head = f"POST {CHAT} HTTP/1.1\r\nHost: soak\r\nAuthorization: Bearer {KEYS[1].secret}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {length or len(data)}\r\n\r\n".encode() + data


MALFORMED = [
    ("POST", CHAT, b'{"messages": [', {400}),
    ("POST", CHAT, b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}', {400}),
    ("POST", CHAT, b"[]", {400}),
    ("POST", CHAT, b"", {400}),
    ("POST", CHAT, b"[" * 5000, {400}),
    ("POST", CHAT, b'{"messages": "a b"}', {400}),
    ("POST", CHAT, b'{"messages": [{"role": "user", "content": 7}]}', {400}),
    ("POST", CHAT, b'{"messages": [{"role": "user", "content": "a"}], "max_tokens": -2}', {400}),
    ("POST", CHAT, b'{"messages": [{"role": "user", "content": "a"}], "temperature": "hot"}', {400}),
    ("POST", CHAT, b'{"messages": [{"role": "user", "content": "a"}], "kvilt": {"qualty": "exact"}}', {400}),
    ("POST", CHAT, b'{"messages": [{"role": "user", "content": "a"}], "kvilt": {"policy": "none"}}', {400}),
    ("POST", CHAT, b'{"messages": [{"role": "user", "content": "a"}], "model": "another"}', {404}),
    ("POST", TEXT, b'{"prompt": [1, -2, 99999999], "max_tokens": 1}', {400}),
    ("POST", TEXT, b'{"prompt": "a b", "max_tokens": 1, "stop": [1]}', {400}),
    ("POST", "/v1/nothing", b"{}", {404}),
    ("GET", CHAT, None, {405}),
]

KINDS = {  # how often
    "chat": (Client.chat, 12), "rag": (Client.rag, 14), "rag new order": (Client.rag_new_order, 8), "long": (Client.long_prompt, 2),
    "balanced": (Client.balanced, 8), "completion": (Client.completion, 8), "leaves": (Client.leaves, 8),
    "oversized": (Client.oversized, 3), "malformed": (Client.malformed, 8), "half body": (Client.half_body, 3)}
ANSWERED = ["chat", "rag", "rag new order", "long", "balanced", "completion"]
