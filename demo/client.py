"""A client of Kvilt's OpenAI API in the standard library alone, for the demo."""
import json
import time
import urllib.error
import urllib.request


def post(url, path, body):
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        return urllib.request.urlopen(request, timeout=600)
    except urllib.error.HTTPError as problem:
        raise SystemExit(f"error: {path}: {problem.code} {problem.read().decode()}")


def call(url, path, body):
    with post(url, path, body) as answer:
        return json.load(answer)


def stream_chat(url, body):
    """Returns (text, seconds to the first token, usage); the time is the client's own, from the request's first byte."""
    body = dict(body, stream=True, stream_options={"include_usage": True})
    begin, first, text, usage = time.monotonic(), None, "", None
    with post(url, "/v1/chat/completions", body) as answer:
        for line in answer:
            line = line.decode().strip()
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = json.loads(line[6:])
            usage = event.get("usage") or usage
            for choice in event.get("choices", []):
                if choice["delta"].get("content"):
                    first = first or time.monotonic() - begin
                    text += choice["delta"]["content"]
    return text, first or time.monotonic() - begin, usage
