"""bench/quality_tables.py over journals that are made here."""
import json
import pathlib
import subprocess
import sys

PROGRAM = pathlib.Path(__file__).resolve().parents[2] / "bench" / "quality_tables.py"


def tables(path, rows):
    """rows: policy, case and kl_prompt."""
    common = {"suite": "hotpotqa", "kl_answer": .5, "top1": True, "same_answer": True, "score": 1, "flops_ratio": .2}
    lines = [{"setup": {}}] + [{**common, "policy": policy, "id": case, "kl_prompt": kl} for policy, case, kl in rows]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return subprocess.run([sys.executable, PROGRAM, "--measure", "kl_prompt", path], capture_output=True, text=True)


def line_of(text, policy):
    return next(line for line in text.splitlines() if line.startswith(f"| {policy} |"))


def test_what_was_not_measured_is_no_distance_of_zero(tmp_path):
    done = tables(tmp_path / "mixed.journal", [("naive", "1", .099), ("naive", "2", .5), ("mend", "1", .049), ("mend", "2", None)])
    assert done.returncode == 0, done.stderr
    # One pair, (.049 + .001) / (.099 + .001); as 0 the other would have a five hundredth part.
    assert "| .50 [.50,.50] |" in line_of(done.stdout, "**mend (.15)**"), done.stdout
    assert line_of(done.stdout, "**mend (.15)**").endswith(".049 [.049,.049] |")
    both = tables(tmp_path / "both.journal", [("naive", "1", .099), ("naive", "2", .5), ("mend", "1", .049), ("mend", "2", .0002)])
    assert "| .50 [.50,.50] |" not in line_of(both.stdout, "**mend (.15)**"), "power: the second pair counts where it is there"


def test_a_measure_that_no_row_has_is_an_error(tmp_path):
    done = tables(tmp_path / "none.journal", [("naive", "1", None), ("mend", "1", None)])
    assert done.returncode == 1 and "--prompt-rows" in done.stderr and not done.stdout
