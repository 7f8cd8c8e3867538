"""Documents as means over contexts, by kvilt serve on a real model: who asks for means has them, and exact answers never."""
import json
import time

from test_faults import gauge
from test_knowledge import post, serving, text_of  # noqa: F401 (a fixture)

DOCUMENTS = [{"text": text_of(seed, 120)} for seed in (1, 2, 3)]


def chat(server, kvilt, salt="mine", publish=False):
    body = {"messages": [{"role": "user", "content": "find the number : 7 ?"}], "documents": [{"text": text_of(0, 40)}, *DOCUMENTS],
            "max_tokens": 8, "temperature": 0, "logprobs": True, "top_logprobs": 5, "cache_salt": salt, "kvilt": {**kvilt, "publish": publish}}
    reply = post(server, "/v1/chat/completions", body)
    return reply["choices"][0], reply["usage"]["kvilt"]


def season(server, contexts, query=""):
    status, text = server.post("/v1/documents" + query, json.dumps({"documents": DOCUMENTS, "cache_salt": "mine", "kvilt": {"season": contexts}}))
    assert status == 200, text
    return text.decode()


def test_means_are_for_who_asks_for_them(serve):  # noqa: F811
    with serve(pool="16MiB").ready() as server:
        exact, _ = chat(server, {"quality": "exact"})
        season(server, 2)
        again, usage = chat(server, {"quality": "exact"})
        assert again == exact and usage["seasoned"] == 0
        first, usage = chat(server, {"policy": "naive"})
        assert usage["reused"] >= 300 and usage["seasoned"] == 0  # power: there are other copies
        means, usage = chat(server, {"policy": "naive", "reuse_from": "seasoned"})
        assert usage["seasoned"] >= 300
        assert means["logprobs"] != first["logprobs"]
        assert chat(server, {"policy": "naive", "reuse_from": "seasoned", "trust": "clean"})[1]["seasoned"] == 0
        assert chat(server, {"policy": "naive", "reuse_from": "seasoned"}, salt="yours")[1]["reused"] == 0
        assert gauge(server, 'kvilt:seasoned_pieces{contexts="2"') == 3
        assert gauge(server, "kvilt:seasoned_tokens") >= 300


def test_the_stream_tells_of_each_pass(serve):  # noqa: F811
    with serve(pool="16MiB").ready() as server:
        text = season(server, 3, "?stream=true")
        told = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        assert text.endswith("data: [DONE]\n\n")
        progress, end = told[:-1], told[-1]
        assert len(progress) == 3 + 3 and all(event["object"] == "kvilt.documents.progress" for event in progress)
        assert [event["done"] for event in progress] == [1, 2, 3, 3, 3, 3]
        assert [event["seasoning"]["contexts"] for event in progress] == [0, 0, 0, 1, 2, 3]
        assert [event["seconds"] for event in progress] == sorted(event["seconds"] for event in progress)
        assert end["object"] == "kvilt.documents" and len(end["documents"]) == 3
        assert end["seasoning"]["contexts"] == 3 and end["seasoning"]["tokens"] == progress[-1]["seasoning"]["tokens"]
        assert end["seasoning"]["tokens"] >= 3 * sum(row["tokens"] for row in end["documents"])
        assert gauge(server, 'kvilt:seasoned_pieces{contexts="3"') == 3


def test_metrics_say_which_sets_wait_for_idle_time(serve):  # noqa: F811
    with serve("--season", "2", "--season-share", "0.001", pool="16MiB").ready() as server:
        assert gauge(server, "kvilt:seasoning_sets") == 0
        for _ in range(2):
            chat(server, {"policy": "naive"}, publish=True)
        end = time.monotonic() + 60
        while gauge(server, "kvilt:seasoning_passes_total") < 1 and time.monotonic() < end:
            time.sleep(0.05)
        assert gauge(server, 'kvilt:seasoning_sets{state="waiting"') == 1  # for a second pass, which its share puts off
        assert gauge(server, 'kvilt:seasoning_sets{state="running"') == 0
