"""Dense parity with Hugging Face Transformers, through the program itself: `kvilt eval --parity`.

Every folder of tests/data/fixtures and tests/data/models that holds a parity.json is a case (made by
tests/fixtures/make_fixtures.py), and so is the real model when KVILT_MODEL names it. Tolerances: the small models are
fp32 (BF16 weights meet unrounded rows), so what remains is the order of sums (and, at large logits, their size); the real
model's weights are held in Q-formats, so activations are rounded too, and what counts is the chosen token; without
that rounding it must agree as the small ones do.
"""
import json
import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
KVILT = os.environ.get("KVILT_PROGRAM", str(ROOT / "build/release/kvilt"))
DATA = ROOT / "tests/data"
FILES = sorted([*DATA.glob("fixtures/*/parity.json"), *DATA.glob("models/*/parity.json")])
REAL = DATA / "parity/qwen2.5-coder-0.5b.json"


def rows_of(parity, model, out, *flags):
    command = [KVILT, "eval", "--parity", str(parity), "--model", str(model), "--json", str(out), *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    rows = json.loads(out.read_text())["rows"]
    cases = json.loads(parity.read_text())["cases"]
    assert len(rows) == len(cases)
    return list(zip(rows, cases))


def models_of(folder):
    """The folder itself if it is a Hugging Face model, its derived one, and any GGUF of the same weights."""
    found = [path.parent for path in (folder / "config.json", folder / "derived-hf/config.json") if path.exists()]
    return found + sorted(folder.glob("*.gguf"))


@pytest.mark.parametrize(
    "parity,model", [(f, m) for f in FILES for m in models_of(f.parent)], ids=lambda path: path.parent.name + "-" + path.name)
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_small_models(parity, model, backend, tmp_path, monkeypatch):
    monkeypatch.setenv("KVILT_BACKEND", backend)
    for row, case in rows_of(parity, model, tmp_path / "out.json", "--activations", "f32"):
        largest = max(abs(value) for _, value in case["top_logits"])
        assert row["max_abs_logit_diff"] <= 2e-3 + 2e-4 * largest, row
        assert row["top1_same"], row
        assert row["greedy_same"] == len(case["greedy"]), row


def test_there_are_fixtures():
    names = {path.parent.name for path in FILES}
    assert {"llama", "qwen2", "qwen3", "stories260K", "llama3-atto-1M", "probe-1M"} <= names


def test_a_wrong_golden_is_noticed(tmp_path):
    """The power check: with other expected values the rows must say so."""
    parity = json.loads((DATA / "fixtures/llama/parity.json").read_text())
    case = parity["cases"][0]
    case["top_logits"] = [[(token + 1) % 256, value + 1] for token, value in case["top_logits"]]
    case["greedy"] = [(token + 1) % 256 for token in case["greedy"]]
    wrong = tmp_path / "wrong.json"
    wrong.write_text(json.dumps({**parity, "cases": [case]}))
    ((row, _),) = rows_of(wrong, DATA / "fixtures/llama", tmp_path / "out.json")
    assert row["max_abs_logit_diff"] > 0.1 and not row["top1_same"] and row["greedy_same"] == 0


def test_real_model(tmp_path):
    model = os.environ.get("KVILT_MODEL")
    if not model:
        pytest.skip("KVILT_MODEL is not set: the real model is not here (scripts/get_model)")
    for row, case in rows_of(REAL, model, tmp_path / "out.json"):
        assert row["top1_same"], row
        assert row["greedy_same"] >= min(16, len(case["greedy"])), row
        assert row["max_abs_logit_diff"] <= 1.0, row


def test_real_model_without_rounding(tmp_path):
    model = os.environ.get("KVILT_MODEL")
    if not model:
        pytest.skip("KVILT_MODEL is not set: the real model is not here (scripts/get_model)")
    for row, case in rows_of(REAL, model, tmp_path / "out.json", "--activations", "f32"):
        assert row["max_abs_logit_diff"] <= 1e-3, row  # 4e-5 when this was written
        assert row["greedy_same"] == len(case["greedy"]), row
