"""The program as a person uses it: helps, small commands, what it says when something is wrong, and what is reused.

No times are asserted here; `kvilt bench` measures them.
"""
import json
import os
import pathlib
import re
import shutil
import subprocess

import pytest

from test_faults import Serve

ROOT = pathlib.Path(__file__).resolve().parents[2]
KVILT = os.environ.get("KVILT_PROGRAM", str(ROOT / "build/release/kvilt"))
MODELS = ROOT / "tests/data/models"
GGUF = MODELS / "stories260K/derived-stories260K-F32.gguf"
PROBE = MODELS / "probe-1M"
TEMPLATE = ROOT / "tests/data/templates/llama.cpp/Qwen-Qwen3-0.6B.jinja"
COMMANDS = [[], ["serve"], ["pull"], ["generate"], ["info"], ["tokenize"], ["bench"], ["bench", "reuse"], ["bench", "dense"], ["bench", "kernels"], ["bench", "traffic"], ["bench", "eviction"], ["eval"], ["profile"], ["profile", "heads"], ["profile", "layers"], ["session"], ["session", "export"], ["session", "import"]]


def kvilt(*args, text=None, seconds=300):
    return subprocess.run([KVILT, *map(str, args)], input=text or "", capture_output=True, text=True, timeout=seconds, cwd=ROOT)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: "-".join(words) or "kvilt")
def test_help_teaches(command):
    done = kvilt(*command, "--help")
    assert done.returncode == 0 and "--help" in done.stdout
    assert len(done.stdout.splitlines()) >= 8 and done.stderr == ""


def test_info_knows_the_file():
    done = kvilt("info", GGUF)
    assert done.returncode == 0
    for word in ("llama", "F32", "47 tensors", "512"):
        assert word in done.stdout
    assert json.loads(kvilt("info", PROBE, "--json").stdout)


def test_info_names_the_policies():
    """`kvilt serve --help` says so of --policy, and each name is one."""
    assert "kvilt info MODEL names them" in " ".join(kvilt("serve", "--help").stdout.split())
    names = json.loads(kvilt("info", PROBE, "--json").stdout)["policies"]
    assert {"auto", "full", "prefix", "mend"} <= set(names)
    assert f"policies {', '.join(names)}\n" in re.sub(" +", " ", kvilt("info", PROBE).stdout)
    for name in names:
        done = kvilt("generate", GGUF, "Once upon a time", "--raw", "-n", "1", "--policy", name)
        assert done.returncode == 0 or "parameter" in done.stderr or "map" in done.stderr, done.stderr


def test_a_context_that_is_cut_and_a_template_that_is_made_are_told():
    with Serve(PROBE, "--context", "9999999").ready() as server:
        said = [line for line in server.lines if "--context" in line]
        own = json.loads(server.get("/v1/models")[1])["data"][0]["max_model_len"]
        assert len(said) == 1 and "9999999" in said[0] and f" {own} " in said[0]
        assert [line.split(":")[0] for line in server.lines if "ChatML" in line] == ["warning"]
        assert server.end() == 0
    with Serve(PROBE, "--context", str(own), "--chat-template", str(TEMPLATE)).ready() as server:  # power
        assert not [line for line in server.lines if "--context" in line or "ChatML" in line]


def test_the_lines_that_are_folded_are_counted():
    """In what --fold-volatile changes, on the three routes that make chats."""
    chat = {"messages": [{"role": "system", "content": "cch=a81f2; be brief.\nIt is 14:03:59 now."}, {"role": "user", "content": "hi"}], "max_tokens": 1}
    bodies = {
        "/v1/chat/completions": chat,
        "/v1/messages": {"system": chat["messages"][0]["content"], "messages": chat["messages"][1:], "max_tokens": 1},
        "/v1/responses": {"input": chat["messages"], "max_output_tokens": 1},
    }
    for flags, folded in ([], None), (["--fold-volatile"], 2):
        with Serve(PROBE, *flags).ready() as server:
            for path, body in bodies.items():
                status, reply = server.post(path, json.dumps(body))
                assert status == 200 and json.loads(reply)["usage"]["kvilt"].get("folded") == folded, (path, reply)
            assert server.end() == 0


def test_what_has_gone_from_the_cache_is_evicted_in_diagnostics():
    with Serve(PROBE).ready() as server:
        body = json.dumps({"messages": [{"role": "user", "content": "what is the answer ? " * 20}], "max_tokens": 1, "kvilt": {"diagnostics": True}})

        def fresh():
            status, reply = server.post("/v1/chat/completions", body)
            assert status == 200, reply
            return json.loads(reply)["usage"]["kvilt"]["diagnostics"]["fresh"]

        assert set(fresh()) == {"new"}
        assert sum(fresh().values()) < 64  # power: it is a known prefix
        assert server.post("/v1/cache/clear", "{}")[0] == 200
        assert fresh()["evicted"] > 64
        assert server.end() == 0


def test_tokenize_gives_ids():
    text = "Once upon a time, a dog named Ben."
    ids = list(map(int, kvilt("tokenize", GGUF, text, "--ids").stdout.split()))
    assert len(ids) > 8 and ids != list(map(int, kvilt("tokenize", GGUF, text + " x", "--ids").stdout.split()))
    assert list(map(int, kvilt("tokenize", GGUF, "--ids", text=text).stdout.split())) == ids


def test_generate_continues_a_story_and_repeats_itself():
    story = ["generate", GGUF, "Once upon a time", "--raw", "-n", "24"]
    first, again = kvilt(*story), kvilt(*story)
    assert first.returncode == 0, first.stderr
    assert "a little girl" in first.stdout and again.stdout == first.stdout
    assert kvilt(*story, "--temperature", "1", "--seed", "1").stdout != kvilt(*story, "--temperature", "1", "--seed", "2").stdout


@pytest.mark.parametrize("args,word", [
    (["generate", "no/such/model", "hi"], "no/such/model"),
    (["info", "README.md"], "README.md"),
    (["info", "tests/data"], "config.json"),
    (["generate", GGUF, "hi", "--backend", "abacus"], "abacus"),
    (["generate", GGUF, "hi", "--policy", "magic"], "magic"),
    (["eval", "--model", GGUF, "--parity", "no/such/file.json"], "no/such/file.json"),
    (["bench", "reuse", "--model", GGUF, "--synthetic", "many"], "many"),
    (["bench", "reuse", "--model", GGUF, "--synthetic", "2x64", "--order", "sideways"], "sideways"),
    (["bench", "traffic", "--model", PROBE, "--only", "chat,magic"], "magic"),
    (["bench", "traffic", "--model", GGUF, "--quick"], "context"),
    (["eval", "--model", PROBE], "--cases"),
    (["eval", "--model", PROBE, "--cases", "no/such/cases.jsonl"], "no/such/cases.jsonl"),
    (["eval", "--model", PROBE, "--cases", "demo/README.md"], "demo/README.md:1"),
    (["eval", "--model", PROBE, "--suite", "magic"], "magic"),
    (["eval", "--model", PROBE, "--suite", "niah:size=3"], "size"),
    (["eval", "--model", PROBE, "--suite", "niah", "--policies", "full,magic"], "magic"),
    (["eval", "--model", PROBE, "--suite", "niah", "--pair", "naive/nobody"], "naive/nobody"),
    (["session", "export", PROBE, "hi", "--raw"], "--out"),
    (["session", "import", PROBE, "no/such/session"], "no/such/session"),
    (["session", "import", PROBE, "README.md"], "README.md: session"),
    (["generate", GGUF, "hi", "--threads", "5000"], "1024"),
    (["generate", GGUF, "hi", "--context", "-1"], "--context"),
    (["serve", GGUF, "--port", "0", "--host", ""], "--host"),
    (["serve", GGUF, "--port", "0", "--max-body", "0"], "--max-body"),
    (["serve", GGUF, "--port", "0", "--shutdown-seconds", "-1"], "--shutdown-seconds"),
    (["serve", GGUF, "--port", "0", "--api-key", ""], "--api-key"),
    (["serve", GGUF, "--port", "0", "--tenants", "no/such/tenants.json"], "no/such/tenants.json"),
    (["serve", GGUF, "--port", "0", "--tenants", "README.md"], "README.md"),
    (["bench", "kv", "--model", PROBE, "--text", "README.md", "--tokens", "-32"], "--tokens"),
    # Flags that do nothing without another one.
    (["serve", PROBE, "--port", "0", "--cache-disk", "64GiB"], "--cache-dir"),
    (["serve", PROBE, "--port", "0", "--cache-redis-timeout", "5"], "--cache-redis"),
    (["serve", PROBE, "--port", "0", "--kv-events-tenants"], "--kv-events"),
    (["serve", PROBE, "--port", "0", "--kv-events-format", "array"], "--kv-events"),
    (["serve", PROBE, "--port", "0", "--peer-least", "64"], "--peer"),
    (["frobnicate"], "frobnicate"),
], ids=lambda value: "-".join(map(str, value)).replace(str(ROOT), "") if isinstance(value, list) else "")
def test_mistakes_are_named(args, word):
    done = kvilt(*args, seconds=60)
    assert done.returncode not in (0, -6, -11), done
    assert word in done.stderr and len(done.stderr.splitlines()) < 12


def test_an_empty_key_of_the_environment_is_refused(monkeypatch):
    monkeypatch.setenv("KVILT_API_KEY", "")
    done = kvilt("serve", GGUF, "--port", "0", seconds=60)
    assert done.returncode == 1 and "KVILT_API_KEY" in done.stderr


def test_seed_0_is_a_seed_and_top_k_has_two_ways_to_say_all():
    story = ["generate", GGUF, "Once upon a time", "--raw", "-n", "24", "--temperature", "1"]
    first, again = (kvilt(*story, "--seed", "0", "--top-k", k) for k in ("0", "-1"))
    assert first.returncode == again.returncode == 0, first.stderr + again.stderr
    assert first.stdout == again.stdout
    assert len({kvilt(*story).stdout for _ in range(4)}) > 1  # power: without one it is drawn anew


def test_names_that_are_no_utf8_end_nothing(tmp_path):
    """What was measured is written, and info tells what there is."""
    report = os.fsencode(tmp_path) + b"/r\xff.json"
    done = subprocess.run([KVILT, "bench", "kernels", "--rows", "1", "--lengths", "96", "--seconds", "0.001", "--threads", "2", "--json", report], capture_output=True, timeout=300, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    with open(report, encoding="utf-8") as file:
        assert json.load(file)["command"].endswith("r\ufffd.json")
    folder = os.fsencode(tmp_path) + b"/m\xff"
    shutil.copytree(os.fsencode(PROBE), folder)
    config = json.loads((PROBE / "config.json").read_text())
    config.pop("_name_or_path", None)
    with open(folder + b"/config.json", "w") as file:
        json.dump(config, file)
    done = subprocess.run([KVILT, "info", folder, "--json"], capture_output=True, timeout=60, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["name"] == "m\ufffd"


def test_a_model_of_the_hub_answers_to_the_name_it_was_started_by(tmp_path, monkeypatch):
    folder = tmp_path / "models--org--tiny" / "snapshots" / ("a" * 40)
    shutil.copytree(PROBE, folder)
    config = json.loads((folder / "config.json").read_text())
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))

    def asked_as(*names):
        with Serve("org/tiny") as server:
            server.ready()
            model = json.loads(server.get("/v1/models")[1])["data"][0]["id"]
            body = {"prompt": [1, 2, 3], "max_tokens": 1}
            return model, [server.post("/v1/completions", json.dumps(body | {"model": name}))[0] for name in names]

    config["_name_or_path"] = "what/the-files-say"
    (folder / "config.json").write_text(json.dumps(config))
    assert asked_as("what/the-files-say", "org/tiny", "org/other") == ("what/the-files-say", [200, 200, 404])
    del config["_name_or_path"]
    (folder / "config.json").write_text(json.dumps(config))
    assert asked_as("org/tiny", "a" * 40) == ("org/tiny", [200, 404])


def test_passages_of_another_shape_are_named(tmp_path):
    passages = tmp_path / "passages.jsonl"
    for line in ('{"segments": ["text"]}', '{"segments": 3}', '{"segments": [{"title": 1}]}', "3"):
        passages.write_text(line + "\n")
        done = kvilt("bench", "drafts", "--model", PROBE, "--kinds", "quote", "--passages", passages, seconds=60)
        assert done.returncode == 1 and "--passages" in done.stderr, done


def test_names_in_a_file_do_not_reach_the_terminal_raw(tmp_path):
    bad = tmp_path / "bad.gguf"
    name, hostile = b"stories260K (derived", "\x1b[31m\x07\u009b2J\u202e".encode()
    data = GGUF.read_bytes()
    assert data.count(name) == 1
    bad.write_bytes(data.replace(name, hostile.ljust(len(name), b"!")))
    done = kvilt("info", bad)
    assert done.returncode == 0 and "\\u001b[31m\\u0007\\u009b2J\\u202e" in done.stdout
    assert not set(done.stdout) & set("\x1b\x07\u009b\u202e")


def reuse(model, tmp_path, *flags):
    out = tmp_path / "reuse.json"
    done = kvilt("bench", "reuse", "--model", model, "--rounds", "1", "--json", out, *flags, seconds=900)
    assert done.returncode == 0, done.stderr
    result = json.loads(out.read_text())
    assert result["version"] and result["command"] and result["machine"]
    for row in result["rows"]:
        assert row["prompt_tokens"] == row["prefix_tokens"] + row["reused_tokens"] + row["fresh_tokens"]
        assert 0 <= row["recomputed_tokens"] <= row["reused_tokens"]
        assert row["flops"] > 0 and row["ttft_s"] > 0 and row["bound_s"] > 0
    return {row["policy"].split(":")[0]: row for row in result["rows"]}


def check_reuse(rows, known):
    """What is known is reused by the methods that reuse pieces, and by these alone; recomputing all is exact."""
    assert rows["full"]["reused_tokens"] == rows["full"]["prefix_tokens"] == 0 and rows["full"]["kl_first"] < 1e-3
    assert rows["prefix"]["reused_tokens"] == 0 and rows["prefix"]["prefix_tokens"] < 0.3 * known
    for policy in ("naive", "sparsex"):
        assert rows[policy]["reused_tokens"] + rows[policy]["prefix_tokens"] >= 0.95 * known, rows[policy]
    assert rows["naive"]["recomputed_tokens"] == 0 < rows["sparsex"]["recomputed_tokens"]
    assert rows["naive"]["flops"] < rows["sparsex"]["flops"] < rows["full"]["flops"]


@pytest.mark.parametrize("order", ["reverse", "shuffle", "insert", "drop"])
def test_known_documents_are_reused(order, tmp_path):
    rows = reuse(PROBE, tmp_path, "--synthetic", "4x128", "--order", order)
    check_reuse(rows, 128 * (3 if order == "drop" else 4))


def test_unmarked_documents_are_found(tmp_path):
    rows = reuse(PROBE, tmp_path, "--synthetic", "4x128", "--order", "reverse", "--unmarked")
    check_reuse(rows, 4 * 128)


@pytest.mark.parametrize("order", ["shuffle", "insert"])
def test_real_model_reuses_known_documents(order, tmp_path):
    model = os.environ.get("KVILT_MODEL")
    if not model:
        pytest.skip("KVILT_MODEL is not set: the real model is not here (scripts/get_model)")
    check_reuse(reuse(model, tmp_path, "--synthetic", "4x256", "--order", order), 4 * 256)


def test_bench_dense_reports_bounds_and_batches(tmp_path):
    out = tmp_path / "dense.json"
    done = kvilt("bench", "dense", "--model", GGUF, "--threads", "1,2", "--prompt", "24,64", "--batch", "1,3", "--decode", "4", "--rounds", "2", "--json", out)
    assert done.returncode == 0, done.stderr
    rows = json.loads(out.read_text())["rows"]
    assert [(r["threads"], r["prompt_tokens"], r["batch"]) for r in rows] == [(t, p, b) for t in (1, 2) for p in (24, 64) for b in (1, 3)]
    for row in rows:
        assert all(row[name] > 0 for name in ("prefill_tok_s", "decode_tok_s", "gemm_bound_tok_s", "bandwidth_bound_tok_s")), row
        assert len(row["decode_samples_tok_s"]) == 2
        assert row["prefill_of_bound"] == pytest.approx(row["prefill_tok_s"] / row["gemm_bound_tok_s"])
    # More sequences read the weights once together: the bound grows with them, but less than in proportion (their KV).
    one, three = (r["bandwidth_bound_tok_s"] / r["read_gb_s"] for r in rows[:2])
    assert one < three < 3 * one
    done = kvilt("bench", "dense", "--speed-only", "--model", GGUF, "--threads", "1", "--prompt", "24", "--decode", "4", "--rounds", "1", "--json", out)
    assert done.returncode == 0 and "gemm_bound_tok_s" not in json.loads(out.read_text())["rows"][0]


def evaluate(tmp_path, *flags, code=0):
    out = tmp_path / "eval.json"
    cases = PROBE / "cases-vt-value.jsonl"
    done = kvilt("eval", "--model", PROBE, "--cases", cases, "--prompt", "plain", "--limit", "4", "--policies", "naive,sparsex:k=0.3:l_star=5",
                 "--json", out, "--html", tmp_path / "eval.html", "--markdown", tmp_path / "eval.md", *flags, seconds=900)
    assert done.returncode == code, done.stderr
    return json.loads(out.read_text()) if code == 0 else done


def test_eval_reports_policies_beside_full(tmp_path):
    result = evaluate(tmp_path)
    assert result["version"] and result["command"] and result["machine"] and result["model"]["fingerprint"]
    rows = {row["label"]: row for row in result["rows"]}
    assert list(rows) == ["full", "naive", "sparsex:k=0.3:l_star=5"]
    for row in rows.values():
        assert row["suite"] == "cases-vt-value" and row["n"] == 4
        for name in ("score", "kl_first", "kl_answer", "same_answer"):
            low, high = row[name + "_ci"]
            assert low <= row[name] <= high
        for name in ("top1", "ttft_s", "ttft_ratio", "flops_ratio", "recomputed_ratio", "kept_ratio"):
            assert isinstance(row[name], (int, float)), name
    assert rows["full"]["kl_answer"] == 0 and rows["full"]["ttft_ratio"] == 1 and rows["full"]["score"] == 1
    assert rows["naive"]["kl_answer"] > 0.1 and rows["naive"]["score"] < 0.5 and rows["naive"]["flops_ratio"] < 0.5
    assert rows["sparsex:k=0.3:l_star=5"]["params"] == {"k": "0.3", "l_star": "5"}
    assert result["pairs"][0]["b"] == "naive" and result["pairs"][0]["n"] == 4
    page = (tmp_path / "eval.html").read_text()
    assert page.count("<svg") == 2 and page.count("<details>") == 3 and 'class="recomputed"' in page
    assert "http://" not in page and "https://" not in page  # self-contained
    assert "| naive | 4 |" in (tmp_path / "eval.md").read_text()


def test_profile_layers_makes_a_map_that_requests_read(tmp_path):
    """The layers with the highest scores are the map's; SamKV keeps what it keeps with these layers by their numbers."""
    out = tmp_path / "layers.json"
    suite = ["--suite", "vt:n=4,length=400", "--prompt", "plain"]
    asked = ["profile", "layers", "--model", PROBE, *suite, "--block", "16", "--sigmas", "1.5", "--layers", "1", "-o", out]
    done = kvilt(*asked)
    assert done.returncode == 0, done.stderr
    made = json.loads(out.read_text())
    assert made["num_layers"] == 6 and len(made["scores"]) == 6 and max(made["scores"]) > 0
    (stable,) = made["stable_layers"]
    assert made["scores"][stable] == max(made["scores"])
    assert "4 prompts" in done.stdout and [line for line in done.stdout.splitlines() if line.endswith("*")] == [f"   {stable}  {made['scores'][stable]:.2f}  *"]
    assert stable != 5, "power: the default without a map"

    def kept(*flags, params=""):
        policy = "samkv:block=16" + params
        report = tmp_path / "r.json"
        done = kvilt("eval", "--model", PROBE, *suite, "--policies", f"full,{policy}", "--json", report, "--fresh", *flags)
        assert done.returncode == 0, done.stderr
        row = [row for row in json.loads(report.read_text())["rows"] if row["label"] == policy][0]
        return row["kept_ratio"], row["kl_first"]

    by_number = kept(params=f":stable_begin={stable}:stable_end={stable + 1}")
    assert kept("--layer-map", out) == by_number
    assert kept("--layer-map", f"mine={out}", params=":layers=mine") == by_number
    assert kept("--layer-map", f"mine={out}") == kept() != by_number, "power: one that nobody names"
    nobody = kvilt("generate", PROBE, "12 34", "--raw", "-n", "2", "--policy", "samkv:layers=mine")
    assert nobody.returncode == 1 and "mine" in nobody.stderr
    out.write_text(json.dumps({"num_layers": 7, "stable_layers": made["stable_layers"]}))
    wrong = kvilt("generate", PROBE, "12 34", "--raw", "-n", "2", "--layer-map", out, "--policy", "samkv")
    assert wrong.returncode == 1 and "layer map" in wrong.stderr and "7" in wrong.stderr, wrong.stderr
    short = kvilt("profile", "layers", "--model", PROBE, "--suite", "vt:n=1,length=100", "--prompt", "plain", "-o", out)
    assert short.returncode == 1 and "no case could be profiled" in short.stderr


def test_profile_heads_makes_a_map_and_tests_it(tmp_path):
    out = tmp_path / "map.json"
    asked = ["profile", "heads", "--model", PROBE, "--suite", "vt:n=4,length=300", "--prompt", "plain", "--window", "16", "--share", "0.25", "-o", out]
    done = kvilt(*asked, "--json", tmp_path / "r.json", "--html", tmp_path / "r.html", "--markdown", tmp_path / "r.md")
    assert done.returncode == 0, done.stderr
    made = json.loads(out.read_text())
    classes = sum(made["kv_head_classification"], [])
    assert len(classes) == 12 and classes.count("global") == 3
    report = json.loads((tmp_path / "r.json").read_text())
    kl = report["heads"]["ablation"]
    assert len(kl) == 12 and all(x >= -1e-6 for x in kl) and max(kl) > 1e-4
    best = sorted(range(12), key=lambda head: -kl[head])[:3]
    assert all(classes[head] == "global" for head in best)
    rows = {row["label"]: row for row in report["rows"]}
    assert {"full", "profiled", "random-1", "random-2", "random-3", "first", "last", "all-local"} == set(rows)
    assert rows["full"]["kl_prompt"] == 0 < rows["all-local"]["kl_prompt"]
    assert "random" in report["verdict"] and "better than" in report["verdict"]
    assert "<svg" in (tmp_path / "r.html").read_text() and "| profiled |" in (tmp_path / "r.md").read_text()
    for control in ("random", "first"):
        other = sum(json.loads((tmp_path / f"map.{control}.json").read_text())["kv_head_classification"], [])
        assert other.count("global") == 3 and other != classes
    again = kvilt("generate", PROBE, "12 34", "--raw", "-n", "2", "--head-map", out, "--policy", "redknot")
    assert again.returncode == 0, again.stderr
    made["num_kv_heads"] = 3
    out.write_text(json.dumps(made))
    wrong = kvilt("generate", PROBE, "12 34", "--raw", "-n", "2", "--head-map", out, "--policy", "redknot")
    assert wrong.returncode == 1 and str(out) in wrong.stderr and "kv_head_classification[0]" in wrong.stderr


def test_eval_goes_on_where_it_stopped(tmp_path):
    whole = evaluate(tmp_path)
    journal = tmp_path / "eval.json.journal"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(lines[:-4]) + lines[-4][:30])
    again = evaluate(tmp_path)
    assert len(journal.read_text().splitlines()) == len(lines)
    for before, after in zip(whole["rows"], again["rows"]):
        assert before["kl_answer"] == after["kl_answer"] and before["score"] == after["score"]
    assert "warm" in evaluate(tmp_path, "--warm", "alone", code=1).stderr
    for other in (["--kv-type", "int8"], ["--trust", "clean"], ["--min-segment", "16"], ["--season", "2"]):
        assert other[0].strip("-").replace("-", "_") in evaluate(tmp_path, *other, code=1).stderr
    # The other direction: the journal has what this run has not.
    head = json.loads(lines[0])["setup"]
    journal.write_text(json.dumps({"setup": {**head, "season": 2}}) + "\n" + "".join(lines[1:]))
    assert "season" in evaluate(tmp_path, code=1).stderr
    # As it was before there were digests and most of the settings.
    old = {name: head[name] for name in ("model", "warm", "prompt", "lead", "answer_tokens", "seed", "kv_type")}
    rows = [json.loads(line) for line in lines[1:]]
    for row in rows:
        row.pop("case_digest", None)
        row.get("quilt", {}).pop("case_digest", None)
    journal.write_text("".join(json.dumps(row) + "\n" for row in [{"setup": old}, *rows]))
    assert [row["kl_answer"] for row in evaluate(tmp_path)["rows"]] == [row["kl_answer"] for row in whole["rows"]]
    assert len(journal.read_text().splitlines()) == len(lines), "nothing was measured again"


@pytest.mark.parametrize("model", [[], ["--model", GGUF]], ids=["default-shapes", "model"])
def test_bench_kernels_reports_every_operation(model, tmp_path):
    out = tmp_path / "kernels.json"
    rows = "1" if not model else "1,3"
    done = kvilt("bench", "kernels", *model, "--rows", rows, "--lengths", "96", "--seconds", "0.001", "--threads", "2", "--json", out)
    assert done.returncode == 0, done.stderr
    result = json.loads(out.read_text())
    assert {r["operation"] for r in result["rows"]} == {"matmul", "attend", "attend-one", "rms_norm", "head_norm", "rope", "silu_mul"}
    for row in result["rows"]:
        assert row["seconds"] > 0 and row["gb_s"] > 0 and row["threads"] == 2
        assert row["of_bound"] == pytest.approx(max(row["of_peak"], row["of_read"]))
    types = {r["dtype"] for r in result["rows"] if r["operation"] == "matmul"}
    assert types == ({"F32"} if model else {"Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K", "BF16", "F16", "F32"})


FIGURES = {
    "chat": {"chat_sum_ratio", "chat_sum_flops_ratio", "chat_later_turn_ratio", "regenerate_rows", "switch_later_turn_ratio", "n4_prefill_ratio"},
    "burst": {"burst_tokens_ratio", "burst_ttft_median_s"},
    "mixed": {"mixed_ttft_ratio", "mixed_long_loss", "wait_max_over_mean"},
    "memory": {"pages_unfindable_share", "hot_prefix_tokens_kept", "reuse_last_over_first"},
    "interrupted": {"retry_work_ratio"},
    "sampling": {"sampling_share"},
}


@pytest.mark.parametrize("workload", FIGURES)
def test_bench_traffic_reports_its_figures(workload, tmp_path):
    out = tmp_path / "traffic.json"
    done = kvilt("bench", "traffic", "--model", PROBE, "--quick", "--only", workload, "--json", out, seconds=900)
    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_text())
    assert {row["workload"] for row in report["rows"]} == {workload} and report["model"]["name"]
    values = {row["figure"]: row["value"] for row in report["rows"]}
    assert FIGURES[workload] <= set(values) and all(name in done.stdout for name in values)
    assert all(isinstance(value, (int, float)) for value in values.values())
    asked = {row["what"]: row for row in report["details"]}
    if workload == "chat":
        first, later = asked["default turn 1"], asked["exact turn 2"]
        assert first["reused_tokens"] > 0.9 * 6 * 128, "the passages are known, in another order"
        assert asked["exact turn 1"]["reused_tokens"] == later["recomputed_tokens"] == 0
        assert later["prefix_tokens"] >= asked["exact turn 1"]["prompt_tokens"] > 6 * 128, "a turn begins with the one before"
        assert all(asked[f"default turn {t}"]["prompt_tokens"] == asked[f"exact turn {t}"]["prompt_tokens"] for t in (1, 2, 3, 4))
        assert values["chat_sum_flops_ratio"] > 0 and values["n4_prefill_ratio"] > 0.9 and values["regenerate_rows"] >= 1
    elif workload == "burst":
        assert values["burst_tokens_ratio"] > 0.9, "less than the union cannot be"
    elif workload == "mixed":
        assert asked["reuse behind long"]["reused_tokens"] >= 8 * 128 and asked["reuse behind long"]["fresh_tokens"] <= 51
        assert asked["long disturbed"]["fresh_tokens"] > 3000 and values["wait_max_over_mean"] >= 1
    elif workload == "memory":
        assert 0 <= values["pages_unfindable_share"] <= values["pages_used_share"] <= 1
        assert values["hot_prefix_tokens_kept"] >= 480 and values["reuse_first"] > 0.7 and values["reuse_last_over_first"] > 0
    elif workload == "interrupted":
        # Each goes on from the one before. Power: counted by attempts, their shares of the prompt come to more.
        assert 0.95 < values["retry_work_ratio"] < 1.15 and values["retry_attempts"] >= 3
    else:
        assert values["sampling_share"] < 1


def test_bench_workloads_counts_each_policys_own_evictions(tmp_path):
    out = tmp_path / "workloads.json"
    done = kvilt("bench", "workloads", "--model", PROBE, "--workloads", "suffix", "--prefixes", "6", "--policies", "prefix,prefix",
                 "--context", "2048", "--kv-bytes", "16MiB", "--json", out, seconds=900)
    assert done.returncode == 0, done.stderr
    first, again = json.loads(out.read_text())["rows"]
    assert first["evicted_runs"] == again["evicted_runs"] > 0


def test_a_measure_of_the_paper_makes_a_map_too(tmp_path):
    for by in ("shift", "paper"):
        done = kvilt("profile", "heads", "--model", PROBE, "--suite", "vt:n=2,length=120", "--prompt", "plain", "--window", "16", "--by", by, "-o", tmp_path / "map.json", "--json", tmp_path / "r.json")
        assert done.returncode == 0, done.stderr
        heads = json.loads((tmp_path / "r.json").read_text())["heads"]
        assert len(heads["shift_max"]) == 12 and all(0 < mean <= most <= 1 for mean, most in zip(heads["shift_mean"], heads["shift_max"]))
        assert json.loads((tmp_path / "map.json").read_text())["num_layers"] == 6


@pytest.mark.parametrize("method", ["full", "redknot:global=none:window=8:sink=2"])
def test_a_session_goes_on_in_another_process(method, tmp_path):
    """Prefill here, decode there: the text of one process, and of each head what it keeps."""
    text = "Once upon a time, there was a little dog named Ben. Ben had a red ball. One day Ben and his friend Lily went to the park and"
    whole = ["session", "export", GGUF, text, "--raw", "--method", method]
    file, all_of_it = tmp_path / "first.session", tmp_path / "whole.session"
    assert kvilt(*whole, "-o", file, "--json", tmp_path / "out.json").returncode == 0
    assert kvilt(*whole, "-n", "40", "-o", all_of_it).returncode == 0
    done = kvilt("session", "import", GGUF, file, "-n", "39", "--page-slots", "8", "--json", tmp_path / "in.json")
    assert done.returncode == 0, done.stderr
    there = kvilt("session", "import", GGUF, all_of_it, "-n", "1")
    assert there.returncode == 0 and len(done.stdout) > 60
    out, back = (json.loads((tmp_path / name).read_text())["rows"][0] for name in ("out.json", "in.json"))
    assert out["kv_bytes"] == back["kv_bytes"] and out["bytes"] == back["bytes"] == file.stat().st_size
    if method == "full":
        assert out["kv_bytes"] == out["dense_bytes"]
        generated = kvilt("generate", GGUF, text, "--raw", "-n", "40").stdout.strip()
        assert done.stdout.strip() == generated
    else:
        assert out["kv_bytes"] < 0.5 * out["dense_bytes"]
        assert done.stdout.strip() != kvilt("generate", GGUF, text, "--raw", "-n", "40").stdout.strip()
    # Through a pipe, into a pool of another type: refused; of the same: the same.
    pipe = subprocess.run(f"{KVILT} session export {GGUF} '{text}' --raw --method {method} -o - | {KVILT} session import {GGUF} - -n 39", shell=True, capture_output=True, text=True, cwd=ROOT)
    assert pipe.stdout == done.stdout, pipe.stderr
    other = kvilt("session", "import", GGUF, file, "--kv-type", "int8")
    assert other.returncode == 1 and "KV type" in other.stderr
    damaged = bytearray(file.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    file.write_bytes(damaged)
    refused = kvilt("session", "import", GGUF, file)
    assert refused.returncode == 1 and "damaged" in refused.stderr


@pytest.mark.skipif(not shutil.which("curl"), reason="docs/server.md's first block was NOT run: curl is not installed")
def test_the_server_page_s_first_lines_start_a_server():
    """docs/server.md's first block, as it stands but for the model and the port; tests/protocol runs the other blocks."""
    page = (ROOT / "docs/server.md").read_text()
    serve, curl = page.split("```sh\n")[1].split("```")[0].split("\n", 1)
    assert page.count("\nbuild/release/kvilt serve ") == 1, "another block starts a server: run it too"
    assert serve == "build/release/kvilt serve MODEL --port 8000"
    words = serve.replace("MODEL", str(PROBE)).replace("8000", "0").split()
    # The seed is the test's: without one the tiny model's answer may end before it begins.
    with Serve.of([KVILT, *words[1:], "--seed", "1"]).ready() as server:
        here = curl.replace(":8000/", f":{server.port}/")
        assert here != curl
        done = subprocess.run(["bash", "-euc", here], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        assert answer["object"] == "chat.completion" and answer["usage"]["completion_tokens"] > 0
        assert server.end() == 0
