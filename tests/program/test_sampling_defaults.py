"""kvilt serve: how tokens are drawn where a request does not say, by the model's files and by flags.

A top_k of 1 is greedy at every temperature, so the answers themselves show which default holds.
"""
import http.client
import json
import shutil

import pytest

from test_faults import PROBE, Serve, run

PROMPT = [3 + (31 * i + 7 * i * i) % 900 for i in range(40)]
ADVICE = {"temperature": 1.5, "top_k": 1, "repetition_penalty": 1.05}


@pytest.fixture
def advised(tmp_path):
    folder = tmp_path / "advised"
    shutil.copytree(PROBE, folder)
    (folder / "generation_config.json").write_text(json.dumps(ADVICE))
    return folder


def get(server, path):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("GET", path)
    return json.loads(connection.getresponse().read())


def shown(server):
    return get(server, "/v1/models")["data"][0]["kvilt"]["default"]["sampling"]


def answers(server, **more):
    """What three seeds give."""
    texts = set()
    for seed in range(3):
        body = {"prompt": PROMPT, "max_tokens": 12, "ignore_eos": True, "seed": seed, **more}
        status, text = server.post("/v1/completions", json.dumps(body))
        assert status == 200, text
        texts.add(json.loads(text)["choices"][0]["text"])
    return texts


def test_the_models_advice_is_the_default_and_a_request_wins(advised):
    with Serve(advised).ready() as server:
        assert shown(server) == {"temperature": 1.5, "top_p": 1, "top_k": 1, "min_p": 0, "repetition_penalty": 1.05}
        props = get(server, "/props")["default_generation_settings"]["params"]
        assert props["top_k"] == 1 and props["top_p"] == pytest.approx(0.95) and props["repeat_penalty"] == pytest.approx(1.05)
        assert len(answers(server)) == 1
        assert len(answers(server, top_k=0)) > 1, "power: at this temperature seeds differ"
        said = [line for line in server.lines if line.startswith("sampling")]
        assert said == ["sampling without a word about it: temperature 1.5, top_k 1, repetition_penalty 1.05 (the model's)\n"]


def test_flags_win_over_the_model(advised):
    with Serve(advised, "--top-k", "0", "--repeat-penalty", "1").ready() as server:
        assert shown(server) == {"temperature": 1.5, "top_p": 1, "top_k": 0, "min_p": 0, "repetition_penalty": 1}
        assert len(answers(server)) > 1
        assert any("(flags, then the model's)" in line for line in server.lines)
    with Serve(advised, "--temp", "0", "--generation-config", "none").ready() as server:
        assert shown(server) == {"temperature": 0, "top_p": 1, "top_k": 0, "min_p": 0, "repetition_penalty": 1}
        assert len(answers(server)) == 1
        assert len(answers(server, temperature=1.5)) > 1, "power"


def test_without_advice_the_apis_own_defaults_hold(advised):
    for flags, model in (((), PROBE), (("--generation-config", "none"), advised)):
        with Serve(model, *flags).ready() as server:
            assert shown(server) == {"temperature": 1, "top_p": 1, "top_k": 0, "min_p": 0, "repetition_penalty": 1}
            assert any("the API's own" in line for line in server.lines)


def test_wrong_advice_is_a_warning_and_a_wrong_file_an_error(advised):
    config = advised / "generation_config.json"
    config.write_text('{"temperature": -5, "top_p": "x", "top_k": 3}')
    with Serve(advised).ready() as server:
        assert shown(server)["top_k"] == 3 and shown(server)["temperature"] == 1
        warnings = [line for line in server.lines if "left out" in line]
        assert len(warnings) == 2 and "'temperature'" in warnings[0] and "'top_p'" in warnings[1]
    info = run("info", advised)
    assert info.returncode == 0 and "top_k 3" in info.stdout and "'temperature'" in info.stderr
    config.write_text('{"temperature": NaN}')
    broken = run("info", advised)
    assert broken.returncode == 1 and "generation_config.json" in broken.stderr


@pytest.mark.parametrize("flags,word", [
    (["--temperature", "9"], "--temperature"), (["--temp", "nan"], "--temperature"), (["--top-p", "-1"], "--top-p"),
    (["--top-k", "-2"], "--top-k"), (["--min-p", "2"], "--min-p"), (["--repetition-penalty", "0"], "--repetition-penalty"),
    (["--generation-config", "some/folder"], "--generation-config")])
def test_wrong_flags_are_named(flags, word):
    done = run("serve", PROBE, "--port", "0", *flags, seconds=60)
    assert done.returncode not in (0, -6, -11) and word in done.stderr, done
